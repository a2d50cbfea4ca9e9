//! Which packets are in an answer? Those that the expression takes, of the interfaces, in the
//! direction and of the flow that were asked for.
//!
//! A packet's direction is what its file says: in the packet's own flags, in the description of its
//! interface (of a recorder at a hook that sees only what comes in), or in the frame (Linux's
//! "cooked" header). Where nothing says it, the packet goes neither in nor out.

use std::sync::Arc;

use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;

use crate::reading::filter::{Error, Filter};
use crate::reading::query::{Described, Matcher, Packet};

/// The hooks that see only what comes in, by the names that descriptions of interfaces have.
pub const INBOUND_HOOKS: [&str; 4] = ["xdp", "xdp-generic", "netfilter", "afxdp"];

/// The direction in which a packet passed its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The interface received the packet.
    In,
    /// The interface sent the packet.
    Out,
}

impl Direction {
    /// Returns the direction of all packets of an interface; `None` where each tells its own.
    pub fn of_all(interface: &Described) -> Option<Self> {
        let words = interface.description.strip_prefix("hook ");
        let hook = words.and_then(|words| words.split(',').next());
        hook.filter(|hook| INBOUND_HOOKS.contains(hook)).map(|_| Self::In)
    }

    /// Returns a packet's direction, as the packet itself tells.
    pub fn told(packet: &Packet<'_>) -> Option<Self> {
        /// Bits of `epb_flags`: draft-ietf-opsawg-pcapng, section 4.3.1.
        const DIRECTION: u32 = 3;
        /// The packet type in Linux's "cooked" header: LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2.
        const OUTGOING: u8 = 4;
        let outgoing = |kind: Option<&u8>| {
            kind.map(|kind| if *kind == OUTGOING { Self::Out } else { Self::In })
        };
        match packet.flags & DIRECTION {
            1 => Some(Self::In),
            2 => Some(Self::Out),
            _ if packet.link == LinkType::LINUX_SLL => outgoing(packet.frame.get(1)),
            _ if packet.link == LinkType::LINUX_SLL2 => outgoing(packet.frame.get(10)),
            _ => None,
        }
    }
}

/// What is asked for: each of these leaves packets out.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// An expression as pcap-filter(7) has them; empty takes every packet.
    pub expression: String,
    /// Whether packets inside of packets count, too.
    pub inner: bool,
    /// Names of interfaces, in which `*` stands for any characters and `?` for one; none are all.
    pub interfaces: Vec<String>,
    pub direction: Option<Direction>,
    pub flow: Option<CommunityId>,
}

impl Wanted {
    /// Returns whether packets of an interface are asked for.
    pub fn takes(&self, interface: &Described) -> bool {
        let patterns = &self.interfaces;
        patterns.is_empty() || patterns.iter().any(|pattern| fits(pattern, &interface.name))
    }

    /// Returns what was asked for and fits none of the interfaces, if there are any.
    pub fn absent<'a>(&'a self, interfaces: &[Described]) -> impl Iterator<Item = &'a str> {
        let fits_none = |pattern: &&String| interfaces.iter().all(|i| !fits(pattern, &i.name));
        let patterns = if interfaces.is_empty() { &[][..] } else { &self.interfaces[..] };
        patterns.iter().filter(fits_none).map(String::as_str)
    }
}

/// What decides which packets are in an answer. Each thread that matches packets needs a clone of
/// its own.
#[derive(Clone)]
pub struct Choice {
    filter: Filter,
    /// What is to be known of each interface of the snapshot.
    interfaces: Arc<[Interface]>,
    direction: Option<Direction>,
    flow: Option<CommunityId>,
    /// Whether packets inside of packets count, too.
    inner: bool,
}

#[derive(Clone, Copy)]
struct Interface {
    is_wanted: bool,
    /// The direction of all its packets.
    direction: Option<Direction>,
}

impl Choice {
    /// Resolves what is wanted of the packets of these interfaces.
    pub fn new(wanted: &Wanted, interfaces: &[Described]) -> Result<Self, Error> {
        let Wanted { expression, inner, direction, flow, .. } = wanted;
        let filter = Filter::new(expression, interfaces, *inner)?;
        let of = |interface: &Described| Interface {
            is_wanted: wanted.takes(interface),
            direction: Direction::of_all(interface),
        };
        let interfaces = interfaces.iter().map(of).collect();
        let (direction, flow, inner) = (*direction, *flow, *inner);
        Ok(Self { filter, interfaces, direction, flow, inner })
    }

    /// Returns the choice among packets whose interfaces have other numbers: of each, its number
    /// here.
    pub fn of(&self, numbers: &[u32]) -> Self {
        let interfaces = numbers.iter().map(|number| self.interfaces[*number as usize]).collect();
        Self { interfaces, ..self.clone() }
    }

    /// Returns which keys the packets of the answer have. Others can have them, too.
    pub fn plan(&self) -> &Plan {
        self.filter.plan()
    }

    /// Returns the filter, which is only a part of the choice.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}

impl Matcher for Choice {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        let Some(interface) = self.interfaces.get(packet.interface as usize) else { return false };
        interface.is_wanted
            && self.direction.is_none_or(|wanted| {
                Direction::told(packet).or(interface.direction) == Some(wanted)
            })
            && self.filter.matches(packet)
            && self.flow.is_none_or(|flow| flow.takes(packet.link, packet.frame, self.inner))
    }
}

/// Returns whether a name fits a pattern, in which `*` stands for any characters and `?` for one.
pub fn fits(pattern: &str, name: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return name.is_empty() };
    let rest = &pattern[first.len_utf8()..];
    if first == '*' {
        let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
        return ends.into_iter().any(|at| fits(rest, &name[at..]));
    }
    let mut chars = name.chars();
    chars.next().is_some_and(|c| first == '?' || first == c) && fits(rest, chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn names_fit_patterns() {
        for (pattern, name) in [
            ("eth0", "eth0"),
            ("eth*", "eth0"),
            ("*", "eth0"),
            ("*", ""),
            ("*0", "eth0"),
            ("e*t*0", "eth0.100"),
            ("e??0", "eth0"),
            ("veth?", "vethä"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("eth", "eth0"), ("eth0", "eth"), ("eth?", "eth"), ("", "eth0"), ("*1", "eth0")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
