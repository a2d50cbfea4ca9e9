//! What the hook programs are told before they are verified: `struct td_params` of `bpf/params.h`.

use crate::ring::Geometry;
use crate::sys::params::TdParams;

/// `struct td_params`, without the fields that follow from the geometry.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub geometry: Geometry,
    pub first_interface: u32,
    pub ifindex: u32,
    pub consume: bool,
    pub hardware_time: bool,
    pub hardware_vlan: bool,
    /// Whether there is a ring for each CPU at the XDP hooks, and not for each receive queue.
    pub by_cpu: bool,
    pub link_header: bool,
    /// Whether filters are put in.
    pub filtered: bool,
    /// Whether there may be rules: the programs to load are then those that look for rules.
    pub judged: bool,
}

impl Params {
    /// Parameters for programs that let packets pass, with the smallest rings, which nobody reads.
    pub fn unread(ifindex: u32) -> Self {
        Self {
            geometry: Geometry { nrings: 1, nblocks: 4, block_shift: 16, snaplen: 1024 },
            first_interface: 0,
            ifindex,
            consume: false,
            hardware_time: false,
            hardware_vlan: false,
            by_cpu: false,
            link_header: true,
            filtered: false,
            judged: false,
        }
    }

    /// Returns the structure as the programs have it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
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
            hardware_time: self.hardware_time.into(),
            hardware_vlan: self.hardware_vlan.into(),
            by_cpu: self.by_cpu.into(),
            link_header: self.link_header.into(),
            filtered: self.filtered.into(),
        };
        params.bytes().to_vec()
    }
}
