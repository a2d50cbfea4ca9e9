//! Does this machine's own way out lead over an interface? The question is asked before flooding
//! it, or taking its packets away. And which interfaces sit on it?
//!
//! The way out leads over an interface if a default route leaves by the interface, or by one that
//! shares a wire with it. A bridge or bond shares the wires of its ports, a VLAN or macvlan
//! interface that of the interface it sits on. So the search goes from the device of a route down
//! to what the device sits on, any number of times, then up again to what else sits there; the
//! interfaces met on the way are the ones to keep away from. Interfaces in other network namespaces
//! cannot be seen, and what is behind the other end of a veth pair is not looked for.

use std::collections::{HashMap, VecDeque};
use std::io;

use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::interface::Interface;
use crate::netlink::ask;

/// Routes to the machine's own addresses.
const RT_TABLE_LOCAL: u32 = 255;

impl Interface {
    /// Returns the default route (IPv4 or IPv6, of any table) that leaves by this interface or by
    /// one that shares a wire with it, if there is one, in words: `default via 10.0.0.1 dev br0, of
    /// which eth0 is a port`.
    pub fn carries_default_route(&self) -> io::Result<Option<String>> {
        let mut question = RouteMessage::default();
        question.header.address_family = AddressFamily::Unspec;
        let routes = ask(RouteNetlinkMessage::GetRoute(question), true)?;
        let layers = Layers::read()?;
        let hops = routes.iter().filter_map(|m| match m {
            RouteNetlinkMessage::NewRoute(route) if is_default(route) => Some(hops(route)),
            _ => None,
        });
        Ok(hops.flatten().find_map(|hop| {
            // A next hop that is an object of its own and which the kernel does not explain may be
            // anywhere.
            let Some(device) = hop.device else {
                return Some(format!("default {}, whose interface is not known", hop.gateway));
            };
            let way = layers.way(device, self.index)?;
            Some(format!("default {}dev {}{way}", hop.gateway, layers.name(device)))
        }))
    }
}

/// Returns the interfaces that sit on one, such as its VLANs, or the bridge that it is a port of:
/// their names and indexes.
pub(crate) fn above(interface: &Interface) -> io::Result<Vec<(String, u32)>> {
    let layers = Layers::read()?;
    let uppers = layers.edges.iter().filter(|edge| edge.lower == interface.index);
    Ok(uppers.map(|edge| (layers.name(edge.upper), edge.upper)).collect())
}

fn is_default(route: &RouteMessage) -> bool {
    let h = &route.header;
    // The header has room for small numbers only.
    let long = route.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    h.destination_prefix_length == 0
        && h.kind == RouteType::Unicast
        && matches!(h.address_family, AddressFamily::Inet | AddressFamily::Inet6)
        && long.unwrap_or(u32::from(h.table)) != RT_TABLE_LOCAL
}

/// One way that a route leads.
#[derive(Default)]
struct Hop {
    device: Option<u32>,
    /// `via ADDRESS `, or nothing.
    gateway: String,
}

/// Returns the ways a route leads, more than one where it is multipath.
fn hops(route: &RouteMessage) -> Vec<Hop> {
    let mut hops = Vec::new();
    let mut hop = Hop::default();
    let mut object = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(device) => hop.device = Some(*device),
            RouteAttribute::NhId(id) => object = Some(*id),
            RouteAttribute::MultiPath(many) => hops.extend(many.iter().map(|one| Hop {
                device: Some(one.interface_index),
                gateway: one.attributes.iter().filter_map(gateway).collect(),
            })),
            other => hop.gateway.extend(gateway(other)),
        }
    }
    if hops.is_empty() && hop.device.is_none() {
        hop.gateway = object.map_or_else(String::new, |id| format!("by next hop {id}"));
        hops.extend(object.map(|_| hop));
    } else if hop.device.is_some() {
        hops.push(hop);
    }
    hops
}

fn gateway(attribute: &RouteAttribute) -> Option<String> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip))
        | RouteAttribute::Via(RouteVia::Inet(ip)) => Some(format!("via {ip} ")),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip))
        | RouteAttribute::Via(RouteVia::Inet6(ip)) => Some(format!("via {ip} ")),
        _ => None,
    }
}

/// How the interfaces of this network namespace sit on each other.
struct Layers {
    names: HashMap<u32, String>,
    edges: Vec<Edge>,
}

/// One interface sits on another.
struct Edge {
    upper: u32,
    lower: u32,
    /// The lower is one of several ports of the upper.
    port: bool,
}

impl Layers {
    fn read() -> io::Result<Self> {
        let links = ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), true)?;
        let mut layers = Self { names: HashMap::new(), edges: Vec::new() };
        for message in &links {
            if let RouteNetlinkMessage::NewLink(link) = message {
                layers.add(link);
            }
        }
        Ok(layers)
    }

    fn add(&mut self, link: &LinkMessage) {
        let index = link.header.index;
        let (mut lower, mut elsewhere, mut is_pair) = (None, false, false);
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => drop(self.names.insert(index, name.clone())),
                LinkAttribute::Controller(upper) if *upper != 0 => {
                    self.edges.push(Edge { upper: *upper, lower: index, port: true });
                }
                LinkAttribute::Link(other) if *other != 0 => lower = Some(*other),
                LinkAttribute::LinkNetNsId(_) => elsewhere = true,
                // The other end of a pair is not below it.
                LinkAttribute::LinkInfo(infos) => {
                    is_pair = infos.iter().any(|info| match info {
                        LinkInfo::Kind(InfoKind::Veth) => true,
                        LinkInfo::Kind(kind) => kind.to_string() == "netkit",
                        _ => false,
                    });
                }
                _ => {}
            }
        }
        if let Some(lower) = lower.filter(|_| !elsewhere && !is_pair) {
            self.edges.push(Edge { upper: index, lower, port: false });
        }
    }

    fn name(&self, index: u32) -> String {
        self.names.get(&index).cloned().unwrap_or_else(|| format!("of index {index}"))
    }

    /// Returns, in words, how one gets from an interface down, and up again, to another; `None`
    /// where there is no such way. The words are empty where both are the same interface.
    fn way(&self, from: u32, to: u32) -> Option<String> {
        let mut seen = vec![(from, false)];
        let mut todo = VecDeque::from([(from, false, String::new())]);
        while let Some((here, climbing, words)) = todo.pop_front() {
            if here == to {
                return Some(words);
            }
            for edge in &self.edges {
                let Some(step) = edge.step(here, climbing) else { continue };
                if !seen.contains(&step) {
                    seen.push(step);
                    let (next, climbs) = step;
                    let name = self.name(next);
                    let word = if climbs { edge.up(&name) } else { edge.down(&name) };
                    todo.push_back((next, climbs, words.clone() + &word));
                }
            }
        }
        None
    }
}

impl Edge {
    /// Returns where the edge leads from an interface, and whether that is up. A search that climbs
    /// does not go down again.
    fn step(&self, here: u32, climbing: bool) -> Option<(u32, bool)> {
        if self.upper == here && !climbing {
            Some((self.lower, false))
        } else if self.lower == here {
            Some((self.upper, true))
        } else {
            None
        }
    }

    fn down(&self, lower: &str) -> String {
        if self.port {
            format!(", of which {lower} is a port")
        } else {
            format!(", which sits on {lower}")
        }
    }

    fn up(&self, upper: &str) -> String {
        if self.port {
            format!(", which is a port of {upper}")
        } else {
            format!(", on which {upper} sits")
        }
    }
}
