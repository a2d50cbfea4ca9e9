//! Link types: what the first bytes of a recorded frame are.

/// A link-layer header type, as in pcap-linktype(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    pub const ETHERNET: Self = Self(1);
    /// Frames begin with an IPv4 or IPv6 header.
    pub const RAW: Self = Self(101);

    /// The link type of a Linux interface, from its hardware type
    /// (`/sys/class/net/IFACE/type`, the `ARPHRD_` constants of `linux/if_arp.h`),
    /// or `None` where frames have a form that is not recorded.
    pub fn from_arphrd(arphrd: u32) -> Option<Self> {
        const ETHER: u32 = 1;
        const LOOPBACK: u32 = 772;
        const TUNNEL: u32 = 768;
        const TUNNEL6: u32 = 769;
        const SIT: u32 = 776;
        const IPGRE: u32 = 778;
        const RAWIP: u32 = 519;
        const NONE: u32 = 0xfffe;
        match arphrd {
            ETHER | LOOPBACK => Some(Self::ETHERNET),
            TUNNEL | TUNNEL6 | SIT | IPGRE | RAWIP | NONE => Some(Self::RAW),
            _ => None,
        }
    }

    /// Whether frames begin with a link layer header.
    pub fn has_header(self) -> bool {
        self != Self::RAW
    }
}
