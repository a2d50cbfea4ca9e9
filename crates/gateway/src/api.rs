//! Questions over HTTP: ceilings are put on what somebody asks, the audit writes it down, and then
//! the answer begins. Who asks is found out before ([`crate::asker`]).

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::pcap::Unit;
use tapdeck_store::query::Span;
use tapdeck_store::stat::{self, Report};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use crate::access::User;
use crate::answer::{self, End, Failure, Form, Part, Question};
use crate::asker::{Asker, Parameters, Refusal, accepts};
use crate::audit::{Asked, Change, Ended};
use crate::condition::{Condition, flow};
use crate::config::SourceKind;
use crate::openapi::{InSpan, Refusals};
use crate::report::{self, Histogram, Hosts, Losses, Stat};
use crate::routes::Gateway;
use crate::{rows, say, steno, time, watch};

/// How long a question waits for its turn.
const TURN: Duration = Duration::from_secs(60);
/// Parts of a histogram, at most.
const PARTS: usize = 10_000;
/// Parts of a histogram, where neither their number nor their length is named.
const USUAL_PARTS: usize = 61;
/// Hosts and ports that are listed.
const TOP: usize = 100;
/// Bytes that a question has behind its head, and how long they may take.
const BODY: usize = 64 << 10;
const BODY_TIME: Duration = Duration::from_secs(10);

pub const PCAPNG: &str = "application/x-pcapng";
const PCAP: &str = "application/vnd.tcpdump.pcap";

/// Tells each second what came and what was lost, as server-sent events.
#[utoipa::path(
    get,
    path = "/v1/watch",
    params(
        ("store" = Option<String>, Query, description = "The store; may be left out where there is one"),
    ),
    responses(
        (status = 200, description = "An event each second", body = watch::Event, content_type = "text/event-stream"),
        Refusals,
    )
)]
pub async fn watch(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store"])?;
    let (name, _) = store(&gateway, &asker, parameters.get("store"))?;
    refuse_filtered(&asker.user)?;
    let source = gateway.sources.iter().find(|source| source.name == name);
    let places = [&asker.user.watches, &gateway.watches].map(|all| all.clone().try_acquire_owned());
    let (Some(source), [Ok(of_user), Ok(of_all)]) = (source, places) else {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many watch already"));
    };
    let entry = Entry::write(&gateway, &asker, name, "", Span::ALL)?;
    let places = Places { _of_user: of_user, _of_all: of_all };
    Ok(watch::begin(&gateway, source.clone(), places, entry))
}

/// Refuses what is told of all packets to those who may see some of them only.
fn refuse_filtered(user: &User) -> Result<(), Refusal> {
    if user.role.filter.is_empty() {
        return Ok(());
    }
    let text = "your role has a filter, and this is told of all packets";
    Err(Refusal::new(StatusCode::FORBIDDEN, text))
}

/// Returns the stores that a user may see, with their directories.
pub fn stores<'a>(
    gateway: &'a Gateway,
    user: &'a User,
) -> impl Iterator<Item = (&'a String, &'a PathBuf)> {
    let stores = gateway.sources.iter().filter_map(|source| match &source.kind {
        SourceKind::Store { directory, .. } => Some((&source.name, directory)),
        SourceKind::Daemon => None,
    });
    stores.filter(|(name, _)| user.role.may_see(name))
}

/// Returns the store that is asked about: the one that is named, or the only one.
pub fn store(
    gateway: &Gateway,
    asker: &Asker,
    name: Option<&str>,
) -> Result<(String, PathBuf), Refusal> {
    let mut seen = stores(gateway, &asker.user);
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
pub fn ceiling(user: &User) -> Vec<Condition> {
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
pub struct Places {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Waits for a question's turn: first among those of its user, then among all.
pub async fn places(gateway: &Gateway, user: &User) -> Result<Places, Refusal> {
    let busy = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many questions: ask again");
    let turn = async {
        let of_user = user.places.clone().acquire_owned().await.ok()?;
        let of_all = gateway.places.clone().acquire_owned().await.ok()?;
        Some(Places { _of_user: of_user, _of_all: of_all })
    };
    timeout(TURN, turn).await.ok().flatten().ok_or_else(busy)
}

/// A question that stands in the audit, and whose end will stand there, too.
pub struct Entry {
    gateway: Arc<Gateway>,
    id: String,
    store: String,
    /// The path under which the answer is counted.
    pub path: String,
    began: Instant,
    is_ended: bool,
}

impl Entry {
    /// Writes down what is asked. Without, nothing is answered.
    pub fn write(
        gateway: &Arc<Gateway>,
        asker: &Asker,
        store: String,
        filter: &str,
        span: Span,
    ) -> Result<Self, Refusal> {
        Self::write_change(gateway, asker, store, filter, span, Change::default())
    }

    /// Writes down what is to be changed. Without, nothing is.
    pub fn write_change(
        gateway: &Arc<Gateway>,
        asker: &Asker,
        store: String,
        filter: &str,
        span: Span,
        change: Change<'_>,
    ) -> Result<Self, Refusal> {
        let show = |ns: i64, open: i64| (ns != open).then(|| time::show(ns));
        let asked = Asked {
            who: &asker.user.name,
            by: asker.by,
            from: &asker.from,
            what: &asker.what,
            store: &store,
            filter,
            ceiling: &asker.user.role.filter,
            after: show(span.after_ns, Span::ALL.after_ns),
            before: show(span.before_ns, Span::ALL.before_ns),
            change,
        };
        let written = match &gateway.audit {
            Some(audit) => audit.asked(&asked),
            None => Err(io::Error::other("there is none")),
        };
        let id = written.map_err(|e| {
            say(&format!("the audit cannot be written, so a question is refused: {e}"));
            let text = "the audit cannot be written";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text).written()
        })?;
        let (gateway, path, began) = (gateway.clone(), asker.what.clone(), Instant::now());
        Ok(Self { gateway, id, store, path, began, is_ended: false })
    }

    /// Writes down how the answer ended, and counts how long it took.
    fn answered(self, packets: u64, bytes: u64, result: &str) {
        self.gateway.own.answered(&self.store, &self.path, result, self.began.elapsed());
        self.ended(packets, bytes, result);
    }

    /// Writes down how it ended.
    pub fn ended(mut self, packets: u64, bytes: u64, result: &str) {
        self.write_end(&Ended { packets, bytes, result, pin: None });
    }

    /// Writes down that a pin was made.
    pub fn made(mut self, pin: u64) {
        self.write_end(&Ended { packets: 0, bytes: 0, result: "complete", pin: Some(pin) });
    }

    fn write_end(&mut self, ended: &Ended<'_>) {
        self.is_ended = true;
        if let Some(audit) = &self.gateway.audit
            && let Err(e) = audit.ended(&self.id, ended)
        {
            let id = &self.id;
            say(&format!("the audit cannot be written: how {id} ended is not in it: {e}"));
        }
    }
}

/// Whatever happens, there is an end.
impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_ended {
            self.write_end(&Ended { packets: 0, bytes: 0, result: "failed", pin: None });
        }
    }
}

/// A question for packets, before ceilings.
struct Wanted {
    store: Option<String>,
    condition: Condition,
    /// The question in its own words.
    words: String,
    form: Form,
    skip: u64,
    packets: Option<u64>,
    bytes: Option<u64>,
    content_type: &'static str,
    wants_trailers: bool,
}

async fn give(gateway: Arc<Gateway>, asker: Asker, wanted: Wanted) -> Result<Response, Refusal> {
    let user = asker.user.clone();
    let (name, directory) = store(&gateway, &asker, wanted.store.as_deref())?;
    // The question's thread and the answer's body both hold them, whichever is there for longer.
    let places = Arc::new(places(&gateway, &user).await?);
    let filters: BTreeSet<&str> = wanted.condition.filters().into_iter().collect();
    gateway.checked.check(&filters).await.map_err(Refusal::question)?;
    let mut parts = ceiling(&user);
    parts.push(wanted.condition);
    let condition = Condition::Every(parts);
    let entry = Entry::write(&gateway, &asker, name.clone(), &wanted.words, condition.span())?;
    let question = Question {
        directory,
        is_of_pin: false,
        condition,
        form: wanted.form,
        skip: wanted.skip,
        packets: user.role.packets.min(wanted.packets.unwrap_or(u64::MAX)),
        bytes: user.role.bytes.min(wanted.bytes.unwrap_or(u64::MAX)),
        comment: format!("from {name}, {}", wanted.words),
    };
    stream(question, entry, places, wanted.content_type, wanted.wants_trailers).await
}

/// Begins an answer that stands in the audit, whose places are held until its end.
pub async fn stream(
    question: Question,
    entry: Entry,
    places: Arc<Places>,
    content_type: &'static str,
    wants_trailers: bool,
) -> Result<Response, Refusal> {
    let held = places.clone();
    let ended = move |result: &Result<End, Failure>, packets: u64, bytes: u64| {
        let word = match result {
            Ok(end) => end.word(),
            Err(Failure::Left) => "left",
            Err(_) => "failed",
        };
        entry.answered(packets, bytes, word);
        drop(held);
    };
    let mut receiver = answer::begin(question, ended);
    match receiver.recv().await {
        Some(Part::Begun) => {}
        Some(Part::Failed(failure)) => return Err(refused(failure)),
        other => {
            say(&format!("an answer that does not begin: {other:?}"));
            return Err(refused(Failure::Left));
        }
    }
    let body = Body::new(Packets { receiver, wants_trailers, _places: places });
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if wants_trailers {
        headers.insert("trailer", HeaderValue::from_static(RESULT));
    }
    Ok(response)
}

/// Says what became of a question that stands in the audit.
fn refused(failure: Failure) -> Refusal {
    let refusal = match failure {
        Failure::Question(text) => Refusal::question(text),
        Failure::Form(text) => Refusal::new(StatusCode::NOT_ACCEPTABLE, text),
        Failure::Store(text) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text),
        Failure::Left => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no answer"),
    };
    refusal.written()
}

/// The trailer that says how whole an answer is.
const RESULT: &str = "tapdeck-result";

/// The body of an answer.
struct Packets {
    receiver: Receiver<Part>,
    wants_trailers: bool,
    _places: Arc<Places>,
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

/// Refuses versions of HTTP in which an answer that breaks off looks like one that has ended, where
/// the answer itself does not tell.
fn refuse_old(version: Version) -> Result<(), Refusal> {
    if version >= Version::HTTP_11 {
        return Ok(());
    }
    let text = "pcap is given over HTTP/1.1, which shows where an answer broke off";
    Err(Refusal::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, text))
}

pub fn wants_trailers(headers: &HeaderMap) -> bool {
    let te = headers.get("te").and_then(|te| te.to_str().ok()).unwrap_or("");
    te.split(',').any(|one| one.trim() == "trailers")
}

/// Gives packets in time order.
#[utoipa::path(
    get,
    path = "/v1/packets",
    params(
        InSpan,
        ("filter" = Option<String>, Query, description = "pcap-filter(7), with addresses in place of names"),
        ("community_id" = Option<String>, Query, description = "The flow, as Zeek and Suricata call it"),
        ("limit" = Option<u64>, Query, description = "Packets, at most"),
        ("skip" = Option<u64>, Query, description = "How many of the first packets are left out"),
        ("whole" = Option<bool>, Query, description = "Whether rows have headers and bytes"),
    ),
    responses(
        (status = 200, description = "Packets, whose last block says whether they are all", content((Vec<u8> = "application/x-pcapng"), (Vec<u8> = "application/vnd.tcpdump.pcap"), (Object = "application/json"))),
        Refusals,
    )
)]
pub async fn packets(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
    version: Version,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let known = ["store", "after", "before", "filter", "community_id", "limit", "skip", "whole"];
    let parameters = Parameters::read(query.as_deref(), &known)?;
    let filter = parameters.get("filter").unwrap_or("").to_owned();
    let flow = flow(parameters.get("community_id")).map_err(Refusal::question)?;
    let (form, content_type) = if accepts(&headers, PCAP) {
        refuse_old(version)?;
        (Form::Pcap(Unit::Nanoseconds), PCAP)
    } else if accepts(&headers, rows::CONTENT_TYPE) {
        (Form::Rows { whole: parameters.yes("whole")? }, rows::CONTENT_TYPE)
    } else {
        (Form::Pcapng, PCAPNG)
    };
    let wanted = Wanted {
        store: parameters.get("store").map(str::to_owned),
        words: words(&filter, flow),
        condition: Condition::Every(
            [Condition::Times(parameters.span()?), Condition::Filter(filter)]
                .into_iter()
                .chain(flow.map(Condition::Flow))
                .collect(),
        ),
        form,
        skip: parameters.number("skip")?.unwrap_or(0),
        packets: parameters.number("limit")?,
        bytes: None,
        content_type,
        wants_trailers: wants_trailers(&headers),
    };
    give(gateway, asker, wanted).await
}

/// Returns what packets are asked for, as the audit has it.
pub fn words(filter: &str, flow: Option<CommunityId>) -> String {
    let flow = flow.map(|flow| format!("{filter} community id {flow}").trim().to_owned());
    flow.unwrap_or_else(|| filter.to_owned())
}

/// Reads what comes behind the head of a request.
pub async fn read_body(body: Body) -> Result<Bytes, Refusal> {
    let read = timeout(BODY_TIME, to_bytes(body, BODY)).await;
    let late = || Refusal::new(StatusCode::REQUEST_TIMEOUT, "the query did not come");
    let long = |_| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the query has more than 64 KiB");
    read.map_err(|_| late())?.map_err(long)
}

/// Stenographer's protocol.
#[utoipa::path(
    post,
    path = "/query",
    request_body(content = String, description = "In stenographer's language", content_type = "text/plain"),
    responses(
        (status = 200, description = "pcap", body = Vec<u8>, content_type = "application/octet-stream"),
        Refusals,
    )
)]
pub async fn stenographer(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    version: Version,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    refuse_old(version)?;
    let query = read_body(body).await?;
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
        form: Form::Pcap(Unit::Microseconds),
        skip: 0,
        packets: limit("steno-limit-packets")?,
        bytes: limit("steno-limit-bytes")?,
        content_type: "application/octet-stream",
        wants_trailers: wants_trailers(&headers),
    };
    give(gateway, asker, wanted).await
}

/// Answers a question about what a store holds, from its indexes.
async fn tell<T: Serialize + Send + 'static>(
    gateway: Arc<Gateway>,
    asker: Asker,
    parameters: Parameters,
    top: usize,
    make: impl FnOnce(&str, &Report) -> T + Send + 'static,
) -> Result<Response, Refusal> {
    let (name, directory) = store(&gateway, &asker, parameters.get("store"))?;
    refuse_filtered(&asker.user)?;
    let mut parts = ceiling(&asker.user);
    parts.push(Condition::Times(parameters.span()?));
    let span = Condition::Every(parts).span();
    let places = places(&gateway, &asker.user).await?;
    let entry = Entry::write(&gateway, &asker, name.clone(), "", span)?;
    // Its other end is gone when the client is.
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let question = stat::Question { span, top };
        let report = stat::stat(&directory, question, |_, _| !sender.is_closed());
        let word = match &report {
            _ if sender.is_closed() => "left",
            Ok(report) if report::faults(report).is_empty() => "complete",
            Ok(_) => "incomplete",
            Err(_) => "failed",
        };
        entry.answered(0, 0, word);
        drop(places);
        // Where the client is gone, nobody needs to know.
        let _ = sender.send(report.map(|report| make(&name, &report)));
    });
    match receiver.await {
        Ok(Ok(made)) => Ok(Json(made).into_response()),
        Ok(Err(e)) => Err(refused(Failure::from(e))),
        Err(_) => Err(refused(Failure::Left)),
    }
}

/// Tells how much is in a store, when, and what was lost.
#[utoipa::path(
    get,
    path = "/v1/stat",
    params(InSpan),
    responses(
        (status = 200, description = "Of the whole store", body = Stat),
        Refusals,
    )
)]
pub async fn stat(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before"])?;
    tell(gateway, asker, parameters, 0, Stat::new).await
}

/// Tells packets and bytes over time.
#[utoipa::path(
    get,
    path = "/v1/histogram",
    params(
        InSpan,
        ("step" = Option<String>, Query, description = "As 1s, 5m, 1h; a sixtieth of the span where left out"),
        ("parts" = Option<u64>, Query, description = "How many parts, in place of a step"),
    ),
    responses(
        (status = 200, description = "Parts of the span", body = Histogram),
        Refusals,
    )
)]
pub async fn histogram(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let parameters =
        Parameters::read(query.as_deref(), &["store", "after", "before", "step", "parts"])?;
    let step = parameters.get("step").map(time::duration).transpose();
    let step = step.map_err(|e| Refusal::question(format!("step: {e}")))?;
    let step_ns = step.map(|step| i64::try_from(step.as_nanos()).unwrap_or(i64::MAX));
    let parts = parameters.number("parts")?.map_or(USUAL_PARTS, |parts| parts as usize);
    if parts == 0 || parts > PARTS || (step_ns.is_some() && parameters.get("parts").is_some()) {
        return Err(Refusal::question(format!("parts: 1 to {PARTS}, and no step beside it")));
    }
    let make = move |name: &str, report: &Report| {
        let most = if step_ns.is_some() { PARTS } else { parts };
        Histogram::new(name, report, step_ns.unwrap_or(0), most)
    };
    tell(gateway, asker, parameters, 0, make).await
}

/// Lists the most common hosts and ports.
#[utoipa::path(
    get,
    path = "/v1/hosts",
    params(InSpan),
    responses(
        (status = 200, description = "By the share of the recording", body = Hosts),
        Refusals,
    )
)]
pub async fn hosts(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before"])?;
    tell(gateway, asker, parameters, TOP, Hosts::new).await
}

/// Tells when packets were lost, or went unseen.
#[utoipa::path(
    get,
    path = "/v1/losses",
    params(InSpan),
    responses(
        (status = 200, description = "Gaps by their times", body = Losses),
        Refusals,
    )
)]
pub async fn losses(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store", "after", "before"])?;
    tell(gateway, asker, parameters, 0, Losses::new).await
}
