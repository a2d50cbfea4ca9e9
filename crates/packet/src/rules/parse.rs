//! How is a rule file read?
//!
//! It has one rule a line, with all fields in this order. `#` begins a comment:
//!
//! ```text
//! ACTION src ADDR[/N]|any dst ADDR[/N]|any sport N[-N]|any dport N[-N]|any
//!        proto tcp|udp|icmp|N|any
//! ```
//!
//! An address with bits set behind its prefix is taken as the prefix: the mask is applied to it, as
//! it is to packets. Two numbers are the first and the last of a range of ports. Names of hosts and
//! services are not looked up.

use std::fmt;
use std::net::IpAddr;
use std::str::{FromStr, SplitWhitespace};

use ipnet::IpNet;

use super::rule::{
    Action, MAX_CUTOFF, MAX_GROUP_NAME, MAX_SNAPLEN, PortRange, Protocol, Rule, SIZE_UNITS,
};
use super::set::{Entry, RuleSet};
use crate::numbers::ip_protocol;
use crate::printable::count;

/// How many faults of a file are shown one by one.
const SHOWN: usize = 20;
/// How many characters of the user's text an error repeats.
const QUOTED: usize = 40;
/// The most rules that a set can have. Such a set takes 32 MiB in the kernel, the most that any set
/// may.
pub const MAX_RULES: usize = 1 << 20;
/// The most pairs of a source and a destination port that the ranges of one rule can stand for.
pub const MAX_PORT_PAIRS: u64 = 1 << 16;

/// A fault in a line of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Number of the line, counted from 1; 0 where the rule does not come from a file.
    pub line: u32,
    /// What is wrong. The text also says what to write.
    pub fault: Fault,
}

/// Why a line is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// bytes that are not text
    #[error("not UTF-8 text: write addresses and names in plain characters")]
    NotText,
    /// nothing, or only a comment, where one rule is needed
    #[error("no rule: write {GRAMMAR}")]
    Empty,
    /// the first word is no action
    #[error("{0:?} is no action: write accept, drop, snaplen=BYTES, cutoff=SIZE or group=NAME")]
    Action(String),
    /// the number of bytes to keep is none
    #[error("{0:?} is no number of bytes to keep: write snaplen=N, N from 1 to {MAX_SNAPLEN}")]
    Snaplen(String),
    /// no size after which a flow can be cut off
    #[error("{0:?} is no size: write cutoff=SIZE, as 4096, 10KiB or 1MiB, at most 2GiB")]
    Cutoff(String),
    /// the group has no name, or one that cannot be
    #[error(
        "{0:?} is no name of a group: write group=NAME, of at most {MAX_GROUP_NAME} bytes and no control characters"
    )]
    Group(String),
    /// another word where the name of a field must be
    #[error("{found:?} where {expected} must stand: the order is {GRAMMAR}")]
    Field { expected: &'static str, found: String },
    /// the line ends too early
    #[error("the line ends where {0} must stand: the order is {GRAMMAR}")]
    Missing(&'static str),
    /// no address
    #[error("{found:?} behind {field} is no address: {why}")]
    Address { field: &'static str, found: String, why: &'static str },
    /// one address of IPv4 and one of IPv6
    #[error(
        "source {source_net} and destination {destination_net} are of two families, and no packet has both: make one rule for each, or write any"
    )]
    Families { source_net: IpNet, destination_net: IpNet },
    /// no port
    #[error(
        "{found:?} behind {field} is no port: write a number from 0 to 65535, two of them as 8000-8100, or any"
    )]
    Port { field: &'static str, found: String },
    /// more ports than the kernel's tables shall hold for one rule
    #[error(
        "the ranges stand for {} pairs of ports, and a rule has at most {}: write any for one of the two", count(*.0), count(MAX_PORT_PAIRS)
    )]
    Ranges(u64),
    /// no protocol
    #[error("{0:?} is no protocol: write tcp, udp, icmp, a number from 0 to 255, or any")]
    Protocol(String),
    /// words behind the end
    #[error("{0:?} behind the end of the rule: write one rule a line, and # before a comment")]
    Extra(String),
    /// too many rules
    #[error(
        "more than {} rules, of which a range of ports is one for each port: merge some into shorter prefixes, or split the set over several groups", count(MAX_RULES as u64)
    )]
    TooMany,
}

const GRAMMAR: &str = "ACTION src ADDR[/N]|any dst ADDR[/N]|any sport N[-N]|any dport N[-N]|any proto tcp|udp|icmp|N|any";

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for ParseError {}

/// The faults of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseErrors {
    /// The first faults in the order of the file, at least one and at most 20.
    pub errors: Vec<ParseError>,
    /// Number of faults in the whole file.
    pub count: usize,
}

/// Writes one line: the first fault, and how many more there are.
impl fmt::Display for ParseErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.errors.first() {
            first.fmt(f)?;
        }
        match self.count {
            0 | 1 => Ok(()),
            2 => f.write_str(" (and one more fault)"),
            n => write!(f, " (and {} more faults)", n - 1),
        }
    }
}

impl std::error::Error for ParseErrors {}

impl RuleSet {
    /// Reads a rule file. A file without rules is a set that takes no packet.
    ///
    /// # Errors
    /// Where a line is no rule, or there are more than [`MAX_RULES`].
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, ParseErrors> {
        let text = text.as_ref();
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        let mut set = Self::default();
        let mut faults = ParseErrors { errors: Vec::new(), count: 0 };
        let mut size = 0;
        for (line, bytes) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            match parse_line(bytes) {
                Ok(None) => {}
                Ok(Some(rule)) => {
                    size += rule.port_pairs();
                    if size > MAX_RULES as u64 {
                        faults.add(ParseError { line, fault: Fault::TooMany });
                        break;
                    }
                    set.push(Entry { rule, enabled: true, line });
                }
                Err(fault) => faults.add(ParseError { line, fault }),
            }
        }
        if faults.count == 0 { Ok(set) } else { Err(faults) }
    }
}

impl ParseErrors {
    fn add(&mut self, error: ParseError) {
        self.count += 1;
        if self.errors.len() < SHOWN {
            self.errors.push(error);
        }
    }
}

/// Reads one rule, as it stands in a line of a file.
impl FromStr for Rule {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let fault = |fault| ParseError { line: 0, fault };
        if text.trim_end().contains('\n') {
            return Err(fault(Fault::Extra("a second line".into())));
        }
        parse_line(text.as_bytes()).map_err(fault)?.ok_or(fault(Fault::Empty))
    }
}

/// Reads a line; `None` where it holds no more than white space and a comment.
fn parse_line(line: &[u8]) -> Result<Option<Rule>, Fault> {
    let rule = line.split(|&byte| byte == b'#').next().unwrap_or_default();
    let rule = str::from_utf8(rule).map_err(|_| Fault::NotText)?;
    let mut words = rule.split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let rule = Rule {
        action: action(first)?,
        source: address("src", &mut words)?,
        destination: address("dst", &mut words)?,
        source_port: port("sport", &mut words)?,
        destination_port: port("dport", &mut words)?,
        protocol: protocol(&mut words)?,
    };
    if let Some(extra) = words.next() {
        return Err(Fault::Extra(quote(extra)));
    }
    if let (Some(source_net), Some(destination_net)) = (rule.source, rule.destination)
        && source_net.addr().is_ipv4() != destination_net.addr().is_ipv4()
    {
        return Err(Fault::Families { source_net, destination_net });
    }
    if rule.port_pairs() > MAX_PORT_PAIRS {
        return Err(Fault::Ranges(rule.port_pairs()));
    }
    Ok(Some(rule.truncated()))
}

fn action(word: &str) -> Result<Action, Fault> {
    if let Some(bytes) = word.strip_prefix("snaplen=") {
        return match number(bytes) {
            Some(bytes @ 1..=MAX_SNAPLEN) => Ok(Action::Snaplen(bytes)),
            _ => Err(Fault::Snaplen(quote(bytes))),
        };
    }
    if let Some(bytes) = word.strip_prefix("cutoff=") {
        return match size(bytes) {
            Some(bytes @ 1..=MAX_CUTOFF) => Ok(Action::Cutoff(bytes)),
            _ => Err(Fault::Cutoff(quote(bytes))),
        };
    }
    if let Some(name) = word.strip_prefix("group=") {
        let is_name =
            !name.is_empty() && name.len() <= MAX_GROUP_NAME && !name.contains(char::is_control);
        return if is_name {
            Ok(Action::Group(name.into()))
        } else {
            Err(Fault::Group(quote(name)))
        };
    }
    match word {
        "accept" => Ok(Action::Accept),
        "drop" => Ok(Action::Drop),
        _ => Err(Fault::Action(quote(word))),
    }
}

/// Reads the name of a field and the word behind it; `None` for `any`.
fn value<'a>(
    field: &'static str,
    words: &mut SplitWhitespace<'a>,
) -> Result<Option<&'a str>, Fault> {
    match words.next() {
        Some(word) if word == field => {}
        Some(word) => return Err(Fault::Field { expected: field, found: quote(word) }),
        None => return Err(Fault::Missing(field)),
    }
    match words.next() {
        Some("any") => Ok(None),
        Some(word) => Ok(Some(word)),
        None => Err(Fault::Missing(what(field))),
    }
}

fn what(field: &str) -> &'static str {
    match field {
        "src" => "an address behind src",
        "dst" => "an address behind dst",
        "sport" => "a port behind sport",
        "dport" => "a port behind dport",
        _ => "a protocol behind proto",
    }
}

fn address(field: &'static str, words: &mut SplitWhitespace) -> Result<Option<IpNet>, Fault> {
    let Some(word) = value(field, words)? else { return Ok(None) };
    let fault = |why| Fault::Address { field, found: quote(word), why };
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (word, None),
    };
    let address: IpAddr = address.parse().map_err(|_| {
        fault("write 10.0.0.1, 10.0.0.0/8, 2001:db8::1, 2001:db8::/32 or any; names are not looked up")
    })?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => most,
        Some(bits) => match number(bits) {
            Some(bits) if bits <= u32::from(most) => bits as u8,
            _ if most == 32 => return Err(fault("the length of an IPv4 prefix is from 0 to 32")),
            _ => return Err(fault("the length of an IPv6 prefix is from 0 to 128")),
        },
    };
    IpNet::new(address, bits).map(Some).map_err(|_| fault("its prefix is too long"))
}

fn port(field: &'static str, words: &mut SplitWhitespace) -> Result<Option<PortRange>, Fault> {
    let Some(word) = value(field, words)? else { return Ok(None) };
    let port = |word: &str| number(word).and_then(|number| u16::try_from(number).ok());
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let range = port(first).zip(port(last)).filter(|(first, last)| first <= last);
    let range = range.map(|(first, last)| PortRange { first, last });
    range.map(Some).ok_or_else(|| Fault::Port { field, found: quote(word) })
}

fn protocol(words: &mut SplitWhitespace) -> Result<Option<Protocol>, Fault> {
    let Some(word) = value("proto", words)? else { return Ok(None) };
    let protocol = match word {
        "tcp" => Protocol::Number(ip_protocol::TCP),
        "udp" => Protocol::Number(ip_protocol::UDP),
        "icmp" => Protocol::Icmp,
        _ => {
            let number = number(word).and_then(|number| u8::try_from(number).ok());
            Protocol::Number(number.ok_or_else(|| Fault::Protocol(quote(word)))?)
        }
    };
    Ok(Some(protocol))
}

/// Reads a number of decimal digits alone: without a sign, white space or another base.
fn number(word: &str) -> Option<u32> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { word.parse().ok() } else { None }
}

/// Reads a number of bytes, with or without a unit.
fn size(word: &str) -> Option<u32> {
    let of = |(name, unit): &(&str, u32)| Some((word.strip_suffix(name)?, *unit));
    let (digits, unit) = SIZE_UNITS.iter().find_map(of).unwrap_or((word, 1));
    number(digits)?.checked_mul(unit)
}

/// Repeats the user's text, at most as long as fits in a line, and without characters that move a
/// terminal's cursor.
fn quote(word: &str) -> String {
    let mut quoted: String =
        word.chars().take(QUOTED).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if word.chars().count() > QUOTED {
        quoted.push('…');
    }
    quoted
}
