//! What can be asked, for programs: `openapi.json`, generated from the functions that answer and
//! the structures that they answer with.

use std::collections::BTreeMap;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, Info, OpenApi, RefOr, ResponseBuilder, response, schema, security,
};

use crate::routes;

/// What most questions have in common: which store, and when.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "what is read is in `Parameters`")]
pub struct InSpan {
    /// The store; may be left out where there is one
    store: Option<String>,
    /// RFC 3339, or seconds since 1970
    after: Option<String>,
    /// RFC 3339, or seconds since 1970
    before: Option<String>,
}

/// The refusals that questions have in common: a sentence each.
pub struct Refusals;

impl utoipa::IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<response::Response>> {
        let refusal = |(status, what): (&str, &str)| {
            let text =
                ContentBuilder::new().schema(Some(schema::Object::with_type(schema::Type::String)));
            let response =
                ResponseBuilder::new().description(what).content("text/plain", text.build());
            (status.to_owned(), RefOr::T(response.build()))
        };
        [
            ("400", "The question makes no sense"),
            ("401", "Nobody known asks"),
            ("403", "Not for this role"),
            ("404", "No such store, or no such pin, for this user"),
            ("406", "pcap has room for one link type, and the store has several"),
            ("408", "The query did not come"),
            ("413", "The query is too long"),
            ("415", "A pin is asked for as JSON"),
            ("429", "Too many pins of this user are under way"),
            ("503", "No turn, no store, no audit, or pins cannot be written"),
            ("505", "pcap over HTTP/1.0"),
            ("507", "There is no room for another pin"),
        ]
        .map(refusal)
        .into()
    }
}

/// Adds what is not said of a single path.
pub fn complete(mut api: OpenApi) -> OpenApi {
    let mut info = Info::new("tapdeck-gateway", env!("CARGO_PKG_VERSION"));
    info.description = Some("What recorders hold and count, for those who may have it".into());
    api.info = info;
    let token = Http::new(HttpAuthScheme::Bearer);
    let certificate =
        SecurityScheme::MutualTls { description: None, deprecated: None, extensions: None };
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token));
    components.add_security_scheme("certificate", certificate);
    let none: [&str; 0] = [];
    api.security = Some(
        ["token", "certificate"].map(|way| security::SecurityRequirement::new(way, none)).into(),
    );
    api
}

/// Returns the document, as it is committed and served.
pub fn text() -> String {
    // What was generated is always valid.
    routes::described().to_pretty_json().unwrap_or_default() + "\n"
}

/// Gives this document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    responses((status = 200, description = "What can be asked", content_type = "application/json",
        body = Object))
)]
pub async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], text()).into_response()
}
