//! What is a network interface, and what does it count? Both are read over rtnetlink(7).
//!
//! Netlink answers for the network namespace this process is in; files under `/sys` may
//! show another one's.

use std::io;
use std::ops::Add;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, Stats64,
};
use tapdeck_packet::link::LinkType;

use crate::netlink::{self, ask};
use crate::sys::kernel;

/// An interface as it was when it was looked up.
#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    /// `None`: frames have a form that is not recorded.
    pub link: Option<LinkType>,
    pub arphrd: u32,
    pub up: bool,
    pub running: bool,
    pub mtu: u32,
    pub mac: Option<[u8; 6]>,
    pub rx_queues: u32,
    /// The kind of a virtual interface (`veth`, `vlan`, ...).
    pub kind: Option<String>,
    pub counters: NicCounters,
}

impl Interface {
    /// Returns whether it is an end of a virtual cable.
    pub fn is_veth(&self) -> bool {
        self.kind.as_deref() == Some("veth")
    }
}

/// What the device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    pub rx_packets: u64,
    pub rx_missed: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    /// Packets that were to be sent and were not. A packet that is sent after all, later, may be
    /// counted here for each time that there was no room for it.
    pub tx_dropped: u64,
}

impl NicCounters {
    /// How many words they take.
    pub(crate) const WORDS: usize = 5;

    /// Returns whether these are the counters of another device than `before`, one that was made
    /// later: of one device they only grow.
    pub fn are_of_another(self, before: Self) -> bool {
        self.rx_packets < before.rx_packets || self.tx_packets < before.tx_packets
    }

    /// Returns the counters as words.
    pub(crate) fn words(self) -> [u64; Self::WORDS] {
        [self.rx_packets, self.rx_missed, self.tx_packets, self.tx_bytes, self.tx_dropped]
    }

    /// Takes the counters from words; those that are missing are 0.
    pub(crate) fn of_words(words: &mut impl Iterator<Item = u64>) -> Self {
        let mut next = || words.next().unwrap_or(0);
        Self {
            rx_packets: next(),
            rx_missed: next(),
            tx_packets: next(),
            tx_bytes: next(),
            tx_dropped: next(),
        }
    }

    /// Returns the growth since `before`. A counter that shrank belongs to a device that was made
    /// anew.
    pub fn since(self, before: Self) -> Self {
        let grown = |now: u64, then: u64| if now >= then { now - then } else { now };
        Self {
            rx_packets: grown(self.rx_packets, before.rx_packets),
            rx_missed: grown(self.rx_missed, before.rx_missed),
            tx_packets: grown(self.tx_packets, before.tx_packets),
            tx_bytes: grown(self.tx_bytes, before.tx_bytes),
            tx_dropped: grown(self.tx_dropped, before.tx_dropped),
        }
    }
}

impl Add for NicCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets + other.rx_packets,
            rx_missed: self.rx_missed + other.rx_missed,
            tx_packets: self.tx_packets + other.tx_packets,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            tx_dropped: self.tx_dropped + other.tx_dropped,
        }
    }
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// no interface has this name
    #[error("no interface is named {name}; there are: {}", there.join(", "))]
    None { name: String, there: Vec<String> },
    /// the kernel did not answer
    #[error("cannot ask the kernel for its interfaces")]
    Netlink(#[from] io::Error),
}

impl Interface {
    /// Looks an interface up by name.
    pub fn find(name: &str) -> Result<Self, Error> {
        if let Some(interface) = Self::by_name(name)? {
            return Ok(interface);
        }
        let there = Self::all()?.into_iter().map(|i| i.name).collect();
        Err(Error::None { name: name.to_owned(), there })
    }

    /// Returns the interface of a name, if there is one.
    pub fn by_name(name: &str) -> Result<Option<Self>, Error> {
        let mut question = LinkMessage::default();
        question.attributes.push(LinkAttribute::IfName(name.to_owned()));
        Self::one(question)
    }

    /// Returns the interface of an index, if there is one.
    pub fn by_index(index: u32) -> Result<Option<Self>, Error> {
        let mut question = LinkMessage::default();
        question.header.index = index;
        Self::one(question)
    }

    fn one(question: LinkMessage) -> Result<Option<Self>, Error> {
        match ask(RouteNetlinkMessage::GetLink(question), false) {
            Ok(answers) => Ok(answers.into_iter().find_map(|m| match m {
                RouteNetlinkMessage::NewLink(link) => Some(Self::from_message(&link)),
                _ => None,
            })),
            // A name that is too long is nobody's, too.
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL)) =>
            {
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Returns all interfaces of this network namespace.
    pub fn all() -> Result<Vec<Self>, Error> {
        let answers = ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), true)?;
        Ok(answers
            .into_iter()
            .filter_map(|m| match m {
                RouteNetlinkMessage::NewLink(link) => Some(Self::from_message(&link)),
                _ => None,
            })
            .collect())
    }

    fn from_message(m: &LinkMessage) -> Self {
        let arphrd = u32::from(u16::from(m.header.link_layer_type));
        let mut i = Self {
            name: String::new(),
            index: m.header.index,
            link: LinkType::from_arphrd(arphrd),
            arphrd,
            up: m.header.flags.contains(LinkFlags::Up),
            running: m.header.flags.contains(LinkFlags::Running),
            mtu: 0,
            mac: None,
            rx_queues: 1,
            kind: None,
            counters: NicCounters::default(),
        };
        for attribute in &m.attributes {
            match attribute {
                LinkAttribute::IfName(name) => i.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => i.mtu = *mtu,
                LinkAttribute::NumRxQueues(n) => i.rx_queues = (*n).max(1),
                LinkAttribute::Address(a) => i.mac = a.as_slice().try_into().ok(),
                LinkAttribute::Stats64(s) => i.counters = NicCounters::from(s),
                LinkAttribute::LinkInfo(infos) => {
                    i.kind = infos.iter().find_map(|info| match info {
                        LinkInfo::Kind(InfoKind::Other(s)) => Some(s.clone()),
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        i
    }

    /// Returns the speed of the interface's link in Mbit/s; `None` where nobody knows. (A veth pair
    /// says 10000, and is not held to it.)
    pub fn speed_mbit(&self) -> io::Result<Option<u32>> {
        netlink::speed_mbit(self.index)
    }

    /// Returns whether the interface sends, at this moment, what XDP programs redirect to it: a
    /// veth does while its other end has an XDP program or GRO. `None` where the kernel does not
    /// say.
    pub fn takes_redirected_frames(&self) -> Option<bool> {
        const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;
        // Kernels that do not say give no features, as do drivers that have none.
        let state = kernel::xdp_state(self.index).ok()?;
        netlink::knows_devices().then_some(state.features & NETDEV_XDP_ACT_NDO_XMIT != 0)
    }

    /// Returns whether an IPv4 or IPv6 address other than a link-local one is configured on the
    /// interface.
    pub fn has_address(&self) -> Result<bool, Error> {
        let answers = ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), true)?;
        Ok(answers.iter().any(|m| match m {
            RouteNetlinkMessage::NewAddress(a) if a.header.index == self.index => {
                a.attributes.iter().any(|attribute| match attribute {
                    AddressAttribute::Address(std::net::IpAddr::V6(ip)) => {
                        !ip.is_unicast_link_local()
                    }
                    AddressAttribute::Address(_) => true,
                    _ => false,
                })
            }
            _ => false,
        }))
    }
}

impl From<&Stats64> for NicCounters {
    fn from(s: &Stats64) -> Self {
        Self {
            rx_packets: s.rx_packets,
            rx_missed: s.rx_missed_errors,
            tx_packets: s.tx_packets,
            tx_bytes: s.tx_bytes,
            tx_dropped: s.tx_dropped,
        }
    }
}
