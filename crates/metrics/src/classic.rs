//! How does OpenMetrics read to who knows only what Prometheus had before it?
//!
//! The samples are the same. What stands above them names a counter with its `_total`, there are no
//! types `info` and `unknown`, no units, and nothing at the end. `promtool check metrics` and older
//! scrapers read this form alone.

use std::fmt::Write as _;

/// The content type of the older form.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns OpenMetrics in the older form.
pub fn of(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // The help of a metric stands before its type, which says what the metric is called here.
    let mut help = None;
    for line in open_metrics.lines() {
        let Some(about) = line.strip_prefix("# ") else {
            let _ = writeln!(text, "{line}");
            continue;
        };
        let mut words = about.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("HELP"), Some(_), told) => help = told,
            (Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                if let Some(help) = help.take() {
                    let _ = writeln!(text, "# HELP {name}{suffix} {help}");
                }
                let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
            }
            // Units, and the end.
            _ => {}
        }
    }
    text
}
