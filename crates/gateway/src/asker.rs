//! Who asks over HTTP? That is found out before anything else of a request is looked at, its body
//! least of all; and whoever is refused stands in the audit.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tapdeck_store::query::Span;

use crate::access::{Kind, User};
use crate::routes::Gateway;
use crate::{say, time};

/// The one who has connected, as far as the connection tells.
#[derive(Clone, Debug)]
pub struct Peer {
    /// An address, for the audit.
    pub from: String,
    /// The common name of a certificate that was believed.
    pub certificate: Option<String>,
    /// The user that everybody is who connects at the listener.
    pub user: Option<String>,
    pub way: Way,
}

/// What kind of listener somebody has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Loopback,
    Unix,
    Tls,
}

/// A refusal: what is answered instead.
pub struct Refusal {
    status: StatusCode,
    text: String,
    is_written: bool,
}

impl Refusal {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), is_written: false }
    }

    pub fn question(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// Says that the audit has it already, as the end of a question, or can have nothing.
    pub fn written(self) -> Self {
        Self { is_written: true, ..self }
    }
}

/// A refusal that the audit has not yet. It goes along with the response.
#[derive(Clone)]
struct Unwritten(String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let unwritten = (!self.is_written).then(|| Unwritten(self.text.clone()));
        let mut response = (self.status, self.text + "\n").into_response();
        if let Some(unwritten) = unwritten {
            response.extensions_mut().insert(unwritten);
        }
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

/// Somebody who asks, how they showed who they are, and for what they ask.
#[derive(Clone)]
pub struct Asker {
    pub user: Arc<User>,
    pub by: &'static str,
    pub from: String,
    /// The path, one of those that there are; behind the method where something is changed.
    pub what: String,
}

/// Somebody who is known and was refused, as the audit has it.
#[derive(Serialize)]
struct Refused<'a> {
    who: &'a str,
    by: &'a str,
    from: &'a str,
    what: &'a str,
    status: u16,
    why: &'a str,
}

/// Lets those through who are known, to where they are an [`Asker`].
pub async fn known(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let (mut head, body) = request.into_parts();
    must_be_own_page(&gateway, &peer, &head)?;
    let asker = asker(&gateway, &peer, &head).await?;
    head.extensions.insert(asker.clone());
    let response = next.run(Request::from_parts(head, body)).await;
    write_refusal(&gateway, &asker, &response);
    Ok(response)
}

/// Lets those through who may know how recorders do: from elsewhere, these are operators.
pub async fn operators(
    State(gateway): State<Arc<Gateway>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    must_be_own_page(&gateway, &peer, &head)?;
    if peer.way == Way::Loopback && !is_asked_as_loopback(&head) {
        write_stranger(&gateway, &peer);
        return Err(led_here());
    }
    if peer.way == Way::Tls || gateway.wants_token {
        let asker = asker(&gateway, &peer, &head).await?;
        if peer.way == Way::Tls && asker.user.role.kind != Kind::Operator {
            let refusal = Refusal::new(StatusCode::FORBIDDEN, "that is for operators");
            let response = refusal.into_response();
            write_refusal(&gateway, &asker, &response);
            return Ok(response);
        }
    }
    Ok(next.run(Request::from_parts(head, body)).await)
}

fn write_refusal(gateway: &Gateway, asker: &Asker, response: &Response) {
    let Some(Unwritten(why)) = response.extensions().get() else { return };
    let Asker { user, by, from, what } = asker;
    let status = response.status().as_u16();
    let refused = Refused { who: &user.name, by, from, what, status, why };
    if let Some(audit) = &gateway.audit
        && let Err(e) = audit.refused(&refused)
    {
        say(&format!("the audit cannot be written: {e}"));
    }
}

/// Finds out who asks.
async fn asker(gateway: &Arc<Gateway>, peer: &Peer, head: &Parts) -> Result<Asker, Refusal> {
    let mut refusal =
        Refusal::new(StatusCode::UNAUTHORIZED, "who are you? show a certificate, or a token");
    let found = match head.headers.get(AUTHORIZATION) {
        Some(shown) => {
            let token = shown.to_str().ok().and_then(|shown| shown.strip_prefix("Bearer "));
            let token = token.unwrap_or_default().trim().to_owned();
            by_token(gateway, token).await.map(|user| (user, "token"))
        }
        None => match (&peer.certificate, &peer.user) {
            (Some(name), _) => gateway.users.with_certificate(name).map(|u| (u, "certificate")),
            (None, Some(_)) if peer.way == Way::Loopback && !is_asked_as_loopback(head) => {
                refusal = led_here();
                None
            }
            (None, Some(name)) => gateway.users.named(name).map(|user| (user, "listener")),
            (None, None) => None,
        },
    };
    if let Some((user, by)) = found {
        let what = what(head);
        return Ok(Asker { user, by, from: peer.from.clone(), what });
    }
    write_stranger(gateway, peer);
    Err(refusal)
}

/// Returns for what somebody asks. A question may come by POST, too, as stenographer's do.
fn what(head: &Parts) -> String {
    let path = head.uri.path();
    let is_question = matches!(head.method, Method::GET | Method::HEAD) || path == "/query";
    if is_question { path.to_owned() } else { format!("{} {path}", head.method) }
}

fn write_stranger(gateway: &Gateway, peer: &Peer) {
    if let Some(audit) = &gateway.audit
        && let Err(e) = audit.stranger(&peer.from, peer.certificate.as_deref())
    {
        say(&format!("the audit cannot be written: {e}"));
    }
}

/// Refuses what a browser asks on behalf of a page that the gateway has not given it. Certificates
/// and listeners show who somebody is whatever page their browser shows, so such a page could ask
/// in their name. Browsers always say so, and nothing else does.
fn must_be_own_page(gateway: &Gateway, peer: &Peer, head: &Parts) -> Result<(), Refusal> {
    let mut sites = head.headers.get_all("sec-fetch-site").iter();
    if sites.all(|site| site == "same-origin" || site == "none") {
        return Ok(());
    }
    write_stranger(gateway, peer);
    Err(Refusal::new(StatusCode::FORBIDDEN, "a page of somebody else's may not ask here"))
}

fn led_here() -> Refusal {
    let text = "this listener answers to localhost, 127.0.0.1 and [::1] alone";
    Refusal::new(StatusCode::FORBIDDEN, text)
}

/// Returns whether a request names this machine as the one that it is for. A browser that was led
/// here by another's name, which resolves to a loopback address, names that one.
fn is_asked_as_loopback(head: &Parts) -> bool {
    let named = head.headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or(""));
    named.chain(head.uri.authority().map(Authority::as_str)).all(is_loopback)
}

/// Returns whether a host, with or without a port, is a name or an address of loopback.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, ""),
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_address = |text: &str| text.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port.bytes().all(|b| b.is_ascii_digit())
        && (name.eq_ignore_ascii_case("localhost") || is_address(address.unwrap_or(name)))
}

async fn by_token(gateway: &Arc<Gateway>, token: String) -> Option<Arc<User>> {
    // Each takes memory, for as long as it is held against a hash, whoever has left meanwhile.
    let turn = gateway.hashes.clone().acquire_owned().await.ok()?;
    let gateway = gateway.clone();
    let find = move || {
        let user = gateway.users.with_token(&token);
        drop(turn);
        user
    };
    tokio::task::spawn_blocking(find).await.ok()?
}

/// The parameters of a question. Unknown ones are refused, and so are those that come twice.
pub struct Parameters(BTreeMap<String, String>);

impl Parameters {
    pub fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Refusal> {
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

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn span(&self) -> Result<Span, Refusal> {
        let point = |key| self.get(key).map(|text| point(key, text)).transpose();
        let after_ns = point("after")?.unwrap_or(Span::ALL.after_ns);
        let before_ns = point("before")?.unwrap_or(Span::ALL.before_ns);
        if after_ns > before_ns {
            return Err(Refusal::question("after is later than before"));
        }
        Ok(Span { after_ns, before_ns })
    }

    /// Returns whether a parameter is `true`; without one, it is not.
    pub fn yes(&self, key: &str) -> Result<bool, Refusal> {
        match self.get(key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Refusal::question(format!("{key}: true or false, not {other:?}"))),
        }
    }

    pub fn number(&self, key: &str) -> Result<Option<u64>, Refusal> {
        let number = |text: &str| {
            text.parse().map_err(|_| Refusal::question(format!("{key}: {text:?} is no number")))
        };
        self.get(key).map(number).transpose()
    }
}

/// Reads a point in time that a question names under a key.
fn point(key: &str, text: &str) -> Result<i64, Refusal> {
    time::point(text).map_err(|e| Refusal::question(format!("{key}: {e}")))
}

/// Returns whether somebody wants an answer of a kind, and says so.
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let accepted = headers.get_all(axum::http::header::ACCEPT).iter();
    accepted.filter_map(|value| value.to_str().ok()).any(|accept| accept.contains(kind))
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn only_names_and_addresses_of_loopback_are_loopback() {
        let local =
            ["localhost", "LOCALHOST:80", "127.0.0.1:9670", "127.1.2.3", "[::1]", "[::1]:8"];
        assert!(local.into_iter().all(is_loopback));
        for other in [
            "evil.example",
            "localhost.evil.example",
            "",
            ":80",
            "10.0.0.1",
            "[::2]:80",
            "127.0.0.1.evil.example:80",
            "localhost:80:evil",
            "user@localhost",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
