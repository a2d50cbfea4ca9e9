//! How many rings a capture wants: one for each receive queue, CPU or socket of its hook.

use crate::Hook;
use crate::interface::Interface;

/// One ring for each receive queue, CPU or socket.
pub(crate) fn wanted_rings(interface: &Interface, hook: Hook) -> u32 {
    match hook {
        Hook::Tpacket | Hook::Recv => 1,
        Hook::Xdp | Hook::AfXdp => interface.rx_queues,
        // One that is switched on later shares a ring.
        Hook::XdpGeneric | Hook::Tcx | Hook::Netfilter => online_cpus(),
    }
}

pub(crate) fn online_cpus() -> u32 {
    // Not available_parallelism(3): packets come to CPUs that this process may not use.
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).count();
    (cpus as u32).max(1)
}
