//! What the hook programs are told before they are verified: `struct td_params` of `bpf/params.h`.

use std::mem::offset_of;
use std::sync::OnceLock;

use crate::flows;
use crate::overload::Overload;
use crate::ring::Geometry;
use crate::sys::btf;
use crate::sys::params::TdParams;

/// `struct td_params`, without the fields that follow from the geometry.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub geometry: Geometry,
    pub first_interface: u32,
    pub ifindex: u32,
    pub consume: bool,
    /// What becomes of packets that a nearly full ring has little room for.
    pub overload: Overload,
    pub hardware_time: bool,
    pub hardware_vlan: bool,
    /// Whether the device is a veth that names the socket buffer of a frame, which has its tag.
    pub veth: bool,
    /// Whether there is a ring for each CPU at the XDP hooks, and not for each receive queue.
    pub by_cpu: bool,
    pub link_header: bool,
    /// Whether filters are put in.
    pub filtered: bool,
    /// Whether there may be rules: the programs to load are then those that look for rules.
    pub judged: bool,
    /// Bytes that each flow may have; 0: as many as come.
    pub cutoff: u32,
    /// Sets that are used of the table of flows, a power of two.
    pub flow_sets: u32,
    /// Whether the packets of a poll share readings of the clock.
    pub clock_by_poll: bool,
    /// Whether space is reserved for several packets of a poll at once: all packets come in polls.
    pub claims: bool,
    /// Frames of at most so many bytes are copied by loads and stores, longer ones by a call.
    pub most_direct: u32,
}

/// `MOST_DIRECT` of `bpf/packet.h`.
const MOST_DIRECT: u32 = 1536;

/// Returns up to which length frames are best copied by loads and stores on this machine. Calls are
/// cheap on Intel's processors, and the one instruction that the kernel's copy is made of is as
/// fast as these, or faster by a tenth at 1514 bytes; on AMD's that takes twice as long.
pub fn most_direct() -> u32 {
    static MOST: OnceLock<u32> = OnceLock::new();
    *MOST.get_or_init(|| {
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let is_intel = processors.lines().any(|line| {
            line.split_once(':').is_some_and(|(key, value)| {
                key.trim() == "vendor_id" && value.trim() == "GenuineIntel"
            })
        });
        if is_intel { 0 } else { MOST_DIRECT }
    })
}

impl Params {
    /// Parameters for programs that let packets pass, with the smallest rings, which nobody reads.
    pub fn unread(ifindex: u32) -> Self {
        Self {
            geometry: Geometry { nrings: 1, nblocks: 4, block_shift: 16, snaplen: 1024 },
            first_interface: 0,
            ifindex,
            consume: false,
            overload: Overload::Drop,
            hardware_time: false,
            hardware_vlan: false,
            veth: false,
            by_cpu: false,
            link_header: true,
            filtered: false,
            judged: false,
            cutoff: 0,
            flow_sets: flows::SETS,
            clock_by_poll: false,
            claims: false,
            most_direct: most_direct(),
        }
    }

    /// Returns whether there is something that only the driver can tell.
    pub(crate) fn asks_driver(&self) -> bool {
        self.hardware_time || self.hardware_vlan && !self.veth
    }

    /// Returns what programs are told of what they shall do, without what the kernel is like.
    pub(crate) fn told(&self) -> Vec<u8> {
        let mut told = self.bytes();
        told.truncate(offset_of!(TdParams, veth_skb));
        told
    }

    /// Returns the structure as the programs have it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let veth_skb = if self.veth { btf::veth_skb() } else { None };
        let g = &self.geometry;
        let params = TdParams {
            nrings: g.nrings,
            block_shift: g.block_shift,
            block_bytes: g.block_bytes(),
            block_mask: g.nblocks - 1,
            ring_mask: g.ring_bytes() - 1,
            snaplen: g.snaplen,
            len_mask: g.len_mask(),
            len_mask2: (g.len_mask() << 1 | 1) & !3,
            first_interface: self.first_interface,
            ifindex: self.ifindex,
            consume: self.consume.into(),
            shed_to: self.overload.shed_to(),
            hardware_time: self.hardware_time.into(),
            hardware_vlan: self.hardware_vlan.into(),
            by_cpu: self.by_cpu.into(),
            link_header: self.link_header.into(),
            filtered: self.filtered.into(),
            clock_by_poll: self.clock_by_poll.into(),
            claims: self.claims.into(),
            judged: self.judged.into(),
            cutoff: self.cutoff,
            flow_mask: self.flow_sets - 1,
            veth_skb: veth_skb.unwrap_or(0),
            most_direct: self.most_direct,
        };
        params.bytes().to_vec()
    }
}
