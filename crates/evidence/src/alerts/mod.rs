//! Alerts of an intrusion detection system, and which packets they are to pin.
//!
//! [`Follow`] reads the lines of a file that somebody writes and rotates; [`Alert`] is what a line
//! of Suricata's EVE says; [`Rules`] say what an alert pins; a [`Merger`] makes one pin of many
//! alerts of the same flow, and no more than it may.

mod alert;
mod follow;
mod merger;
mod rules;

pub use alert::Alert;
pub use follow::{Follow, Position};
pub use merger::{Decision, Merger};
pub use rules::{Limits, Rule, Rules, Scope};
