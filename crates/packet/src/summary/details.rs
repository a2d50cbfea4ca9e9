//! What does a packet say beyond who talks to whom? Flags and numbers of TCP, messages of ICMP,
//! questions of ARP and DNS, in words near to tcpdump's.
//!
//! Of a header that is cut short nothing is told, and of an answer of DNS what is there.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use super::dns::{self, Dns};
use crate::numbers::ip_protocol;

/// What the innermost header that was read says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Details {
    Tcp(Tcp),
    Icmp(Icmp),
    Arp(Arp),
    Dns(Dns),
}

/// A segment of TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tcp {
    pub flags: TcpFlags,
    pub seq: u32,
    /// Left out where the flag ACK is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack: Option<u32>,
    pub window: u16,
    /// Bytes behind the header, on the wire.
    pub payload: usize,
}

/// The flags of a TCP header (RFC 9293, section 3.1). They are shown as their names, and as
/// [`TcpFlags::letters`] in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

/// A message of ICMP or ICMPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Icmp {
    #[serde(rename = "type")]
    pub kind: u8,
    pub code: u8,
    /// Identifier and number of an echo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo: Option<(u16, u16)>,
    #[serde(skip)]
    words: String,
}

/// A message of ARP, of IPv4 over Ethernet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arp {
    pub operation: u16,
    pub sender_mac: Mac,
    pub sender: Ipv4Addr,
    pub target: Ipv4Addr,
}

/// The address of an Ethernet interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&bytes.join(":"))
    }
}

impl Serialize for Mac {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Details {
    /// Reads what follows the header of IP, of which `on_the_wire` bytes belong to the packet.
    pub fn of_ip(protocol: u8, bytes: &[u8], on_the_wire: usize) -> Option<Self> {
        let bytes = &bytes[..bytes.len().min(on_the_wire)];
        match protocol {
            ip_protocol::TCP => Tcp::read(bytes, on_the_wire).map(Self::Tcp),
            ip_protocol::ICMP => Icmp::read(bytes, icmp_words).map(Self::Icmp),
            ip_protocol::ICMPV6 => Icmp::read(bytes, icmp6_words).map(Self::Icmp),
            ip_protocol::UDP => {
                let ports = [half(bytes, 0)?, half(bytes, 2)?];
                let is_dns = ports.iter().any(|port| dns::PORTS.contains(port));
                is_dns.then(|| Dns::read(bytes.get(8..)?)).flatten().map(Self::Dns)
            }
            _ => None,
        }
    }

    /// Reads what follows the type of an Ethernet frame that holds ARP.
    pub fn of_arp(bytes: &[u8]) -> Option<Self> {
        // Ethernet and IPv4, with addresses as long as those are.
        let bytes = bytes.strip_prefix(&[0, 1, 8, 0, 6, 4])?;
        let address = |at: usize| Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?));
        Some(Self::Arp(Arp {
            operation: half(bytes, 0)?,
            sender_mac: Mac(*bytes.get(2..)?.first_chunk()?),
            sender: address(8)?,
            target: address(18)?,
        }))
    }
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(tcp) => tcp.fmt(f),
            Self::Icmp(icmp) => f.write_str(&icmp.words),
            Self::Arp(arp) => arp.fmt(f),
            Self::Dns(dns) => dns.fmt(f),
        }
    }
}

impl TcpFlags {
    const ACK: u8 = 0x10;

    /// Returns what is said of the flags that are set; `all` is from the lowest bit on.
    fn set<T: Copy>(self, all: [T; 8]) -> impl Iterator<Item = T> {
        (0..8).zip(all).filter(move |(bit, _)| self.0 & 1 << bit != 0).map(|(_, one)| one)
    }

    /// Returns a letter for each flag, as tcpdump has them: `S.` is SYN and ACK.
    pub fn letters(self) -> String {
        self.set(['F', 'S', 'R', 'P', '.', 'U', 'E', 'W']).collect()
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.set(["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"]);
        f.write_str(&names.collect::<Vec<_>>().join(" "))
    }
}

impl Serialize for TcpFlags {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.letters())
    }
}

impl Tcp {
    fn read(bytes: &[u8], on_the_wire: usize) -> Option<Self> {
        let header = bytes.first_chunk::<20>()?;
        let flags = TcpFlags(header[13]);
        Some(Self {
            flags,
            seq: word(header, 4)?,
            ack: if flags.0 & TcpFlags::ACK == 0 { None } else { word(header, 8) },
            window: half(header, 14)?,
            payload: on_the_wire.saturating_sub(4 * usize::from(header[12] >> 4)),
        })
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flags, seq, ack, window, payload } = self;
        let letters = if flags.0 == 0 { "none".to_owned() } else { flags.letters() };
        write!(f, "flags [{letters}], seq {seq}")?;
        if let Some(ack) = ack {
            write!(f, ", ack {ack}")?;
        }
        write!(f, ", win {window}, payload {payload}")
    }
}

impl Icmp {
    fn read(bytes: &[u8], words: fn(u8, u8, &[u8]) -> Option<String>) -> Option<Self> {
        let [kind, code, ..] = *bytes.first_chunk::<4>()?;
        let mut text =
            words(kind, code, bytes).unwrap_or_else(|| format!("type {kind}, code {code}"));
        let echo = text.starts_with("echo ").then(|| Some((half(bytes, 4)?, half(bytes, 6)?)));
        let echo = echo.flatten();
        if let Some((id, seq)) = echo {
            // Writing into a string does not fail.
            let _ = write!(text, ", id {id}, seq {seq}");
        }
        Some(Self { kind, code, echo, words: text })
    }
}

/// Says what a message of ICMP is (RFC 792, 1191, 1812).
fn icmp_words(kind: u8, code: u8, bytes: &[u8]) -> Option<String> {
    Some(match (kind, code) {
        (0, 0) => "echo reply".into(),
        (8, 0) => "echo request".into(),
        (3, 4) => format!("unreachable, fragmentation needed, mtu {}", half(bytes, 6)?),
        (3, _) => {
            let what = match code {
                0 => "net",
                1 => "host",
                2 => "protocol",
                3 => "port",
                9 | 10 | 13 => "prohibited",
                _ => return None,
            };
            format!("unreachable, {what}")
        }
        (5, _) => format!("redirect to {}", Ipv4Addr::from(word(bytes, 4)?)),
        (11, 0) => "time exceeded in transit".into(),
        (11, 1) => "time exceeded in reassembly".into(),
        (12, _) => "parameter problem".into(),
        _ => return None,
    })
}

/// Says what a message of ICMPv6 is (RFC 4443, 4861, 3810).
fn icmp6_words(kind: u8, code: u8, bytes: &[u8]) -> Option<String> {
    let target = || Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?));
    Some(match (kind, code) {
        (1, _) => {
            let what = match code {
                0 => "route",
                1 | 5 => "prohibited",
                3 => "address",
                4 => "port",
                _ => return None,
            };
            format!("unreachable, {what}")
        }
        (2, _) => format!("packet too big, mtu {}", word(bytes, 4)?),
        (3, 0) => "time exceeded in transit".into(),
        (3, 1) => "time exceeded in reassembly".into(),
        (4, _) => "parameter problem".into(),
        (128, 0) => "echo request".into(),
        (129, 0) => "echo reply".into(),
        (133, 0) => "router solicitation".into(),
        (134, 0) => "router advertisement".into(),
        (135, 0) => format!("neighbor solicitation, who has {}", target()?),
        (136, 0) => format!("neighbor advertisement, {} is there", target()?),
        (143, 0) => "multicast listener report".into(),
        _ => return None,
    })
}

impl fmt::Display for Arp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, sender_mac, sender, target } = self;
        match operation {
            1 => write!(f, "who-has {target} tell {sender}"),
            2 => write!(f, "{sender} is-at {sender_mac}"),
            other => write!(f, "operation {other}"),
        }
    }
}

pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use crate::numbers::ip_protocol::{ICMP, ICMPV6, TCP, UDP};

    use super::{Details, TcpFlags};

    fn said(protocol: u8, bytes: &[u8], on_the_wire: usize) -> Option<String> {
        Details::of_ip(protocol, bytes, on_the_wire).map(|details| details.to_string())
    }

    #[test]
    fn tcp_tells_flags_numbers_and_payload() {
        let mut header =
            vec![0, 80, 0x9c, 0x40, 0, 0, 0, 7, 0, 0, 1, 0, 0x60, 0x12, 4, 0, 0, 0, 0, 0];
        let told = said(TCP, &header, 124).unwrap();
        assert_eq!(told, "flags [S.], seq 7, ack 256, win 1024, payload 100");
        header[13] = 0x02;
        assert_eq!(said(TCP, &header, 24).unwrap(), "flags [S], seq 7, win 1024, payload 0");
        header[13] = 0xff;
        assert!(said(TCP, &header, 24).unwrap().starts_with("flags [FSRP.UEW], "));
        header[13] = 0;
        assert!(said(TCP, &header, 24).unwrap().starts_with("flags [none], "));
        assert_eq!(said(TCP, &header[..19], 24), None, "cut short");
        assert_eq!(
            (TcpFlags(0x12).to_string(), TcpFlags(0).to_string()),
            ("SYN ACK".into(), String::new())
        );
        assert_eq!(said(TCP, &header, 19), None, "the rest is padding");
    }

    #[test]
    fn icmp_tells_what_it_is() {
        let mut target = vec![135, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80];
        target.resize(24, 1);
        for (protocol, bytes, words) in [
            (ICMP, &[8, 0, 0, 0, 0, 5, 0, 9][..], "echo request, id 5, seq 9"),
            (ICMP, &[0, 0, 0, 0], "echo reply"),
            (ICMP, &[3, 3, 0, 0, 0, 0, 0, 0], "unreachable, port"),
            (ICMP, &[3, 4, 0, 0, 0, 0, 5, 0xdc], "unreachable, fragmentation needed, mtu 1500"),
            (ICMP, &[5, 1, 0, 0, 10, 0, 0, 1], "redirect to 10.0.0.1"),
            (ICMP, &[42, 7, 0, 0], "type 42, code 7"),
            (ICMPV6, &[2, 0, 0, 0, 0, 0, 5, 0], "packet too big, mtu 1280"),
            (ICMPV6, &[129, 0, 0, 0, 0, 1, 0, 2], "echo reply, id 1, seq 2"),
            (ICMPV6, &target, "neighbor solicitation, who has fe80:101:101:101:101:101:101:101"),
            (ICMPV6, &target[..23], "type 135, code 0"),
        ] {
            assert_eq!(said(protocol, bytes, bytes.len()).as_deref(), Some(words));
        }
        assert_eq!(said(ICMP, &[8, 0, 0], 8), None);
    }

    #[test]
    fn arp_asks_and_answers() {
        let mut message = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1];
        message.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        let said = |bytes: &[u8]| Details::of_arp(bytes).map(|details| details.to_string());
        assert_eq!(said(&message).unwrap(), "who-has 10.0.0.2 tell 10.0.0.1");
        message[7] = 2;
        assert_eq!(said(&message).unwrap(), "10.0.0.1 is-at 02:00:00:00:00:01");
        message[7] = 9;
        assert_eq!(said(&message).unwrap(), "operation 9");
        assert_eq!(said(&message[..27]), None);
        message[0] = 1;
        assert_eq!(said(&message), None, "of something else than Ethernet");
    }

    #[test]
    fn only_the_ports_of_dns_hold_dns() {
        let query = |port: u8| {
            let mut bytes = vec![0x9c, 0x40, 0, port, 0, 0, 0, 0, 0x12, 0x34, 1, 0, 0, 1];
            bytes.extend([0, 0, 0, 0, 0, 0, 2, b't', b'd', 0, 0, 1, 0, 1]);
            said(UDP, &bytes, bytes.len())
        };
        assert_eq!(query(53).as_deref(), Some("dns 4660 A? td"));
        assert_eq!(query(54), None);
    }
}
