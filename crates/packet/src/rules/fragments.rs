//! Which ports has a fragment that is not its datagram's first?
//!
//! Only the first fragment of a datagram holds ports, so they are remembered for the later ones. A
//! fragment has no ports if its first one did not come before it, was forgotten, or came so long
//! before that no receiver would put the two together any more.
//!
//! The hook programs remember the same (`bpf/fragments.h`), though not the same number of
//! datagrams. Nothing is reassembled.

use std::collections::HashMap;

use super::tuple::{Family, Tuple};

/// The least number of datagrams that are remembered. The oldest are forgotten first.
const LEAST: usize = 1 << 16;
/// How long a datagram is remembered: as long as Linux waits for its fragments.
const LIFE_NS: i64 = 30_000_000_000;

/// What the fragments of one datagram have in common (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Datagram {
    family: Option<Family>,
    source: u128,
    destination: u128,
    /// The protocol, of IPv4 alone: fragments of one IPv6 datagram may say different ones.
    protocol: Option<u8>,
    id: u32,
}

#[derive(Clone, Copy, Debug)]
struct First {
    time_ns: Option<i64>,
    protocol: u8,
    ports: Option<(u16, u16)>,
}

/// The first fragments that were seen, by their datagrams.
#[derive(Clone, Debug, Default)]
pub struct Fragments {
    recent: HashMap<Datagram, First>,
    older: HashMap<Datagram, First>,
}

impl Fragments {
    /// Takes the next packet, with its time in nanoseconds where it has one. If the packet is a
    /// later fragment, it gets protocol and ports of its first one.
    pub fn follow(&mut self, tuple: &mut Tuple, time_ns: Option<i64>) {
        let Some(fragment) = tuple.fragment else { return };
        let Tuple { family, source, destination, protocol, ports, .. } = *tuple;
        let protocol_of_all = (family == Some(Family::V4)).then_some(protocol);
        let datagram =
            Datagram { family, source, destination, protocol: protocol_of_all, id: fragment.id };
        if fragment.is_first {
            self.remember(datagram, First { time_ns, protocol, ports });
        } else if let Some(first) = self.recall(&datagram, time_ns) {
            (tuple.protocol, tuple.ports) = (first.protocol, first.ports);
        }
    }

    fn remember(&mut self, datagram: Datagram, first: First) {
        if self.recent.len() >= LEAST {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(datagram, first);
    }

    fn recall(&self, datagram: &Datagram, time_ns: Option<i64>) -> Option<First> {
        let first = self.recent.get(datagram).or_else(|| self.older.get(datagram))?;
        let age_ns = match (first.time_ns, time_ns) {
            (Some(first), Some(now)) => now.saturating_sub(first),
            _ => 0,
        };
        (age_ns <= LIFE_NS).then_some(*first)
    }
}
