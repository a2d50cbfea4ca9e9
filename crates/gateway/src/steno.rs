//! Stenographer's language: what do its clients ask?
//!
//! A query is words, as `host 10.0.0.1 and (port 53 or icmp) and after 3h ago`. "and" and "or" bind
//! alike, from the left. Each condition means here what the same words mean to stenographer:
//! addresses are those of IP headers, and ports those of TCP and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr as _;

use jiff::Timestamp;
use tapdeck_store::query::Span;

use crate::condition::Condition;

/// Words, values and signs that a query may have. Conditions may stand inside each other half as
/// deep as there are of these, whether or not there are brackets, and so deep does a thread's stack
/// hold them.
const TOKENS: usize = 512;
/// Brackets that may be open at once.
const DEPTH: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(&'static str),
    Address(IpAddr),
    Number(u32),
    /// Nanoseconds since 1970.
    Time(i64),
    /// Nanoseconds.
    Duration(i64),
    Open,
    Close,
    Slash,
}

/// What begins with one of these is that word, whatever follows.
const WORDS: [&str; 16] = [
    "after", "ago", "&&", "and", "before", "host", "icmp", "ip", "mask", "net", "||", "or", "port",
    "proto", "tcp", "udp",
];

/// Reads a query. `now_ns` is what "ago" counts from.
pub fn parse(text: &str, now_ns: i64) -> Result<Condition, String> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0, now_ns };
    let condition = parser.expression()?;
    match parser.next() {
        None => Ok(condition),
        Some(token) => Err(format!("{} has no place there", show(Some(token)))),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut rest = text.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let (token, len) = if let Some(word) = WORDS.iter().find(|word| rest.starts_with(**word)) {
            (Token::Word(word), word.len())
        } else {
            match first {
                '(' => (Token::Open, 1),
                ')' => (Token::Close, 1),
                '/' => (Token::Slash, 1),
                _ => value(rest)?,
            }
        };
        if tokens.len() == TOKENS {
            return Err(format!("a query has at most {TOKENS} words, values and signs"));
        }
        tokens.push(token);
        rest = rest[len..].trim_start();
    }
    Ok(tokens)
}

/// Reads an address, a number, a time or a duration.
fn value(text: &str) -> Result<(Token, usize), String> {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.' | '-' | '+' | 'T' | 'Z');
    let len = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let (part, unit) = (&text[..len], text[len..].chars().next());
    let bad = || format!("{:?} is no word, address, number or time", first_word(text));
    if let Some(unit @ ('h' | 'm')) = unit {
        let n: u32 = part.parse().map_err(|_| bad())?;
        let seconds = i64::from(n) * if unit == 'h' { 3600 } else { 60 };
        let ns = seconds.checked_mul(1_000_000_000).ok_or_else(bad)?;
        return Ok((Token::Duration(ns), len + 1));
    }
    let token = if part.contains(['-', '+', 'T', 'Z']) {
        let time = Timestamp::from_str(part).map_err(|_| bad())?;
        Token::Time(i64::try_from(time.as_nanosecond()).map_err(|_| bad())?)
    } else if part.contains([':', '.']) {
        Token::Address(part.parse().map_err(|_| bad())?)
    } else {
        Token::Number(part.parse().map_err(|_| bad())?)
    };
    Ok((token, len))
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().chars().take(40).collect()
}

fn show(token: Option<&Token>) -> String {
    match token {
        None => "the end".into(),
        Some(Token::Word(word)) => format!("{word:?}"),
        Some(Token::Address(address)) => address.to_string(),
        Some(Token::Number(number)) => number.to_string(),
        Some(Token::Time(_)) => "a time".into(),
        Some(Token::Duration(_)) => "a duration".into(),
        Some(Token::Open) => "'('".into(),
        Some(Token::Close) => "')'".into(),
        Some(Token::Slash) => "'/'".into(),
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    now_ns: i64,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<&Token> {
        let token = self.tokens.get(self.at);
        self.at += usize::from(token.is_some());
        token
    }

    fn is_next(&mut self, words: &[&str]) -> bool {
        let is = matches!(self.tokens.get(self.at), Some(Token::Word(w)) if words.contains(w));
        self.at += usize::from(is);
        is
    }

    fn expression(&mut self) -> Result<Condition, String> {
        let mut left = self.condition()?;
        loop {
            if self.is_next(&["and", "&&"]) {
                left = every(left, self.condition()?);
            } else if self.is_next(&["or", "||"]) {
                left = any(left, self.condition()?);
            } else {
                return Ok(left);
            }
        }
    }

    fn condition(&mut self) -> Result<Condition, String> {
        let filter = |text: String| Ok(Condition::Filter(text));
        match self.next().cloned() {
            Some(Token::Open) => {
                self.depth += 1;
                if self.depth > DEPTH {
                    return Err(format!("more than {DEPTH} brackets are open at once"));
                }
                let inner = self.expression()?;
                self.depth -= 1;
                match self.next() {
                    Some(Token::Close) => Ok(inner),
                    other => Err(format!("{} in place of ')'", show(other))),
                }
            }
            Some(Token::Word("host")) => {
                let address = self.address()?;
                filter(format!("{} host {address}", family(address)))
            }
            Some(Token::Word("net")) => self.network(),
            Some(Token::Word("port")) => {
                let port = self.number(u32::from(u16::MAX))?;
                filter(format!("tcp port {port} or udp port {port}"))
            }
            Some(Token::Word("ip")) => {
                if !self.is_next(&["proto"]) {
                    return Err("\"ip\" without \"proto\" behind it".into());
                }
                let number = self.number(u32::from(u8::MAX))?;
                filter(protocol(number))
            }
            Some(Token::Word("tcp")) => filter(protocol(6)),
            Some(Token::Word("udp")) => filter(protocol(17)),
            Some(Token::Word("icmp")) => filter(protocol(1)),
            Some(Token::Word("before")) => {
                let before_ns = self.time()?;
                Ok(Condition::Times(Span { before_ns, ..Span::ALL }))
            }
            Some(Token::Word("after")) => {
                let after_ns = self.time()?;
                Ok(Condition::Times(Span { after_ns, ..Span::ALL }))
            }
            other => Err(format!("{} in place of a condition", show(other.as_ref()))),
        }
    }

    fn network(&mut self) -> Result<Condition, String> {
        let address = self.address()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let length = if self.is_next(&["mask"]) {
            let mask = self.address()?;
            if mask.is_ipv4() != address.is_ipv4() {
                return Err(format!("mask {mask} is none of {address}"));
            }
            let bits = bits(mask) << (128 - width);
            let length = bits.leading_ones();
            if bits != ones(length) {
                return Err(format!("mask {mask} has gaps"));
            }
            length
        } else if matches!(self.next(), Some(Token::Slash)) {
            self.number(width)?
        } else {
            return Err(format!("net {address} without '/' or \"mask\" behind it"));
        };
        let network = bits(address) & (ones(length) >> (128 - width));
        let network: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::from_bits(network as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(network).into(),
        };
        Ok(Condition::Filter(format!("{} net {network}/{length}", family(address))))
    }

    fn address(&mut self) -> Result<IpAddr, String> {
        match self.next() {
            Some(Token::Address(address)) => Ok(*address),
            other => Err(format!("{} in place of an address", show(other))),
        }
    }

    fn number(&mut self, most: u32) -> Result<u32, String> {
        match self.next() {
            Some(Token::Number(number)) if *number <= most => Ok(*number),
            other => Err(format!("{} in place of a number up to {most}", show(other))),
        }
    }

    fn time(&mut self) -> Result<i64, String> {
        match self.next().cloned() {
            Some(Token::Time(ns)) => Ok(ns),
            Some(Token::Duration(ns)) if self.is_next(&["ago"]) => {
                let time = self.now_ns.checked_sub(ns);
                time.ok_or_else(|| "so long ago there was no time".into())
            }
            other => Err(format!("{} in place of a time", show(other.as_ref()))),
        }
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip6" }
}

fn protocol(number: u32) -> String {
    format!("ip proto {number} or ip6 proto {number}")
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Returns 128 bits, of which the first so many are set.
fn ones(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// Joins two conditions of which both must hold. Filters become one, which is planned as one.
fn every(left: Condition, right: Condition) -> Condition {
    match (left, right) {
        (Condition::Filter(a), Condition::Filter(b)) => {
            Condition::Filter(format!("({a}) and ({b})"))
        }
        (Condition::Every(mut parts), right) => {
            parts.push(right);
            Condition::Every(parts)
        }
        (left, right) => Condition::Every(vec![left, right]),
    }
}

/// Joins two conditions of which one must hold.
fn any(left: Condition, right: Condition) -> Condition {
    match (left, right) {
        (Condition::Filter(a), Condition::Filter(b)) => {
            Condition::Filter(format!("({a}) or ({b})"))
        }
        (Condition::Any(mut parts), right) => {
            parts.push(right);
            Condition::Any(parts)
        }
        (left, right) => Condition::Any(vec![left, right]),
    }
}

#[cfg(test)]
pub mod tests {
    use tapdeck_store::query::Span;

    use tapdeck_testkit::SplitMix64;

    use super::parse;
    use crate::condition::Condition;
    use crate::question;

    const NOW: i64 = 1_800_000_000_000_000_000;

    fn filter(text: &str) -> String {
        match parse(text, NOW).unwrap_or_else(|e| panic!("{text}: {e}")) {
            Condition::Filter(filter) => filter,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn words_become_filters_that_libpcap_takes() {
        for (text, expected) in [
            ("host 10.0.0.1", "ip host 10.0.0.1"),
            ("host 2001:db8::1", "ip6 host 2001:db8::1"),
            ("port 53", "tcp port 53 or udp port 53"),
            ("ip proto 47", "ip proto 47 or ip6 proto 47"),
            ("icmp", "ip proto 1 or ip6 proto 1"),
            ("net 10.1.2.3/8", "ip net 10.0.0.0/8"),
            ("net 10.1.2.3 mask 255.255.0.0", "ip net 10.1.0.0/16"),
            ("net 2001:db8:ffff::/33", "ip6 net 2001:db8:8000::/33"),
            ("net 0.0.0.0/0", "ip net 0.0.0.0/0"),
            ("host 10.0.0.1&&port 53", "(ip host 10.0.0.1) and (tcp port 53 or udp port 53)"),
            // From the left, alike.
            (
                "tcp or udp and port 9",
                "((ip proto 6 or ip6 proto 6) or (ip proto 17 or ip6 proto 17)) and (tcp port 9 or udp port 9)",
            ),
            ("(tcp) || ( udp )", "(ip proto 6 or ip6 proto 6) or (ip proto 17 or ip6 proto 17)"),
        ] {
            let made = filter(text);
            assert_eq!(made, expected, "{text}");
            let compiled = Condition::Filter(made).compile(&[]);
            assert!(compiled.is_ok(), "{text}: {:?}", compiled.err());
        }
    }

    #[test]
    fn times_are_conditions_of_their_own() {
        let query = "host 10.0.0.1 and after 3h ago and before 2026-01-02T03:04:05Z";
        let span =
            Span { after_ns: NOW - 3 * 3_600_000_000_000, before_ns: 1_767_323_045_000_000_000 };
        assert_eq!(parse(query, NOW).expect("it is right").span(), span);
        let query = "after 10m ago or port 53";
        assert_eq!(parse(query, NOW).expect("it is right").span(), Span::ALL);
        let query = "before 2026-01-02T03:04:05+01:00";
        let before_ns = 1_767_323_045_000_000_000 - 3_600_000_000_000;
        assert_eq!(parse(query, NOW).expect("it is right").span(), Span { before_ns, ..Span::ALL });
    }

    #[test]
    fn what_is_no_query_is_refused() {
        for text in [
            "",
            "host",
            "host x",
            "port 65536",
            "port -1",
            "ip",
            "ip proto 256",
            "tcp udp",
            "tcp and",
            "(tcp",
            "tcp)",
            "net 10.0.0.0",
            "net 10.0.0.0/33",
            "before",
            "before 3h",
            "net 10.0.0.0 mask 255.0.255.0",
            "net 10.0.0.0 mask ffff::",
            "after tomorrow",
            "host 10.0.0.1; port 5",
            "not tcp",
            "host 1.2.3.4.5",
            "port 99999999999",
            "before 99999999999999999999h ago",
            "after -2562047h ago",
            "after -1m ago",
            "after + 1m ago",
            "after 4294967295h ago",
            "host 10.0.0.1 é",
        ] {
            assert!(parse(text, NOW).is_err(), "{text}");
        }
        assert!(parse(&"(".repeat(100_000), NOW).is_err());
        assert!(parse(&"tcp and ".repeat(3), NOW).is_err());
    }

    #[test]
    fn a_long_query_is_refused_before_it_nests_deeper_than_a_stack_holds() {
        let nested = |n: usize| format!("after1h ago{}", "&&tcp||tcp".repeat(n));
        let error = parse(&nested(1000), NOW).expect_err("it is too long");
        assert_eq!(error, "a query has at most 512 words, values and signs");
        // The longest that is taken is looked at in every way that an answer looks at it.
        let longest = parse(&nested(127), NOW).expect("it is short enough");
        assert_eq!(longest.span(), Span::ALL);
        assert_eq!(longest.filters().len(), 254);
        let compiled = longest.compile(&[]).expect("it compiles");
        assert!(compiled.clone().plan() != tapdeck_packet::key::Plan::All);
    }

    /// Bytes that mean something to queries and parameters, and some that a terminal obeys.
    const BYTES: &[u8] = b"()&|/:.-+ 0179TZahmsd\n\x1b\x00\xc2\x9b\xff";

    /// Reads mutations of inputs. Returns how many were understood.
    pub fn understood(inputs: &[&str], read: fn(&[u8]) -> bool) -> usize {
        assert!(inputs.iter().all(|input| read(input.as_bytes())), "what is right is understood");
        let mut rng = SplitMix64(1);
        let mut mutated = || {
            let mut bytes = inputs[rng.below(inputs.len())].as_bytes().to_vec();
            for _ in 0..=rng.below(3) {
                let (at, new) = (rng.below(bytes.len().max(1)), BYTES[rng.below(BYTES.len())]);
                match rng.below(3) {
                    0 if at < bytes.len() => bytes[at] = new,
                    1 if at < bytes.len() => drop(bytes.remove(at)),
                    _ => bytes.insert(at.min(bytes.len()), new),
                }
            }
            bytes
        };
        (0..20_000).filter(|_| read(&mutated())).count()
    }

    #[test]
    fn whatever_is_asked_is_understood_or_refused_in_a_line() {
        let queries = [
            "host 10.0.0.1 and (port 53 or icmp) and after 3h ago",
            "net 10.1.2.3 mask 255.255.0.0 || net 2001:db8::/33",
            "before 2026-01-02T03:04:05Z && ip proto 47",
        ];
        let parameters =
            ["2026-01-02T03:04:05.5Z", "1767323045.25", "90s", "1:LQU9qZlK+B5F3KDmev6m5PMibrg="];
        for (inputs, read) in [
            (&queries[..], question::query as fn(&[u8]) -> bool),
            (&parameters, question::parameter),
        ] {
            let understood = understood(inputs, read);
            assert!((500..19_500).contains(&understood), "{understood} of {inputs:?}");
        }
    }
}
