//! What is captured of an interface, and how? The values that a caller chooses; whether the
//! interface and the kernel can do it is found when the capture is opened.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::rules::Compiled;
use crate::{Deliver, Hook, Overload, Stamps};

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
    /// Whether an XDP program may be bound to its device, where that gets the driver's time or VLAN
    /// tag.
    pub device_bound: bool,
    pub overload: Overload,
    pub stamps: Stamps,
    /// A pcap-filter(7) expression.
    pub filter: Option<String>,
    /// Rules; a packet that no rule accepts is not captured.
    pub rules: Option<Arc<Compiled>>,
    /// Bytes that are captured of each flow, at most [`crate::flows::MAX_CUTOFF`], and the packet
    /// that reaches them.
    pub cutoff: Option<NonZeroU32>,
}
