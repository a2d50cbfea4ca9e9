//! One request and its whole answer, within bounds of time and of memory.

use std::error::Error;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, RANGE};
use http::{Method, StatusCode};
use reqwest::{Client, Request, Response};
use tokio::time::timeout;

/// Bytes of a refusal that are read.
const REFUSAL: usize = 1024;
/// How many times the patience an answer may take as a whole, however steadily it drips.
const WHOLE: u32 = 10;

/// A client, and how long a server may be silent.
#[derive(Clone, Debug)]
pub struct Asked {
    pub client: Client,
    pub patience: Duration,
}

/// An answer.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The contents; of a refusal the beginning.
    pub body: Bytes,
}

/// How an exchange failed before there was a whole answer.
#[derive(Debug)]
pub struct Broken {
    pub how: How,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// No server was reached.
    Connect,
    /// The server said nothing for too long.
    Silent,
    /// The server sent something all the time, and too little.
    Slow,
    /// The answer ended in the middle.
    Cut,
    /// The answer is not what it may be. Asking again is of no use.
    Unfit,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for Broken {}

impl Broken {
    pub fn unfit(why: impl Into<String>) -> Self {
        Self { how: How::Unfit, why: why.into() }
    }
}

impl Asked {
    /// Asks, and reads the answer, which has `most` bytes at most. An answer to the request of a
    /// range that is not that of a range is not read: it could be as long as the object.
    pub async fn exchange(&self, request: Request, most: usize) -> Result<Answer, Broken> {
        let is_of_range = request.headers().contains_key(RANGE);
        let is_head = request.method() == Method::HEAD;
        let whole = self.patience.saturating_mul(WHOLE);
        let exchange = async {
            let answer = self.within(self.client.execute(request)).await?;
            let (status, headers) = (answer.status(), answer.headers().clone());
            let body = match status {
                StatusCode::OK if is_of_range => Bytes::new(),
                _ if is_head => Bytes::new(),
                _ if status.is_success() => self.body(answer, most).await?,
                _ => self.refusal(answer).await,
            };
            Ok(Answer { status, headers, body })
        };
        match timeout(whole, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Broken {
                how: How::Slow,
                why: format!("its answer took more than {} s", whole.as_secs()),
            }),
        }
    }

    async fn within<T>(&self, what: impl Future<Output = reqwest::Result<T>>) -> Result<T, Broken> {
        match timeout(self.patience, what).await {
            Ok(outcome) => outcome.map_err(|e| broken(&e)),
            Err(_) => Err(Broken {
                how: How::Silent,
                why: format!("it sent nothing for {} s", self.patience.as_secs()),
            }),
        }
    }

    async fn body(&self, mut answer: Response, most: usize) -> Result<Bytes, Broken> {
        let told = answer.content_length();
        let too_long = || Broken::unfit(format!("its answer is longer than {most} bytes"));
        if told.is_some_and(|len| len > most as u64) {
            return Err(too_long());
        }
        let mut body = BytesMut::with_capacity(told.unwrap_or(0) as usize);
        while let Some(piece) = self.within(answer.chunk()).await? {
            if body.len() + piece.len() > most {
                return Err(too_long());
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }

    async fn refusal(&self, mut answer: Response) -> Bytes {
        let mut text = BytesMut::new();
        while text.len() < REFUSAL
            && let Ok(Some(piece)) = self.within(answer.chunk()).await
        {
            text.extend_from_slice(&piece[..piece.len().min(REFUSAL)]);
        }
        text.freeze()
    }
}

/// Returns what an error of the client means, without the address, which is the same for all.
fn broken(e: &reqwest::Error) -> Broken {
    let (how, what) = if e.is_connect() {
        (How::Connect, "no connection")
    } else if e.is_timeout() {
        (How::Silent, "no answer")
    } else {
        (How::Cut, "the answer broke off")
    };
    let why = root_cause(e).map_or_else(|| what.to_owned(), |cause| format!("{what}: {cause}"));
    Broken { how, why }
}

/// Returns what the innermost cause of an error says, if it has one.
pub fn root_cause(e: &dyn Error) -> Option<String> {
    let (mut cause, mut root) = (e.source(), None);
    while let Some(inner) = cause {
        root = Some(inner.to_string());
        cause = inner.source();
    }
    root
}
