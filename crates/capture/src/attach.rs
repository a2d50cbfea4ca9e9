//! Loaded programs at their place on an interface: put there, exchanged, and taken away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tapdeck_packet::link::LinkType;

use crate::Hook;
use crate::bpf::program::Program;
use crate::interface::Interface;
use crate::sys::kernel::{self, AttachPoint};
use crate::sys::libbpf::io_error;

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
    /// As bpf(2), `BPF_LINK_CREATE`; [`explain`](crate::explain::explain) says what they mean.
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
                .map_err(|e| io_error(&e))?;
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
                    return Err(io_error(&e));
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
    const ARPHRD_LOOPBACK: u32 = 772;
    let ifindex = interface.index;
    let mut ways =
        vec![(Program::Ingress, AttachPoint::TcxIngress { ifindex }, libbpf_rs::TC_INGRESS)];
    if interface.arphrd != ARPHRD_LOOPBACK {
        ways.push((Program::Egress, AttachPoint::TcxEgress { ifindex }, libbpf_rs::TC_EGRESS));
    }
    ways
}
