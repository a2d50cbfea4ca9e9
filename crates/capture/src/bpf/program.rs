//! The hook programs by name.

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
}

impl Program {
    /// Returns whether the program is bound to its device, so that it may ask the driver.
    pub(crate) fn is_bound(self) -> bool {
        match self {
            Self::XdpMetadata => true,
            Self::Xdp | Self::Ingress | Self::Egress | Self::Netfilter | Self::Redirect => false,
        }
    }

    /// The function's name in `bpf/programs.h` and `bpf/record.bpf.c`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xdp => "tapdeck_xdp",
            Self::XdpMetadata => "tapdeck_xdp_metadata",
            Self::Ingress => "tapdeck_ingress",
            Self::Egress => "tapdeck_egress",
            Self::Netfilter => "tapdeck_netfilter",
            Self::Redirect => "tapdeck_redirect",
        }
    }
}
