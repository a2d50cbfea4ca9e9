//! Which packets are in an answer? Those that the expression takes, of the interfaces, in the
//! direction and of the flow that were asked for.
//!
//! A packet's direction is what its file says: in the packet's own flags, in the description of its
//! interface (of a recorder at a hook that sees only what comes in), or in the frame (Linux's
//! "cooked" header). Where nothing says it, the packet goes neither in nor out.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use tapdeck_capture::Hook;
use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;
use tapdeck_store::query::{Described, Matcher, Packet};

use crate::flags;
use tapdeck_store::filter::Filter;

/// The direction in which a packet passed its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// The interface received the packet
    In,
    /// The interface sent the packet
    Out,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
        })
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
    /// Whether all packets of the interface came in.
    is_inbound: bool,
}

impl Choice {
    /// Resolves what the flags choose among the packets of these interfaces.
    pub fn new(flags: &flags::Query, interfaces: &[Described]) -> Result<Self> {
        let filter = Filter::new(&flags.expression.join(" "), interfaces, flags.inner)?;
        let of = |interface: &Described| Interface {
            is_wanted: is_wanted(flags, interface),
            is_inbound: hook_of(interface).is_some_and(|hook| !hook.sees_outbound()),
        };
        let interfaces = interfaces.iter().map(of).collect();
        let (direction, flow, inner) = (flags.direction, flags.community_id, flags.inner);
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
                let all_in = interface.is_inbound.then_some(Direction::In);
                direction_of(packet).or(all_in) == Some(wanted)
            })
            && self.filter.matches(packet)
            && self.flow.is_none_or(|flow| flow.takes(packet.link, packet.frame, self.inner))
    }
}

/// Returns whether packets of an interface are asked for.
pub fn is_wanted(flags: &flags::Query, interface: &Described) -> bool {
    let patterns = &flags.interfaces;
    patterns.is_empty() || patterns.iter().any(|pattern| fits(pattern, &interface.name))
}

/// Returns what was asked for and fits none of the interfaces, if there are any.
pub fn absent<'a>(
    flags: &'a flags::Query,
    interfaces: &[Described],
) -> impl Iterator<Item = &'a str> {
    let fits_none = |pattern: &&String| interfaces.iter().all(|i| !fits(pattern, &i.name));
    let patterns = if interfaces.is_empty() { &[][..] } else { &flags.interfaces[..] };
    patterns.iter().filter(fits_none).map(String::as_str)
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

/// Returns the hook that an interface was recorded at, as its description tells.
fn hook_of(interface: &Described) -> Option<Hook> {
    let words = interface.description.strip_prefix("hook ")?;
    Hook::named(words.split(',').next()?)
}

/// Returns a packet's direction, as the packet itself tells.
fn direction_of(packet: &Packet<'_>) -> Option<Direction> {
    /// Bits of `epb_flags`: draft-ietf-opsawg-pcapng, section 4.3.1.
    const DIRECTION: u32 = 3;
    /// The packet type in Linux's "cooked" header: LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2.
    const OUTGOING: u8 = 4;
    let outgoing = |kind: Option<&u8>| {
        kind.map(|kind| if *kind == OUTGOING { Direction::Out } else { Direction::In })
    };
    match packet.flags & DIRECTION {
        1 => Some(Direction::In),
        2 => Some(Direction::Out),
        _ if packet.link == LinkType::LINUX_SLL => outgoing(packet.frame.get(1)),
        _ if packet.link == LinkType::LINUX_SLL2 => outgoing(packet.frame.get(10)),
        _ => None,
    }
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
