//! Where in a header does a field stand, and how long is the header?
//!
//! Each module is a header, under the document that says its form. Places and lengths are in bytes
//! from the header's beginning; fields of more than one byte are in network byte order. What the
//! values of the fields mean is in [`crate::numbers`].

/// IEEE 802.3, section 3.
pub mod ethernet {
    use std::ops::Range;

    pub const DESTINATION: Range<usize> = 0..6;
    pub const SOURCE: Range<usize> = 6..12;
    pub const TYPE: usize = 12;
    pub const HEADER_BYTES: usize = 14;
}

/// IEEE 802.1Q, clause 9. The tag begins behind the EtherType that announces it.
pub mod vlan_tag {
    /// Priority, drop eligibility and VLAN id.
    pub const CONTROL: usize = 0;
    /// The bits of [`CONTROL`] that are the VLAN id.
    pub const ID_MASK: u16 = 0x0fff;
    pub const TYPE: usize = 2;
    pub const BYTES: usize = 4;
}

/// LLC (IEEE 802.2) with SNAP (RFC 1042), where an Ethernet header has a length.
pub mod snap {
    /// Both service access points and the control field, where SNAP follows.
    pub const LLC: [u8; 3] = [0xaa, 0xaa, 0x03];
    pub const TYPE: usize = 6;
}

/// `LINKTYPE_LINUX_SLL`.
pub mod linux_sll {
    pub const ADDRESS_BYTES: usize = 4;
    pub const ADDRESS: usize = 6;
    pub const TYPE: usize = 14;
    pub const HEADER_BYTES: usize = 16;
}

/// `LINKTYPE_LINUX_SLL2`.
pub mod linux_sll2 {
    pub const TYPE: usize = 0;
    pub const ADDRESS_BYTES: usize = 11;
    pub const ADDRESS: usize = 12;
    pub const HEADER_BYTES: usize = 20;
}

/// `LINKTYPE_NULL` and `LINKTYPE_LOOP`.
pub mod loopback {
    pub const HEADER_BYTES: usize = 4;
}

/// RFC 826, for IPv4 over Ethernet.
pub mod arp {
    /// What such a packet begins with: kinds and lengths of both addresses.
    pub const IPV4_OVER_ETHERNET: [u8; 6] = [0, 1, 8, 0, 6, 4];
    pub const SENDER_IPV4: usize = 14;
    pub const TARGET_IPV4: usize = 24;
}

/// An entry of a label stack: RFC 3032, section 2.1. Masks are of the entry as a number of 32 bits.
pub mod mpls {
    pub const LABEL_SHIFT: u32 = 12;
    pub const BOTTOM_OF_STACK: u32 = 0x100;
}

/// RFC 2516, section 4.
pub mod pppoe {
    pub const HEADER_BYTES: usize = 6;
}

/// `LINKTYPE_PPP`, as libpcap reads it: address and control are always there.
pub mod ppp_link {
    pub const PROTOCOL: usize = 2;
}

/// RFC 791, section 3.1.
pub mod ipv4 {
    /// Bits of the first byte: the header's length in units of four bytes.
    pub const LENGTH_MASK: u8 = 0x0f;
    pub const TOTAL_LENGTH: usize = 2;
    pub const IDENTIFICATION: usize = 4;
    /// Flags and fragment offset.
    pub const FRAGMENT: usize = 6;
    pub const OFFSET_MASK: u16 = 0x1fff;
    pub const MORE_FRAGMENTS: u16 = 0x2000;
    pub const PROTOCOL: usize = 9;
    pub const SOURCE: usize = 12;
    pub const DESTINATION: usize = 16;
    /// The least length of a header, which is that of a header without options.
    pub const HEADER_BYTES: usize = 20;
}

/// RFC 8200, section 3.
pub mod ipv6 {
    pub const PAYLOAD_LENGTH: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const SOURCE: usize = 8;
    pub const DESTINATION: usize = 24;
    pub const HEADER_BYTES: usize = 40;
}

/// Extension headers of IPv6: RFC 8200, section 4.
pub mod ipv6_extension {
    pub const NEXT_HEADER: usize = 0;
    /// The header's length beyond its first 8 bytes, in units of 8 bytes.
    pub const LENGTH: usize = 1;

    /// Returns the length in bytes of a header whose length field is `length`.
    #[inline]
    pub const fn bytes(length: u8) -> usize {
        8 + 8 * length as usize
    }

    /// Returns the length in bytes of an authentication header, which counts in units of 4 bytes
    /// (RFC 4302, section 2.2).
    #[inline]
    pub const fn authentication_bytes(length: u8) -> usize {
        8 + 4 * length as usize
    }
}

/// IPv6's fragment header: RFC 8200, section 4.5.
pub mod ipv6_fragment {
    /// Offset and flag of the fragment.
    pub const FRAGMENT: usize = 2;
    pub const OFFSET_MASK: u16 = 0xfff8;
    pub const MORE_FRAGMENTS: u16 = 0x0001;
    pub const IDENTIFICATION: usize = 4;
    pub const HEADER_BYTES: usize = 8;
}

/// What the headers of all transports with ports begin with.
pub mod ports {
    pub const SOURCE: usize = 0;
    pub const DESTINATION: usize = 2;
}

/// RFC 768.
pub mod udp {
    pub const HEADER_BYTES: usize = 8;
}

/// RFC 7348, section 5.
pub mod vxlan {
    pub const FLAGS: usize = 0;
    /// The flag that a network identifier is given.
    pub const HAS_NETWORK: u8 = 0x08;
    pub const HEADER_BYTES: usize = 8;
}

/// RFC 8926, section 3.4.
pub mod geneve {
    /// Version and length of the options.
    pub const FIRST: usize = 0;
    pub const VERSION_SHIFT: u32 = 6;
    /// Bits of the first byte: the length of the options in units of four bytes.
    pub const OPTIONS_MASK: u8 = 0x3f;
    pub const TYPE: usize = 2;
    /// The length of a header without options.
    pub const HEADER_BYTES: usize = 8;
}

/// 3GPP TS 29.281, section 5.1.
pub mod gtp_u {
    pub const VERSION_MASK: u8 = 0xe0;
    pub const VERSION_1: u8 = 0x20;
    /// The flag that tells GTP from GTP'.
    pub const PROTOCOL_TYPE: u8 = 0x10;
    /// The flags of which any makes the header longer by four bytes.
    pub const ANY_OPTION: u8 = 0x07;
    /// The flag that extension headers follow.
    pub const HAS_EXTENSION: u8 = 0x04;
    /// The message type of a user's packet.
    pub const USER_PACKET: u8 = 255;
    /// The type of the first extension header.
    pub const NEXT_EXTENSION: usize = 11;
    pub const HEADER_BYTES: usize = 8;
    pub const LONG_HEADER_BYTES: usize = 12;
}

/// RFC 2784 and 2890, and PPTP's (RFC 2637).
pub mod gre {
    pub const FLAGS: usize = 0;
    pub const VERSION_MASK: u16 = 0x0007;
    pub const HAS_CHECKSUM: u16 = 0x8000;
    pub const HAS_ROUTING: u16 = 0x4000;
    pub const HAS_KEY: u16 = 0x2000;
    pub const HAS_SEQUENCE: u16 = 0x1000;
    /// The flag of an acknowledgment number, which version 1 alone has.
    pub const HAS_ACKNOWLEDGMENT: u16 = 0x0080;
    pub const TYPE: usize = 2;
    /// The length of a header without options. Each option is one word.
    pub const HEADER_BYTES: usize = 4;
    pub const OPTION_BYTES: usize = 4;
}

/// draft-foschiano-erspan.
pub mod erspan {
    pub const TYPE_2_HEADER_BYTES: usize = 8;
    pub const TYPE_3_HEADER_BYTES: usize = 12;
    /// The byte of a header of type III whose lowest bit says that a subheader follows.
    pub const TYPE_3_FLAGS: usize = 11;
    pub const HAS_SUBHEADER: u8 = 0x01;
    pub const SUBHEADER_BYTES: usize = 8;
}
