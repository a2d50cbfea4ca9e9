//! What can this kernel and its interfaces do? It is found out by trying.
//!
//! Versions of the kernel say little, for distributions bring features back. So programs are
//! loaded, and where nothing else tells, attached for a moment. What each hook needs is in `hook`.

use std::io;
use std::os::fd::AsFd;

use crate::bpf::driver::Questions;
use crate::bpf::loaded::Loaded;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::explain::{lacks, xdp_above};
use crate::filter::splice::Filters;
use crate::hook::{AttachPlace, Sockets, TakenBy};
use crate::interface::{Error, Interface};
use crate::stamps::why_each_packet;
pub use crate::sys::kernel::OtherProgram;
use crate::sys::kernel::{self, AttachPoint};
use crate::sys::packet_socket;
use crate::{Hook, Stamps, netlink};

/// Chooses the hook for an interface when nobody chose one, and says why: XDP stands before
/// everything that the host's own traffic passes, so an interface that carries an address gets the
/// hook that sees both directions, and one that only listens gets the fastest. Where the kernel
/// does not tell whether the driver has XDP, that is tried: a program that lets everything pass is
/// attached for a moment.
pub fn auto(interface: &Interface) -> Result<(Hook, &'static str), Error> {
    let (hook, reason) = likely(interface)?;
    if hook == Hook::Xdp && xdp_in_driver(interface).is_none() && try_xdp(interface).is_err() {
        return Ok((Hook::Tcx, "the driver has no XDP"));
    }
    Ok((hook, reason))
}

/// Returns what [`auto`] would say if the driver has XDP wherever the kernel does not tell.
fn likely(interface: &Interface) -> Result<(Hook, &'static str), Error> {
    if interface.has_address()? {
        return Ok((
            Hook::Tcx,
            "the interface carries an IP address, and tcx sees both directions",
        ));
    }
    let state = kernel::xdp_state(interface.index).unwrap_or_default();
    if state.program().is_some() {
        return Ok((Hook::Tcx, "the interface has an XDP program already"));
    }
    if xdp_in_driver(interface) == Some(false) {
        return Ok((Hook::Tcx, "the driver has no XDP"));
    }
    if xdp_above(interface).is_some() {
        return Ok((Hook::Tcx, "an interface that sits on it has an XDP program"));
    }
    Ok((Hook::Xdp, "the interface carries no IP address, and xdp is the fastest"))
}

fn try_xdp(interface: &Interface) -> io::Result<()> {
    let loaded = load(Hook::Xdp.programs())?;
    let point = AttachPoint::Xdp { ifindex: interface.index, generic: false };
    kernel::attach(loaded.program(Program::Xdp)?.as_fd(), point).map(drop)
}

/// Loads programs that let everything pass, with the smallest ring.
fn load(programs: &[Program]) -> io::Result<Loaded> {
    Loaded::new(programs, &Params::unread(0), &Filters::new()).map(|(loaded, _)| loaded)
}

/// Returns whether the driver has XDP; `None` where the kernel does not tell.
pub fn xdp_in_driver(interface: &Interface) -> Option<bool> {
    const BASIC: u64 = 1;
    let features = kernel::xdp_state(interface.index).ok()?.features;
    netlink::knows_devices().then_some(features & BASIC != 0)
}

/// Returns what packets would be stamped by at a hook of an interface where nobody says it, and why
/// they cannot share readings of the clock; `None` at socket hooks.
fn stamps(interface: &Interface, hook: Hook) -> Option<(Stamps, Option<&'static str>)> {
    let TakenBy::Programs(set) = hook.facts().taken_by else { return None };
    let driver = Questions::to(interface, &set, true);
    let tells =
        || Loaded::new(&[], &Params { clock_by_poll: true, ..Params::unread(0) }, &Filters::new());
    // Rings are as many as are wanted, unless the user gives them little memory.
    let why = why_each_packet(interface, hook, u32::MAX, false);
    let why =
        why.or_else(|| tells().err().map(|_| "the kernel does not tell when a poll has ended"));
    Some(match (driver.time, why) {
        (true, _) => (Stamps::Hardware, None),
        (false, None) => (Stamps::Batch, None),
        (false, Some(why)) => (Stamps::Packet, Some(why)),
    })
}

/// Whether a hook works on this kernel: how, or why not.
#[derive(Clone, Debug)]
pub struct HookState {
    pub hook: Hook,
    pub works: Result<&'static str, String>,
}

/// Tries each hook's programs or sockets. Nothing is attached to any interface.
pub fn hooks() -> Vec<HookState> {
    Hook::ALL.into_iter().map(|hook| HookState { hook, works: works(hook) }).collect()
}

fn works(hook: Hook) -> Result<&'static str, String> {
    let facts = hook.facts();
    match facts.taken_by {
        TakenBy::Programs(set) => {
            let loaded = load(set.plain).map_err(|e| why_not(hook, &e))?;
            let is_there = match set.place {
                AttachPlace::Tcx => has_tcx(&loaded),
                AttachPlace::Xdp(_) | AttachPlace::Netfilter => true,
            };
            Ok(match facts.stand_in {
                Some(stand_in) if !is_there => stand_in.works,
                _ => facts.works,
            })
        }
        TakenBy::Sockets(Sockets::Packet(_)) => {
            packet_socket::PacketSocket::new().map(|_| facts.works).map_err(|e| why(&e))
        }
        TakenBy::Sockets(Sockets::Xdp(programs)) => {
            load(programs).map(|_| facts.works).map_err(|e| why(&e))
        }
    }
}

/// Says why a hook's programs could not be loaded.
fn why_not(hook: Hook, e: &io::Error) -> String {
    match lacks(hook) {
        Some(lacks) if !is_forbidden(e) => lacks,
        _ => why(e),
    }
}

fn is_forbidden(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn why(e: &io::Error) -> String {
    if is_forbidden(e) { "no permission: run as root".into() } else { e.to_string() }
}

/// Attaching to an interface that does not exist fails in one way where the kernel knows tcx, and
/// in another where it does not.
fn has_tcx(loaded: &Loaded) -> bool {
    let Ok(program) = loaded.program(Program::Ingress) else { return false };
    let point = AttachPoint::TcxIngress { ifindex: i32::MAX as u32 };
    let result = kernel::attach(program.as_fd(), point);
    result.is_err_and(|e| e.raw_os_error() == Some(libc::ENODEV))
}

/// The programs at an interface that packets meet, whoever attached them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// The XDP program, in the driver or in the core behind it, before everything else.
    pub xdp: Option<OtherProgram>,
    /// Programs of tcx, in the order in which packets that come in meet them.
    pub inbound: Vec<OtherProgram>,
    /// Programs of tcx, in the order in which packets that go out meet them.
    pub outbound: Vec<OtherProgram>,
}

impl Programs {
    /// Asks the kernel which they are. What it does not tell is left out.
    pub fn of(interface: &Interface) -> Self {
        let state = kernel::xdp_state(interface.index).unwrap_or_default();
        let tcx = |egress| kernel::tcx_programs(interface.index, egress).unwrap_or_default();
        Self {
            xdp: state.program().map(OtherProgram::of),
            inbound: tcx(false),
            outbound: tcx(true),
        }
    }
}

/// What an interface can do.
#[derive(Clone, Debug)]
pub struct InterfaceState {
    pub interface: Interface,
    /// `None`: the kernel does not tell.
    pub driver_xdp: Option<bool>,
    pub zero_copy: bool,
    /// Frames of several buffers (jumbo frames) reach XDP programs.
    pub multi_buffer: bool,
    /// Programs that are attached already.
    pub programs: Programs,
    pub strips_vlan: bool,
    pub auto: Hook,
    /// What packets are stamped by at that hook, and why they share no reading of the clock.
    pub stamps: Option<(Stamps, Option<&'static str>)>,
    pub reason: &'static str,
}

impl InterfaceState {
    pub fn of(interface: Interface) -> Result<Self, Error> {
        const ZERO_COPY: u64 = 8;
        const RX_SG: u64 = 32;
        let state = kernel::xdp_state(interface.index).unwrap_or_default();
        let (auto, reason) = likely(&interface)?;
        Ok(Self {
            driver_xdp: xdp_in_driver(&interface),
            zero_copy: state.features & ZERO_COPY != 0,
            multi_buffer: state.features & RX_SG != 0,
            programs: Programs::of(&interface),
            strips_vlan: kernel::strips_vlan(&interface.name).unwrap_or(false),
            auto,
            stamps: stamps(&interface, auto),
            reason,
            interface,
        })
    }
}
