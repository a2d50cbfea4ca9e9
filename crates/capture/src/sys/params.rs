//! What the hook programs are told, as `bpf/params.h` and `bpf/serve.h` have it.
//!
//! Each structure has the fields of its twin in C, by the same names. A test compares where both
//! compilers put them, so that fields which change places in one of them alone are found.

use super::plain::{Plain, bytes};

/// `struct td_params`: what programs are told before they are verified.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdParams {
    pub nrings: u32,
    pub block_shift: u32,
    pub block_bytes: u32,
    pub block_mask: u32,
    pub ring_mask: u32,
    pub snaplen: u32,
    pub len_mask: u32,
    pub len_mask2: u32,
    pub first_interface: u32,
    pub ifindex: u32,
    pub consume: u32,
    pub hardware_time: u32,
    pub hardware_vlan: u32,
    pub by_cpu: u32,
    pub link_header: u32,
    pub filtered: u32,
    pub clock_by_poll: u32,
    pub claims: u32,
    pub most_direct: u32,
    pub shed_to: u32,
    pub judged: u32,
    pub cutoff: u32,
    pub flow_mask: u32,
    pub veth_skb: u32,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdParams {}

impl TdParams {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// `struct td_flush`: which block of a ring `tapdeck_flush` of `record.bpf.c` closes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdFlush {
    pub ring: u32,
    pub block: u32,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdFlush {}

impl TdFlush {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// `struct td_flush_member`: which block of a member's ring `tapdeck_flush` of `serve.bpf.c`
/// closes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdFlushMember {
    pub member: u32,
    pub ring: u32,
    pub block: u32,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdFlushMember {}

impl TdFlushMember {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// The most groups that a daemon has (`TD_MAX_GROUPS`).
pub const MAX_GROUPS: usize = 256;

/// `struct td_entry`: a group on one interface at one hook.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TdEntry {
    pub group: u16,
    pub interface: u16,
    pub filter: u16,
    pub count: u16,
}

/// `struct td_port`: what the programs of one interface at one hook serve.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdPort {
    pub port: u32,
    pub counts: u32,
    pub entries: u32,
    pub reserved: u32,
    pub entry: [TdEntry; MAX_GROUPS],
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdPort {}

impl TdPort {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::{TdFlush, TdParams};
    use crate::filter::splice::Context;
    use crate::sys::arithmetic::params_layout;

    #[test]
    fn fields_are_where_c_has_them() {
        let here = [
            size_of::<TdParams>(),
            offset_of!(TdParams, nrings),
            offset_of!(TdParams, block_shift),
            offset_of!(TdParams, block_bytes),
            offset_of!(TdParams, block_mask),
            offset_of!(TdParams, ring_mask),
            offset_of!(TdParams, snaplen),
            offset_of!(TdParams, len_mask),
            offset_of!(TdParams, len_mask2),
            offset_of!(TdParams, first_interface),
            offset_of!(TdParams, ifindex),
            offset_of!(TdParams, consume),
            offset_of!(TdParams, hardware_time),
            offset_of!(TdParams, hardware_vlan),
            offset_of!(TdParams, by_cpu),
            offset_of!(TdParams, link_header),
            offset_of!(TdParams, filtered),
            offset_of!(TdParams, clock_by_poll),
            offset_of!(TdParams, claims),
            offset_of!(TdParams, most_direct),
            offset_of!(TdParams, shed_to),
            offset_of!(TdParams, judged),
            offset_of!(TdParams, cutoff),
            offset_of!(TdParams, flow_mask),
            offset_of!(TdParams, veth_skb),
            size_of::<TdFlush>(),
            offset_of!(TdFlush, ring),
            offset_of!(TdFlush, block),
            Context::Xdp as usize,
            Context::Skb as usize,
            Context::Netfilter as usize,
        ];
        assert_eq!(here.map(|n| n as u32), params_layout());
    }
}
