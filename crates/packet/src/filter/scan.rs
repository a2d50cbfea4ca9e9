//! How is a text cut into tokens as libpcap's `scanner.l` cuts it?
//!
//! The longest token that fits is taken, and of two of one length the one that `scanner.l` names
//! first.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{NotUnderstood, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A keyword, an operator or a bracket. Of two spellings (`&&`, `and`) it is always the same
    /// one.
    Word(&'static str),
    Protocol(Protocol),
    Number(u32),
    /// Two to four numbers with dots between them: the address that begins with them, and the
    /// number of its bits that were written.
    Dotted {
        address: Ipv4Addr,
        bits: u32,
        text: &'a str,
    },
    Ipv6(Ipv6Addr),
    Mac([u8; 6]),
    /// Any other name, or any name that had a backslash before it; without the backslash.
    Name(&'a str),
}

/// A token, and the byte of the text at which it begins.
pub(super) type Placed<'a> = (Token<'a>, usize);

#[rustfmt::skip]
const KEYWORDS: &[&str] = &[
    "src", "dst", "host", "net", "mask", "port", "portrange", "proto", "protochain", "gateway",
    "less", "greater", "byte", "broadcast", "multicast", "and", "or", "not", "len", "inbound", "outbound", "ifindex",
    "vlan", "mpls", "pppoed", "pppoes", "geneve", "llc",
    "type", "subtype", "dir", "direction", "ra", "ta", "addr1", "addr2", "addr3", "addr4",
    "address1", "address2", "address3", "address4",
    "on", "ifname", "rset", "ruleset", "rnr", "rulenum", "srnr", "subrulenum", "reason", "action",
    "lane", "metac", "bcc", "oam", "oamf4", "oamf4ec", "oamf4sc", "sc", "ilmic", "vpi", "vci", "connectmsg", "metaconnect",
    "fisu", "lssu", "lsu", "msu", "hfisu", "hlssu", "hmsu", "sio", "opc", "dpc", "sls", "hsio", "hopc", "hdpc", "hsls",
];

/// Operators and brackets, the longer ones first.
#[rustfmt::skip]
const SIGNS: &[&str] = &[
    "&&", "||", ">=", "<=", "!=", "==", "<<", ">>",
    "+", "-", "*", "/", "%", ":", "[", "]", "!", "<", ">", "(", ")", "&", "|", "^", "=",
];

/// The names that pcap-filter(7) has for offsets and values of fields.
#[rustfmt::skip]
const NAMED_NUMBERS: &[(&str, u32)] = &[
    ("icmptype", 0), ("icmpcode", 1), ("icmp-echoreply", 0), ("icmp-unreach", 3), ("icmp-sourcequench", 4),
    ("icmp-redirect", 5), ("icmp-echo", 8), ("icmp-routeradvert", 9), ("icmp-routersolicit", 10), ("icmp-timxceed", 11),
    ("icmp-paramprob", 12), ("icmp-tstamp", 13), ("icmp-tstampreply", 14), ("icmp-ireq", 15), ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17), ("icmp-maskreply", 18),
    ("icmp6type", 0), ("icmp6code", 1), ("icmp6-destinationunreach", 1), ("icmp6-packettoobig", 2),
    ("icmp6-timeexceeded", 3), ("icmp6-parameterproblem", 4), ("icmp6-echo", 128), ("icmp6-echoreply", 129),
    ("icmp6-multicastlistenerquery", 130), ("icmp6-multicastlistenerreportv1", 131), ("icmp6-multicastlistenerdone", 132),
    ("icmp6-routersolicit", 133), ("icmp6-routeradvert", 134), ("icmp6-neighborsolicit", 135),
    ("icmp6-neighboradvert", 136), ("icmp6-redirect", 137), ("icmp6-routerrenum", 138),
    ("icmp6-nodeinformationquery", 139), ("icmp6-nodeinformationresponse", 140),
    ("icmp6-ineighbordiscoverysolicit", 141), ("icmp6-ineighbordiscoveryadvert", 142),
    ("icmp6-multicastlistenerreportv2", 143), ("icmp6-homeagentdiscoveryrequest", 144),
    ("icmp6-homeagentdiscoveryreply", 145), ("icmp6-mobileprefixsolicit", 146), ("icmp6-mobileprefixadvert", 147),
    ("icmp6-certpathsolicit", 148), ("icmp6-certpathadvert", 149), ("icmp6-multicastrouteradvert", 151),
    ("icmp6-multicastroutersolicit", 152), ("icmp6-multicastrouterterm", 153),
    ("tcpflags", 13), ("tcp-fin", 0x01), ("tcp-syn", 0x02), ("tcp-rst", 0x04), ("tcp-push", 0x08),
    ("tcp-ack", 0x10), ("tcp-urg", 0x20), ("tcp-ece", 0x40), ("tcp-cwr", 0x80),
];

pub(super) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, NotUnderstood> {
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at += text[at..].bytes().take_while(|b| b" \r\n\t".contains(b)).count();
        let rest = &text[at..];
        if rest.is_empty() {
            return Ok(tokens);
        }
        let (token, length) = token(rest).map_err(|what| NotUnderstood { at, what })?;
        tokens.push((token, at));
        at += length;
    }
}

/// Returns whether a text has a name in it, or something that may be one.
pub(super) fn has_name(text: &str) -> bool {
    let is_name = |(token, _): &Placed<'_>| matches!(token, Token::Name(_));
    tokens(text).map_or(true, |tokens| tokens.iter().any(is_name))
}

/// Returns the token that `rest` begins with, and its length.
fn token(rest: &str) -> Result<(Token<'_>, usize), &'static str> {
    if let Some(escaped) = rest.strip_prefix('\\') {
        let end = escaped.find([' ', '!', '(', ')', '\n', '\t']).unwrap_or(escaped.len());
        if end == 0 {
            return Err("a backslash before nothing");
        }
        return Ok((Token::Name(&escaped[..end]), 1 + end));
    }
    if let Some(found) = with_colons(rest) {
        return Ok(found);
    }
    let word = word(rest);
    if !word.is_empty() {
        return Ok((named(word)?, word.len()));
    }
    let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
    let sign = sign.ok_or("a character that has no meaning")?;
    Ok((Token::Word(sign_word(sign)), sign.len()))
}

fn sign_word(sign: &'static str) -> &'static str {
    match sign {
        "&&" => "and",
        "||" => "or",
        "!" => "not",
        "==" => "=",
        sign => sign,
    }
}

/// Returns the word that `rest` begins with: letters, digits, and the characters that may stand
/// between them.
fn word(rest: &str) -> &str {
    let is_inner = |b: &u8| b.is_ascii_alphanumeric() || b"-_.".contains(b);
    let length = rest.bytes().take_while(|b| is_inner(b)).count();
    let word = rest[..length].trim_end_matches(['-', '_']);
    if word.starts_with(|c: char| c.is_ascii_alphanumeric()) { word } else { "" }
}

/// Reads an IPv6 or MAC address with colons. Any other word that begins here would be shorter.
fn with_colons(rest: &str) -> Option<(Token<'_>, usize)> {
    /// Length of `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255`.
    const LONGEST: usize = 45;
    let is_part = |b: &u8| b.is_ascii_hexdigit() || b":.".contains(b);
    let length = rest.bytes().take(LONGEST).take_while(is_part).count();
    if !rest[..length].contains(':') {
        return None;
    }
    (2..=length).rev().find_map(|length| {
        let text = &rest[..length];
        let mac = || mac(text.split(':')).map(Token::Mac);
        let token = text.parse().ok().map(Token::Ipv6).or_else(mac)?;
        Some((token, length))
    })
}

/// Returns the token that a whole word is.
fn named(word: &str) -> Result<Token<'_>, &'static str> {
    if let Some(mac) = any_mac(word) {
        return Ok(Token::Mac(mac));
    }
    if let Some(number) = number(word) {
        return Ok(Token::Number(number?));
    }
    if let Some((address, bits)) = dotted(word) {
        return Ok(Token::Dotted { address, bits, text: word });
    }
    if let Some((_, number)) = NAMED_NUMBERS.iter().find(|(name, _)| *name == word) {
        return Ok(Token::Number(*number));
    }
    if let Some(protocol) = Protocol::named(word) {
        return Ok(Token::Protocol(protocol));
    }
    if word == "length" {
        return Ok(Token::Word("len"));
    }
    let keyword = KEYWORDS.iter().find(|keyword| **keyword == word);
    Ok(keyword.map_or(Token::Name(word), |k| Token::Word(k)))
}

/// Reads a MAC address in a form without colons: `x-x-x-x-x-x`, `x.x.x.x.x.x`, `xxxx.xxxx.xxxx` or
/// `xxxxxxxxxxxx`.
fn any_mac(word: &str) -> Option<[u8; 6]> {
    let digits = |from: usize| word.get(from..from + 2);
    let at: Option<[usize; 6]> = match (word.len(), word.as_bytes()) {
        (12, _) => Some([0, 2, 4, 6, 8, 10]),
        (14, [_, _, _, _, b'.', _, _, _, _, b'.', ..]) => Some([0, 2, 5, 7, 10, 12]),
        _ => None,
    };
    at.and_then(|at| mac(at.into_iter().map(|from| digits(from).unwrap_or(""))))
        .or_else(|| mac(word.split('-')))
        .or_else(|| mac(word.split('.')))
}

/// Reads six numbers of one or two hexadecimal digits.
fn mac<'a>(parts: impl Iterator<Item = &'a str>) -> Option<[u8; 6]> {
    let is_byte =
        |part: &&str| matches!(part.len(), 1..=2) && part.bytes().all(|b| b.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> = parts
        .take(7)
        .map(|part| Some(part).filter(is_byte).and_then(|part| u8::from_str_radix(part, 16).ok()))
        .collect();
    bytes?.try_into().ok()
}

/// Reads a number as C has it: decimal, octal behind a 0, hexadecimal behind 0x. `None` where the
/// word is no number.
fn number(word: &str) -> Option<Result<u32, &'static str>> {
    let hexadecimal = word.strip_prefix("0x").or(word.strip_prefix("0X"));
    let (digits, radix) = match hexadecimal {
        Some(digits) => (digits, 16),
        None if word.len() > 1 && word.starts_with('0') => (&word[1..], 8),
        None => (word, 10),
    };
    let is_number = match radix {
        16 => digits.bytes().all(|b| b.is_ascii_hexdigit()) && !digits.is_empty(),
        _ => word.bytes().all(|b| b.is_ascii_digit()),
    };
    is_number.then(|| u32::from_str_radix(digits, radix).map_err(|_| "a number that is none"))
}

/// Reads two to four decimal numbers with dots between them as the beginning of an address, and
/// returns the number of bits that they are.
fn dotted(word: &str) -> Option<(Ipv4Addr, u32)> {
    let is_decimal = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    let parts: Option<Vec<u8>> =
        word.split('.').take(5).map(|p| Some(p).filter(is_decimal)?.parse().ok()).collect();
    let parts = parts.filter(|parts| matches!(parts.len(), 2..=4))?;
    let mut bytes = [0; 4];
    bytes[..parts.len()].copy_from_slice(&parts);
    Some((bytes.into(), 8 * parts.len() as u32))
}
