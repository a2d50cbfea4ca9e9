//! Where do programs disagree about packets? In traffic that is nested, cut, malformed or merely
//! unusual, and in expressions that mix what few people write. This makes both, from a seed and
//! without a network.
//!
//! Packets and expressions draw their addresses, ports, tags and labels from the same few values,
//! so that an expression often finds something and seldom everything.

pub mod frames;
pub mod language;
pub mod program;
pub mod store;

use std::net::{Ipv4Addr, Ipv6Addr};

pub const IPV4: [Ipv4Addr; 10] = [
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 0, 0, 2),
    Ipv4Addr::new(192, 168, 1, 1),
    Ipv4Addr::new(172, 16, 5, 4),
    Ipv4Addr::new(10, 0, 1, 7),
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::new(192, 168, 1, 200),
    Ipv4Addr::new(10, 0, 0, 255),
    Ipv4Addr::BROADCAST,
    Ipv4Addr::UNSPECIFIED,
];

pub const IPV6: [Ipv6Addr; 7] = [
    Ipv6Addr::from_bits(0x2001_0db8_0000_0000_0000_0000_0000_0001),
    Ipv6Addr::from_bits(0x2001_0db8_0000_0000_0000_0000_0000_0002),
    Ipv6Addr::from_bits(0x2001_0db8_0001_0000_0000_0000_0000_0001),
    Ipv6Addr::from_bits(0xfe80_0000_0000_0000_0000_0000_0000_0001),
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0000_0000_0001),
    Ipv6Addr::from_bits(0x2001_0db8_0001_0000_ffff_0000_0000_0009),
    Ipv6Addr::UNSPECIFIED,
];

pub const MACS: [[u8; 6]; 6] = [
    [2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2],
    [0, 0x1b, 0x21, 7, 7, 7],
    [0xff; 6],
    [1, 0, 0x5e, 0, 0, 1],
    [0x33, 0x33, 0, 0, 0, 1],
];

pub const PORTS: [u16; 12] = [53, 80, 443, 22, 5000, 49152, 4789, 6081, 2152, 65535, 9, 0];
pub const VLANS: [u16; 6] = [42, 7, 100, 1, 4094, 0];
pub const LABELS: [u32; 6] = [100, 16, 1000, 3, 0, 0xf_ffff];
pub const SESSIONS: [u16; 3] = [7, 0x1234, 0];
pub const VNIS: [u32; 4] = [42, 7, 0xff_ffff, 0];
/// Protocols of which some packet has the header.
pub const PROTOCOLS: [u8; 14] = [6, 17, 1, 58, 132, 2, 50, 51, 47, 4, 41, 44, 103, 112];
