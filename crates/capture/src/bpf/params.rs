//! What the hook programs are told before they are verified: `struct td_params` of `bpf/params.h`.

use crate::ring::Geometry;

/// `sizeof(struct td_params) / 4`.
pub(crate) const PARAM_WORDS: usize = 16;

/// `struct td_params`, but for what follows from the geometry.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub geometry: Geometry,
    pub first_interface: u32,
    pub ifindex: u32,
    pub consume: bool,
    pub hardware_time: bool,
    pub hardware_vlan: bool,
    /// At the XDP hooks: a ring for each CPU, and not for each receive queue.
    pub by_cpu: bool,
    pub link_header: bool,
    /// Filters are put in.
    pub filtered: bool,
    /// There may be rules: the programs are those that look for some.
    pub judged: bool,
}

impl Params {
    /// For programs that let packets pass, with the smallest rings, which nobody reads.
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

    /// The structure as the programs have it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(crate) fn words(&self) -> [u32; PARAM_WORDS] {
        let g = &self.geometry;
        [
            g.nrings,
            g.block_shift,
            g.block_bytes(),
            g.nblocks - 1,
            g.ring_bytes() - 1,
            g.snaplen,
            g.len_mask(),
            (g.len_mask() << 1 | 1) & !3,
            self.first_interface,
            self.ifindex,
            u32::from(self.consume),
            u32::from(self.hardware_time),
            u32::from(self.hardware_vlan),
            u32::from(self.by_cpu),
            u32::from(self.link_header),
            u32::from(self.filtered),
        ]
    }
}
