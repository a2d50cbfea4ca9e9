//! What can be asked for: a path for each thing, and the state behind all of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use tapdeck_metrics::{Metrics, OPEN_METRICS, classic};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{User, Users};
use crate::asker::{self, accepts};
use crate::audit::Audit;
use crate::check::Checked;
use crate::config::{Config, Source, SourceKind};
use crate::copying::Bell;
use crate::own::Own;
use crate::{api, console, control, health, openapi, pins, say, typing};

/// How many rounds of questions to all recorders are under way at once. More wait for their turn.
const ROUNDS: usize = 4;

/// Questions that are answered at once, whoever asks. Each takes some five MiB of memory.
const QUESTIONS: usize = 8;
/// Tokens that are held against their hashes at once. Each takes a MiB of memory, or a few.
const HASHES: usize = 2;
/// Filters that are tried at once while they are typed, each in a process of its own.
const TYPING: usize = 2;
/// How often it is written down who was refused meanwhile.
const EVERY: Duration = Duration::from_secs(1);
/// Clients that are told each second how a recorder does.
const WATCHES: usize = 64;

/// What all requests share.
#[derive(Debug)]
pub struct Gateway {
    pub sources: Vec<Arc<Source>>,
    pub users: Users,
    pub audit: Option<Audit>,
    /// The store that stenographer's clients ask, if it is named.
    pub stenographer: Option<String>,
    /// Whether everybody has to show a token at plain listeners, also for metrics and health.
    pub wants_token: bool,
    /// Filters that were tried.
    pub checked: Checked,
    /// Places for questions that are answered.
    pub places: Arc<Semaphore>,
    /// Places for tokens that are held against hashes.
    pub hashes: Arc<Semaphore>,
    /// Places for filters that are tried while they are typed.
    pub typing: Semaphore,
    /// Places for clients that are told each second how a recorder does.
    pub watches: Arc<Semaphore>,
    /// What the gateway counts itself.
    pub own: Own,
    /// Wakes whoever copies what pins want.
    pub pinned: Bell,
    /// Is cancelled when the gateway ends.
    pub ending: CancellationToken,
    rounds: Semaphore,
}

/// A source, and what it has answered.
struct Answered {
    source: Arc<Source>,
    statistics: Result<Value, String>,
}

impl Gateway {
    /// # Errors
    /// Where the audit cannot be written.
    pub fn new(config: &Config) -> Result<Self> {
        let mut users = Users::default();
        for plan in &config.users {
            let user = User::new(plan.name.clone(), plan.role.clone());
            users.add(user, plan.certificate.clone(), plan.token.clone());
        }
        let open = |path: &PathBuf| {
            Audit::open(path.clone()).with_context(|| format!("{}", path.display()))
        };
        Ok(Self {
            sources: config.sources.iter().cloned().map(Arc::new).collect(),
            users,
            audit: config.audit.as_ref().map(open).transpose().context("the audit")?,
            stenographer: config.stenographer.clone(),
            wants_token: config.wants_token,
            checked: Checked::default(),
            places: Arc::new(Semaphore::new(QUESTIONS)),
            hashes: Arc::new(Semaphore::new(HASHES)),
            typing: Semaphore::new(TYPING),
            watches: Arc::new(Semaphore::new(WATCHES)),
            own: Own::default(),
            pinned: Bell::default(),
            ending: CancellationToken::new(),
            rounds: Semaphore::new(ROUNDS),
        })
    }

    /// Asks all sources at once. The answers are in the order of the configuration.
    async fn ask_all(&self) -> Vec<Answered> {
        let _turn = self.rounds.acquire().await;
        let mut asked = JoinSet::new();
        for (at, source) in self.sources.iter().enumerate() {
            let source = source.clone();
            asked.spawn(async move {
                let statistics = control::statistics(&source.socket).await;
                (at, Answered { source, statistics })
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answered)| answered).collect()
    }

    /// Writes down each second, and at the end, who was refused and how often.
    pub async fn count_strangers(&self) {
        let Some(audit) = &self.audit else { return };
        let mut is_ending = false;
        while !is_ending {
            is_ending = timeout(EVERY, self.ending.cancelled()).await.is_ok();
            if let Err(e) = audit.flush() {
                say(&format!("the audit cannot be written: {e}"));
            }
        }
    }

    /// Returns why questions cannot be answered, a sentence each.
    fn unready(&self) -> Vec<String> {
        let stores = self.sources.iter().filter_map(|source| match &source.kind {
            SourceKind::Store { directory, .. } => Some(directory),
            SourceKind::Daemon => None,
        });
        let unread = |directory: &PathBuf| {
            let e = std::fs::read_dir(directory).err()?;
            Some(format!("{}: {e}", directory.display()))
        };
        let audit = self.audit.as_ref().and_then(Audit::fault);
        stores.filter_map(unread).chain(audit.map(|e| format!("the audit: {e}"))).collect()
    }
}

/// Returns all paths, and what there is to say about each. What this names is in `openapi.json`:
/// a path is said once, with its function.
fn paths() -> (OpenApiRouter<Arc<Gateway>>, OpenApiRouter<Arc<Gateway>>) {
    let known = OpenApiRouter::new()
        .routes(routes!(api::packets))
        .routes(routes!(api::stat))
        .routes(routes!(api::histogram))
        .routes(routes!(api::hosts))
        .routes(routes!(api::losses))
        .routes(routes!(api::watch))
        .routes(routes!(pins::list, pins::make))
        .routes(routes!(pins::one, pins::remove))
        .routes(routes!(pins::packets))
        .routes(routes!(api::stenographer))
        .routes(routes!(typing::stores))
        .routes(routes!(typing::filter))
        .routes(routes!(openapi::document));
    let state = OpenApiRouter::new()
        .routes(routes!(metrics))
        .routes(routes!(healthz))
        .routes(routes!(readyz));
    (known, state)
}

/// Returns what there is to say about all paths.
pub fn described() -> OpenApi {
    let (known, state) = paths();
    openapi::complete(known.merge(state).into_openapi())
}

pub fn router(gateway: Arc<Gateway>) -> Router {
    let operators = from_fn_with_state(gateway.clone(), asker::operators);
    let only_known = from_fn_with_state(gateway.clone(), asker::known);
    let (known, state) = paths();
    let all = known.route_layer(only_known).merge(state.route_layer(operators));
    let all = Router::from(all).with_state(gateway).merge(console::router());
    all.layer(map_response(console::no_sniffing))
}

#[utoipa::path(
    get,
    path = "/metrics",
    responses((status = 200, description = "What recorders and daemons count, for Prometheus",
        content((String = "application/openmetrics-text"), (String = "text/plain"))))
)]
async fn metrics(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Response {
    let mut metrics = Metrics::default();
    metrics.add_build("gateway", env!("CARGO_PKG_VERSION"));
    for Answered { source, statistics } in gateway.ask_all().await {
        let labels = [(source.kind.label(), source.name.as_str())];
        metrics.add_up(&labels, statistics.is_ok());
        if let Ok(statistics) = &statistics {
            metrics.add_statistics(&labels, statistics);
        }
    }
    let text = metrics.open_metrics_with(gateway.own.registry());
    // Whoever does not ask for OpenMetrics may not know it.
    if accepts(&headers, "application/openmetrics-text") {
        ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response()
    } else {
        ([(CONTENT_TYPE, classic::CONTENT_TYPE)], classic::of(&text)).into_response()
    }
}

#[derive(Serialize, ToSchema)]
struct Health {
    healthy: bool,
    sources: Vec<SourceHealth>,
}

#[derive(Serialize, ToSchema)]
struct SourceHealth {
    name: String,
    healthy: bool,
    /// What is wrong.
    faults: Vec<String>,
}

/// Says whether the gateway can answer questions.
#[utoipa::path(
    get,
    path = "/readyz",
    responses(
        (status = 200, description = "Stores can be read, and the audit written", body = String),
        (status = 503, description = "What is wrong", body = String),
    )
)]
async fn readyz(State(gateway): State<Arc<Gateway>>) -> Response {
    let faults = gateway.unready();
    let status = status_of(faults.is_empty());
    (status, faults.join("\n") + "\n").into_response()
}

fn status_of(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Says whether recorders and daemons are as they should be.
#[utoipa::path(
    get,
    path = "/healthz",
    responses(
        (status = 200, description = "All is well", body = Health),
        (status = 503, description = "What is wrong", body = Health),
    )
)]
async fn healthz(State(gateway): State<Arc<Gateway>>) -> Response {
    let of = |Answered { source, statistics }: Answered| {
        let faults = health::faults(&statistics);
        SourceHealth { name: source.name.clone(), healthy: faults.is_empty(), faults }
    };
    let sources: Vec<SourceHealth> = gateway.ask_all().await.into_iter().map(of).collect();
    let healthy = sources.iter().all(|source| source.healthy);
    let text = serde_json::to_string(&Health { healthy, sources }).unwrap_or_default();
    let head = [(CONTENT_TYPE, "application/json")];
    (status_of(healthy), head, text + "\n").into_response()
}
