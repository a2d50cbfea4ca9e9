//! Which hook programs are there, and by which names does the object file have them?

/// A hook program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Xdp,
    /// The XDP program that is bound to its device and asks the driver for time and VLAN tag.
    XdpMetadata,
    Ingress,
    Egress,
    Netfilter,
    Redirect,
    /// What judges the packets of a packet socket.
    SocketJudge,
}

impl Program {
    /// Returns whether the program is bound to its device, so that it may ask the driver.
    pub(crate) fn is_bound(self) -> bool {
        match self {
            Self::XdpMetadata => true,
            Self::Xdp
            | Self::Ingress
            | Self::Egress
            | Self::Netfilter
            | Self::Redirect
            | Self::SocketJudge => false,
        }
    }

    /// The function's name in `bpf/programs.h`, `bpf/record.bpf.c` and `bpf/socket.bpf.c`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xdp => "tapdeck_xdp",
            Self::XdpMetadata => "tapdeck_xdp_metadata",
            Self::Ingress => "tapdeck_ingress",
            Self::Egress => "tapdeck_egress",
            Self::Netfilter => "tapdeck_netfilter",
            Self::Redirect => "tapdeck_redirect",
            Self::SocketJudge => "tapdeck_socket_judge",
        }
    }
}
