//! What to capture, and how.

use std::sync::Arc;

use crate::rules::Compiled;
use crate::{Deliver, Hook};

/// What to capture, and how.
#[derive(Clone, Debug)]
pub struct Config {
    pub hook: Hook,
    pub deliver: Deliver,
    pub snaplen: u32,
    /// The memory of all rings of an interface together.
    pub ring_bytes: u64,
    pub block_bytes: u64,
    pub promiscuous: bool,
    /// A pcap-filter(7) expression.
    pub filter: Option<String>,
    /// Rules; a packet that no rule accepts is not captured.
    pub rules: Option<Arc<Compiled>>,
}
