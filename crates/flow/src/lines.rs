//! Writes rows as lines, in forms that programs read which know other recorders: Zeek's conn.log
//! and Suricata's EVE.
//!
//! Both know connections of IP, so other rows are left out. A slice says less than Zeek or Suricata
//! would of a whole connection: what they know and a row does not is absent. Each line says where
//! the packets lie. Which connection a line is of is told by `uid` and `flow_id`, which are made of
//! the ends: the slices of a flow have one.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::IpAddr;

use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::numbers::ip_protocol;

use crate::key::icmp_ports;
use crate::row::{EndReason, Row};
use crate::text::put_address;

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;

/// A form of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineForm {
    /// Zeek's conn.log, columns with tabs between them.
    Zeek,
    /// Zeek's conn.log, a JSON object a line.
    ZeekJson,
    /// Suricata's EVE, events of the type `flow`.
    Eve,
}

/// The columns of conn.log that are written, and their types.
const ZEEK: [(&str, &str); 19] = [
    ("ts", "time"),
    ("uid", "string"),
    ("id.orig_h", "addr"),
    ("id.orig_p", "port"),
    ("id.resp_h", "addr"),
    ("id.resp_p", "port"),
    ("proto", "enum"),
    ("duration", "interval"),
    ("conn_state", "string"),
    ("orig_pkts", "count"),
    ("orig_ip_bytes", "count"),
    ("resp_pkts", "count"),
    ("resp_ip_bytes", "count"),
    ("vlan", "int"),
    ("ip_proto", "count"),
    ("community_id", "string"),
    ("segment", "string"),
    ("offset", "count"),
    ("span", "count"),
];
/// Which of them are text, for JSON.
const ZEEK_TEXTS: [&str; 7] =
    ["uid", "id.orig_h", "id.resp_h", "proto", "conn_state", "community_id", "segment"];

/// A file of lines.
pub struct LineFile<W: Write> {
    to: W,
    form: LineForm,
    /// Names of sensor and segment as JSON strings.
    sensor: String,
    segment: String,
}

impl<W: Write> LineFile<W> {
    /// Begins a file of rows of a segment, which has a name, recorded by a sensor, which has one,
    /// too.
    pub fn new(mut to: W, form: LineForm, sensor: &str, segment: &str) -> io::Result<Self> {
        if form == LineForm::Zeek {
            writeln!(to, "#separator \\x09\n#set_separator\t,\n#empty_field\t(empty)")?;
            writeln!(to, "#unset_field\t-\n#path\tconn")?;
            let all = |of: fn(&(&'static str, &'static str)) -> &'static str| {
                ZEEK.iter().map(of).collect::<Vec<_>>().join("\t")
            };
            writeln!(to, "#fields\t{}\n#types\t{}", all(|f| f.0), all(|f| f.1))?;
        }
        Ok(Self { to, form, sensor: json(sensor), segment: json(segment) })
    }

    /// Writes rows. Returns how many of them have lines.
    pub fn write(&mut self, rows: &[Row]) -> io::Result<u64> {
        let mut line = String::with_capacity(1024);
        let mut written = 0;
        for row in rows {
            let (Some(source), Some(destination), Some(protocol)) =
                (row.source, row.destination, row.protocol)
            else {
                continue;
            };
            let ends = [source, destination].map(address);
            line.clear();
            match self.form {
                LineForm::Eve => self.eve(&mut line, row, &ends, protocol),
                form => self.zeek(&mut line, row, &ends, protocol, form == LineForm::ZeekJson),
            }
            line.push('\n');
            self.to.write_all(line.as_bytes())?;
            written += 1;
        }
        Ok(written)
    }

    /// Returns what the file was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }

    fn zeek(&self, line: &mut String, row: &Row, ends: &[String; 2], protocol: u8, is_json: bool) {
        let (from, to) = ports(row, protocol).unwrap_or_default();
        let is_more_than_one = row.packets[0] + row.packets[1] > 1;
        let duration_ns = row.end_ns.saturating_sub(row.start_ns).max(0);
        let name = match protocol {
            ip_protocol::TCP => "tcp",
            ip_protocol::UDP => "udp",
            ip_protocol::ICMP | ip_protocol::ICMPV6 => "icmp",
            _ => "unknown_transport",
        };
        let segment = self.segment.trim_matches('"');
        let values: [Option<String>; ZEEK.len()] = [
            Some(seconds(row.start_ns)),
            Some(uid(identity(row, protocol))),
            Some(ends[0].clone()),
            Some(from.to_string()),
            Some(ends[1].clone()),
            Some(to.to_string()),
            Some(name.to_owned()),
            is_more_than_one.then(|| seconds(duration_ns)),
            Some(conn_state(row, protocol).to_owned()),
            Some(row.packets[0].to_string()),
            Some(row.ip_bytes[0].to_string()),
            Some(row.packets[1].to_string()),
            Some(row.ip_bytes[1].to_string()),
            row.vlan.map(|vlan| vlan.to_string()),
            Some(protocol.to_string()),
            community_id(row, protocol).map(|id| id.to_string()),
            Some(segment.to_owned()),
            Some(row.offset.to_string()),
            Some(row.span.to_string()),
        ];
        let mut mark = if is_json { "{" } else { "" };
        for ((name, _), value) in ZEEK.iter().zip(values) {
            let _ = match value {
                None if is_json => continue,
                None => write!(line, "{mark}-"),
                Some(value) if !is_json => write!(line, "{mark}{value}"),
                Some(value) if ZEEK_TEXTS.contains(name) => {
                    write!(line, "{mark}\"{name}\":\"{value}\"")
                }
                Some(value) => write!(line, "{mark}\"{name}\":{value}"),
            };
            mark = if is_json { "," } else { "\t" };
        }
        if is_json {
            line.push('}');
        }
    }

    fn eve(&self, line: &mut String, row: &Row, ends: &[String; 2], protocol: u8) {
        let [start, end] = [row.start_ns, row.end_ns].map(timestamp);
        let _ = write!(
            line,
            "{{\"timestamp\":\"{end}\",\"flow_id\":{},\"host\":{},\"event_type\":\"flow\"",
            identity(row, protocol) >> 11,
            self.sensor
        );
        if let Some(vlan) = row.vlan {
            let _ = write!(line, ",\"vlan\":[{vlan}]");
        }
        let [source, destination] = ends;
        let _ = write!(line, ",\"src_ip\":\"{source}\",\"dest_ip\":\"{destination}\"");
        if let Some((from, to)) = row.ports {
            let _ = write!(line, ",\"src_port\":{from},\"dest_port\":{to}");
        }
        if let Some((kind, code)) = row.icmp {
            let of = if row.packets[0] > 0 { "" } else { "response_" };
            let _ = write!(line, ",\"{of}icmp_type\":{kind},\"{of}icmp_code\":{code}");
        }
        if let Some(id) = community_id(row, protocol) {
            let _ = write!(line, ",\"community_id\":\"{id}\"");
        }
        let age_s = row.end_ns.saturating_sub(row.start_ns).max(0) / 1_000_000_000;
        let state = match row.end_reason {
            EndReason::Closed => "closed",
            _ if row.packets.contains(&0) => "new",
            _ => "established",
        };
        let [there, back] = row.packets;
        let [bytes_there, bytes_back] = row.bytes;
        let _ = write!(
            line,
            ",\"proto\":\"{}\",\"flow\":{{\"pkts_toserver\":{there},\"pkts_toclient\":{back},\"bytes_toserver\":{bytes_there},\"bytes_toclient\":{bytes_back},\"start\":\"{start}\",\"end\":\"{end}\",\"age\":{age_s},\"state\":\"{state}\",\"reason\":\"forced\"}}",
            eve_protocol(protocol)
        );
        if let Some([to_server, to_client]) = row.tcp_flags {
            let all = (to_server | to_client) & 0xff;
            let _ = write!(
                line,
                ",\"tcp\":{{\"tcp_flags\":\"{all:02x}\",\"tcp_flags_ts\":\"{:02x}\",\"tcp_flags_tc\":\"{:02x}\"}}",
                to_server & 0xff,
                to_client & 0xff
            );
        }
        let Row { offset, span, lost, .. } = row;
        let _ = write!(
            line,
            ",\"tapdeck\":{{\"segment\":{},\"offset\":{offset},\"span\":{span},\"lost_near\":{lost}}}}}",
            self.segment
        );
    }
}

/// Returns Zeek's state of a connection, as far as the slice shows it.
fn conn_state(row: &Row, protocol: u8) -> &'static str {
    let Some([there, back]) = row.tcp_flags else {
        return match (protocol, row.packets.map(|packets| packets > 0)) {
            (ip_protocol::UDP, [true, true]) => "SF",
            (ip_protocol::UDP, [true, false]) => "S0",
            (ip_protocol::UDP, [false, true]) => "SHR",
            _ => "OTH",
        };
    };
    let [asked, answered] = [there, back].map(|flags| flags & SYN != 0);
    let [fin, fin_back] = [there, back].map(|flags| flags & FIN != 0);
    let [reset, reset_back] = [there, back].map(|flags| flags & RST != 0);
    match (asked, answered) {
        (true, true) if reset => "RSTO",
        (true, true) if reset_back => "RSTR",
        (true, true) => match (fin, fin_back) {
            (true, true) => "SF",
            (true, false) => "S2",
            (false, true) => "S3",
            (false, false) => "S1",
        },
        (true, false) if reset_back => "REJ",
        (true, false) if reset => "RSTOS0",
        (true, false) if fin => "SH",
        (true, false) => "S0",
        (false, true) if reset_back => "RSTRH",
        (false, true) if fin_back => "SHR",
        _ => "OTH",
    }
}

fn eve_protocol(protocol: u8) -> String {
    let name = match protocol {
        ip_protocol::TCP => "TCP",
        ip_protocol::UDP => "UDP",
        ip_protocol::ICMP => "ICMP",
        ip_protocol::ICMPV6 => "IPv6-ICMP",
        ip_protocol::SCTP => "SCTP",
        ip_protocol::GRE => "GRE",
        ip_protocol::ESP => "ESP",
        other => return format!("{other:03}"),
    };
    name.to_owned()
}

fn address(address: IpAddr) -> String {
    let mut text = Vec::with_capacity(40);
    put_address(&mut text, address);
    String::from_utf8(text).unwrap_or_default()
}

/// Returns seconds with six digits behind the point.
fn seconds(ns: i64) -> String {
    format!("{}.{:06}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) / 1000)
}

/// Returns a time as Suricata writes it: `2026-01-02T03:04:05.000006+0000`.
fn timestamp(ns: i64) -> String {
    let (days, rest) = (ns.div_euclid(crate::DAY_NS), ns.rem_euclid(crate::DAY_NS));
    let (year, month, day) = date(days);
    let (s, us) = (rest / 1_000_000_000, rest % 1_000_000_000 / 1000);
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{us:06}+0000")
}

/// Returns year, month and day of a day, counted from 1970 (Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", civil_from_days).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Returns the ports of the source and the destination. Of ICMP these are, as Zeek has them, the
/// type of what the source sends and that of the answer, or the code where there is no answer.
fn ports(row: &Row, protocol: u8) -> Option<(u16, u16)> {
    let (from, to) = ports_of_key(row, protocol)?;
    Some(if row.icmp.is_some() { (from & 0xff, to & 0xff) } else { (from, to) })
}

/// Returns the ports of the source and the destination, as the key of the flow has them.
fn ports_of_key(row: &Row, protocol: u8) -> Option<(u16, u16)> {
    let Some((kind, code)) = row.icmp else { return row.ports };
    let (sent, other) = icmp_ports(protocol, kind, code);
    // Where the source sent nothing, the message is the other end's.
    Some(if row.packets[0] > 0 { (sent, other) } else { (other, sent) })
}

fn community_id(row: &Row, protocol: u8) -> Option<CommunityId> {
    CommunityId::of_flow(row.source?, row.destination?, protocol, ports(row, protocol))
}

/// Returns a number of a row's flow: FNV-1a over its ends, whichever is the source.
fn identity(row: &Row, protocol: u8) -> u64 {
    let ports = ports_of_key(row, protocol);
    let (from, to) = ports.unwrap_or_default();
    let mut ends = [(row.source, from), (row.destination, to)];
    ends.sort_unstable();
    let has_ports = ports.is_some();
    let text = format!("{ends:?}{protocol}{has_ports}{:?}{:?}", row.vlan, row.tunnel);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns a number as Zeek writes that of a connection.
fn uid(mut number: u64) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut text = String::from("C");
    for _ in 0..11 {
        text.push(char::from(DIGITS[(number % 62) as usize]));
        number /= 62;
    }
    text
}

/// Returns a text as a JSON string.
fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            c if c < ' ' => write!(out, "\\u{:04x}", u32::from(c)),
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::{json, seconds, timestamp, uid};

    #[test]
    fn times_are_written_as_others_write_them() {
        let ns = 1_767_323_045_000_006_999;
        assert_eq!(timestamp(ns), "2026-01-02T03:04:05.000006+0000");
        assert_eq!(seconds(ns), "1767323045.000006");
        assert_eq!(timestamp(951_782_399_999_999_999), "2000-02-28T23:59:59.999999+0000");
        assert_eq!(timestamp(951_782_400_000_000_000), "2000-02-29T00:00:00.000000+0000");
        assert_eq!(timestamp(-1), "1969-12-31T23:59:59.999999+0000");
    }

    #[test]
    fn texts_are_escaped_and_numbers_have_one_length() {
        assert_eq!(json("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
        assert_eq!((uid(0).len(), uid(u64::MAX).len()), (12, 12));
        assert_ne!(uid(1), uid(62));
    }
}
