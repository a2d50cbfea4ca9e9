//! How does a recorder do at this moment? Server-sent events, one each second, of what has changed
//! since the one before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use utoipa::ToSchema;

use crate::api::{Entry, Places};
use crate::config::Source;
use crate::routes::Gateway;
use crate::{control, time};

/// The time between two events.
const EVERY: Duration = Duration::from_secs(1);

/// One event.
#[derive(Debug, Serialize, ToSchema)]
pub struct Event {
    time: String,
    /// Why there are no numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    rates: Option<Rates>,
}

/// What came since the event before, for each second.
#[derive(Debug, Serialize, PartialEq, ToSchema)]
#[allow(clippy::struct_field_names, reason = "units come last")]
struct Rates {
    seen_packets_per_s: f64,
    captured_packets_per_s: f64,
    captured_bytes_per_s: f64,
    filtered_packets_per_s: f64,
    dropped_packets_per_s: f64,
    unseen_packets_per_s: f64,
}

impl Rates {
    fn between(before: &Value, now: &Value) -> Option<Self> {
        let number = |answer: &Value, key: &str| answer[key].as_u64();
        let us = number(now, "elapsed_us")?.checked_sub(number(before, "elapsed_us")?)?;
        // A recorder that began anew counts from zero.
        let rate = |keys: &[&str]| {
            let sum =
                |answer: &Value| keys.iter().filter_map(|key| number(answer, key)).sum::<u64>();
            sum(now).saturating_sub(sum(before)) as f64 * 1e6 / us.max(1) as f64
        };
        Some(Self {
            seen_packets_per_s: rate(&["seen"]),
            captured_packets_per_s: rate(&["captured"]),
            captured_bytes_per_s: rate(&["bytes_captured"]),
            filtered_packets_per_s: rate(&["filtered"]),
            dropped_packets_per_s: rate(&["dropped_ring", "dropped_other"]),
            unseen_packets_per_s: rate(&["unseen"]),
        })
    }
}

/// Begins to tell of a source, until the client leaves or the gateway ends.
pub fn begin(gateway: &Gateway, source: Arc<Source>, places: Places, entry: Entry) -> Response {
    let (sender, receiver) = channel(1);
    let ending = gateway.ending.clone();
    tokio::spawn(async move {
        let mut bytes = 0;
        let is_left = ending.run_until_cancelled(tell(&source, &sender, &mut bytes)).await;
        entry.ended(0, bytes, if is_left.is_some() { "left" } else { "complete" });
        drop(places);
    });
    let mut response = Body::new(Events(receiver)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Tells of a source until the client leaves, and counts the bytes.
async fn tell(source: &Source, sender: &Sender<Bytes>, bytes: &mut u64) {
    let mut before = control::statistics(&source.socket).await;
    loop {
        let next = Instant::now() + EVERY;
        tokio::time::sleep_until(next.into()).await;
        let now = control::statistics(&source.socket).await;
        let rates = before.as_ref().ok().zip(now.as_ref().ok());
        let rates = rates.and_then(|(before, now)| Rates::between(before, now));
        let error = now.as_ref().err().cloned();
        let event = Event { time: time::show(time::now_ns()), error, rates };
        let text = serde_json::to_string(&event).unwrap_or_default();
        let event = Bytes::from(format!("data: {text}\n\n"));
        *bytes += event.len() as u64;
        if sender.send(event).await.is_err() {
            return;
        }
        before = now;
    }
}

/// The body of an answer that goes on.
struct Events(Receiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Rates;

    #[test]
    fn rates_are_of_a_second() {
        let before =
            json!({"elapsed_us": 1_000_000, "seen": 10, "captured": 10, "dropped_ring": 1});
        let now = json!({"elapsed_us": 3_000_000, "seen": 30, "captured": 16, "dropped_ring": 3,
            "dropped_other": 4});
        let rates = Rates::between(&before, &now).expect("both are there");
        assert_eq!((rates.seen_packets_per_s, rates.captured_packets_per_s), (10.0, 3.0));
        assert_eq!((rates.dropped_packets_per_s, rates.unseen_packets_per_s), (3.0, 0.0));
        assert_eq!(Rates::between(&now, &before), None, "it began anew");
        assert_eq!(Rates::between(&json!({}), &now), None);
    }
}
