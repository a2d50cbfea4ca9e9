//! What the console asks before there is a question: which stores there are, and what a filter
//! means that is being typed. No packet is in these answers, so the audit has only who was refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;
use tapdeck_packet::filter::parse;
use tapdeck_store::filter::Filter;
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::access::Kind;
use crate::api;
use crate::asker::{Asker, Parameters, Refusal};
use crate::openapi::Refusals;
use crate::routes::Gateway;

/// How long a filter waits until it is tried.
const TURN: Duration = Duration::from_secs(10);

/// What `GET /v1/stores` answers.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the answer")]
pub struct Stores {
    user: String,
    stores: Vec<Store>,
    /// What every packet must match besides; empty takes every packet.
    filter: String,
    /// Whether they may make pins, and remove them.
    may_pin: bool,
}

#[derive(Serialize, ToSchema)]
struct Store {
    name: String,
    /// Where it lies, on the gateway's machine.
    directory: String,
}

/// Tells who asks, and which stores they may see.
#[utoipa::path(
    get,
    path = "/v1/stores",
    responses((status = 200, description = "Of who asks", body = Stores), Refusals)
)]
pub async fn stores(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Stores>, Refusal> {
    Parameters::read(query.as_deref(), &[])?;
    let store = |(name, directory): (&String, &std::path::PathBuf)| Store {
        name: name.clone(),
        directory: shown(directory),
    };
    Ok(Json(Stores {
        user: asker.user.name.clone(),
        stores: api::stores(&gateway, &asker.user).map(store).collect(),
        filter: asker.user.role.filter.clone(),
        may_pin: asker.user.role.kind == Kind::Pinner,
    }))
}

fn shown(directory: &Path) -> String {
    directory.display().to_string()
}

/// What `GET /v1/filter` answers.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Meaning {
    compiles: bool,
    /// Why it does not.
    why: Option<String>,
    /// The filter with all that was left out of it spelled out; `null` where its form is not known.
    means: Option<String>,
    /// What packets are looked for by; `anything` where each has to be looked at.
    looked_for: Option<String>,
}

impl Meaning {
    /// Compiles a filter that was tried before.
    fn of(text: &str) -> Self {
        match Filter::new(text, &[], false) {
            Err(e) => Self { why: Some(e.to_string()), ..Self::default() },
            Ok(filter) => {
                let understood = filter.is_understood() && !text.trim().is_empty();
                let means = understood.then(|| parse(text).ok()).flatten();
                Self {
                    compiles: true,
                    why: None,
                    means: means.map(|expression| expression.to_string()),
                    looked_for: Some(filter.plan().to_string()),
                }
            }
        }
    }
}

/// Tells what a filter means.
#[utoipa::path(
    get,
    path = "/v1/filter",
    params(("filter" = Option<String>, Query, description = "pcap-filter(7), with addresses in place of names")),
    responses((status = 200, description = "Also where it does not compile", body = Meaning), Refusals)
)]
pub async fn filter(
    State(gateway): State<Arc<Gateway>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Meaning>, Refusal> {
    let parameters = Parameters::read(query.as_deref(), &["filter"])?;
    let text = parameters.get("filter").unwrap_or("").to_owned();
    let busy = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many filters: ask again");
    let turns = async {
        let of_user = asker.user.typing.acquire().await;
        (of_user, gateway.typing.acquire().await)
    };
    let _turns = timeout(TURN, turns).await.map_err(busy)?;
    if let Err(why) = gateway.checked.check(&BTreeSet::from([text.as_str()])).await {
        return Ok(Json(Meaning { why: Some(why), ..Meaning::default() }));
    }
    let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no answer");
    let meaning = tokio::task::spawn_blocking(move || Meaning::of(&text)).await.map_err(failed)?;
    Ok(Json(meaning))
}

#[cfg(test)]
mod tests {
    use super::Meaning;

    #[test]
    fn a_filter_is_spelled_out() {
        let told = Meaning::of("host 10.0.0.1 and port 53");
        let means = told.means.expect("it is understood");
        assert!(means.contains("host 10.0.0.1") && means.contains("src or dst"), "{means}");
        let looked_for = told.looked_for.expect("it compiles");
        assert!(looked_for.contains("source address 10.0.0.1"), "{looked_for}");
        let odd = Meaning::of("prot 80");
        assert!(!odd.compiles && odd.why.is_some() && odd.means.is_none());
        let all = Meaning::of("");
        assert!(all.compiles && all.means.is_none());
        assert_eq!(all.looked_for.as_deref(), Some("anything"));
    }
}
