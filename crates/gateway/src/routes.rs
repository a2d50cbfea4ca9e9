//! What can be asked for: a path for each thing, and the state behind all of them.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::Value;
use tapdeck_metrics::{Metrics, OPEN_METRICS, classic};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::config::{Config, Source};
use crate::{control, health};

/// How many rounds of questions to all recorders are under way at once. More wait for their turn.
const ROUNDS: usize = 4;

/// What all requests share.
#[derive(Debug)]
pub struct Gateway {
    sources: Vec<Arc<Source>>,
    rounds: Semaphore,
    /// The gateway's own metrics.
    registry: Registry,
}

/// A source, and what it has answered.
struct Answered {
    source: Arc<Source>,
    statistics: Result<Value, String>,
}

impl Gateway {
    pub fn new(config: &Config) -> Self {
        Self {
            sources: config.sources.iter().cloned().map(Arc::new).collect(),
            rounds: Semaphore::new(ROUNDS),
            registry: Registry::default(),
        }
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
}

/// Returns all paths.
pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .with_state(gateway)
}

async fn metrics(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> impl IntoResponse {
    let mut metrics = Metrics::default();
    metrics.add_build("gateway", env!("CARGO_PKG_VERSION"));
    for Answered { source, statistics } in gateway.ask_all().await {
        let labels = [(source.kind.label(), source.name.as_str())];
        metrics.add_up(&labels, statistics.is_ok());
        if let Ok(statistics) = &statistics {
            metrics.add_statistics(&labels, statistics);
        }
    }
    let text = metrics.open_metrics_with(&gateway.registry);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    // Whoever does not ask for OpenMetrics may not know it.
    if accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
        ([(CONTENT_TYPE, OPEN_METRICS)], text)
    } else {
        ([(CONTENT_TYPE, classic::CONTENT_TYPE)], classic::of(&text))
    }
}

#[derive(Serialize)]
struct Health {
    healthy: bool,
    sources: Vec<SourceHealth>,
}

#[derive(Serialize)]
struct SourceHealth {
    name: String,
    healthy: bool,
    /// What is wrong.
    faults: Vec<String>,
}

async fn healthz(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    let of = |Answered { source, statistics }: Answered| {
        let faults = health::faults(&statistics);
        SourceHealth { name: source.name.clone(), healthy: faults.is_empty(), faults }
    };
    let sources: Vec<SourceHealth> = gateway.ask_all().await.into_iter().map(of).collect();
    let healthy = sources.iter().all(|source| source.healthy);
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let text = serde_json::to_string(&Health { healthy, sources }).unwrap_or_default();
    (status, [(CONTENT_TYPE, "application/json")], text + "\n")
}
