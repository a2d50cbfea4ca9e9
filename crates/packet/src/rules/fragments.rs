//! What a datagram's first fragment says, for its later ones: only the first has ports.
//!
//! The hook programs remember the same (`bpf/fragments.h`), though not the same number of
//! datagrams. A fragment whose first one was not seen before it, was forgotten, or came so long
//! before that nobody would put the two together any more has no ports.

use std::collections::HashMap;

use super::tuple::{Family, Tuple};

/// Datagrams that are remembered at least; what is oldest is forgotten first.
const LEAST: usize = 1 << 16;
/// As long as Linux waits for a datagram's fragments.
const LIFE_NS: i64 = 30_000_000_000;

/// What the fragments of one datagram have in common (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Datagram {
    family: Option<Family>,
    source: u128,
    destination: u128,
    /// IPv4's; fragments of one IPv6 datagram may say different things.
    protocol: Option<u8>,
    id: u32,
}

#[derive(Clone, Copy, Debug)]
struct First {
    time_ns: Option<i64>,
    protocol: u8,
    ports: Option<(u16, u16)>,
}

/// Gives later fragments what their first one says.
#[derive(Clone, Debug, Default)]
pub struct Fragments {
    recent: HashMap<Datagram, First>,
    older: HashMap<Datagram, First>,
}

impl Fragments {
    /// Takes packets in the order in which they came, with their times where they have any.
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
