//! What the user should know of an interface at a hook that is no error.

use crate::Hook;
use crate::attach::{CLSACT_PRIORITY, Links};
use crate::bpf::program::Program;
use crate::interface::Interface;
use crate::sys::kernel;

/// VLAN tags that are lost before the hook. `programs` are those that are loaded, with
/// `hands_on_tags` if they were told to ask the driver for tags.
pub(crate) fn lost_tags(
    interface: &Interface,
    hook: Hook,
    programs: &[Program],
    hands_on_tags: bool,
) -> Option<String> {
    let is_handed_on = hands_on_tags && programs.iter().any(|program| program.is_bound());
    let name = &interface.name;
    // The kernel's core puts tags back at the other hooks.
    let is_lost =
        hook.needs_xdp_place() && !is_handed_on && kernel::strips_vlan(name).unwrap_or(false);
    is_lost.then(|| {
        format!(
            "{name} takes VLAN tags off before hook {hook} and does not hand them on: ethtool -K {name} rxvlan off keeps them"
        )
    })
}

/// Filters of clsact in the place of tcx, which stay when this process is killed.
pub(crate) fn stays_behind(interface: &Interface, links: &Links) -> Option<String> {
    let name = &interface.name;
    links.by_clsact().then(|| {
        format!(
            "this kernel has no tcx; clsact filters on {name} do its work and stay if this process is killed, until the next one replaces them (tc filter del dev {name} ingress pref {CLSACT_PRIORITY}, and egress)"
        )
    })
}
