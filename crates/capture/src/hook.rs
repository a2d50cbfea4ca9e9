//! The hooks: where packets are taken, and what is known of each.
//!
//! Whatever has another answer at another hook stands in the one table of this file, a row for each
//! hook. Code elsewhere asks the row ([`Hook::takes_rules`], [`Hook::ring_unit`], ...). Where it
//! has to do something else at another hook, it matches on a column's type ([`TakenBy`],
//! [`AttachPlace`], [`RingUnit`]) and never has a catch-all arm, so that the compiler names the
//! places that a new hook or a new kind of hook needs. `docs/HOOKS.md` shows the table to users; a
//! test compares them.
//!
//! How programs are attached is not here (`attach`), nor how sockets are read (`socket`).

use std::fmt;

use crate::bpf::program::Program;

/// What happens to a packet after it was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deliver {
    /// The packet goes on as if nobody had looked.
    Pass,
    /// The packet ends at the hook.
    Consume,
}

/// Which packets share a ring, so that their producers hardly ever meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingUnit {
    /// The packets of one receive queue.
    Queue,
    /// The packets that one CPU handles.
    Cpu,
    /// The packets of the one socket there is.
    Socket,
}

impl RingUnit {
    /// Returns the unit in words, as interface descriptions in recordings have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "receive queue",
            Self::Cpu => "CPU",
            Self::Socket => "socket",
        }
    }
}

/// Which packets a hook sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sees {
    /// Every frame that the interface receives.
    Inbound,
    /// Received IPv4 and IPv6 packets alone.
    InboundIp,
    /// Every frame that the interface receives or sends.
    BothWays,
}

/// What becomes of packets at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivers {
    /// Packets pass, for the hook sees copies.
    PassOnly,
    /// Packets end here, for the hook takes them away from the host.
    ConsumeOnly,
    /// The user chooses.
    AsAsked,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XdpMode {
    /// The program runs in the network driver, which must know XDP.
    Driver,
    /// The program runs in the kernel's core, behind any driver.
    Generic,
}

/// Where hook programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachPlace {
    Xdp(XdpMode),
    /// Traffic control, by links of tcx or by filters of clsact.
    Tcx,
    /// Netfilter's prerouting.
    Netfilter,
}

/// The hook programs that write packets into rings, and where they are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramSet {
    pub(crate) place: AttachPlace,
    /// The programs that every interface can have.
    pub(crate) plain: &'static [Program],
    /// Programs bound to their device, which can ask its driver for time and VLAN tag.
    pub(crate) bound: Option<&'static [Program]>,
}

/// How a packet socket is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The kernel copies packets into memory that is mapped (`TPACKET_V3`).
    Mapped,
    /// One system call for each packet.
    Calls,
}

/// The producers of a hook's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBy {
    /// Hook programs, inside the kernel.
    Programs(ProgramSet),
    /// Threads of this process.
    Sockets(Sockets),
}

/// The sockets that packets come to user space by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// One packet socket.
    Packet(Reading),
    /// An AF_XDP socket for each receive queue, to which these programs in the driver send packets.
    Xdp(&'static [Program]),
}

/// How what a device counts compares with what the hook sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparable {
    /// Each frame that the device receives is a packet at the hook.
    Frames,
    /// The host may join frames before the hook, and split packets behind it.
    JoinedFrames,
    /// The hook sees some kinds of packets alone, or the kernel does not count what it refuses.
    Not,
}

/// A release of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Linux(pub u32, pub u32);

impl fmt::Display for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {}.{}", self.0, self.1)
    }
}

/// The oldest release that tapdeck works on, whatever the hook (`scripts/setup.sh` has it too).
const OLDEST: Linux = Linux(6, 1);

/// What an older kernel offers in the place of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    pub(crate) name: &'static str,
    /// The first release that has the hook itself.
    pub(crate) before: Linux,
    /// What `tapdeck probe` says of the stand-in, as of the hook in [`Facts::works`].
    pub(crate) works: &'static str,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    /// Where packets are taken, for the reader of `docs/HOOKS.md`.
    pub(crate) description: &'static str,
    /// Where or how the hook works, as `tapdeck probe` says it.
    pub(crate) works: &'static str,
    pub(crate) taken_by: TakenBy,
    pub(crate) ring_unit: RingUnit,
    pub(crate) sees: Sees,
    pub(crate) comparable: Comparable,
    pub(crate) delivers: Delivers,
    /// Rules can judge packets there.
    pub(crate) takes_rules: bool,
    /// Groups can share the hook.
    pub(crate) takes_groups: bool,
    /// The filter, and programs altogether, can be exchanged while packets flow.
    pub(crate) can_exchange_filter: bool,
    /// Another snaplen can be set while packets flow.
    pub(crate) can_change_snaplen: bool,
    /// The most bytes that can be kept of a packet.
    pub(crate) most_snaplen: u32,
    pub(crate) least_linux: Linux,
    /// What came with `least_linux`, where that is more than tapdeck needs anyway.
    pub(crate) came_with: Option<&'static str>,
    pub(crate) stand_in: Option<StandIn>,
}

/// The kernel copies no more out of an XDP frame (`bpf_xdp_load_bytes`).
const XDP_COPY: u32 = 65_535;
const ANY_SNAPLEN: u32 = u32::MAX;

/// Makes of each row an enumerator and its facts.
macro_rules! hooks {
    ($($(#[$doc:meta])* $hook:ident $facts:tt)*) => {
        /// Where packets are taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Hook {
            $($(#[$doc])* $hook,)*
        }

        impl Hook {
            /// Every hook, in the table's order.
            pub const ALL: [Self; [$(Self::$hook),*].len()] = [$(Self::$hook),*];

            /// The hook's row.
            pub(crate) const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$hook => &Facts $facts,)*
                }
            }
        }
    };
}

hooks! {
    /// XDP in the driver, before the kernel makes a socket buffer.
    Xdp {
        name: "xdp",
        description: "in the network driver, before the kernel makes a packet of its own of it",
        works: "in drivers that have XDP",
        taken_by: TakenBy::Programs(ProgramSet {
            place: AttachPlace::Xdp(XdpMode::Driver),
            plain: &[Program::Xdp],
            bound: Some(&[Program::XdpMetadata]),
        }),
        ring_unit: RingUnit::Queue,
        sees: Sees::Inbound,
        comparable: Comparable::Frames,
        delivers: Delivers::AsAsked,
        takes_rules: true,
        takes_groups: true,
        can_exchange_filter: true,
        can_change_snaplen: true,
        most_snaplen: XDP_COPY,
        least_linux: OLDEST,
        came_with: None,
        stand_in: None,
    }
    /// XDP in the kernel's core, for drivers without it.
    XdpGeneric {
        name: "xdp-generic",
        description: "the same program in the kernel's core, for drivers without XDP",
        works: "on every interface",
        taken_by: TakenBy::Programs(ProgramSet {
            place: AttachPlace::Xdp(XdpMode::Generic),
            plain: &[Program::Xdp],
            bound: None,
        }),
        ring_unit: RingUnit::Cpu,
        sees: Sees::Inbound,
        comparable: Comparable::JoinedFrames,
        delivers: Delivers::AsAsked,
        takes_rules: true,
        takes_groups: true,
        can_exchange_filter: true,
        can_change_snaplen: true,
        most_snaplen: XDP_COPY,
        least_linux: OLDEST,
        came_with: None,
        stand_in: None,
    }
    /// Where packet sockets listen.
    Tcx {
        name: "tcx",
        description: "where packet sockets listen",
        works: "both directions",
        taken_by: TakenBy::Programs(ProgramSet {
            place: AttachPlace::Tcx,
            plain: &[Program::Ingress, Program::Egress],
            bound: None,
        }),
        ring_unit: RingUnit::Cpu,
        sees: Sees::BothWays,
        comparable: Comparable::JoinedFrames,
        delivers: Delivers::AsAsked,
        takes_rules: true,
        takes_groups: true,
        can_exchange_filter: true,
        can_change_snaplen: true,
        most_snaplen: ANY_SNAPLEN,
        least_linux: OLDEST,
        came_with: None,
        stand_in: Some(StandIn {
            name: "clsact",
            before: Linux(6, 6),
            works: "both directions, by clsact",
        }),
    }
    /// Netfilter's prerouting.
    Netfilter {
        name: "netfilter",
        description: "before routing",
        works: "IPv4 and IPv6, inbound",
        taken_by: TakenBy::Programs(ProgramSet {
            place: AttachPlace::Netfilter,
            plain: &[Program::Netfilter],
            bound: None,
        }),
        ring_unit: RingUnit::Cpu,
        sees: Sees::InboundIp,
        comparable: Comparable::Not,
        delivers: Delivers::AsAsked,
        takes_rules: true,
        takes_groups: true,
        can_exchange_filter: false,
        can_change_snaplen: true,
        most_snaplen: ANY_SNAPLEN,
        least_linux: Linux(6, 4),
        came_with: Some("netfilter BPF links"),
        stand_in: None,
    }
    /// A packet socket with a memory-mapped ring (`TPACKET_V3`).
    Tpacket {
        name: "tpacket",
        description: "a packet socket with a memory-mapped ring",
        works: "both directions",
        taken_by: TakenBy::Sockets(Sockets::Packet(Reading::Mapped)),
        ring_unit: RingUnit::Socket,
        sees: Sees::BothWays,
        comparable: Comparable::Not,
        delivers: Delivers::PassOnly,
        takes_rules: false,
        takes_groups: false,
        can_exchange_filter: true,
        can_change_snaplen: true,
        most_snaplen: ANY_SNAPLEN,
        least_linux: OLDEST,
        came_with: None,
        stand_in: None,
    }
    /// A packet socket and one system call for each packet.
    Recv {
        name: "recv",
        description: "a packet socket and one system call for each packet, to compare with",
        works: "both directions",
        taken_by: TakenBy::Sockets(Sockets::Packet(Reading::Calls)),
        ring_unit: RingUnit::Socket,
        sees: Sees::BothWays,
        comparable: Comparable::Not,
        delivers: Delivers::PassOnly,
        takes_rules: false,
        takes_groups: false,
        can_exchange_filter: true,
        can_change_snaplen: true,
        most_snaplen: ANY_SNAPLEN,
        least_linux: OLDEST,
        came_with: None,
        stand_in: None,
    }
    /// An AF_XDP socket for each receive queue.
    AfXdp {
        name: "afxdp",
        description: "an AF_XDP socket for each receive queue",
        works: "in drivers that have XDP",
        taken_by: TakenBy::Sockets(Sockets::Xdp(&[Program::Redirect])),
        ring_unit: RingUnit::Queue,
        sees: Sees::Inbound,
        comparable: Comparable::Frames,
        delivers: Delivers::ConsumeOnly,
        takes_rules: false,
        takes_groups: false,
        can_exchange_filter: true,
        can_change_snaplen: false,
        most_snaplen: ANY_SNAPLEN,
        least_linux: OLDEST,
        came_with: None,
        stand_in: None,
    }
}

impl Hook {
    /// Returns the hook's name, as `--hook` and the configuration of `serve` have it.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns where packets are taken, in words.
    pub fn description(self) -> &'static str {
        self.facts().description
    }

    /// Returns the hook of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.name() == name)
    }

    /// Returns whether user space formats the packets.
    pub fn is_socket(self) -> bool {
        match self.facts().taken_by {
            TakenBy::Programs(_) => false,
            TakenBy::Sockets(_) => true,
        }
    }

    /// Returns whether packets come from a packet socket.
    pub(crate) fn is_packet_socket(self) -> bool {
        match self.facts().taken_by {
            TakenBy::Sockets(Sockets::Packet(_)) => true,
            TakenBy::Programs(_) | TakenBy::Sockets(Sockets::Xdp(_)) => false,
        }
    }

    /// Returns the programs that write packets into rings, where programs do that.
    pub(crate) fn program_set(self) -> Option<ProgramSet> {
        match self.facts().taken_by {
            TakenBy::Programs(set) => Some(set),
            TakenBy::Sockets(_) => None,
        }
    }

    /// Returns the programs that the hook loads, where none asks the driver for anything.
    pub(crate) fn programs(self) -> &'static [Program] {
        match self.facts().taken_by {
            TakenBy::Programs(set) => set.plain,
            TakenBy::Sockets(Sockets::Packet(_)) => &[],
            TakenBy::Sockets(Sockets::Xdp(programs)) => programs,
        }
    }

    /// Returns what each ring is for.
    pub fn ring_unit(self) -> RingUnit {
        self.facts().ring_unit
    }

    /// Returns whether the hook sees packets that leave by the interface.
    pub fn sees_outbound(self) -> bool {
        match self.facts().sees {
            Sees::BothWays => true,
            Sees::Inbound | Sees::InboundIp => false,
        }
    }

    /// Returns how what the device counts compares with what the hook sees.
    pub(crate) fn comparable(self) -> Comparable {
        self.facts().comparable
    }

    /// Returns whether packets can be treated so at the hook.
    pub fn can(self, deliver: Deliver) -> bool {
        match self.facts().delivers {
            Delivers::PassOnly => deliver == Deliver::Pass,
            Delivers::ConsumeOnly => deliver == Deliver::Consume,
            Delivers::AsAsked => true,
        }
    }

    /// Returns whether rules can judge packets at the hook.
    pub fn takes_rules(self) -> bool {
        self.facts().takes_rules
    }

    /// Returns whether payload can be shed at the hook: its packets are put into rings by programs.
    pub fn can_shed(self) -> bool {
        matches!(self.facts().taken_by, TakenBy::Programs(_))
    }

    /// Returns whether groups can share the hook.
    pub fn takes_groups(self) -> bool {
        self.facts().takes_groups
    }

    /// Returns whether the hook goes on without a process, as programs in the kernel do.
    pub fn can_outlive(self) -> bool {
        matches!(self.facts().taken_by, TakenBy::Programs(_))
    }

    /// Returns whether the filter, and the hook's programs altogether, can be exchanged while
    /// packets flow.
    pub fn can_exchange_filter(self) -> bool {
        self.facts().can_exchange_filter
    }

    /// Returns where the hook takes the one place that an interface has for an XDP program.
    pub(crate) fn xdp_mode(self) -> Option<XdpMode> {
        match self.facts().taken_by {
            TakenBy::Programs(ProgramSet { place: AttachPlace::Xdp(mode), .. }) => Some(mode),
            TakenBy::Programs(ProgramSet {
                place: AttachPlace::Tcx | AttachPlace::Netfilter,
                ..
            })
            | TakenBy::Sockets(Sockets::Packet(_)) => None,
            TakenBy::Sockets(Sockets::Xdp(_)) => Some(XdpMode::Driver),
        }
    }

    /// Returns whether the interface must have no other XDP program.
    pub fn needs_xdp_place(self) -> bool {
        self.xdp_mode().is_some()
    }

    /// Returns whether the interface's driver must have XDP.
    pub fn needs_driver_xdp(self) -> bool {
        self.xdp_mode() == Some(XdpMode::Driver)
    }

    /// Returns the oldest release of Linux that has the hook or what stands in for it.
    pub fn least_linux(self) -> Linux {
        self.facts().least_linux
    }

    /// Returns the names of the hooks that `is_meant` says, as a list for a sentence: `xdp, tcx or
    /// recv` where the last word is `or`.
    pub fn list(is_meant: fn(Self) -> bool, last_word: &str) -> String {
        let names: Vec<&str> =
            Self::ALL.into_iter().filter(|hook| is_meant(*hook)).map(Self::name).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} {last_word} {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ANY_SNAPLEN, Delivers, Hook, OLDEST, Sees, StandIn, XdpMode};

    fn yes(is: bool) -> &'static str {
        if is { "yes" } else { "no" }
    }

    fn cells(cells: &[&str]) -> String {
        format!("| {} |", cells.join(" | "))
    }

    /// The hook's row in the first table of docs/HOOKS.md.
    fn what_it_is(hook: Hook) -> String {
        let facts = hook.facts();
        let sees = match facts.sees {
            Sees::Inbound => "inbound",
            Sees::InboundIp => "inbound, IPv4 and IPv6 alone",
            Sees::BothWays => "both directions",
        };
        let xdp = match hook.xdp_mode() {
            None => "",
            Some(XdpMode::Generic) => "no other XDP program; ",
            Some(XdpMode::Driver) => "a driver with XDP, no other XDP program; ",
        };
        let linux = match facts.stand_in {
            Some(StandIn { name, before, .. }) => {
                format!("{}, and {name} does its work before {before}", facts.least_linux)
            }
            None => facts.least_linux.to_string(),
        };
        let needs = format!("{xdp}{linux}");
        cells(&[&format!("`{hook}`"), facts.description, sees, &needs])
    }

    /// The hook's row in the second table.
    fn what_it_can(hook: Hook) -> String {
        let facts = hook.facts();
        let deliver = match facts.delivers {
            Delivers::AsAsked => "pass, consume",
            Delivers::PassOnly => "pass",
            Delivers::ConsumeOnly => "consume",
        };
        let most = match facts.most_snaplen {
            ANY_SNAPLEN => "any".to_owned(),
            most => most.to_string(),
        };
        cells(&[
            &format!("`{hook}`"),
            facts.ring_unit.name(),
            deliver,
            yes(facts.takes_rules),
            yes(facts.takes_groups),
            yes(facts.can_exchange_filter),
            yes(facts.can_change_snaplen),
            &most,
        ])
    }

    #[test]
    fn the_page_of_hooks_has_this_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/HOOKS.md");
        let page = std::fs::read_to_string(&path).expect("docs/HOOKS.md is there");
        let there: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let rows = Hook::ALL.map(what_it_is).into_iter().chain(Hook::ALL.map(what_it_can));
        let here: Vec<String> = rows.collect();
        assert!(
            there == here,
            "docs/HOOKS.md differs from crates/capture/src/hook.rs; put these rows into its tables:\n{}",
            here.join("\n")
        );
    }

    #[test]
    fn what_a_hook_needs_of_the_kernel_has_a_name() {
        for hook in Hook::ALL {
            let facts = hook.facts();
            assert_eq!(facts.came_with.is_some(), facts.least_linux > OLDEST, "{hook}");
        }
    }

    #[test]
    fn only_hooks_with_programs_of_their_own_have_rules_and_groups() {
        for hook in Hook::ALL.into_iter().filter(|hook| hook.is_socket()) {
            assert!(!hook.takes_rules() && !hook.takes_groups(), "{hook}");
        }
    }

    #[test]
    fn names_make_a_sentence() {
        let three = |hook| matches!(hook, Hook::Xdp | Hook::Tcx | Hook::Recv);
        assert_eq!(Hook::list(three, "or"), "xdp, tcx or recv");
        assert_eq!(Hook::list(|hook| hook == Hook::Recv, "or"), "recv");
        assert_eq!(Hook::list(|_| false, "or"), "");
        assert_eq!(Hook::named("xdp-generic"), Some(Hook::XdpGeneric));
        assert_eq!(Hook::named("auto"), None);
    }
}
