//! Back ends: which one sends the packets, and what is the user told where one cannot?

use std::io;

use anyhow::{Result, anyhow};
use rustix::io::Errno;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::live;
use tapdeck_traffic::sizes::Table;

use crate::flags::{BackendChoice, GapsChoice, Gen};
use crate::usage::usage;

/// How packets get to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Packets are made in the kernel.
    Xdp,
    /// Packets are made in this process and sent by a packet socket.
    Packet,
    /// Packets are made in this process and sent by an AF_XDP socket.
    AfXdp,
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Packet => "txring",
            Self::AfXdp => "afxdp",
        }
    }
}

/// Packets a second up to which a paced sender sends from user space, where waiting costs no CPU.
const SLOW_PPS: f64 = 200e3;

/// Advice for an interface that does not take frames made in the kernel.
pub const NEEDS_A_FAR_END: &str =
    "a veth needs GRO (ethtool -K NAME gro on) or an XDP program at its far end";

/// Chooses the back end, with the reason where the choice was left open. `pps` is of one sender.
pub fn choose(
    f: &Gen,
    interfaces: &[Interface],
    table: &Table,
    pps: Option<f64>,
) -> Result<(Backend, Option<&'static str>)> {
    let too_long = usize::from(table.longest()) > live::LONGEST;
    let irregular = f.gaps != GapsChoice::Constant;
    match f.backend {
        BackendChoice::Txring => return Ok((Backend::Packet, None)),
        BackendChoice::Afxdp => return Ok((Backend::AfXdp, None)),
        BackendChoice::Xdp if too_long => {
            let text = format!("--backend xdp: frames are at most {} bytes", live::LONGEST);
            return usage(text);
        }
        BackendChoice::Xdp if irregular => {
            return usage("--backend xdp sends at constant gaps; txring and afxdp can do --gaps");
        }
        BackendChoice::Xdp => {
            for interface in interfaces {
                if interface.takes_redirected_frames() == Some(false) {
                    anyhow::bail!(
                        "--backend xdp: {} takes no redirected frames; {NEEDS_A_FAR_END}",
                        interface.name
                    );
                }
            }
            return Ok((Backend::Xdp, None));
        }
        BackendChoice::Auto => {}
    }
    let slow = pps.is_some_and(|pps| pps <= SLOW_PPS);
    Ok(choose_by_itself(interfaces, irregular, too_long, slow))
}

/// Chooses the back end where the user left it open, with the reason.
fn choose_by_itself(
    interfaces: &[Interface],
    irregular: bool,
    too_long: bool,
    slow: bool,
) -> (Backend, Option<&'static str>) {
    let user = |reason| (Backend::Packet, Some(reason));
    if irregular {
        return user("gaps vary");
    }
    if too_long {
        return user("frames are longer than a page");
    }
    if slow {
        return user("the rate leaves time to wait");
    }
    for interface in interfaces {
        match interface.takes_redirected_frames() {
            Some(true) => {}
            Some(false) => return user("the interface or its far end takes no redirected frames"),
            None => {
                return user(
                    "before Linux 6.3 the kernel does not tell whether redirected frames are taken; --backend xdp tries",
                );
            }
        }
    }
    (Backend::Xdp, Some("the fastest"))
}

/// Chooses the back end of a replay, with the reason where the choice was left open.
pub fn choose_for_replay(choice: BackendChoice) -> Result<(Backend, Option<&'static str>)> {
    match choice {
        BackendChoice::Auto => Ok((Backend::Packet, Some("recorded packets come from here"))),
        BackendChoice::Txring => Ok((Backend::Packet, None)),
        BackendChoice::Afxdp => Ok((Backend::AfXdp, None)),
        BackendChoice::Xdp => {
            usage("--backend xdp makes packets by itself; a replay takes txring or afxdp")
        }
    }
}

/// Returns what to do about an error of opening a back end, with the error as its cause.
pub fn explain(backend: Backend, interface: &Interface, error: io::Error) -> anyhow::Error {
    let advice = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            " (run it as root, or with CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON)"
        }
        Some(Errno::MFILE) => " (raise the limit with ulimit -n, or take fewer --threads)",
        Some(Errno::INVAL | Errno::OVERFLOW) if backend == Backend::AfXdp => {
            " (each of the --threads needs a queue of its own)"
        }
        _ if backend == Backend::Packet => "",
        _ => " (--backend txring works everywhere)",
    };
    let what = format!("{}: cannot send by {}{advice}", interface.name, backend.name());
    anyhow::Error::new(error).context(what)
}

/// Returns the error of a back end that failed in the middle of a run.
pub fn ended(interface: &str, error: &io::Error) -> anyhow::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NETDOWN) => anyhow!("{interface} went down or lost its link"),
        Some(Errno::NXIO | Errno::NODEV) => anyhow!("{interface} is gone"),
        Some(Errno::MSGSIZE) => {
            anyhow!("{interface} does not take frames of this length: its MTU was changed")
        }
        Some(Errno::TIMEDOUT) => {
            anyhow!("{interface} takes no packets: is the MTU at its far end smaller?")
        }
        _ => anyhow!("{interface}: sending ended: {error}"),
    }
}
