//! Which columns has a flow table, and how is each made of rows? For whoever writes rows in a form
//! of columns: Parquet here, Arrow elsewhere. `docs/FLEET.md` says what each column means.

use std::net::IpAddr;

use crate::row::Row;

/// How a column's values are made of rows.
#[derive(Clone, Copy)]
pub enum Values {
    /// The sensor's name, which is the same in all rows.
    Sensor,
    /// The segment's name, which is the same in all rows of it.
    Segment,
    /// Microseconds since 1970, UTC.
    Time(fn(&Row) -> i64),
    Number(fn(&Row) -> i64),
    Small(fn(&Row) -> i32),
    /// Numbers of 8 bits.
    Tiny(fn(&Row) -> i32),
    MaybeNumber(fn(&Row) -> Option<i64>),
    MaybeSmall(fn(&Row) -> Option<i32>),
    /// Numbers of 16 bits.
    MaybeShort(fn(&Row) -> Option<i32>),
    Address(fn(&Row) -> Option<IpAddr>),
    /// The list of granules, as [`crate::Rows::runs`] has it.
    Runs,
}

/// The columns, in the order of the schema.
pub const COLUMNS: [(&str, Values); 29] = [
    ("sensor", Values::Sensor),
    ("segment", Values::Segment),
    ("start", Values::Time(|row| row.start_ns.div_euclid(1000))),
    ("end", Values::Time(|row| row.end_ns.div_euclid(1000))),
    ("duration_ns", Values::Number(|row| row.end_ns.saturating_sub(row.start_ns))),
    ("ip_version", Values::MaybeSmall(|row| row.ip_version.map(i32::from))),
    ("proto", Values::MaybeSmall(|row| row.protocol.map(i32::from))),
    ("ether_type", Values::MaybeSmall(|row| row.ether_type.map(i32::from))),
    ("vlan", Values::MaybeSmall(|row| row.vlan.map(i32::from))),
    ("tunnel", Values::MaybeSmall(|row| row.tunnel.map(|tunnel| tunnel as i32))),
    ("src_ip", Values::Address(|row| row.source)),
    ("dst_ip", Values::Address(|row| row.destination)),
    ("src_num", Values::MaybeNumber(|row| row.source.map(number))),
    ("dst_num", Values::MaybeNumber(|row| row.destination.map(number))),
    ("src_port", Values::MaybeSmall(|row| row.ports.map(|(port, _)| port.into()))),
    ("dst_port", Values::MaybeSmall(|row| row.ports.map(|(_, port)| port.into()))),
    (
        "icmp_type_code",
        Values::MaybeSmall(|row| {
            row.icmp.map(|(kind, code)| i32::from(kind) << 8 | i32::from(code))
        }),
    ),
    ("fwd_packets", Values::Number(|row| signed(row.packets[0]))),
    ("rev_packets", Values::Number(|row| signed(row.packets[1]))),
    ("fwd_bytes", Values::Number(|row| signed(row.bytes[0]))),
    ("rev_bytes", Values::Number(|row| signed(row.bytes[1]))),
    ("fwd_tcp_flags", Values::MaybeShort(|row| row.tcp_flags.map(|flags| flags[0].into()))),
    ("rev_tcp_flags", Values::MaybeShort(|row| row.tcp_flags.map(|flags| flags[1].into()))),
    ("end_reason", Values::Tiny(|row| row.end_reason as i32)),
    ("lost_near", Values::Small(|row| i32::try_from(row.lost).unwrap_or(i32::MAX))),
    ("offset", Values::Number(|row| signed(row.offset))),
    ("span", Values::Number(|row| signed(row.span))),
    (
        "granules",
        Values::MaybeSmall(|row| row.granules.map(|n| i32::try_from(n).unwrap_or(i32::MAX))),
    ),
    ("runs", Values::Runs),
];

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Returns an IPv4 address as a number, of an IPv6 address the upper 64 bits.
fn number(address: IpAddr) -> i64 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => ((address.to_bits() >> 64) as u64).cast_signed(),
    }
}
