//! What do packets of a test travel on? A pair of veth interfaces, each end in a namespace of its
//! own: what goes out by one comes in by the other, and all hooks are there.
//!
//! A cable changes nothing on the way: offloads that would put frames together, or leave checksums
//! to the hardware that is not there, are off unless a test asks for them. And it is ready when it
//! is plugged in. Interfaces that were just set up pass frames on only when a thread of the kernel
//! has got to them, and swallow what is sent before, so this waits for that.

use std::process::Command;

use crate::Namespace;
use crate::namespace::run;
use crate::wait::wait_for;

/// The properties of both ends of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    pub mtu: u32,
    /// Receive queues, and as many transmit queues; `None` for what the kernel makes of it.
    pub queues: Option<u32>,
    /// Whether offloads are left as the kernel has them.
    pub offloads: bool,
}

impl Default for Cable {
    fn default() -> Self {
        Self { mtu: 1500, queues: Some(1), offloads: false }
    }
}

/// Where an end of a cable is: its namespace, the name of its interface, and its MAC address where
/// it is to have a certain one.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub namespace: &'a Namespace,
    pub interface: &'a str,
    pub mac: Option<&'a str>,
}

impl<'a> End<'a> {
    /// An end with whatever MAC address the kernel gives it.
    pub fn new(namespace: &'a Namespace, interface: &'a str) -> Self {
        Self { namespace, interface, mac: None }
    }
}

impl Cable {
    /// Makes the pair, sets both ends up and waits until they pass frames on.
    ///
    /// # Panics
    /// If an interface of that name is there.
    pub fn plug(&self, ends: [End<'_>; 2]) {
        let of = |end: &End<'_>| {
            let End { namespace, interface, mac } = end;
            let mac = mac.map(|mac| format!(" address {mac}")).unwrap_or_default();
            let queues = |n| format!(" numtxqueues {n} numrxqueues {n}");
            let queues = self.queues.map(queues).unwrap_or_default();
            format!("{interface}{mac} mtu {}{queues} netns {namespace}", self.mtu)
        };
        let [one, other] = ends.each_ref().map(of);
        run(&format!("ip link add {one} type veth peer name {other}"));
        for End { namespace, interface, .. } in ends {
            if !self.offloads {
                namespace.run(&format!("ethtool -K {interface} tx off tso off gso off gro off"));
            }
            run(&format!("ip -n {namespace} link set {interface} up"));
        }
        for End { namespace, interface, .. } in ends {
            wait_until_up(namespace.name(), interface);
        }
    }
}

/// Waits until an interface of a namespace passes frames on.
///
/// # Panics
/// If it never does.
pub fn wait_until_up(namespace: &str, interface: &str) {
    wait_for(&format!("{interface} to be up"), || {
        let mut ip = Command::new("ip");
        ip.args(["-n", namespace, "-br", "link", "show", interface]);
        let told = ip.output().expect("ip(8) is installed: make setup").stdout;
        String::from_utf8_lossy(&told).split_whitespace().nth(1) == Some("UP")
    });
}
