//! How many rings does a capture want, so that those who write into them hardly ever meet?
//!
//! A capture wants one ring for each unit of its hook ([`RingUnit`]). Fewer are correct all the
//! same, for any packet may lie in any ring. For how many there is memory is decided elsewhere
//! (`ring::Geometry`).

use crate::Hook;
use crate::hook::RingUnit;
use crate::interface::Interface;

/// Returns how many rings give each receive queue, CPU or socket of the hook one of its own.
pub(crate) fn wanted_rings(interface: &Interface, hook: Hook) -> u32 {
    match hook.ring_unit() {
        RingUnit::Queue => interface.rx_queues,
        // A CPU that is switched on later shares a ring.
        RingUnit::Cpu => online_cpus(),
        RingUnit::Socket => 1,
    }
}

fn online_cpus() -> u32 {
    // Not available_parallelism(3): packets come to CPUs that this process may not use.
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).count();
    (cpus as u32).max(1)
}
