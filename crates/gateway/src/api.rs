//! Questions over HTTP: who asks is found out, ceilings are put on what they ask, the audit writes
//! it down, and then the answer begins.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tapdeck_store::query::Span;
use tapdeck_store::stat::{self, Report};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::access::User;
use crate::answer::{self, End, Failure, Form, Part, Question};
use crate::audit::{Asked, Ended};
use crate::condition::Condition;
use crate::config::SourceKind;
use crate::report::{Histogram, Hosts, Losses, Stat};
use crate::routes::Gateway;
use crate::{say, steno, time, watch};

/// How long a question waits for its turn.
const TURN: Duration = Duration::from_secs(60);
/// Parts of a histogram, at most.
const PARTS: usize = 10_000;
/// Hosts and ports that are listed.
const TOP: usize = 100;

const PCAPNG: &str = "application/x-pcapng";
const PCAP: &str = "application/vnd.tcpdump.pcap";

/// The one who has connected, as far as the connection tells.
#[derive(Clone, Debug)]
pub struct Peer {
    /// An address, for the audit.
    pub from: String,
    /// The common name of a certificate that was believed.
    pub certificate: Option<String>,
    /// The user that everybody is who connects at the listener.
    pub user: Option<String>,
    /// Whether only this machine reaches the listener.
    pub is_local: bool,
}

/// A refusal: what is answered instead.
pub struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    fn question(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text + "\n").into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
            }
            _ => {}
        }
        response
    }
}

/// Somebody who asks, and how they showed who they are.
pub struct Asker {
    pub user: Arc<User>,
    by: &'static str,
    from: String,
}

/// Somebody who could not show who they are, as the audit has it.
#[derive(Serialize)]
struct Refused<'a> {
    from: &'a str,
    certificate: Option<&'a str>,
}

/// Finds out who asks.
pub async fn asker(
    gateway: &Arc<Gateway>,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Asker, Refusal> {
    let found = match headers.get(AUTHORIZATION) {
        Some(shown) => {
            let token = shown.to_str().ok().and_then(|shown| shown.strip_prefix("Bearer "));
            let token = token.unwrap_or_default().trim().to_owned();
            by_token(gateway, token).await.map(|user| (user, "token"))
        }
        None => match (&peer.certificate, &peer.user) {
            (Some(name), _) => gateway.users.with_certificate(name).map(|u| (u, "certificate")),
            (None, Some(name)) => gateway.users.named(name).map(|user| (user, "listener")),
            (None, None) => None,
        },
    };
    if let Some((user, by)) = found {
        return Ok(Asker { user, by, from: peer.from.clone() });
    }
    let refused = Refused { from: &peer.from, certificate: peer.certificate.as_deref() };
    if let Some(audit) = &gateway.audit
        && let Err(e) = audit.refused(&refused)
    {
        say(&format!("the audit cannot be written: {e}"));
    }
    Err(Refusal::new(StatusCode::UNAUTHORIZED, "who are you? show a certificate, or a token"))
}

async fn by_token(gateway: &Arc<Gateway>, token: String) -> Option<Arc<User>> {
    // Each takes memory.
    let _turn = gateway.hashes.acquire().await.ok()?;
    let gateway = gateway.clone();
    tokio::task::spawn_blocking(move || gateway.users.with_token(&token)).await.ok()?
}

/// The parameters of a question. Unknown ones are refused, and so are those that come twice.
struct Parameters(BTreeMap<String, String>);

impl Parameters {
    fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Refusal> {
        let mut parameters = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(query.unwrap_or("").as_bytes()) {
            if !known.contains(&&*key) {
                let known = known.join(", ");
                return Err(Refusal::question(format!(
                    "unknown parameter {key:?}: there are {known}"
                )));
            }
            if parameters.insert(key.to_string(), value.into_owned()).is_some() {
                return Err(Refusal::question(format!("{key} is there twice")));
            }
        }
        Ok(Self(parameters))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn span(&self) -> Result<Span, Refusal> {
        let point = |key| {
            let point = self.get(key).map(time::point).transpose();
            point.map_err(|e| Refusal::question(format!("{key}: {e}")))
        };
        let after_ns = point("after")?.unwrap_or(Span::ALL.after_ns);
        let before_ns = point("before")?.unwrap_or(Span::ALL.before_ns);
        if after_ns > before_ns {
            return Err(Refusal::question("after is later than before"));
        }
        Ok(Span { after_ns, before_ns })
    }

    fn number(&self, key: &str) -> Result<Option<u64>, Refusal> {
        let number = |text: &str| {
            text.parse().map_err(|_| Refusal::question(format!("{key}: {text:?} is no number")))
        };
        self.get(key).map(number).transpose()
    }
}

pub async fn watch(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let parameters = Parameters::read(query.as_deref(), &["store"])?;
    let (name, _) = store(&gateway, &asker, parameters.get("store"))?;
    refuse_filtered(&asker.user)?;
    let source = gateway.sources.iter().find(|source| source.name == name);
    let place = gateway.watches.clone().try_acquire_owned().ok();
    let (Some(source), Some(place)) = (source, place) else {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many watch already"));
    };
    Ok(watch::begin(&gateway, source.clone(), place))
}

/// Refuses what is told of all packets to those who may see some of them only.
fn refuse_filtered(user: &User) -> Result<(), Refusal> {
    if user.role.filter.is_empty() {
        return Ok(());
    }
    let text = "your role has a filter, and this is told of all packets";
    Err(Refusal::new(StatusCode::FORBIDDEN, text))
}

/// Returns the store that is asked about: the one that is named, or the only one.
fn store(
    gateway: &Gateway,
    asker: &Asker,
    name: Option<&str>,
) -> Result<(String, PathBuf), Refusal> {
    let stores = gateway.sources.iter().filter_map(|source| match &source.kind {
        SourceKind::Store { directory } => Some((&source.name, directory)),
        SourceKind::Daemon => None,
    });
    let mut seen = stores.filter(|(name, _)| asker.user.role.may_see(name));
    let found = if let Some(name) = name {
        seen.find(|(known, _)| *known == name)
    } else {
        let first = seen.next();
        if seen.next().is_some() {
            return Err(Refusal::question("which store? there are several"));
        }
        first
    };
    // Whether there is one that they may not see is nothing to tell.
    let (name, directory) = found.ok_or_else(|| {
        let named = name.map_or_else(String::new, |name| format!(" {name:?}"));
        Refusal::new(StatusCode::NOT_FOUND, format!("there is no store{named} for you"))
    })?;
    Ok((name.clone(), directory.clone()))
}

/// Returns the condition that a role adds to every question.
fn ceiling(user: &User) -> Vec<Condition> {
    let role = &user.role;
    let mut ceiling = Vec::new();
    if let Some(history) = role.history {
        let history_ns = i64::try_from(history.as_nanos()).unwrap_or(i64::MAX);
        let after_ns = time::now_ns().saturating_sub(history_ns);
        ceiling.push(Condition::Times(Span { after_ns, ..Span::ALL }));
    }
    if !role.filter.is_empty() {
        ceiling.push(Condition::Filter(role.filter.clone()));
    }
    ceiling
}

/// Places for a question, which it holds until its answer has ended.
struct Places {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Waits for a question's turn: first among those of its user, then among all.
async fn places(gateway: &Gateway, user: &User) -> Result<Places, Refusal> {
    let busy = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many questions: ask again");
    let wait = |places: Arc<Semaphore>| async move {
        timeout(TURN, places.acquire_owned()).await.ok()?.ok()
    };
    let of_user = wait(user.places.clone()).await.ok_or_else(busy)?;
    let of_all = wait(gateway.places.clone()).await.ok_or_else(busy)?;
    Ok(Places { _of_user: of_user, _of_all: of_all })
}

/// Writes down what is asked. Without, nothing is answered.
fn write_down(gateway: &Gateway, asked: &Asked<'_>) -> Result<String, Refusal> {
    let written = match &gateway.audit {
        Some(audit) => audit.asked(asked),
        None => Err(io::Error::other("there is none")),
    };
    written.map_err(|e| {
        say(&format!("the audit cannot be written, so a question is refused: {e}"));
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the audit cannot be written")
    })
}

fn write_end(gateway: &Gateway, id: &str, ended: &Ended<'_>) {
    if let Some(audit) = &gateway.audit
        && let Err(e) = audit.ended(id, ended)
    {
        say(&format!("the audit cannot be written: how {id} ended is not in it: {e}"));
    }
}

/// A question for packets, before ceilings.
struct Wanted {
    store: Option<String>,
    condition: Condition,
    /// The question in its own words.
    words: String,
    form: Form,
    packets: Option<u64>,
    bytes: Option<u64>,
    what: &'static str,
    content_type: &'static str,
    wants_trailers: bool,
}

async fn give(gateway: Arc<Gateway>, asker: Asker, wanted: Wanted) -> Result<Response, Refusal> {
    let began = Instant::now();
    let user = asker.user.clone();
    let (name, directory) = store(&gateway, &asker, wanted.store.as_deref())?;
    for filter in wanted.condition.filters() {
        let checked = gateway.checked.check(filter).await;
        checked.map_err(Refusal::question)?;
    }
    let places = places(&gateway, &user).await?;
    let mut parts = ceiling(&user);
    parts.push(wanted.condition);
    let condition = Condition::Every(parts);
    let span = condition.span();
    let show = |ns: i64, open: i64| (ns != open).then(|| time::show(ns));
    let (after, before) =
        (show(span.after_ns, Span::ALL.after_ns), show(span.before_ns, Span::ALL.before_ns));
    let id = write_down(
        &gateway,
        &Asked {
            who: &user.name,
            by: asker.by,
            from: &asker.from,
            what: wanted.what,
            store: &name,
            filter: &wanted.words,
            ceiling: &user.role.filter,
            after,
            before,
        },
    )?;
    let question = Question {
        directory,
        condition,
        form: wanted.form,
        packets: user.role.packets.min(wanted.packets.unwrap_or(u64::MAX)),
        bytes: user.role.bytes.min(wanted.bytes.unwrap_or(u64::MAX)),
        comment: format!("from {name}, {}", wanted.words),
    };
    let ended = {
        let (gateway, what) = (gateway.clone(), wanted.what);
        move |result: &Result<End, Failure>, packets: u64, bytes: u64| {
            let word = match result {
                Ok(end) => end.word(),
                Err(Failure::Left) => "left",
                Err(_) => "failed",
            };
            write_end(&gateway, &id, &Ended { packets, bytes, result: word });
            gateway.own.answered(&name, what, word, began.elapsed());
        }
    };
    let mut receiver = answer::begin(question, ended);
    match receiver.recv().await {
        Some(Part::Begun) => {}
        Some(Part::Failed(failure)) => return Err(refused(failure)),
        other => {
            say(&format!("an answer that does not begin: {other:?}"));
            return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no answer"));
        }
    }
    let body =
        Body::new(Packets { receiver, wants_trailers: wanted.wants_trailers, _places: places });
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(wanted.content_type));
    if wanted.wants_trailers {
        headers.insert("trailer", HeaderValue::from_static(RESULT));
    }
    Ok(response)
}

fn refused(failure: Failure) -> Refusal {
    match failure {
        Failure::Question(text) => Refusal::question(text),
        Failure::Form(text) => Refusal::new(StatusCode::NOT_ACCEPTABLE, text),
        Failure::Store(text) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text),
        Failure::Left => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no answer"),
    }
}

/// The trailer that says how whole an answer is.
const RESULT: &str = "tapdeck-result";

/// The body of an answer.
struct Packets {
    receiver: Receiver<Part>,
    wants_trailers: bool,
    _places: Places,
}

impl http_body::Body for Packets {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            let Poll::Ready(part) = self.receiver.poll_recv(context) else { return Poll::Pending };
            return Poll::Ready(match part {
                Some(Part::Begun) => continue,
                Some(Part::Bytes(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(Part::Ended(end)) if self.wants_trailers => {
                    let line: String = end.line().chars().filter(char::is_ascii).collect();
                    let value = HeaderValue::from_str(&line);
                    let value = value.unwrap_or_else(|_| HeaderValue::from_static(end.word()));
                    Some(Ok(Frame::trailers(
                        [(HeaderName::from_static(RESULT), value)].into_iter().collect(),
                    )))
                }
                Some(Part::Ended(_)) | None => None,
                // The connection breaks off, so that nobody takes this for the end.
                Some(Part::Failed(failure)) => Some(Err(io::Error::other(format!("{failure:?}")))),
            });
        }
    }
}

pub async fn packets(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let known = ["store", "filter", "after", "before", "limit"];
    let parameters = Parameters::read(query.as_deref(), &known)?;
    let filter = parameters.get("filter").unwrap_or("").to_owned();
    let accepts = |kind: &str| {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        accepted.into_iter().any(|accept| accept.contains(kind))
    };
    let is_pcap = accepts(PCAP);
    let te = headers.get("te").and_then(|te| te.to_str().ok()).unwrap_or("");
    let wanted = Wanted {
        store: parameters.get("store").map(str::to_owned),
        condition: Condition::Every(vec![
            Condition::Times(parameters.span()?),
            Condition::Filter(filter.clone()),
        ]),
        words: filter,
        form: if is_pcap { Form::Pcap } else { Form::Pcapng },
        packets: parameters.number("limit")?,
        bytes: None,
        what: "/v1/packets",
        content_type: if is_pcap { PCAP } else { PCAPNG },
        wants_trailers: te.split(',').any(|one| one.trim() == "trailers"),
    };
    give(gateway, asker, wanted).await
}

/// Stenographer's protocol.
pub async fn stenographer(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    query: Bytes,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let words = std::str::from_utf8(&query).map_err(|_| Refusal::question("it is no text"))?;
    let condition = steno::parse(words, time::now_ns()).map_err(Refusal::question)?;
    let limit = |name: &str| -> Result<Option<u64>, Refusal> {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        number.map(Some).ok_or_else(|| Refusal::question(format!("{name} is no number")))
    };
    let wanted = Wanted {
        store: gateway.stenographer.clone(),
        condition,
        words: words.to_owned(),
        form: Form::PcapMicroseconds,
        packets: limit("steno-limit-packets")?,
        bytes: limit("steno-limit-bytes")?,
        what: "/query",
        content_type: "application/octet-stream",
        wants_trailers: false,
    };
    give(gateway, asker, wanted).await
}

/// Answers a question about what a store holds, from its indexes.
async fn tell<T: Serialize + Send + 'static>(
    gateway: Arc<Gateway>,
    asker: Asker,
    what: &'static str,
    parameters: &Parameters,
    top: usize,
    make: impl FnOnce(&str, &Report) -> T + Send + 'static,
) -> Result<Response, Refusal> {
    let user = asker.user.clone();
    let (name, directory) = store(&gateway, &asker, parameters.get("store"))?;
    refuse_filtered(&user)?;
    let mut parts = ceiling(&user);
    parts.push(Condition::Times(parameters.span()?));
    let span = Condition::Every(parts).span();
    let _places = places(&gateway, &user).await?;
    let show = |ns: i64, open: i64| (ns != open).then(|| time::show(ns));
    let id = write_down(
        &gateway,
        &Asked {
            who: &user.name,
            by: asker.by,
            from: &asker.from,
            what,
            store: &name,
            filter: "",
            ceiling: "",
            after: show(span.after_ns, Span::ALL.after_ns),
            before: show(span.before_ns, Span::ALL.before_ns),
        },
    )?;
    let began = Instant::now();
    let made = {
        let name = name.clone();
        tokio::task::spawn_blocking(move || {
            let report = stat::stat(&directory, stat::Question { span, top }, |_, _| ())?;
            Ok::<_, tapdeck_store::query::Error>(make(&name, &report))
        })
        .await
    };
    let made = match made {
        Ok(made) => made.map_err(|e| refused(Failure::from(e))),
        Err(e) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())),
    };
    let word = if made.is_ok() { "complete" } else { "failed" };
    write_end(&gateway, &id, &Ended { packets: 0, bytes: 0, result: word });
    gateway.own.answered(&name, what, word, began.elapsed());
    Ok(Json(made?).into_response())
}

pub async fn stat(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before"])?;
    tell(gateway, asker, "/v1/stat", &parameters, 0, Stat::new).await
}

pub async fn histogram(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before", "step"])?;
    let step = parameters.get("step").map(time::duration).transpose();
    let step = step.map_err(|e| Refusal::question(format!("step: {e}")))?;
    let step_ns = step.map(|step| i64::try_from(step.as_nanos()).unwrap_or(i64::MAX));
    let make = move |name: &str, report: &Report| Histogram::new(name, report, step_ns, PARTS);
    tell(gateway, asker, "/v1/histogram", &parameters, 0, make).await
}

pub async fn hosts(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before"])?;
    tell(gateway, asker, "/v1/hosts", &parameters, TOP, Hosts::new).await
}

pub async fn losses(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asker = asker(&gateway, &peer, &headers).await?;
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before"])?;
    tell(gateway, asker, "/v1/losses", &parameters, 0, Losses::new).await
}
