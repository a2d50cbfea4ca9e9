//! What do the first bytes of a recorded frame mean?
//!
//! A capture file says so by a number for each interface, the **link type**, from the registry at
//! tcpdump.org. [`LinkType`] is that number with its name, and [`LinkType::first_header`] says
//! which header the frames begin with. That is the only place where link types are told apart:
//! readers of headers go by the [`FirstHeader`]. A number without a name is kept as it is, so that
//! files of any kind can be read and written again.

use std::fmt;

use crate::numbers::arphrd;

/// A link-layer header type, as in pcap-linktype(7) and in the files themselves (`LINKTYPE_`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(pub u16);

/// The header that the frames of a link type begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstHeader {
    Ethernet,
    /// PPP's header. Address and control (RFC 1662) may precede the protocol.
    Ppp,
    /// An IP header of the version that its first four bits say.
    Ip,
    Ipv4,
    Ipv6,
    /// Four bytes with an address family (see [`crate::numbers::address_family`]), in the byte
    /// order of the machine that captured or in network byte order, then an IP header.
    Loopback,
    /// Linux's "cooked" header of 16 bytes, as a capture on all interfaces has it.
    LinuxSll,
    /// The second version of Linux's "cooked" header, of 20 bytes.
    LinuxSll2,
}

impl LinkType {
    /// BSD's loopback header, with the address family in the byte order of the machine that
    /// captured.
    pub const NULL: Self = Self(0);
    /// Ethernet, without preamble and check sequence.
    pub const ETHERNET: Self = Self(1);
    /// PPP, perhaps with the address and control of HDLC-like framing (RFC 1662) before it.
    pub const PPP: Self = Self(9);
    /// Raw IP by the number that most systems have for it inside (`DLT_RAW`). Files should say
    /// [`LinkType::RAW`], and some say this.
    pub const DLT_RAW: Self = Self(12);
    /// Raw IP by the number that OpenBSD has for it inside.
    pub const DLT_RAW_OPENBSD: Self = Self(14);
    /// Frames begin with an IPv4 or IPv6 header.
    pub const RAW: Self = Self(101);
    /// IEEE 802.11.
    pub const IEEE802_11: Self = Self(105);
    /// OpenBSD's loopback header, with the address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux's "cooked" header of 16 bytes, as a capture on all interfaces has it.
    pub const LINUX_SLL: Self = Self(113);
    /// IEEE 802.11 behind radiotap's header.
    pub const IEEE802_11_RADIOTAP: Self = Self(127);
    /// The first of 16 link types for private use, for which there are no other names.
    pub const USER0: Self = Self(147);
    /// USB packets behind Linux's header of 64 bytes.
    pub const USB_LINUX_MMAPPED: Self = Self(220);
    /// Frames begin with an IPv4 header.
    pub const IPV4: Self = Self(228);
    /// Frames begin with an IPv6 header.
    pub const IPV6: Self = Self(229);
    /// Messages of Linux's netfilter log.
    pub const NFLOG: Self = Self(239);
    /// The second version of Linux's "cooked" header, of 20 bytes.
    pub const LINUX_SLL2: Self = Self(276);

    /// Returns the link type of a Linux interface with this hardware type ([`arphrd`]), or `None`
    /// where its frames have a form that is not recorded.
    pub fn from_arphrd(arphrd: u32) -> Option<Self> {
        match arphrd {
            arphrd::ETHER | arphrd::LOOPBACK => Some(Self::ETHERNET),
            arphrd::TUNNEL
            | arphrd::TUNNEL6
            | arphrd::SIT
            | arphrd::IPGRE
            | arphrd::RAWIP
            | arphrd::NONE => Some(Self::RAW),
            _ => None,
        }
    }

    /// Returns whether frames begin with a link layer header.
    pub fn has_header(self) -> bool {
        self != Self::RAW
    }

    /// Returns the header that frames begin with; `None` for link types whose frames are not read.
    #[inline]
    pub const fn first_header(self) -> Option<FirstHeader> {
        Some(match self {
            Self::ETHERNET => FirstHeader::Ethernet,
            Self::PPP => FirstHeader::Ppp,
            Self::RAW | Self::DLT_RAW | Self::DLT_RAW_OPENBSD => FirstHeader::Ip,
            Self::IPV4 => FirstHeader::Ipv4,
            Self::IPV6 => FirstHeader::Ipv6,
            Self::NULL | Self::LOOP => FirstHeader::Loopback,
            Self::LINUX_SLL => FirstHeader::LinuxSll,
            Self::LINUX_SLL2 => FirstHeader::LinuxSll2,
            _ => return None,
        })
    }

    /// Returns the number by which libpcap knows the link type on Linux (`DLT_`). It differs
    /// from the number in files for raw IP alone.
    pub fn dlt(self) -> i32 {
        let number = if self == Self::RAW { Self::DLT_RAW } else { self };
        i32::from(number.0)
    }

    /// Returns the registry's name without `LINKTYPE_`; `None` for numbers without a name here.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NULL => "NULL",
            Self::ETHERNET => "ETHERNET",
            Self::PPP => "PPP",
            Self::RAW | Self::DLT_RAW | Self::DLT_RAW_OPENBSD => "RAW",
            Self::IEEE802_11 => "IEEE802_11",
            Self::LOOP => "LOOP",
            Self::LINUX_SLL => "LINUX_SLL",
            Self::IEEE802_11_RADIOTAP => "IEEE802_11_RADIOTAP",
            Self::USER0 => "USER0",
            Self::USB_LINUX_MMAPPED => "USB_LINUX_MMAPPED",
            Self::IPV4 => "IPV4",
            Self::IPV6 => "IPV6",
            Self::NFLOG => "NFLOG",
            Self::LINUX_SLL2 => "LINUX_SLL2",
            _ => return None,
        })
    }
}

/// Writes the number, with its name behind it where it has one: `113 (LINUX_SLL)`.
impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FirstHeader, LinkType};

    #[test]
    fn a_link_type_without_a_name_keeps_its_number() {
        assert_eq!(LinkType(113).to_string(), "113 (LINUX_SLL)");
        assert_eq!(LinkType(4711).to_string(), "4711");
        assert_eq!(LinkType(4711).first_header(), None);
        assert_eq!(LinkType(4711).dlt(), 4711);
    }

    #[test]
    fn frames_begin_as_the_registry_says() {
        // https://www.tcpdump.org/linktypes.html; 12 and 14 are what DLT_RAW is on some systems.
        let known = [
            (0, FirstHeader::Loopback),
            (1, FirstHeader::Ethernet),
            (9, FirstHeader::Ppp),
            (12, FirstHeader::Ip),
            (14, FirstHeader::Ip),
            (101, FirstHeader::Ip),
            (108, FirstHeader::Loopback),
            (113, FirstHeader::LinuxSll),
            (228, FirstHeader::Ipv4),
            (229, FirstHeader::Ipv6),
            (276, FirstHeader::LinuxSll2),
        ];
        for number in 0..=u16::MAX {
            let expected =
                known.iter().find(|(known, _)| *known == number).map(|(_, first)| *first);
            assert_eq!(LinkType(number).first_header(), expected, "{number}");
        }
    }

    #[test]
    fn raw_ip_alone_has_another_number_in_libpcaps_functions() {
        for number in 0..=u16::MAX {
            let expected = if number == 101 { 12 } else { i32::from(number) };
            assert_eq!(LinkType(number).dlt(), expected);
        }
    }
}
