//! A prefix of a bucket on S3, or on what speaks like it. Requests are signed, repeated and
//! understood by `object_store`; they go out as all others of this program do.

use std::io::ErrorKind;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::RANGE;
use http::{Response, StatusCode};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore as _, RetryConfig};
use reqwest::{Request, Url};
use tokio::time::timeout;

use crate::exchange::{Asked, How, root_cause};
use crate::server::{Failed, MOST_OBJECTS, Part};
use crate::web::is_name;
use crate::{Error, is_loopback};

/// The longest answer: a page of a listing, or the largest range.
const LONGEST: usize = 16 << 20;
/// How often a request is repeated by `object_store`. A range is asked for anew as a whole where
/// that fails, too.
const RETRIES: usize = 2;
/// How many times the patience a listing may take.
const LISTING: u32 = 20;

/// What says by which credentials S3 is asked, or that it is asked without. What a machine in a
/// cloud would be told at an address of its own is not asked for.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

#[derive(Debug)]
pub struct Bucket {
    store: AmazonS3,
    prefix: Path,
    asked: Asked,
}

impl Bucket {
    pub fn open(url: &Url, asked: Asked) -> Result<Self, Error> {
        let fail = |why: String| Error::S3(format!("{url}: {why}"));
        let bucket = url.host_str().ok_or_else(|| fail("it names no bucket".into()))?;
        let prefix = Path::from_url_path(url.path()).map_err(|e| fail(e.to_string()))?;
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if !CREDENTIALS.iter().any(|name| set(name).is_some()) {
            return Err(fail("there are no credentials".into()));
        }
        let endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        if let Some(endpoint) = &endpoint {
            let parsed: Url =
                endpoint.parse().map_err(|_| fail(format!("{endpoint} is no address")))?;
            if parsed.scheme() != "https" && !is_loopback(&parsed) {
                return Err(Error::Plain(endpoint.clone()));
            }
        }
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: asked.patience.saturating_mul(LISTING),
            ..RetryConfig::default()
        };
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_allow_http(true)
            .with_retry(retry)
            .with_http_connector(Transport(asked.clone()))
            .build()
            .map_err(|e| fail(e.to_string()))?;
        Ok(Self { store, prefix, asked })
    }

    pub async fn list(&self) -> Result<Vec<String>, Failed> {
        let mut listed = Vec::new();
        let mut objects = self.store.list(Some(&self.prefix));
        let whole = self.asked.patience.saturating_mul(LISTING);
        let all = async {
            while let Some(object) = objects.next().await {
                let object = object.map_err(|e| failed(&e))?;
                let parts = object.location.prefix_match(&self.prefix).into_iter().flatten();
                let mut parts = parts.map(|part| part.as_ref().to_owned());
                // What lies deeper is another store's.
                if let (Some(name), None) = (parts.next(), parts.next())
                    && is_name(&name)
                {
                    listed.push(name);
                }
                if listed.len() > MOST_OBJECTS {
                    return Err(Failed::lie("its listing has too many objects"));
                }
            }
            Ok(())
        };
        if let Ok(outcome) = timeout(whole, all).await {
            return outcome.map(|()| listed);
        }
        let why = format!("its listing took more than {} s", whole.as_secs());
        Err(Failed::new(ErrorKind::TimedOut, why))
    }

    pub async fn get(&self, name: &str, range: Range<u64>) -> Result<Part, Failed> {
        let location = self.prefix.clone().join(name);
        let range = Some(GetRange::Bounded(range));
        let options = GetOptions { range, ..GetOptions::default() };
        let result = self.store.get_opts(&location, options).await.map_err(|e| failed(&e))?;
        let (len, tag) = (result.meta.size, result.meta.e_tag.clone());
        let bytes = result.bytes().await.map_err(|e| failed(&e))?;
        Ok(Part { bytes, len, tag })
    }
}

fn failed(e: &object_store::Error) -> Failed {
    use object_store::Error as E;
    let kind = match e {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::PermissionDenied,
        _ if caused_by(e, HttpErrorKind::Timeout) => ErrorKind::TimedOut,
        _ => ErrorKind::Other,
    };
    let why = root_cause(e).unwrap_or_else(|| e.to_string());
    let refused = message(&why).map(|message| format!("the server refuses: {message}"));
    Failed::new(kind, refused.unwrap_or(why))
}

/// Returns what a server says in the XML of an error.
fn message(text: &str) -> Option<&str> {
    let (_, behind) = text.split_once("<Message>")?;
    behind.split_once("</Message>").map(|(message, _)| message)
}

fn caused_by(e: &object_store::Error, kind: HttpErrorKind) -> bool {
    let mut cause = std::error::Error::source(e);
    while let Some(inner) = cause {
        if inner.downcast_ref::<HttpError>().is_some_and(|e| e.kind() == kind) {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// Takes the requests of `object_store` to the server.
#[derive(Clone, Debug)]
struct Transport(Asked);

impl HttpConnector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url: Url =
            parts.uri.to_string().parse().map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        let is_of_range = parts.headers.contains_key(RANGE);
        let mut request = Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = body.as_bytes().map(|body| body.clone().into());
        let answer = self.0.exchange(request, LONGEST).await.map_err(|broken| {
            let kind = match broken.how {
                How::Connect => HttpErrorKind::Connect,
                How::Silent => HttpErrorKind::Timeout,
                How::Cut => HttpErrorKind::Interrupted,
                How::Slow | How::Unfit => HttpErrorKind::Decode,
            };
            HttpError::new(kind, broken)
        })?;
        let body = if answer.status == StatusCode::OK && is_of_range {
            // It is told as what it is: no answer of a range.
            Bytes::new()
        } else {
            answer.body
        };
        let mut response = Response::new(HttpResponseBody::from(body));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}
