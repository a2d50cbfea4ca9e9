//! libpcap's structures and numbers, as pcap/pcap.h has them on Linux.

use std::ffi::{c_char, c_int, c_uchar, c_uint};

use crate::filter::Instruction;

/// `pcap_t`, of which only the address is used.
#[repr(C)]
pub struct Pcap {
    opaque: [u8; 0],
}

/// `pcap_dumper_t`, of which only the address is used.
#[repr(C)]
pub struct Dumper {
    opaque: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PacketHeader {
    pub ts: libc::timeval,
    pub caplen: c_uint,
    pub len: c_uint,
}

/// `struct pcap_stat`, without the fields that only Windows has.
#[repr(C)]
pub struct Stat {
    pub received: c_uint,
    pub dropped: c_uint,
    pub dropped_by_interface: c_uint,
}

/// `struct bpf_program`.
#[repr(C)]
pub struct Program {
    pub len: c_uint,
    pub instructions: *mut Instruction,
}

/// `struct pcap_if`.
#[repr(C)]
pub struct Interface {
    pub next: *mut Self,
    pub name: *mut c_char,
    pub description: *mut c_char,
    pub addresses: *mut libc::c_void,
    pub flags: c_uint,
}

/// `pcap_handler`.
pub type Handler = Option<unsafe extern "C" fn(*mut c_uchar, *const PacketHeader, *const c_uchar)>;

/// `PCAP_ERRBUF_SIZE`.
pub const ERROR_BYTES: usize = 256;

pub const PCAP_ERROR: c_int = -1;
/// `PCAP_D_INOUT`
pub const DIRECTION_BOTH: c_int = 0;
/// `PCAP_D_IN`
pub const DIRECTION_IN: c_int = 1;
/// `PCAP_D_OUT`
pub const DIRECTION_OUT: c_int = 2;
pub const PCAP_IF_UP: c_uint = 2;
pub const PCAP_IF_RUNNING: c_uint = 4;
/// `PCAP_IF_CONNECTION_STATUS_NOT_APPLICABLE`.
pub const PCAP_IF_CONNECTION_NOT_APPLICABLE: c_uint = 0x30;
pub const TSTAMP_HOST: c_int = 0;
pub const TSTAMP_MICRO: c_int = 0;
pub const TSTAMP_NANO: c_int = 1;
pub const WARNING_TSTAMP_TYPE_NOTSUP: c_int = 3;
pub const ERROR_TSTAMP_PRECISION_NOTSUP: c_int = -12;
