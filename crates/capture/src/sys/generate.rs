//! What the programs that send are told, as `bpf/generate.h` and `bpf/transmit.h` have it.
//!
//! Each structure has the fields of its twin in C, by the same names, and a test compares where
//! both compilers put them.

use tapdeck_packet::generate::MAX_HEADERS;

use super::plain::{Plain, bytes};

/// `struct td_generate`: a generator's plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdGenerate {
    pub payload_seed: u64,
    pub gap: u64,
    pub gap_per_byte: u64,
    pub duration_ns: u64,
    pub count: u64,
    pub mark_every_ns: u64,
    pub lead_ns: u64,
    pub utc_offset_ns: i64,
    pub paced: u32,
    pub ifindex: u32,
    pub flows: u32,
    pub shares: u32,
    pub sizes: u32,
    pub sequence: u32,
    pub first: u32,
    pub step: u32,
    pub frame_bytes: u32,
    pub headers_len: u32,
    pub ip_at: u32,
    pub outer_ip_at: u32,
    pub tunnel: u32,
    pub outer_sum: u32,
    pub ipv6: u32,
    pub pad: u32,
    pub headers: [u8; MAX_HEADERS],
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdGenerate {}

impl TdGenerate {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// `struct td_generate_state`: how far a generator is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TdState {
    pub random: u64,
    pub drawn: u64,
    pub due_ns: u64,
    pub due_part: u64,
    pub next_mark_ns: u64,
    pub start_ns: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    pub last_due_ns: u64,
    pub made: u64,
    pub taken: u64,
    pub refused: u64,
    pub bytes: u64,
    pub late_max_ns: u64,
    pub gap_max_ns: u64,
    pub jitter_max_ns: u64,
    pub owner: u64,
    pub done: u32,
    pub pad: u32,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdState {}

impl TdState {
    /// Returns the structure as programs read it.
    pub fn as_bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// `struct flow`: a flow's headers and how far it is. Ports and the acknowledgement lie in network
/// order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdFlow {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: [u8; 2],
    pub destination_port: [u8; 2],
    pub tunnel_port: [u8; 2],
    pub transport: u16,
    pub header_sum: u16,
    pub transport_sum: u16,
    pub stream: u32,
    pub tcp_acknowledgement: [u8; 4],
    pub tcp_sequence: u32,
    pub next: u64,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdFlow {}

impl TdFlow {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// `struct column` of an alias table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TdColumn {
    pub threshold: u32,
    pub own: u32,
    pub other: u32,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdColumn {}

impl TdColumn {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

/// `struct td_transmit`: what a flood sends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TdTransmit {
    pub ifindex: u32,
    pub sequence_at: u32,
    pub tag: u32,
    pub gap_ns: u32,
    pub pairs: u32,
}

// SAFETY: integers alone; a test compares size and places with those of the C compiler, so that
// there is no gap.
unsafe impl Plain for TdTransmit {}

impl TdTransmit {
    /// Returns the structure as programs read it.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use tapdeck_packet::generate::{FILLER_BYTES, MAX_HEADERS};

    use super::{TdColumn, TdFlow, TdGenerate, TdState, TdTransmit};
    use crate::transmit::live::{BUCKETS, MAX_FRAME, transport_number, tunnel_number};
    use tapdeck_packet::generate::{Transport, Tunnel};

    mod c {
        unsafe extern "C" {
            pub safe static tapdeck_generate_layout: [u32; 65];
            pub safe static tapdeck_transmit_layout: [u32; 6];
        }
    }

    #[test]
    fn fields_are_where_c_has_them() {
        let here = [
            size_of::<TdGenerate>(),
            offset_of!(TdGenerate, payload_seed),
            offset_of!(TdGenerate, gap),
            offset_of!(TdGenerate, gap_per_byte),
            offset_of!(TdGenerate, duration_ns),
            offset_of!(TdGenerate, count),
            offset_of!(TdGenerate, mark_every_ns),
            offset_of!(TdGenerate, lead_ns),
            offset_of!(TdGenerate, utc_offset_ns),
            offset_of!(TdGenerate, paced),
            offset_of!(TdGenerate, ifindex),
            offset_of!(TdGenerate, flows),
            offset_of!(TdGenerate, shares),
            offset_of!(TdGenerate, sizes),
            offset_of!(TdGenerate, sequence),
            offset_of!(TdGenerate, first),
            offset_of!(TdGenerate, step),
            offset_of!(TdGenerate, frame_bytes),
            offset_of!(TdGenerate, headers_len),
            offset_of!(TdGenerate, ip_at),
            offset_of!(TdGenerate, outer_ip_at),
            offset_of!(TdGenerate, tunnel),
            offset_of!(TdGenerate, outer_sum),
            offset_of!(TdGenerate, ipv6),
            offset_of!(TdGenerate, headers),
            size_of::<TdState>(),
            offset_of!(TdState, random),
            offset_of!(TdState, start_ns),
            offset_of!(TdState, first_ns),
            offset_of!(TdState, last_ns),
            offset_of!(TdState, last_due_ns),
            offset_of!(TdState, made),
            offset_of!(TdState, taken),
            offset_of!(TdState, bytes),
            offset_of!(TdState, late_max_ns),
            offset_of!(TdState, gap_max_ns),
            offset_of!(TdState, jitter_max_ns),
            offset_of!(TdState, done),
            size_of::<TdFlow>(),
            offset_of!(TdFlow, source),
            offset_of!(TdFlow, destination),
            offset_of!(TdFlow, source_port),
            offset_of!(TdFlow, destination_port),
            offset_of!(TdFlow, tunnel_port),
            offset_of!(TdFlow, transport),
            offset_of!(TdFlow, header_sum),
            offset_of!(TdFlow, transport_sum),
            offset_of!(TdFlow, stream),
            offset_of!(TdFlow, tcp_acknowledgement),
            offset_of!(TdFlow, tcp_sequence),
            offset_of!(TdFlow, next),
            size_of::<TdColumn>(),
            offset_of!(TdColumn, threshold),
            offset_of!(TdColumn, own),
            offset_of!(TdColumn, other),
            tunnel_number(Tunnel::None) as usize,
            tunnel_number(Tunnel::Vxlan) as usize,
            tunnel_number(Tunnel::Gre) as usize,
            transport_number(Transport::Udp).into(),
            transport_number(Transport::Tcp).into(),
            transport_number(Transport::Icmp).into(),
            MAX_HEADERS,
            FILLER_BYTES,
            MAX_FRAME,
            BUCKETS,
        ];
        assert_eq!(here.map(|n| n as u32), c::tapdeck_generate_layout);
        let here = [
            size_of::<TdTransmit>(),
            offset_of!(TdTransmit, ifindex),
            offset_of!(TdTransmit, sequence_at),
            offset_of!(TdTransmit, tag),
            offset_of!(TdTransmit, gap_ns),
            offset_of!(TdTransmit, pairs),
        ];
        assert_eq!(here.map(|n| n as u32), c::tapdeck_transmit_layout);
    }
}
