//! Loaded programs at their place on an interface: put there, exchanged, and taken away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::arphrd;

use crate::bpf::program::Program;
use crate::hook::{AttachPlace, XdpMode};
use crate::interface::Interface;
use crate::lock;
use crate::persist::{LinkPins, pin_anew};
use crate::sys;
use crate::sys::kernel::{self, AttachPoint};
use crate::sys::libbpf::io_error;

/// Returns the descriptor of a loaded program.
pub(crate) type ProgramSource<'a> = dyn Fn(Program) -> io::Result<OwnedFd> + 'a;

/// Programs that are attached to an interface. Dropping it takes them away, but for those of
/// clsact, which [`Links::detach`] does.
#[derive(Default)]
pub(crate) struct Links {
    standing: Vec<Link>,
    /// Filters on kernels without tcx, which stay when who put them there is killed.
    clsact: Vec<Clsact>,
    /// A lock that is held while clsact filters are attached, so that a second recorder does not
    /// replace them.
    clsact_lock: Option<OwnedFd>,
    /// Holds the interface in promiscuous mode as long as it is open.
    promiscuous: Option<OwnedFd>,
    /// Where links are pinned, if they outlive the process.
    pins: Option<LinkPins>,
    /// Whether a program was not found where an owner before had put it.
    renewed: bool,
}

impl Links {
    /// Attaches the programs of a hook, `loaded` being those of its programs that are loaded. Where
    /// links are pinned that an owner before has left, the programs are put into those.
    ///
    /// # Errors
    /// As bpf(2), `BPF_LINK_CREATE`; [`explain`](crate::explain::explain) says what they mean.
    pub(crate) fn attach(
        interface: &Interface,
        place: AttachPlace,
        promiscuous: bool,
        loaded: &[Program],
        program: &ProgramSource<'_>,
        pinned: Option<&LinkPins>,
    ) -> io::Result<Self> {
        let ifindex = interface.index;
        let mut links = Self { pins: pinned.cloned(), ..Self::default() };
        let promiscuous = promiscuous && interface.link.is_some_and(LinkType::has_header);
        match pinned {
            Some(pins) => pins.put_promiscuous(&interface.name, promiscuous)?,
            None if promiscuous => {
                links.promiscuous = Some(sys::packet_socket::promiscuous(ifindex)?);
            }
            None => {}
        }
        match place {
            AttachPlace::Xdp(mode) => {
                let generic = mode == XdpMode::Generic;
                for &which in loaded {
                    links.link(which, AttachPoint::Xdp { ifindex, generic }, program)?;
                }
            }
            AttachPlace::Tcx => links.attach_tcx(interface, program)?,
            AttachPlace::Netfilter => {
                for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
                    links.attach_netfilter(family as u32, program)?;
                }
            }
        }
        Ok(links)
    }

    fn link(
        &mut self,
        which: Program,
        point: AttachPoint,
        program: &ProgramSource<'_>,
    ) -> io::Result<()> {
        let number = self.standing.len();
        let link = if let Some(link) = self.left(number, which, point, program)? {
            link
        } else {
            let fd = kernel::attach(program(which)?.as_fd(), point)?;
            if let Some(pins) = &self.pins {
                pin_anew(fd.as_fd(), &pins.link(number))?;
                self.renewed = true;
            }
            Link { which, point, fd }
        };
        self.standing.push(link);
        Ok(())
    }

    /// Returns the link that an owner before has left, with the program in it, if it still holds
    /// its place.
    fn left(
        &self,
        number: usize,
        which: Program,
        point: AttachPoint,
        program: &ProgramSource<'_>,
    ) -> io::Result<Option<Link>> {
        let Some(pins) = self.pins.as_ref().filter(|pins| pins.left) else {
            return Ok(None);
        };
        let Ok(fd) = sys::pins::open(&pins.link(number)) else { return Ok(None) };
        let program = program(which)?;
        if let AttachPoint::NetfilterPrerouting { family, .. } = point {
            // Programs of netfilter stay as they are.
            let priority = sys::pins::netfilter_priority(fd.as_fd())?;
            let behind = priority.wrapping_sub(i32::MIN + 1) as u32;
            let point = AttachPoint::NetfilterPrerouting { family, behind };
            return Ok(Some(Link { which, point, fd }));
        }
        let exchanged = kernel::exchange(fd.as_fd(), program.as_fd());
        let holds = exchanged.and_then(|()| kernel::holds(fd.as_fd(), program.as_fd(), point));
        Ok(matches!(holds, Ok(Some(true))).then_some(Link { which, point, fd }))
    }

    /// Returns whether a program was not found where an owner before had put it.
    pub(crate) fn were_renewed(&self) -> bool {
        self.renewed
    }

    /// Asks the kernel whether each program still stands where it was put, and attaches again those
    /// that do not. Returns whether there were any.
    ///
    /// # Errors
    /// As [`Links::attach`], where a program that is gone cannot be attached again. Those that
    /// stand stay.
    pub(crate) fn restore(
        &mut self,
        interface: &Interface,
        program: &ProgramSource<'_>,
    ) -> io::Result<bool> {
        let mut restored = false;
        for (number, Link { which, point, fd }) in self.standing.iter_mut().enumerate() {
            let program = program(*which)?;
            let holds = kernel::holds(fd.as_fd(), program.as_fd(), *point)?;
            if holds == Some(true) {
                continue;
            }
            // Who has put another program into the link has left it attached.
            if holds == Some(false) && kernel::exchange(fd.as_fd(), program.as_fd()).is_ok() {
                restored = true;
                continue;
            }
            match (*point, kernel::attach(program.as_fd(), *point)) {
                (_, Ok(new)) => {
                    if let Some(pins) = &self.pins {
                        pin_anew(new.as_fd(), &pins.link(number))?;
                    }
                    *fd = new;
                    restored = true;
                }
                // Nothing tells whether a link of netfilter holds. But its place is taken as long
                // as it does.
                (AttachPoint::NetfilterPrerouting { .. }, Err(e))
                    if e.raw_os_error() == Some(libc::EBUSY) => {}
                (_, Err(e)) => return Err(e),
            }
        }
        for Clsact { which, point, ifindex, filter } in &mut self.clsact {
            let program = program(*which)?;
            let stands = filter
                .query()
                .is_ok_and(|id| kernel::program_id(program.as_fd()).is_ok_and(|own| own == id));
            if !stands {
                let mut new = clsact_filter(*ifindex, *point, program.as_fd());
                *filter =
                    new.create().and_then(|mut new| new.attach()).map_err(|e| io_error(&e))?;
                restored = true;
            }
        }
        // An interface that was made anew with the number of the old one is not promiscuous.
        if restored && self.promiscuous.is_some() {
            self.promiscuous = Some(sys::packet_socket::promiscuous(interface.index)?);
        }
        Ok(restored)
    }

    /// Attaches by links, or by clsact filters where the kernel does not know that attach type.
    fn attach_tcx(&mut self, interface: &Interface, program: &ProgramSource<'_>) -> io::Result<()> {
        for (which, point, _) in tcx_ways(interface) {
            match self.link(which, point, program) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    return self.attach_clsact(interface, program);
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Attaches at the first place that is free: of BPF programs the kernel wants one at each
    /// place, whichever interface they look at.
    fn attach_netfilter(&mut self, family: u32, program: &ProgramSource<'_>) -> io::Result<()> {
        let mut behind = 0;
        loop {
            let point = AttachPoint::NetfilterPrerouting { family, behind };
            match self.link(Program::Netfilter, point, program) {
                Err(e)
                    if e.raw_os_error() == Some(libc::EBUSY) && behind + 1 < NETFILTER_PLACES =>
                {
                    behind += 1;
                }
                other => return other,
            }
        }
    }

    /// Puts other programs, `loaded` of those of the hook, in the place of those that are attached.
    /// Each packet meets the old one or the new one.
    ///
    /// # Errors
    /// As bpf(2), `BPF_LINK_UPDATE`: `EOPNOTSUPP` or `EINVAL` for netfilter, whose programs cannot
    /// be exchanged.
    pub(crate) fn exchange(
        &mut self,
        loaded: &[Program],
        program: &ProgramSource<'_>,
    ) -> io::Result<()> {
        for Link { which, fd, .. } in &mut self.standing {
            // A hook of one program may have it bound to its device now, or not any more.
            if let [only] = loaded {
                *which = *only;
            }
            kernel::exchange(fd.as_fd(), program(*which)?.as_fd())?;
        }
        for Clsact { which, point, ifindex, filter } in &mut self.clsact {
            *filter = clsact_filter(*ifindex, *point, program(*which)?.as_fd())
                .attach()
                .map_err(|e| io_error(&e))?;
        }
        Ok(())
    }

    /// Returns the numbers by which the kernel knows the attached programs.
    pub(crate) fn program_ids(&self, program: &ProgramSource<'_>) -> Vec<u32> {
        let id = |link: &Link| kernel::program_id(program(link.which).ok()?.as_fd()).ok();
        self.standing.iter().filter_map(id).collect()
    }

    /// Returns whether clsact filters do the work of tcx.
    pub(crate) fn by_clsact(&self) -> bool {
        !self.clsact.is_empty()
    }

    /// Takes the programs away. Some may still be running.
    pub(crate) fn detach(self) {
        // A link ends with its last name and descriptor.
        self.pins.iter().for_each(LinkPins::remove);
        for mut clsact in self.clsact {
            // Fails where the interface is gone, and the filter with it.
            let _ = clsact.filter.detach();
        }
    }

    fn attach_clsact(
        &mut self,
        interface: &Interface,
        program: &ProgramSource<'_>,
    ) -> io::Result<()> {
        let ifindex = interface.index;
        self.clsact_lock = lock::hold(&format!("clsact-{}-{ifindex}", lock::namespace()?))?;
        for (which, _, point) in tcx_ways(interface) {
            let fd = program(which)?;
            let mut filter = clsact_filter(ifindex, point, fd.as_fd());
            self.renewed |= self.pins.is_some() && filter.query().is_err();
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

/// Takes away the programs that an owner before has left at an interface, where nobody needs them
/// any more. Returns when none of them runs.
pub(crate) fn take_away(
    place: AttachPlace,
    ifindex: Option<u32>,
    pins: &LinkPins,
    program: BorrowedFd<'_>,
) {
    pins.remove();
    if let (AttachPlace::Tcx, Some(ifindex)) = (place, ifindex) {
        // What clsact filters may have done there instead.
        for point in [libbpf_rs::TC_INGRESS, libbpf_rs::TC_EGRESS] {
            // Which program stands there is not asked.
            let _ = clsact_filter(ifindex, point, program).detach();
        }
    }
    kernel::wait_for_running_programs();
}

/// A program that a link holds attached.
struct Link {
    which: Program,
    point: AttachPoint,
    fd: OwnedFd,
}

/// The most programs that netfilter's prerouting hook of one network namespace has.
const NETFILTER_PLACES: u32 = 256;

/// The place of tapdeck's filters in the clsact queueing discipline, so that a filter left by a
/// recorder that was killed is replaced, and nobody else's is.
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

/// Returns both ways, and for the loopback interface the inbound one alone, for what leaves it
/// comes back.
fn tcx_ways(interface: &Interface) -> Vec<TcxWay> {
    let ifindex = interface.index;
    let mut ways =
        vec![(Program::Ingress, AttachPoint::TcxIngress { ifindex }, libbpf_rs::TC_INGRESS)];
    if interface.arphrd != arphrd::LOOPBACK {
        ways.push((Program::Egress, AttachPoint::TcxEgress { ifindex }, libbpf_rs::TC_EGRESS));
    }
    ways
}
