//! Pins over HTTP: who may keep which packets from retention, and see or remove what is kept?
//!
//! The ceilings of a role hold for what it pins as they do for what it asks. A role's filter goes
//! into the pin beside the user's, so that packets that the role must not see are not in it; how
//! far back and how much it may have bound each pin. A pin shows itself to roles whose ceilings
//! would have let them make it: to those without a filter, and to those whose filter is the pin's.
//! What a recording lacks is told of all packets, so roles with a filter do not hear it.
//!
//! Here pins are made and listed. Copying takes as long as it takes ([`crate::copying`]): whoever
//! has had a pin made asks again how far it is.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tapdeck_evidence::{self as evidence, Error, Most, Order, PinStore, Question, Time, Wish};
use tapdeck_packet::printable::{count, counted};
use tapdeck_store::io::{Directory, Storage};
use tapdeck_store::query::Span;
use utoipa::ToSchema;

use crate::access::{Kind, Role, User};
use crate::answer::{self, Form};
use crate::api::{Entry, PCAPNG, ceiling, places, read_body, store, stream, wants_trailers, words};
use crate::asker::{Asker, Parameters, Refusal};
use crate::audit::Change;
use crate::condition::Condition;
use crate::config::{self, SourceKind};
use crate::openapi::Refusals;
use crate::routes::Gateway;
use crate::time;
use crate::wanted::{Sound, Wanted};

/// Pins of a user that are under way at once.
const OPEN: usize = 16;
/// Pins of a store that users have had made, beyond which the gateway makes no other. Those of
/// alerts have limits of their own.
const PINS: usize = 1000;
/// Pins of a list.
const LISTED: usize = 100;
/// Sentences about what a pin lacks; of more, the first.
const SENTENCES: usize = 20;

const JSON: &str = "application/json";

/// What `GET /v1/pins` answers.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the answer")]
pub struct Pins {
    store: String,
    /// Bytes that pins take, and how many they may; null where your role has a filter, or nothing
    /// was pinned yet.
    used_bytes: Option<u64>,
    budget_bytes: Option<u64>,
    /// The newest first, 100 at most.
    pins: Vec<Pin>,
    /// The number `from` which a list goes on with older pins; null where there are none.
    next: Option<u64>,
    /// Numbers of pins among these that cannot be read; empty where your role has a filter.
    unread: Vec<u64>,
}

/// A pin.
#[derive(Serialize, ToSchema)]
#[cfg_attr(test, derive(Debug, PartialEq))]
pub struct Pin {
    number: u64,
    /// `open` until all of the span was copied, then `done`; `full` where there was no room for
    /// all of it.
    state: &'static str,
    /// The user who has had it made; null where that was not by way of the gateway.
    by: Option<String>,
    /// The rule that it is of, where an alert made it.
    rule: Option<String>,
    reason: String,
    filter: String,
    /// What its packets match besides; empty takes every packet.
    ceiling: String,
    community_id: Option<String>,
    after: String,
    before: String,
    until: Option<String>,
    made: String,
    /// Packets from before this time are copied.
    reached: String,
    packets: u64,
    bytes: u64,
    /// Times of the first and the last packet; null where there is none.
    first: Option<String>,
    last: Option<String>,
    /// Whether nothing is known to be lacking in the part that is copied; null where nothing is yet
    /// and where your role has a filter.
    complete: Option<bool>,
    /// What is lacking, a sentence each.
    lacks: Vec<String>,
}

impl Pin {
    fn new(pin: &evidence::Pin, role: &Role) -> Self {
        let tells = role.filter.is_empty();
        let mut lacks = if tells { pin.account.lines() } else { Vec::new() };
        let more = lacks.len().saturating_sub(SENTENCES);
        lacks.truncate(SENTENCES);
        lacks.extend((more > 0).then(|| format!("{more} more of these are not listed")));
        let is_begun = pin.reached > pin.after || pin.state != evidence::State::Open;
        let show = |time: &Time| time::show(time.0);
        Self {
            number: pin.number,
            state: pin.state.word(),
            by: pin.order.as_ref().map(|order| order.by.clone()),
            rule: pin.rule.clone(),
            reason: pin.reason.clone(),
            filter: pin.question.filter.clone(),
            ceiling: pin.question.ceiling.clone(),
            community_id: pin.question.community_id.map(|id| id.to_string()),
            after: show(&pin.after),
            before: show(&pin.before),
            until: pin.until.as_ref().map(show),
            made: show(&pin.made),
            reached: show(&pin.reached),
            packets: pin.packets,
            bytes: pin.bytes,
            first: pin.first.as_ref().map(show),
            last: pin.last.as_ref().map(show),
            complete: (tells && is_begun).then_some(pin.account.complete),
            lacks,
        }
    }
}

/// A store, and where its pins are.
struct Pinned {
    name: String,
    directory: PathBuf,
    pins: config::Pins,
}

impl Pinned {
    fn find(gateway: &Gateway, asker: &Asker, named: Option<&str>) -> Result<Self, Refusal> {
        let (name, directory) = store(gateway, asker, named)?;
        let kind = gateway.sources.iter().find(|source| source.name == name).map(|s| &s.kind);
        let pins = match kind {
            Some(SourceKind::Store { pins, .. }) => pins.clone(),
            _ => config::Pins::default(),
        };
        Ok(Self { name, directory, pins })
    }

    /// Returns the pins that are there; `None` where nothing was pinned yet.
    fn open(&self) -> Result<Option<PinStore>, Error> {
        match PinStore::open(&self.pins.place(&self.directory)) {
            Err(Error::NoPins(_)) => Ok(None),
            pins => pins.map(Some),
        }
    }

    /// Returns a pin that a user may see.
    fn pin(&self, user: &User, number: u64) -> Result<(PinStore, evidence::Pin), Refusal> {
        let none = || {
            let text = format!("there is no pin {number} for you in {}", self.name);
            Refusal::new(StatusCode::NOT_FOUND, text)
        };
        let pins = self.open().map_err(refused)?.ok_or_else(none)?;
        match pins.pin(number) {
            Ok(pin) if may_see(user, &pin) => Ok((pins, pin)),
            Ok(_) | Err(Error::NoPin { .. }) => Err(none()),
            Err(e) => Err(refused(e)),
        }
    }
}

/// Returns whether a user may know of a pin.
fn may_see(user: &User, pin: &evidence::Pin) -> bool {
    let role = &user.role;
    let is_of_role = role.filter.is_empty() || role.filter == pin.question.ceiling;
    let is_in_reach = oldest(role).is_none_or(|after_ns| pin.before.0 > after_ns);
    is_of_role && (is_in_reach || is_theirs(user, pin))
}

/// Returns whether a user has had a pin made: what they had then they may see for as long as it is.
fn is_theirs(user: &User, pin: &evidence::Pin) -> bool {
    pin.order.as_ref().is_some_and(|order| order.by == user.name)
}

/// Returns before when a role sees nothing.
fn oldest(role: &Role) -> Option<i64> {
    let history = i64::try_from(role.history?.as_nanos()).unwrap_or(i64::MAX);
    Some(time::now_ns().saturating_sub(history))
}

fn refuse_readers(user: &User) -> Result<(), Refusal> {
    if user.role.kind == Kind::Pinner {
        return Ok(());
    }
    let text = "pins are made and removed by users whose role is of the kind \"pinner\"";
    Err(Refusal::new(StatusCode::FORBIDDEN, text))
}

/// Says why something could not be done with pins.
fn refused(e: Error) -> Refusal {
    let status = match &e {
        Error::Filter(_) => StatusCode::BAD_REQUEST,
        Error::NoPin { .. } => StatusCode::NOT_FOUND,
        Error::Full { .. } => {
            let text = "the budget of the store's pins is full: remove some, or have `pin-bytes` \
                        of the store raised";
            return Refusal::new(StatusCode::INSUFFICIENT_STORAGE, text);
        }
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Refusal::new(status, format!("{:#}", anyhow::Error::from(e)))
}

/// Does something with the file system, for a question that holds its places meanwhile.
async fn blocking<T: Send + 'static>(
    places: impl Send + 'static,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let held = move || {
        let done = work();
        drop(places);
        done
    };
    let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no answer");
    tokio::task::spawn_blocking(held).await.map_err(failed)?
}

/// Lists the pins of a store.
#[utoipa::path(
    get,
    path = "/v1/pins",
    params(
        ("store" = Option<String>, Query, description = "The store; may be left out where there is one"),
        ("from" = Option<u64>, Query, description = "The largest number that is listed; the newest pin's where left out"),
    ),
    responses((status = 200, description = "The newest of those that your role lets you see", body = Pins), Refusals)
)]
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Pins>, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store", "from"])?;
    let from = parameters.number("from")?;
    let pinned = Pinned::find(&gateway, &asker, parameters.get("store"))?;
    let places = places(&gateway, &asker.user).await?;
    let entry = Entry::write(&gateway, &asker, pinned.name.clone(), "", Span::ALL)?;
    let list = move || {
        let told = listed(&asker.user, &pinned, from).map_err(|e| refused(e).written())?;
        entry.ended(0, 0, "complete");
        Ok(Json(told))
    };
    blocking(places, list).await
}

/// Returns what a user may know of a store's pins, of those up to a number.
fn listed(user: &User, pinned: &Pinned, from: Option<u64>) -> Result<Pins, Error> {
    let mut told = Pins {
        store: pinned.name.clone(),
        used_bytes: None,
        budget_bytes: None,
        pins: Vec::new(),
        next: None,
        unread: Vec::new(),
    };
    let Some(pins) = pinned.open()? else { return Ok(told) };
    let tells = user.role.filter.is_empty();
    let newest_first = pins.numbers()?.into_iter().rev();
    for number in newest_first.filter(|number| from.is_none_or(|from| *number <= from)) {
        let pin = match pins.pin(number) {
            Ok(pin) if may_see(user, &pin) => Some(pin),
            Ok(_) | Err(Error::NoPin { .. }) => continue,
            Err(_) if tells => None,
            Err(_) => continue,
        };
        if told.pins.len() + told.unread.len() == LISTED {
            told.next = Some(number);
            break;
        }
        match pin {
            Some(pin) => told.pins.push(Pin::new(&pin, &user.role)),
            None => told.unread.push(number),
        }
    }
    if tells {
        told.used_bytes = Some(pins.used()?);
        told.budget_bytes = Some(pins.budget()?);
    }
    Ok(told)
}

/// Tells of one pin.
#[utoipa::path(
    get,
    path = "/v1/pins/{number}",
    params(
        ("number" = u64, Path, description = "As the list has it"),
        ("store" = Option<String>, Query, description = "The store; may be left out where there is one"),
    ),
    responses((status = 200, description = "How far it is, and what it lacks", body = Pin), Refusals)
)]
pub async fn one(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    Path(number): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Pin>, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store"])?;
    let number = read_number(&number)?;
    let pinned = Pinned::find(&gateway, &asker, parameters.get("store"))?;
    let places = places(&gateway, &asker.user).await?;
    let entry = Entry::write(&gateway, &asker, pinned.name.clone(), "", Span::ALL)?;
    let tell = move || {
        let (_, pin) = pinned.pin(&asker.user, number).map_err(Refusal::written)?;
        entry.ended(0, 0, "complete");
        Ok(Json(Pin::new(&pin, &asker.user.role)))
    };
    blocking(places, tell).await
}

/// Gives the packets of a pin, as far as they are copied.
#[utoipa::path(
    get,
    path = "/v1/pins/{number}/packets",
    params(
        ("number" = u64, Path, description = "As the list has it"),
        ("store" = Option<String>, Query, description = "The store; may be left out where there is one"),
    ),
    responses((status = 200, description = "Packets in time order, whose last block says whether they are all", body = Vec<u8>, content_type = "application/x-pcapng"), Refusals)
)]
pub async fn packets(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    Path(number): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["store"])?;
    let number = read_number(&number)?;
    let pinned = Pinned::find(&gateway, &asker, parameters.get("store"))?;
    let name = pinned.name.clone();
    let (places, user) = (Arc::new(places(&gateway, &asker.user).await?), asker.user.clone());
    let find = move || pinned.pin(&user, number);
    let (pins, pin) = blocking(places.clone(), find).await?;
    if pin.files.is_empty() {
        let text = format!("pin {number} has no packets");
        return Err(Refusal::new(StatusCode::NOT_FOUND, text));
    }
    let user = &asker.user;
    // A file behind these may be half of what is being copied.
    let copied = Span { after_ns: pin.after.0, before_ns: pin.reached.0 };
    let mut parts = if is_theirs(user, &pin) { Vec::new() } else { ceiling(user) };
    parts.push(Condition::Times(copied));
    let condition = Condition::Every(parts);
    let words = words(&pin.question.filter, pin.question.community_id);
    let mut entry = Entry::write(&gateway, &asker, name.clone(), &words, condition.span())?;
    entry.path = "/v1/pins/{number}/packets".into();
    let question = answer::Question {
        directory: pins.packets_of(number),
        is_of_pin: true,
        condition,
        form: Form::Pcapng,
        skip: 0,
        packets: user.role.packets,
        bytes: user.role.bytes,
        comment: format!("from pin {number} of {name}, {words}"),
    };
    stream(question, entry, places, PCAPNG, wants_trailers(&headers)).await
}

fn read_number(text: &str) -> Result<u64, Refusal> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| Refusal::question(format!("{text:?} is no number of a pin")))
}

/// Has packets kept from retention.
#[utoipa::path(
    post,
    path = "/v1/pins",
    request_body(content = Wanted, description = "Which packets, and why"),
    responses((status = 201, description = "It is made, and copying begins", body = Pin), Refusals)
)]
pub async fn make(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    refuse_readers(&asker.user)?;
    Parameters::read(query.as_deref(), &[])?;
    let wanted = read_wanted(&headers, body).await?;
    let pinned = Pinned::find(&gateway, &asker, wanted.store.as_deref())?;
    let wish = wish(&asker.user, &pinned, wanted)?;
    let places = places(&gateway, &asker.user).await?;
    let filters = [&wish.question.filter, &wish.question.ceiling].map(String::as_str).into();
    gateway.checked.check(&filters).await.map_err(Refusal::question)?;
    let span = Span { after_ns: wish.after.0, before_ns: wish.before.0 };
    let words = words(&wish.question.filter, wish.question.community_id);
    let until = wish.until.map(|until| time::show(until.0));
    let change = Change { pin: None, reason: Some(&wish.reason), until };
    let name = pinned.name.clone();
    let entry = Entry::write_change(&gateway, &asker, name, &words, span, change)?;
    let user = asker.user.clone();
    let add = move || {
        let pin = add(&user, &pinned, wish).map_err(Refusal::written)?;
        entry.made(pin.number);
        gateway.pinned.ring();
        let place = format!("/v1/pins/{}?store={}", pin.number, pinned.name);
        let told = Json(Pin::new(&pin, &user.role));
        Ok((StatusCode::CREATED, [(LOCATION, place)], told).into_response())
    };
    blocking(places, add).await
}

async fn read_wanted(headers: &HeaderMap, body: Body) -> Result<Wanted, Refusal> {
    // A page of somebody else's cannot send this without asking first, whatever its browser tells.
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(JSON)) {
        let text = "a pin is asked for as JSON: Content-Type: application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let body = read_body(body).await?;
    Wanted::read(&body).map_err(Refusal::question)
}

/// Returns what a user wants, within the ceilings of the role.
fn wish(user: &User, pinned: &Pinned, wanted: Wanted) -> Result<Wish, Refusal> {
    let role = &user.role;
    let Sound { span, until_ns, filter, community_id, reason } =
        wanted.check(time::now_ns()).map_err(Refusal::question)?;
    let Span { mut after_ns, before_ns } = span;
    if let Some(oldest_ns) = oldest(role) {
        if oldest_ns >= before_ns {
            let text = format!("your role reaches back to {} alone", time::show(oldest_ns));
            return Err(Refusal::new(StatusCode::FORBIDDEN, text));
        }
        after_ns = after_ns.max(oldest_ns);
    }
    let ceiling = role.filter.clone();
    let question = Question { filter, ceiling, community_id, ..Question::default() };
    let most = Most { packets: role.packets, bytes: role.bytes };
    let store = pinned.directory.clone();
    Ok(Wish {
        store: store.canonicalize().unwrap_or(store),
        question,
        after: Time(after_ns),
        before: Time(before_ns),
        until: until_ns.map(Time),
        reason,
        rule: None,
        order: Some(Order { by: user.name.clone(), most }),
    })
}

/// Makes a pin, unless there are too many.
fn add(user: &User, pinned: &Pinned, wish: Wish) -> Result<evidence::Pin, Refusal> {
    let storage: Arc<dyn Storage> = Arc::new(Directory::new(&wish.store));
    wish.question.check(&storage).map_err(refused)?;
    let place = pinned.pins.place(&pinned.directory);
    let pins = PinStore::make(&place, pinned.pins.bytes).map_err(refused)?;
    let (mut all, mut open, now) = (0, 0, Time::now());
    for number in pins.numbers().map_err(refused)? {
        let pin = match pins.pin(number) {
            Ok(pin) => pin,
            Err(Error::NoPin { .. }) => continue,
            Err(_) => {
                // It may be one of them.
                all += 1;
                continue;
            }
        };
        let Some(order) = &pin.order else { continue };
        all += usize::from(pin.until.is_none_or(|until| until > now));
        open += usize::from(order.by == user.name && pin.state == evidence::State::Open);
    }
    if open >= OPEN {
        let text = format!(
            "{} of yours are under way: wait until one is done",
            counted(OPEN as u64, "pin")
        );
        return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, text));
    }
    if all >= PINS {
        let all = count(all as u64);
        let text = format!("the store has {all} pins of users already: remove some");
        return Err(Refusal::new(StatusCode::INSUFFICIENT_STORAGE, text));
    }
    pins.add(wish).map_err(refused)
}

/// Removes a pin and its packets.
#[utoipa::path(
    delete,
    path = "/v1/pins/{number}",
    params(
        ("number" = u64, Path, description = "As the list has it"),
        ("store" = Option<String>, Query, description = "The store; may be left out where there is one"),
    ),
    responses((status = 204, description = "It is gone"), Refusals)
)]
pub async fn remove(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    Path(number): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, Refusal> {
    refuse_readers(&asker.user)?;
    let parameters = Parameters::read(query.as_deref(), &["store"])?;
    let number = read_number(&number)?;
    let pinned = Pinned::find(&gateway, &asker, parameters.get("store"))?;
    let places = places(&gateway, &asker.user).await?;
    let remove = move || {
        let (pins, pin) = pinned.pin(&asker.user, number)?;
        let span = Span { after_ns: pin.after.0, before_ns: pin.before.0 };
        let change = Change { pin: Some(number), reason: Some(&pin.reason), until: None };
        let (name, filter) = (pinned.name.clone(), &pin.question.filter);
        let entry = Entry::write_change(&gateway, &asker, name, filter, span, change)?;
        pins.remove(number).map_err(|e| refused(e).written())?;
        entry.ended(pin.packets, pin.bytes, "complete");
        Ok(StatusCode::NO_CONTENT)
    };
    blocking(places, remove).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tapdeck_evidence::{self as evidence, Most, Order, Question, Time};

    use super::{Pinned, may_see, wish};
    use crate::access::{Kind, Role, User};
    use crate::config::Pins;
    use crate::time;
    use crate::wanted::Wanted;

    const HOUR_NS: i64 = 3_600_000_000_000;

    fn user(name: &str, filter: &str, history: Option<Duration>) -> User {
        let role = Role {
            kind: Kind::Pinner,
            stores: None,
            filter: filter.into(),
            history,
            packets: 10,
            bytes: 1000,
            questions: 1,
        };
        User::new(name.into(), Arc::new(role))
    }

    /// What somebody wants whose span begins and ends so many hours from now.
    fn wanted(after: i64, before: i64) -> Wanted {
        let at = |hours: i64| time::show(time::now_ns() + hours * HOUR_NS);
        Wanted {
            store: None,
            filter: "port 53".into(),
            community_id: None,
            after: at(after),
            before: at(before),
            until: None,
            reason: "case 7".into(),
        }
    }

    fn place() -> Pinned {
        Pinned { name: "edge".into(), directory: "/nowhere".into(), pins: Pins::default() }
    }

    #[test]
    fn a_pin_is_within_the_ceilings_of_the_role() {
        let alice = user("alice", "net 10.1.0.0/16", Some(Duration::from_secs(7200)));
        let Ok(made) = wish(&alice, &place(), wanted(-5, 1)) else { panic!("it is right") };
        assert_eq!(made.question.ceiling, "net 10.1.0.0/16");
        assert_eq!(made.question.filter, "port 53");
        let back_ns = time::now_ns() - made.after.0;
        assert!((2 * HOUR_NS..2 * HOUR_NS + HOUR_NS / 60).contains(&back_ns), "{back_ns}");
        let order = Order { by: "alice".into(), most: Most { packets: 10, bytes: 1000 } };
        assert_eq!(made.order, Some(order));
        assert!(wish(&alice, &place(), wanted(-5, -3)).is_err(), "all of it is too long ago");
        let some = wanted(-1, 1);
        let none = Wanted { before: some.after.clone(), ..some };
        assert!(wish(&alice, &place(), none).is_err(), "no time");
        assert!(wish(&alice, &place(), wanted(-1, 25)).is_err(), "too far ahead");
        let blank = Wanted { reason: " ".into(), ..wanted(-1, 0) };
        assert!(wish(&alice, &place(), blank).is_err(), "no reason");
        let over = Wanted { until: Some(time::show(time::now_ns())), ..wanted(-1, 1) };
        assert!(wish(&alice, &place(), over).is_err(), "it would go at once");
    }

    #[test]
    fn a_pin_is_seen_by_those_who_could_have_had_it_made() {
        let pin = |by: Option<&str>, ceiling: &str| -> evidence::Pin {
            let at = |ago: i64| Time(time::now_ns() - ago * HOUR_NS);
            let order = by.map(|by| Order { by: by.into(), most: Most::ALL });
            let question = Question { ceiling: ceiling.into(), ..Question::default() };
            let text = serde_json::json!({
                "number": 1, "state": "done", "store": "/s", "question": question,
                "after": at(6), "before": at(5), "until": null, "reason": "r", "rule": null,
                "order": order, "made": at(5), "reached": at(5), "packets": 0, "bytes": 0,
                "first": null, "last": null, "files": [], "account": evidence::Account::default(),
                "clock": {"kept_at_utc": null, "steps": []}, "interfaces": [],
            });
            serde_json::from_value(text).expect("a pin")
        };
        let hour = Some(Duration::from_secs(3600));
        let all = user("alice", "", None);
        assert!(may_see(&all, &pin(None, "")) && may_see(&all, &pin(Some("bob"), "tcp")));
        let some = user("alice", "tcp", None);
        assert!(may_see(&some, &pin(Some("bob"), "tcp")));
        assert!(!may_see(&some, &pin(None, "")) && !may_see(&some, &pin(Some("alice"), "udp")));
        let late = user("alice", "", hour);
        assert!(!may_see(&late, &pin(Some("bob"), "")) && may_see(&late, &pin(Some("alice"), "")));
    }
}
