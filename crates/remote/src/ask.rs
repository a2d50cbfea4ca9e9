//! A sensor's gateway is asked, and its answer becomes a stream. Each is received by a task of its
//! own, which waits where [`PIECES`] of it are not read yet; so however large answers are, and
//! however far one is ahead of another, a sensor takes no more than some 3 MiB of memory.
//!
//! A gateway that does not answer in time is given up: one that cannot be reached, and
//! one that sends nothing for as long as the sensor's patience.

use std::io::{self, Read};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Response, Url};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::config::Sensor;
use crate::flags::Query;

/// Pieces of an answer that wait to be read. None is larger than hyper's buffer, some 400 KiB.
const PIECES: usize = 4;
/// Bytes of a refusal that are read.
const REFUSAL: usize = 1024;

/// A part of an answer, or why no more of it comes.
type Part = Result<Bytes, String>;

/// The answer of a sensor as it comes.
pub struct Stream {
    parts: Receiver<Part>,
    part: Bytes,
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(Ok(part)) => self.part = part,
                Some(Err(why)) => return Err(io::Error::other(why)),
                None => return Ok(0),
            }
        }
        let len = self.part.len().min(out.len());
        out[..len].copy_from_slice(&self.part.split_to(len));
        Ok(len)
    }
}

/// Begins to ask a sensor, on a runtime's threads.
///
/// # Errors
/// Where certificates cannot be read.
pub fn begin(runtime: &tokio::runtime::Runtime, sensor: &Sensor, query: &Query) -> Result<Stream> {
    let client = sensor.shown.client(sensor.patience)?;
    let mut request = client.get(address(sensor, query)).header(ACCEPT, "application/x-pcapng");
    if let Some(token) = &sensor.shown.token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .context("the token has characters that no token has")?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let patience = sensor.patience;
    let (sender, parts) = channel(PIECES);
    runtime.spawn(async move {
        if let Err(why) = receive(request.send(), patience, &sender).await {
            // Where nobody reads any more, nobody needs to know.
            let _ = sender.send(Err(why)).await;
        }
    });
    Ok(Stream { parts, part: Bytes::new() })
}

/// Hands on an answer, piece by piece.
async fn receive(
    answer: impl Future<Output = reqwest::Result<Response>>,
    patience: Duration,
    sender: &Sender<Part>,
) -> Result<(), String> {
    let silent = |_| format!("it sent nothing for {} s", patience.as_secs());
    let mut answer = timeout(patience, answer).await.map_err(silent)?.map_err(|e| told(&e))?;
    if !answer.status().is_success() {
        let mut text = Vec::new();
        while text.len() < REFUSAL
            && let Ok(Ok(Some(piece))) = timeout(patience, answer.chunk()).await
        {
            text.extend_from_slice(&piece[..piece.len().min(REFUSAL)]);
        }
        let text = String::from_utf8_lossy(&text);
        return Err(format!("it refuses: {} ({})", text.trim(), answer.status()));
    }
    while let Some(piece) =
        timeout(patience, answer.chunk()).await.map_err(silent)?.map_err(|e| told(&e))?
    {
        if sender.send(Ok(piece)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns an error with its causes, without the question, which is the same for all sensors.
fn told(e: &reqwest::Error) -> String {
    let what = if e.is_connect() {
        "no connection"
    } else if e.is_timeout() {
        "no answer"
    } else {
        "the answer broke off"
    };
    let causes = std::iter::successors(std::error::Error::source(e), |cause| cause.source());
    causes.last().map_or_else(|| what.to_owned(), |cause| format!("{what}: {cause}"))
}

/// Returns where the packets are.
fn address(sensor: &Sensor, query: &Query) -> Url {
    let mut address = sensor.url.clone();
    address.set_path("/v1/packets");
    let filter = query.expression.join(" ");
    let limit = query.limit.map(|limit| limit.to_string());
    let parameters = [
        ("store", sensor.store.as_deref()),
        ("filter", (!filter.is_empty()).then_some(&*filter)),
        ("after", query.after.as_deref()),
        ("before", query.before.as_deref()),
        ("limit", limit.as_deref()),
        ("community_id", query.community_id.as_deref()),
    ];
    let mut pairs = address.query_pairs_mut();
    for (name, value) in parameters {
        if let Some(value) = value {
            pairs.append_pair(name, value);
        }
    }
    drop(pairs);
    address
}
