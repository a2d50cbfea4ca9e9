//! What the user should know of an interface at a hook that is no error.

use crate::Hook;
use crate::attach::CLSACT_PRIORITY;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::hook::AttachPlace;
use crate::interface::Interface;
use crate::probe::{OtherProgram, Programs};
use crate::sys::kernel;

/// VLAN tags that are lost before the hook. `programs` are those that are loaded, and `params` what
/// they were told; `None` for sockets.
pub(crate) fn lost_tags(
    interface: &Interface,
    hook: Hook,
    programs: &[Program],
    params: Option<&Params>,
) -> Option<String> {
    let ask = programs.iter().any(|program| program.is_bound());
    let is_handed_on = params.is_some_and(|params| params.veth || params.hardware_vlan && ask);
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
pub(crate) fn stays_behind(interface: &Interface) -> String {
    let name = &interface.name;
    format!(
        "this kernel has no tcx; clsact filters on {name} do its work and stay if its processes are killed, until the next recorder replaces them (tc filter del dev {name} ingress pref {CLSACT_PRIORITY}, and egress)"
    )
}

/// Other programs at the interface that packets meet before or behind those of `links`.
pub(crate) fn others_there(interface: &Interface, hook: Hook, own: &[u32]) -> Option<String> {
    let programs = Programs::of(interface);
    let list = |programs: Vec<OtherProgram>| {
        let others = programs.iter().filter(|program| !own.contains(&program.id));
        let others: Vec<String> = others.map(ToString::to_string).collect();
        (!others.is_empty()).then(|| others.join(", "))
    };
    let mut there = Vec::new();
    if !hook.needs_xdp_place()
        && let Some(xdp) = programs.xdp
    {
        there.push(format!("{xdp}, at XDP and before hook {hook}"));
    }
    if hook.program_set().is_some_and(|set| set.place == AttachPlace::Tcx) {
        let inbound = list(programs.inbound);
        there.extend(inbound.map(|who| format!("behind it, inbound, {who}")));
        let outbound = list(programs.outbound);
        there.extend(outbound.map(|who| format!("before it, outbound, {who}")));
    }
    let name = &interface.name;
    (!there.is_empty()).then(|| format!("{name} has other programs, too: {}", there.join("; ")))
}

/// A filter that asks for what frames of this link type do not have.
pub(crate) fn takes_nothing(interface: &Interface, expression: &str) -> String {
    let name = &interface.name;
    format!(
        "nothing of {name} can match the filter {expression:?}: its packets have no such header, and all of them are refused"
    )
}
