//! Of which interface is a packet? Interfaces that are described alike are one, in whichever
//! segment or file their descriptions stand.

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, Interface, InterfaceDescription};

/// The name of an interface that has none.
const NAMELESS: &str = "-";

/// An interface of a store: a ring of a network interface, as one recording or several described
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The interface description block as it stands in the segments.
    pub block: Vec<u8>,
    pub name: String,
    /// What the description says beside the name; empty where it says nothing.
    pub description: String,
    pub link: LinkType,
}

/// Describes an interface as it stands in an answer: in nanoseconds, and with no limit to what is
/// captured. libpcap refuses files whose interfaces have different limits.
pub(super) fn described(interface: Interface) -> Described {
    let Interface { link, name, description, filter, hardware, .. } = interface;
    let mut block = Vec::new();
    let description = description.unwrap_or_default();
    let whole = InterfaceDescription {
        link,
        snaplen: 0,
        name: name.clone().unwrap_or_default(),
        description: description.clone(),
        filter,
        hardware,
        mac: None,
    };
    pcapng::interface_description(&mut block, &whole);
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| NAMELESS.into());
    Described { block, name, description, link }
}

pub(super) fn nameless(link: LinkType) -> Described {
    described(Interface {
        link,
        snaplen: 0,
        name: None,
        description: None,
        filter: None,
        hardware: None,
        os: None,
        resolution: 9,
        offset_s: 0,
    })
}
