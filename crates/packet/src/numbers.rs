//! Which number stands for which protocol?
//!
//! Headers name what follows them by a number: an EtherType, an IP protocol, a port. Every such
//! number that this project knows has its name here, once, under the registry that assigned it.
//! Names that appear in two registries (IPv4 is an EtherType and an IP protocol) are told apart by
//! their module, so code reads `ether_type::IPV4` and `ip_protocol::IPV4`.
//!
//! Not here: link types, which are a type of their own ([`crate::link::LinkType`]), the blocks and
//! options of pcapng ([`crate::pcapng`]), and where in a header a field stands
//! ([`crate::header::field`]). `crates/capture/bpf/numbers.h` has the same names for the hook
//! programs, with the same values: `crates/capture/tests/numbers.rs` compares them.

/// EtherTypes (IANA "IEEE 802 Numbers", and the IEEE's own registry).
pub mod ether_type {
    /// Lower numbers in an EtherType's place are lengths (IEEE 802.3, section 3.2.6). 0x0600 itself
    /// is XNS.
    pub const FIRST: u16 = 0x0600;

    pub const XNS: u16 = 0x0600;
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const DEC_MOP_DUMP: u16 = 0x6001;
    pub const DEC_MOP_REMOTE_CONSOLE: u16 = 0x6002;
    pub const DECNET: u16 = 0x6003;
    pub const DEC_LAT: u16 = 0x6004;
    pub const DEC_SCA: u16 = 0x6007;
    /// An Ethernet frame inside a tunnel (RFC 1701: transparent Ethernet bridging).
    pub const ETHERNET: u16 = 0x6558;
    pub const RARP: u16 = 0x8035;
    pub const APPLETALK: u16 = 0x809b;
    pub const APPLETALK_ARP: u16 = 0x80f3;
    /// IEEE 802.1Q.
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    /// PPP inside GRE (RFC 2637).
    pub const PPP: u16 = 0x880b;
    /// RFC 3032.
    pub const MPLS: u16 = 0x8847;
    /// RFC 3032, as amended by RFC 5332.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// RFC 2516.
    pub const PPPOE_DISCOVERY: u16 = 0x8863;
    /// RFC 2516.
    pub const PPPOE_SESSION: u16 = 0x8864;
    /// IEEE 802.1ad.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// ERSPAN, types I and II.
    pub const ERSPAN: u16 = 0x88be;
    pub const LLDP: u16 = 0x88cc;
    /// ERSPAN, type III.
    pub const ERSPAN_3: u16 = 0x22eb;
    /// Stacked VLAN tags from before IEEE 802.1ad.
    pub const OLD_SERVICE_VLAN: u16 = 0x9100;

    /// The EtherTypes behind which a VLAN tag stands.
    pub const VLAN_TAGS: [u16; 3] = [VLAN, SERVICE_VLAN, OLD_SERVICE_VLAN];

    /// Returns whether a VLAN tag stands behind this EtherType.
    #[inline]
    pub const fn is_vlan_tag(ether_type: u16) -> bool {
        matches!(ether_type, VLAN | SERVICE_VLAN | OLD_SERVICE_VLAN)
    }
}

/// Types of ICMP and ICMPv6 messages (IANA), as far as one asks and another answers.
pub mod icmp {
    use super::ip_protocol;

    /// RFC 792, 950, 1256.
    const PAIRS: [(u8, u8); 5] = [(8, 0), (13, 14), (15, 16), (17, 18), (10, 9)];
    /// RFC 4443, 2710, 4861, 4620, 6275.
    const PAIRS_6: [(u8, u8); 6] =
        [(128, 129), (130, 131), (133, 134), (135, 136), (139, 140), (144, 145)];

    const fn pairs(protocol: u8) -> &'static [(u8, u8)] {
        match protocol {
            ip_protocol::ICMP => &PAIRS,
            ip_protocol::ICMPV6 => &PAIRS_6,
            _ => &[],
        }
    }

    /// Returns the type of message that answers one, or that one answers.
    pub fn answer(protocol: u8, kind: u8) -> Option<u8> {
        pairs(protocol).iter().find_map(|&(question, answer)| match kind {
            _ if kind == question => Some(answer),
            _ if kind == answer => Some(question),
            _ => None,
        })
    }

    /// Returns whether messages of a type ask for those of another.
    pub fn asks(protocol: u8, question: u16, answer: u16) -> bool {
        pairs(protocol).iter().any(|(q, a)| (u16::from(*q), u16::from(*a)) == (question, answer))
    }
}

/// IPv4's protocols, which are also IPv6's next headers (IANA "Assigned Internet Protocol
/// Numbers"), the extension headers of IPv6 among them.
pub mod ip_protocol {
    /// An extension header of IPv6.
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    /// IPv4 inside IP.
    pub const IPV4: u8 = 4;
    pub const TCP: u8 = 6;
    pub const IGRP: u8 = 9;
    pub const UDP: u8 = 17;
    pub const DCCP: u8 = 33;
    /// IPv6 inside IP.
    pub const IPV6: u8 = 41;
    /// An extension header of IPv6.
    pub const ROUTING: u8 = 43;
    /// An extension header of IPv6.
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    /// RFC 4302; in IPv6 an extension header.
    pub const AUTHENTICATION: u8 = 51;
    pub const ICMPV6: u8 = 58;
    /// An extension header of IPv6.
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const OSPF: u8 = 89;
    pub const PIM: u8 = 103;
    /// VRRP, and CARP, which took the same number.
    pub const VRRP: u8 = 112;
    pub const SCTP: u8 = 132;
    /// An extension header of IPv6.
    pub const MOBILITY: u8 = 135;
    pub const UDP_LITE: u8 = 136;
    /// RFC 4023.
    pub const MPLS: u8 = 137;
    /// An extension header of IPv6.
    pub const HIP: u8 = 139;
    /// An extension header of IPv6.
    pub const SHIM6: u8 = 140;

    /// Returns whether the protocol's header begins with a source and a destination port.
    #[inline]
    pub const fn has_ports(protocol: u8) -> bool {
        matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
    }
}

/// UDP ports at which tunnels end (IANA "Service Name and Transport Protocol Port Number
/// Registry").
pub mod udp_port {
    /// 3GPP TS 29.281.
    pub const GTP_U: u16 = 2152;
    /// RFC 7348.
    pub const VXLAN: u16 = 4789;
    /// RFC 8926.
    pub const GENEVE: u16 = 6081;
    /// VXLAN as Linux has it where no port is configured, from before one was assigned. In the
    /// registry this port is another protocol's.
    pub const VXLAN_LINUX: u16 = 8472;
}

/// Protocols inside PPP (IANA "PPP DLL Protocol Numbers").
pub mod ppp_protocol {
    pub const IPV4: u16 = 0x0021;
    pub const XNS: u16 = 0x0025;
    pub const DECNET: u16 = 0x0027;
    pub const APPLETALK: u16 = 0x0029;
    pub const IPV6: u16 = 0x0057;
    pub const MPLS: u16 = 0x0281;
    pub const MPLS_MULTICAST: u16 = 0x0283;

    /// Address and control of PPP in HDLC-like framing (RFC 1662), which may precede the protocol.
    pub const ADDRESS_AND_CONTROL: [u8; 2] = [0xff, 0x03];
}

/// Types of ICMP messages (IANA "ICMP Type Numbers").
pub mod icmp_type {
    pub const UNREACHABLE: u8 = 3;
    pub const SOURCE_QUENCH: u8 = 4;
    pub const REDIRECT: u8 = 5;
    pub const ECHO_REQUEST: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Types of ICMPv6 messages (IANA "ICMPv6 'type' Numbers").
pub mod icmpv6_type {
    pub const UNREACHABLE: u8 = 1;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
}

/// Address families in the header of BSD's loopback interfaces. IPv4 has one number everywhere,
/// IPv6 has another on each system (pcap-linktype(7), `LINKTYPE_NULL`).
pub mod address_family {
    pub const IPV4: u32 = 2;
    pub const IPV6_LINUX: u32 = 10;
    /// NetBSD, OpenBSD and BSD/OS.
    pub const IPV6_BSD: u32 = 24;
    /// FreeBSD and DragonFly BSD.
    pub const IPV6_FREEBSD: u32 = 28;
    /// macOS and other systems of Apple.
    pub const IPV6_DARWIN: u32 = 30;
}

/// Hardware types of Linux's network interfaces (`linux/if_arp.h`, `ARPHRD_`), as
/// `/sys/class/net/IFACE/type` has them.
pub mod arphrd {
    pub const ETHER: u32 = 1;
    pub const RAWIP: u32 = 519;
    pub const TUNNEL: u32 = 768;
    pub const TUNNEL6: u32 = 769;
    pub const LOOPBACK: u32 = 772;
    pub const SIT: u32 = 776;
    pub const IPGRE: u32 = 778;
    pub const NONE: u32 = 0xfffe;
}

/// The header of a pcap file (pcap-savefile(5)).
pub mod pcap_file {
    /// Times are in microseconds.
    pub const MAGIC: u32 = 0xa1b2_c3d4;
    /// Times are in nanoseconds.
    pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
    /// Linux 2.x with Alexey Kuznetsov's patches: times are in microseconds, and each record's
    /// header has 8 bytes more.
    pub const MAGIC_PATCHED: u32 = 0xa1b2_cd34;
    pub const MAJOR_VERSION: u16 = 2;
    pub const MINOR_VERSION: u16 = 4;
    /// The longest frame, in bytes, that libpcap captures or reads (`MAXIMUM_SNAPLEN`).
    pub const MAX_SNAPLEN: u32 = 262_144;
}
