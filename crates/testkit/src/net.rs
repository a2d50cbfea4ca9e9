//! The bed of most tests: two namespaces with a cable between them. What is under test is in `b`
//! and watches `vb`; what is sent goes out by `va` in `a`. Neither has an address, unless a test
//! wants the kernel to answer.

use crate::cable::{Cable, End, wait_until_up};
use crate::namespace::Namespace;

/// Two namespaces, `a` with interface `va` and `b` with `vb`.
#[derive(Debug, Default)]
pub struct Net {
    pub a: Namespace,
    pub b: Namespace,
}

impl Net {
    /// Makes them with a plain cable: an MTU of 1500, one queue, frames arrive as they were sent.
    pub fn new() -> Self {
        Self::with(Cable::default())
    }

    /// Makes them with a cable of certain properties.
    pub fn with(cable: Cable) -> Self {
        let net = Self::default();
        net.plug(cable);
        net
    }

    /// Makes `va` and `vb`, where a test has removed them.
    pub fn plug(&self, cable: Cable) {
        cable.plug([End::new(&self.a, "va"), End::new(&self.b, "vb")]);
    }

    /// Waits until both ends pass frames on, where a test has set one of them down and up.
    pub fn wait_until_up(&self) {
        wait_until_up(self.a.name(), "va");
        wait_until_up(self.b.name(), "vb");
    }

    /// Makes a second pair: `vc` in `a` and `vd` in `b`.
    pub fn plug_second(&self) {
        Cable::default().plug([End::new(&self.a, "vc"), End::new(&self.b, "vd")]);
    }

    /// Gives both ends IPv4 addresses, 10.213.0.1 and .2, and IPv6 ones, fd13::1 and ::2.
    pub fn addresses(&self) {
        for (namespace, interface, n) in [(&self.a, "va", 1), (&self.b, "vb", 2)] {
            namespace.run(&format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0"));
            namespace.run(&format!("ip addr add 10.213.0.{n}/24 dev {interface}"));
            namespace.run(&format!("ip addr add fd13::{n}/64 dev {interface} nodad"));
        }
    }
}
