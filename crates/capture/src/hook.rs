//! The hooks: where a packet is taken.

use std::fmt;

/// Where packets are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// In the driver, before the kernel makes a socket buffer. Inbound only.
    Xdp,
    /// XDP in the core, for drivers without it. Inbound only.
    XdpGeneric,
    /// Where packet sockets listen, both directions.
    Tcx,
    /// Before routing, IPv4 and IPv6 only. Inbound only.
    Netfilter,
    /// A packet socket with a memory-mapped ring (TPACKET_V3).
    Tpacket,
    /// A packet socket and one system call for each packet.
    Recv,
    /// An AF_XDP socket for each queue. Takes packets away from the host.
    AfXdp,
}

impl Hook {
    pub const ALL: [Self; 7] = [
        Self::Xdp,
        Self::XdpGeneric,
        Self::Tcx,
        Self::Netfilter,
        Self::Tpacket,
        Self::Recv,
        Self::AfXdp,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tcx => "tcx",
            Self::Netfilter => "netfilter",
            Self::Tpacket => "tpacket",
            Self::Recv => "recv",
            Self::AfXdp => "afxdp",
        }
    }

    /// Whether user space formats the packets.
    pub fn is_socket(self) -> bool {
        matches!(self, Self::Tpacket | Self::Recv | Self::AfXdp)
    }

    /// Whether it sees packets that leave by the interface.
    pub fn sees_outbound(self) -> bool {
        matches!(self, Self::Tcx | Self::Tpacket | Self::Recv)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happens to a packet after it was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deliver {
    /// It goes on as if nobody had looked.
    Pass,
    /// It ends here.
    Consume,
}
