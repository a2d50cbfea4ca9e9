//! A prefix of a bucket on S3, or on what speaks like it. Requests are signed, repeated and
//! understood by `object_store`; they go out as all others of this program do.

use std::io::ErrorKind;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Response, StatusCode};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _, RetryConfig};
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
    /// Opens a bucket as the environment says.
    pub fn open(url: &Url, asked: Asked) -> Result<Self, Error> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if !CREDENTIALS.iter().any(is_set) {
            return Err(Error::S3(format!("{url}: there are no credentials")));
        }
        Self::of(AmazonS3Builder::from_env(), url, asked)
    }

    fn of(builder: AmazonS3Builder, url: &Url, asked: Asked) -> Result<Self, Error> {
        let fail = |why: String| Error::S3(format!("{url}: {why}"));
        let bucket = url.host_str().ok_or_else(|| fail("it names no bucket".into()))?;
        let prefix = Path::from_url_path(url.path()).map_err(|e| fail(e.to_string()))?;
        for key in [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint] {
            let Some(endpoint) = builder.get_config_value(&key) else { continue };
            let parsed: Url =
                endpoint.parse().map_err(|_| fail(format!("{endpoint} is no address")))?;
            if parsed.scheme() != "https" && !is_loopback(&parsed) {
                return Err(Error::Plain(endpoint));
            }
        }
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: asked.patience.saturating_mul(LISTING),
            ..RetryConfig::default()
        };
        let store = builder
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
        let start = range.start;
        let range = Some(GetRange::Bounded(range));
        let options = GetOptions { range, ..GetOptions::default() };
        let result = match self.store.get_opts(&location, options).await {
            Err(e) if cause::<Behind>(&e).is_some() => return self.behind(&location, start).await,
            result => result.map_err(|e| failed(&e))?,
        };
        let (len, tag) = (result.meta.size, result.meta.e_tag.clone());
        let bytes = result.bytes().await.map_err(|e| failed(&e))?;
        Ok(Part { bytes, len, tag })
    }

    /// Returns what is known of an object where a range begins behind its end.
    async fn behind(&self, location: &Path, start: u64) -> Result<Part, Failed> {
        let meta = self.store.head(location).await.map_err(|e| failed(&e))?;
        if start < meta.size {
            return Err(Failed::lie("it refuses a range without a reason"));
        }
        Ok(Part { bytes: Bytes::new(), len: meta.size, tag: meta.e_tag })
    }
}

/// The refusal of a range that begins behind the object's end.
#[derive(Debug, thiserror::Error)]
#[error("the range is behind the object's end")]
struct Behind;

fn failed(e: &object_store::Error) -> Failed {
    use object_store::Error as E;
    let kind = match e {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::PermissionDenied,
        _ if cause::<HttpError>(e).is_some_and(|e| e.kind() == HttpErrorKind::Timeout) => {
            ErrorKind::TimedOut
        }
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

/// Returns the outermost cause of a type.
fn cause<E: std::error::Error + 'static>(e: &object_store::Error) -> Option<&E> {
    let mut cause = std::error::Error::source(e);
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref() {
            return Some(found);
        }
        cause = inner.source();
    }
    None
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
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(HttpError::new(HttpErrorKind::Unknown, Behind));
        }
        let mut response = Response::new(HttpResponseBody::from(answer.body));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use object_store::aws::AmazonS3Builder;

    use super::Bucket;
    use crate::Shown;
    use crate::exchange::Asked;

    /// Starts a server of an object without a byte, and returns its address.
    fn start() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head = lines.next().unwrap().unwrap();
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                let status = if head.starts_with("HEAD") { "200 OK" } else { "416 No" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\
                     Last-Modified: Fri, 02 Jan 2026 03:04:05 GMT\r\nETag: \"0\"\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        format!("http://{address}")
    }

    #[test]
    fn an_object_without_a_byte_has_a_length() {
        let patience = Duration::from_secs(60);
        let client = Shown::default().client(patience).unwrap();
        let builder = AmazonS3Builder::new()
            .with_skip_signature(true)
            .with_endpoint(start())
            .with_region("r");
        let url = "s3://tape/berlin".parse().unwrap();
        let bucket = Bucket::of(builder, &url, Asked { client, patience }).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let part = runtime.block_on(bucket.get("empty", 0..10)).unwrap();
        assert_eq!((part.len, part.bytes.len()), (0, 0));
    }
}
