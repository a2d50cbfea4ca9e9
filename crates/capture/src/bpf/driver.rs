//! What can a network driver tell of a received frame, and which programs ask it?
//!
//! Only a program bound to its device may ask the driver for a frame's hardware time and for a VLAN
//! tag that the device took off, and not every driver can be asked. So the bound programs of a hook
//! are tried where the driver has something to tell, and its plain programs where that fails.
//!
//! A veth names the socket buffer that a frame came in, which has its tag. Programs read it there
//! and need not ask.

use std::io;

use super::params::Params;
use super::program::Program;
use crate::hook::{AttachPlace, ProgramSet, XdpMode};
use crate::interface::Interface;
use crate::netlink;
use crate::sys::{btf, kernel};

/// What the programs of a hook shall ask a driver for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Questions {
    pub(crate) time: bool,
    pub(crate) vlan_tag: bool,
    /// No question: the device is a veth, where programs find the tag.
    pub(crate) veth: bool,
}

impl Questions {
    /// Returns the questions that the driver answers, and whose answer is not in the frame already.
    /// Nothing is asked where no program may be bound to the device.
    pub(crate) fn to(interface: &Interface, set: &ProgramSet, device_bound: bool) -> Self {
        let veth = Self::finds_tags(interface, set);
        if set.bound.is_none() || !device_bound {
            return Self { veth, ..Self::default() };
        }
        let driver = netlink::rx_metadata(interface.index);
        Self {
            time: driver.timestamp && kernel::stamps_received(&interface.name),
            vlan_tag: driver.vlan_tag && kernel::strips_vlan(&interface.name).unwrap_or(false),
            veth,
        }
    }

    /// Returns whether programs find tags without asking: in a veth's driver. Whether a tag stands
    /// beside a frame is up to who sends at the far end.
    pub(crate) fn finds_tags(interface: &Interface, set: &ProgramSet) -> bool {
        let in_driver = set.place == AttachPlace::Xdp(XdpMode::Driver);
        in_driver && interface.is_veth() && btf::veth_skb().is_some()
    }
}

/// Loads the programs of a hook by `load`: those that ask the driver if the parameters say that
/// there is something to ask, or else the plain ones. Returns which they were.
///
/// # Errors
/// The error of `load` for the plain programs.
pub(crate) fn load_best<T>(
    set: &ProgramSet,
    params: &Params,
    mut load: impl FnMut(&[Program]) -> io::Result<T>,
) -> io::Result<(T, &'static [Program])> {
    if let Some(bound) = set.bound
        && params.asks_driver()
        && let Ok(loaded) = load(bound)
    {
        return Ok((loaded, bound));
    }
    Ok((load(set.plain)?, set.plain))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tapdeck_packet::pcapng::{Reader, Record};
    use tapdeck_testkit::frame::UdpFrame;
    use tapdeck_testkit::kernel::{at_least, version};
    use tapdeck_testkit::{Net, Sender, wait_for};

    use super::Questions;
    use crate::Hook;
    use crate::bpf::loaded::Loaded;
    use crate::bpf::params::Params;
    use crate::bpf::program::Program::{self, Xdp, XdpMetadata};
    use crate::filter::splice::Filters;
    use crate::hook::TakenBy;
    use crate::interface::Interface;
    use crate::ring::RingReader;
    use crate::sys::kernel::{AttachPoint, attach};
    use crate::transmit::{Flood, Tag};

    /// Records at `vb` with one program, which reads as at a veth or asks: a frame without a tag,
    /// one with a tag beside it, and one that comes in no socket buffer. Returns the type of each
    /// frame and what stands behind it.
    fn recorded_by(net: &Net, which: Program, veth: bool) -> Vec<[u8; 4]> {
        let (loaded, link) = net.b.inside(|| {
            let ifindex = Interface::find("vb").expect("made before").index;
            let params =
                Params { hardware_vlan: true, veth, consume: true, ..Params::unread(ifindex) };
            let (loaded, control) =
                Loaded::new(&[which], &params, &Filters::new()).expect("it loads");
            control.set_deadline(u64::MAX);
            let program = loaded.program(which).expect("it is loaded");
            let link = attach(program.as_fd(), AttachPoint::Xdp { ifindex, generic: false });
            (loaded, link.expect("nothing else is there"))
        });
        let memory = &loaded.rings()[0];
        let frame = UdpFrame::default().bytes();
        let send = || net.a.inside(|| Sender::on("va").send_all([&frame]));
        let wait_until = |seen| wait_for("the frame", || memory.packets() == seen);
        let va = net.a.inside(|| Interface::find("va").expect("made before").index);
        send();
        wait_until(1);
        let tag = net.a.inside(|| Tag::attach(va, 0x6007).expect("a kernel with tcx"));
        send();
        wait_until(2);
        drop(tag);
        let flood = net.a.inside(|| Flood::new(va, &frame, 42, 0).expect("root may"));
        net.a.inside(|| flood.send(1).expect("the far end has a program"));
        wait_until(3);
        drop(link);
        let mut ring = RingReader::new(memory.clone(), 0);
        assert!(ring.look());
        let frames = Reader::inside(ring.begun()).filter_map(|record| match record {
            Ok(Record::Packet(packet)) => packet.frame[12..16].try_into().ok(),
            _ => None,
        });
        frames.collect()
    }

    /// Programs tell frames with a tag from those without, whether they read or ask the driver.
    #[test]
    fn programs_find_tags_beside_frames() {
        if !at_least((6, 8), "drivers that tell tags") {
            return;
        }
        let net = Net::new();
        let ipv4 = [8, 0, 0x45, 0];
        for (which, veth) in [(XdpMetadata, false), (XdpMetadata, true), (Xdp, true)] {
            let recorded = recorded_by(&net, which, veth);
            assert_eq!(recorded, [ipv4, [0x88, 0xa8, 0x60, 7], ipv4], "{which:?}, {veth}");
        }
    }

    /// A program that is told so reads what only a veth's driver has.
    #[test]
    fn tags_are_to_be_found_at_veths_alone() {
        if !at_least((6, 3), "veths that hand on tags") {
            return;
        }
        let net = Net::new();
        net.b.run("ip tuntap add dev tap mode tap");
        let (tap, veth) = net.b.inside(|| {
            let find = |name| Interface::find(name).expect("made before");
            (find("tap"), find("vb"))
        });
        for (hook, interface, finds) in [
            (Hook::Xdp, &veth, true),
            (Hook::Xdp, &tap, false),
            (Hook::XdpGeneric, &veth, false),
            (Hook::Tcx, &veth, false),
        ] {
            let TakenBy::Programs(set) = hook.facts().taken_by else { panic!("it has programs") };
            let found = net.b.inside(|| Questions::finds_tags(interface, &set));
            assert_eq!(found, finds, "{hook} at {}", interface.name);
        }
        let TakenBy::Programs(set) = Hook::Xdp.facts().taken_by else { panic!("it has programs") };
        for bound in [true, false] {
            let questions = net.b.inside(|| Questions::to(&veth, &set, bound));
            let asks = bound && version() >= (6, 8);
            assert_eq!((questions.vlan_tag, questions.veth), (asks, true), "bound: {bound}");
        }
    }
}
