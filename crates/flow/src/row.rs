//! What is said of a slice of a flow? Its ends, its times, how much went each way, and where its
//! packets lie.

use std::net::IpAddr;

use tapdeck_packet::header::innermost::Tunnel;

/// Why a row ends where it does: the numbers of `flowEndReason` (IPFIX 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// A day ended, and the segment goes on.
    Midnight = 2,
    /// The connection was closed from both sides, or reset.
    Closed = 3,
    /// The segment ended.
    Segment = 4,
    /// The memory for flows was used up.
    Memory = 5,
}

/// A slice of a biflow. Of pairs, the first is forward, from source to destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The day on which the row's packets were recorded, counted from 1970-01-01 (UTC).
    pub day: i32,
    /// The earliest and the latest time of a packet, UTC nanoseconds since 1970.
    pub start_ns: i64,
    pub end_ns: i64,
    /// The version and the protocol of the innermost IP packet.
    pub ip_version: Option<u8>,
    pub protocol: Option<u8>,
    /// What stands behind the frame's tags; `None` of LLC and of frames that are too short.
    pub ether_type: Option<u16>,
    /// VLAN id of the frame's outermost tag.
    pub vlan: Option<u16>,
    /// The innermost tunnel around the IP packet.
    pub tunnel: Option<Tunnel>,
    pub source: Option<IpAddr>,
    pub destination: Option<IpAddr>,
    pub ports: Option<(u16, u16)>,
    /// Type and code of the first ICMP message forward.
    pub icmp: Option<(u8, u8)>,
    pub packets: [u64; 2],
    /// Lengths of the frames as they were on the wire, check sequence not included.
    pub bytes: [u64; 2],
    /// Lengths of the innermost IP packets, as their headers state them.
    pub ip_bytes: [u64; 2],
    /// All flags that were seen, each way; of TCP alone.
    pub tcp_flags: Option<[u16; 2]>,
    pub end_reason: EndReason,
    /// Packets that were lost before packets of the row's granules.
    pub lost: u64,
    /// Where the first of its granules begins in the segment, and how many bytes lie from there to
    /// the end of the last.
    pub offset: u64,
    pub span: u64,
    /// How many granules are to be read for the row's packets; `None` where the segment has no
    /// index.
    pub granules: Option<u32>,
    /// Where the list of granules lies in [`Rows`]; `None` where it is one run, or there is no
    /// index.
    pub(crate) runs: Option<(u32, u32)>,
}

/// Rows in the order in which files have them: by day, then ends and protocol, then time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub rows: Vec<Row>,
    /// The lists of granules of all rows.
    pub(crate) runs: Vec<u8>,
}

impl Rows {
    /// Returns the list of a row's granules, as an index has such lists; `None` where that is one
    /// run, or there is no index.
    pub fn runs(&self, row: &Row) -> Option<&[u8]> {
        let (at, len) = row.runs?;
        self.runs.get(at as usize..)?.get(..len as usize)
    }

    /// Returns the rows of each day, the earliest first.
    pub fn days(&self) -> impl Iterator<Item = (i32, &[Row])> {
        self.rows.chunk_by(|a, b| a.day == b.day).map(|rows| (rows[0].day, rows))
    }
}
