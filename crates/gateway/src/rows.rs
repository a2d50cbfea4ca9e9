//! Packets as JSON, for who shows them: each an object with what a person wants to know first, by
//! the names that `tapdeck query --json` has, and on demand its headers and bytes.
//!
//! An answer is one object: `packets`, in time order, and `end`, which says how whole it is. It is
//! streamed, as all answers are: one that broke off is no JSON.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;
use tapdeck_packet::dissect::{self, Layer};
use tapdeck_packet::summary::details::Details;
use tapdeck_packet::summary::{Protocol, Summary};
use tapdeck_store::query::Packet;

use crate::answer::End;
use crate::time;

pub const CONTENT_TYPE: &str = "application/json";
/// What stands before the packets.
pub const BEGIN: &[u8] = b"{\"packets\":[\n";

/// A packet. A key whose value the packet does not have is `null`.
#[derive(Serialize)]
struct Row<'a> {
    time: String,
    interface: &'a str,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    sport: Option<u16>,
    dport: Option<u16>,
    protocol: Option<String>,
    /// The names of TCP's flags.
    flags: Option<String>,
    length: u32,
    /// Bytes of the packet that were recorded.
    captured: usize,
    /// Packets lost before this one.
    dropped: u64,
    /// Bytes of the packet that were not kept because a ring was nearly full.
    shed: u32,
    #[serde(flatten)]
    whole: Option<Whole>,
}

#[derive(Serialize)]
struct Whole {
    layers: Vec<Layer>,
    /// What was captured of the packet, in hexadecimal digits.
    frame: String,
}

/// How an answer ended.
#[derive(Serialize)]
struct Last<'a> {
    result: &'static str,
    #[serde(flatten)]
    end: &'a End,
}

/// Writes a packet, and if it is wanted `whole`, with its headers and bytes.
pub fn write(out: &mut Vec<u8>, interface: &str, p: &Packet<'_>, whole: bool) {
    let s = Summary::of(p.link, p.frame);
    let flags = match s.details {
        Some(Details::Tcp(tcp)) => Some(tcp.flags.to_string()),
        _ => None,
    };
    let row = Row {
        time: time::show(p.time_ns),
        interface,
        src: s.src,
        dst: s.dst,
        sport: s.sport,
        dport: s.dport,
        protocol: s.protocol.as_ref().map(Protocol::to_string),
        flags,
        length: p.original_len,
        captured: p.frame.len(),
        dropped: p.dropped,
        shed: p.shed,
        whole: whole
            .then(|| Whole { layers: dissect::layers(p.link, p.frame), frame: hex(p.frame) }),
    };
    // Text and numbers are always JSON, and memory takes what is written.
    let _ = serde_json::to_writer(&mut *out, &row);
    out.push(b'\n');
}

/// Writes what stands behind the packets.
pub fn end(out: &mut Vec<u8>, end: &End) {
    out.extend_from_slice(b"],\"end\":");
    let _ = serde_json::to_writer(&mut *out, &Last { result: end.word(), end });
    out.extend_from_slice(b"}\n");
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tapdeck_packet::link::LinkType;
    use tapdeck_store::query::Packet;
    use tapdeck_testkit::frame::UdpFrame;

    use super::{BEGIN, end, write};
    use crate::answer::End;

    #[test]
    fn an_answer_is_json_whatever_names_its_interfaces_have() {
        let frame = UdpFrame::default().bytes();
        let packet = Packet {
            time_ns: 1_767_323_045_000_000_001,
            interface: 0,
            link: LinkType::ETHERNET,
            original_len: 2000,
            frame: &frame,
            flags: 0,
            dropped: 3,
            shed: 0,
        };
        let mut out = BEGIN.to_vec();
        write(&mut out, "</script>\"\u{1b}[2J\u{202e}", &packet, false);
        out.push(b',');
        write(&mut out, "eth0", &packet, true);
        end(&mut out, &End { packets: 2, is_limited: true, ..End::default() });
        let told: Value = serde_json::from_slice(&out).expect("it is JSON");
        let [first, second] = [&told["packets"][0], &told["packets"][1]];
        assert_eq!(first["interface"], "</script>\"\u{1b}[2J\u{202e}");
        assert_eq!(first["time"], "2026-01-02T03:04:05.000000001Z");
        assert_eq!((&first["length"], &first["dropped"]), (&2000.into(), &3.into()));
        assert_eq!((first.get("frame"), &first["flags"]), (None, &Value::Null));
        assert_eq!(second["captured"], frame.len());
        assert_eq!(second["frame"].as_str().map(str::len), Some(2 * frame.len()));
        assert_eq!(second["layers"][2]["name"], "UDP");
        assert_eq!(
            (&told["end"]["result"], &told["end"]["packets"]),
            (&"limited".into(), &2.into())
        );
    }
}
