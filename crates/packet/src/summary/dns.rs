//! What does a message of DNS ask, and what does it answer (RFC 1035)?
//!
//! The first question and the first answers are told. The message is whoever's who sent it: a
//! pointer in a name leads back only, and a name is as long as names may be.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use super::details::half;

/// DNS, multicast DNS (RFC 6762) and LLMNR (RFC 4795).
pub const PORTS: [u16; 3] = [53, 5353, 5355];
/// How many answers are told.
const TOLD: usize = 4;
/// The longest name, in bytes of the message.
const LONGEST: usize = 255;

/// A message of DNS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dns {
    pub id: u16,
    pub response: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How it went, of a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rcode: Option<String>,
    /// The first answers, as `A 192.0.2.1`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
    /// How many answers there are.
    #[serde(skip)]
    count: usize,
}

impl Dns {
    /// Reads a message; `None` where it is shorter than its header, or neither asks nor answers.
    pub fn read(message: &[u8]) -> Option<Self> {
        let flags = half(message, 2)?;
        let (questions, count) = (half(message, 4)?, usize::from(half(message, 6)?));
        message.get(..12)?;
        let response = flags & 0x8000 != 0;
        let is_query = flags & 0x7800 == 0 && (questions > 0 || response && count > 0);
        if !is_query {
            return None;
        }
        let mut dns = Self {
            id: half(message, 0)?,
            response,
            name: None,
            kind: None,
            rcode: response.then(|| rcode(flags & 0xf)),
            answers: Vec::new(),
            count: if response { count } else { 0 },
        };
        // What is cut short ends the reading; what was read stays.
        let _ = dns.records(message, questions);
        Some(dns)
    }

    fn records(&mut self, message: &[u8], questions: u16) -> Option<()> {
        let mut at = 12;
        for number in 0..questions {
            let (name, end) = name(message, at)?;
            if number == 0 {
                self.kind = Some(kind(half(message, end)?));
                self.name = Some(name);
            }
            at = end + 4;
        }
        for _ in 0..self.count.min(TOLD) {
            let (_, end) = name(message, at)?;
            let number = half(message, end)?;
            let data = end + 10;
            let len = usize::from(half(message, end + 8)?);
            let bytes = message.get(data..data + len)?;
            let value = match (number, bytes.len()) {
                (1, 4) => bytes.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).to_string()),
                (28, 16) => bytes.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).to_string()),
                (2 | 5 | 12, _) => Some(name(message, data)?.0),
                _ => None,
            };
            let kind = kind(number);
            self.answers.push(value.map_or(kind.clone(), |value| format!("{kind} {value}")));
            at = data + len;
        }
        Some(())
    }
}

/// Returns the name that stands at a place, and where what follows it begins.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut name, mut bytes, mut end) = (String::new(), 0, None);
    loop {
        let len = *message.get(at)?;
        if len & 0xc0 == 0xc0 {
            let to = usize::from(half(message, at)? & 0x3fff);
            end.get_or_insert(at + 2);
            if to >= at {
                return None;
            }
            at = to;
            continue;
        }
        if len & 0xc0 != 0 {
            return None;
        }
        let label = message.get(at + 1..at + 1 + usize::from(len))?;
        at += 1 + label.len();
        if label.is_empty() {
            let name = if name.is_empty() { ".".into() } else { name };
            return Some((name, end.unwrap_or(at)));
        }
        bytes += 1 + label.len();
        if bytes >= LONGEST {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        for byte in label {
            match byte {
                b'.' | b'\\' => name.extend(['\\', char::from(*byte)]),
                0x21..=0x7e => name.push(char::from(*byte)),
                // Writing into a string does not fail.
                _ => drop(write!(name, "\\{byte:03}")),
            }
        }
    }
}

fn kind(number: u16) -> String {
    let name = match number {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        41 => "OPT",
        43 => "DS",
        46 => "RRSIG",
        48 => "DNSKEY",
        64 => "SVCB",
        65 => "HTTPS",
        255 => "ANY",
        other => return format!("TYPE{other}"),
    };
    name.into()
}

fn rcode(number: u16) -> String {
    let name = match number {
        0 => "NoError",
        1 => "FormErr",
        2 => "ServFail",
        3 => "NXDomain",
        4 => "NotImp",
        5 => "Refused",
        other => return format!("rcode {other}"),
    };
    name.into()
}

/// Writes `dns 4660 A? example.org: A 192.0.2.1`.
impl fmt::Display for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dns {}", self.id)?;
        if let (Some(kind), Some(name)) = (&self.kind, &self.name) {
            write!(f, " {kind}? {name}")?;
        }
        match &self.rcode {
            None => return Ok(()),
            Some(rcode) if self.count == 0 => return write!(f, ": {rcode}"),
            Some(_) => write!(f, ": {}", self.answers.join(", "))?,
        }
        match self.count - self.answers.len() {
            0 => Ok(()),
            more if self.answers.is_empty() => write!(f, "{more} answers"),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Dns;

    fn message(flags: u16, answers: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34];
        bytes.extend(flags.to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(answers.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(b"\x07example\x03org\x00\x00\x01\x00\x01");
        bytes.extend(rest);
        bytes
    }

    /// An answer about the name of the question.
    fn answer(kind: u8, data: &[u8]) -> Vec<u8> {
        let head = [0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8];
        [&head, data].concat()
    }

    fn said(bytes: &[u8]) -> String {
        Dns::read(bytes).unwrap().to_string()
    }

    #[test]
    fn questions_and_answers_are_told() {
        assert_eq!(said(&message(0x0100, 0, &[])), "dns 4660 A? example.org");
        assert_eq!(said(&message(0x8183, 0, &[])), "dns 4660 A? example.org: NXDomain");
        let rest =
            [answer(5, b"\x03www\xc0\x0c"), answer(1, &[192, 0, 2, 1]), answer(16, b"\x01x")];
        assert_eq!(
            said(&message(0x8180, 3, &rest.concat())),
            "dns 4660 A? example.org: CNAME www.example.org, A 192.0.2.1, TXT"
        );
        let six = answer(28, &[0xfe; 16]).repeat(6);
        let told = said(&message(0x8180, 6, &six));
        assert!(
            told.ends_with("AAAA fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe and 2 more"),
            "{told}"
        );
        assert!(said(&message(0x8180, 2, &[])).ends_with("example.org: 2 answers"));
    }

    #[test]
    fn names_that_lead_nowhere_end_the_reading() {
        // A pointer to itself, one forward, and a label that is longer than the message.
        for rest in [&b"\xc0\x0c"[..], b"\xc0\x40", b"\x3fabc"] {
            let mut bytes = vec![0, 1, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0];
            bytes.extend(rest);
            bytes.extend([0; 40]);
            bytes.truncate(60);
            assert_eq!(said(&bytes), "dns 1: 1 answers");
        }
        let long = [&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &b"\x01a".repeat(128), &[0; 5]];
        assert_eq!(said(&long.concat()), "dns 1");
        assert_eq!(Dns::read(&[0; 40]), None, "something else at the same port");
        for len in 0..12 {
            assert_eq!(Dns::read(&message(0, 0, &[])[..len]), None);
        }
    }

    #[test]
    fn a_name_is_shown_as_text() {
        let bytes =
            [&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x04a.\x1b\xff\x00\x00\x1c\x00\x01"];
        assert_eq!(said(&bytes.concat()), r"dns 1 AAAA? a\.\027\255");
        let root = [&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x00\x00\x02\x00\x01"];
        assert_eq!(said(&root.concat()), "dns 1 NS? .");
    }
}
