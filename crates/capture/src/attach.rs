//! Loaded programs at their place on an interface: put there, exchanged, and taken away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::arphrd;

use crate::bpf::Program;
use crate::interface::Interface;
use crate::sys::kernel::{self, AttachPoint};
use crate::{Error, Hook};

/// Gives a loaded program's descriptor.
pub(crate) type Programs<'a> = dyn Fn(Program) -> io::Result<OwnedFd> + 'a;

/// Programs that are attached to an interface. Dropping it takes them away, but for those of
/// clsact, which [`Links::detach`] does.
#[derive(Default)]
pub(crate) struct Links {
    fds: Vec<(Program, OwnedFd)>,
    /// Filters on kernels without tcx; these stay when the process dies.
    clsact: Vec<Clsact>,
    /// Held while they are attached, so that a second recorder does not replace them.
    clsact_lock: Option<OwnedFd>,
    /// Holds the interface in promiscuous mode as long as it is open.
    promiscuous: Option<OwnedFd>,
}

impl Links {
    /// Attaches the programs of a hook. At the XDP hooks that is `xdp`: which of them was loaded.
    ///
    /// # Errors
    /// As bpf(2), `BPF_LINK_CREATE`; [`explain`] says what they mean.
    pub(crate) fn attach(
        interface: &Interface,
        hook: Hook,
        promiscuous: bool,
        xdp: Program,
        program: &Programs<'_>,
    ) -> io::Result<Self> {
        let ifindex = interface.index;
        let mut links = Self::default();
        if promiscuous && interface.link.is_some_and(LinkType::has_header) {
            links.promiscuous = Some(crate::sys::packet_socket::promiscuous(ifindex)?);
        }
        let mut link = |which: Program, point| -> io::Result<()> {
            links.fds.push((which, kernel::attach(program(which)?.as_fd(), point)?));
            Ok(())
        };
        match hook {
            Hook::Tcx => {
                let ways = tcx_ways(interface);
                match ways.iter().try_for_each(|(which, point, _)| link(*which, *point)) {
                    // Kernels before 6.6 do not know the attach type.
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                        links.attach_clsact(interface, program)?;
                    }
                    other => other?,
                }
            }
            Hook::Netfilter => {
                for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
                    let at =
                        |behind| AttachPoint::NetfilterPrerouting { family: family as u32, behind };
                    // Of BPF programs the kernel wants one at each place, whichever interface they
                    // look at.
                    let mut attached = link(Program::Netfilter, at(0));
                    for behind in 1..NETFILTER_PLACES {
                        match attached {
                            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                                attached = link(Program::Netfilter, at(behind));
                            }
                            _ => break,
                        }
                    }
                    attached?;
                }
            }
            hook => link(xdp, AttachPoint::Xdp { ifindex, generic: hook == Hook::XdpGeneric })?,
        }
        Ok(links)
    }

    /// Puts other programs in the place of those that are attached. Each packet meets the old one
    /// or the new one.
    ///
    /// # Errors
    /// As bpf(2), `BPF_LINK_UPDATE`: `EOPNOTSUPP` or `EINVAL` for netfilter, whose programs cannot
    /// be exchanged.
    pub(crate) fn exchange(&mut self, xdp: Program, program: &Programs<'_>) -> io::Result<()> {
        for (which, link) in &mut self.fds {
            if matches!(which, Program::Xdp | Program::XdpMetadata) {
                *which = xdp;
            }
            kernel::exchange(link.as_fd(), program(*which)?.as_fd())?;
        }
        for Clsact { which, point, ifindex, filter } in &mut self.clsact {
            *filter = clsact_filter(*ifindex, *point, program(*which)?.as_fd())
                .attach()
                .map_err(|e| crate::bpf::io_error(&e))?;
        }
        Ok(())
    }

    /// Whether clsact filters do the work of tcx.
    pub(crate) fn by_clsact(&self) -> bool {
        !self.clsact.is_empty()
    }

    /// Takes the programs away. Some may still be running.
    pub(crate) fn detach(self) {
        for mut clsact in self.clsact {
            // Fails where the interface is gone, and the filter with it.
            let _ = clsact.filter.detach();
        }
    }

    fn attach_clsact(&mut self, interface: &Interface, program: &Programs<'_>) -> io::Result<()> {
        let ifindex = interface.index;
        self.clsact_lock = Some(kernel::lock_name(&format!("tapdeck-clsact-{ifindex}"))?);
        for (which, _, point) in tcx_ways(interface) {
            let fd = program(which)?;
            let mut filter = clsact_filter(ifindex, point, fd.as_fd());
            match filter.create().and_then(|mut filter| filter.attach()) {
                Ok(filter) => self.clsact.push(Clsact { which, point, ifindex, filter }),
                Err(e) => {
                    std::mem::take(self).detach();
                    return Err(crate::bpf::io_error(&e));
                }
            }
        }
        Ok(())
    }
}

/// Programs at netfilter's prerouting hook of one network namespace, at most.
const NETFILTER_PLACES: u32 = 256;

/// Our own place in the clsact queueing discipline, so that a filter left by a recorder that was
/// killed is replaced, and nobody else's is.
pub(crate) const CLSACT_PRIORITY: u32 = 0x7ad;

/// A filter on a kernel without tcx.
struct Clsact {
    which: Program,
    point: libbpf_rs::TcAttachPoint,
    ifindex: u32,
    filter: libbpf_rs::TcHook,
}

fn clsact_filter(
    ifindex: u32,
    point: libbpf_rs::TcAttachPoint,
    program: BorrowedFd<'_>,
) -> libbpf_rs::TcHook {
    let mut filter = libbpf_rs::TcHook::new(program);
    filter
        .ifindex(ifindex as i32)
        .attach_point(point)
        .handle(1)
        .priority(CLSACT_PRIORITY)
        .replace(true);
    filter
}

/// Which programs go where at the tcx hook, and where clsact has the same place.
type TcxWay = (Program, AttachPoint, libbpf_rs::TcAttachPoint);

/// Both ways; on the loopback interface inbound only, for what leaves it comes back.
fn tcx_ways(interface: &Interface) -> Vec<TcxWay> {
    let ifindex = interface.index;
    let mut ways =
        vec![(Program::Ingress, AttachPoint::TcxIngress { ifindex }, libbpf_rs::TC_INGRESS)];
    if interface.arphrd != arphrd::LOOPBACK {
        ways.push((Program::Egress, AttachPoint::TcxEgress { ifindex }, libbpf_rs::TC_EGRESS));
    }
    ways
}

/// Whether the rings fit into the memory that is free.
pub(crate) fn check_memory(name: &str, needed: u64) -> Result<(), Error> {
    let available = available_memory();
    if available.is_some_and(|a| needed > a / 10 * 9) {
        return Err(Error::Memory {
            name: name.to_owned(),
            available_mib: available.unwrap_or(0) >> 20,
        });
    }
    Ok(())
}

/// Memory that programs may still take, bytes.
pub(crate) fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

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

/// Says what an error of the kernel means for whoever asked for this hook.
pub(crate) fn explain(interface: &Interface, hook: Hook, source: io::Error) -> Error {
    let name = interface.name.clone();
    let unsupported =
        |why: &str| Error::Unsupported { name: name.clone(), hook, why: why.to_owned() };
    match (source.raw_os_error(), hook) {
        (Some(libc::EPERM | libc::EACCES), Hook::Tpacket | Hook::Recv) => {
            Error::Privilege { hook, needed: "CAP_NET_RAW" }
        }
        // Who has every privilege is refused something else: the program.
        (Some(libc::EACCES), _) if rustix::process::geteuid().is_root() => unsupported(
            "the kernel's verifier refuses the program; with TAPDECK_LIBBPF_LOG=1 in the environment it says why",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            Error::Privilege { hook, needed: "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW" }
        }
        (Some(libc::EBUSY | libc::EEXIST), Hook::Xdp | Hook::XdpGeneric | Hook::AfXdp) => {
            let state = kernel::xdp_state(interface.index).unwrap_or_default();
            Error::XdpBusy { name, id: attached_program(&state).unwrap_or(0) }
        }
        (Some(libc::EADDRINUSE), Hook::Tcx) => {
            unsupported("another recorder has its clsact filter there")
        }
        (Some(libc::EOPNOTSUPP), Hook::Xdp | Hook::AfXdp) => {
            unsupported("its driver has no XDP; xdp-generic and tcx work with every driver")
        }
        (Some(libc::ENOMEM), _) => {
            Error::Memory { name, available_mib: available_memory().unwrap_or(0) >> 20 }
        }
        (Some(libc::EINVAL | libc::EOPNOTSUPP), Hook::Netfilter) => {
            unsupported("the kernel has no netfilter BPF links (they came with 6.4)")
        }
        (Some(libc::ENOSYS), _) => unsupported("the kernel has no BPF"),
        _ => Error::Kernel { name, hook, source },
    }
}

/// The XDP program that has an interface already.
pub(crate) fn attached_program(state: &kernel::XdpState) -> Option<u32> {
    let ids = [state.driver_program, state.generic_program, state.hardware_program];
    ids.into_iter().find(|id| *id != 0)
}
