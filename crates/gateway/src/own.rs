//! What the gateway counts itself: how long answers take.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Seconds up to which answers are counted together.
const BUCKETS: [f64; 9] = [0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0];

type Labels = Vec<(&'static str, String)>;

/// The gateway's own metrics.
#[derive(Debug)]
pub struct Own {
    registry: Registry,
    durations: Family<Labels, Histogram>,
}

impl Default for Own {
    fn default() -> Self {
        let make: fn() -> Histogram = || Histogram::new(BUCKETS);
        let durations = Family::<Labels, Histogram>::new_with_constructor(make);
        let mut registry = Registry::default();
        let help = "Time from a question to the end of its answer, its turn not counted";
        registry.register_with_unit(
            "tapdeck_query_duration",
            help,
            Unit::Seconds,
            durations.clone(),
        );
        Self { registry, durations }
    }
}

impl Own {
    /// Returns the metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Takes in that a question was answered, and how.
    pub fn answered(&self, store: &str, what: &str, result: &str, time: Duration) {
        let labels = [("store", store), ("path", what), ("result", result)];
        let labels = labels.map(|(key, value)| (key, value.to_owned())).to_vec();
        self.durations.get_or_create(&labels).observe(time.as_secs_f64());
    }
}
