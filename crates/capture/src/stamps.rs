//! By what clock is a packet stamped at a hook of programs, and how often is that clock read?
//!
//! Reading the kernel's clock is the dearest part of recording a short packet (`bpf/clock.h`). The
//! NIC's time costs nothing, where there is one. Else the packets of one NAPI poll may share a
//! reading: they have waited for that poll together, and a later reading is the time of their
//! processing and not of their arrival. Where packets do not come in polls, or several CPUs write
//! into one ring, each packet needs a reading of its own, or times would be wrong.

use std::fmt;
use std::path::Path;

use crate::Hook;
use crate::bpf::driver::Questions;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::hook::RingUnit;
use crate::interface::Interface;
use crate::ring_count::wanted_rings;

/// What packets shall be stamped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// The best that there is: [`Stamps::Hardware`], [`Stamps::Batch`] or [`Stamps::Packet`], in
    /// this order.
    #[default]
    Auto,
    /// The kernel's clock, read for each packet.
    Packet,
    /// The kernel's clock, read for each NAPI poll and again for every 16 packets of it.
    Batch,
    /// The NIC's clock.
    Hardware,
}

impl Stamps {
    pub const ALL: [Self; 4] = [Self::Auto, Self::Packet, Self::Batch, Self::Hardware];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Packet => "packet",
            Self::Batch => "batch",
            Self::Hardware => "hardware",
        }
    }

    /// Returns what programs with these parameters stamp packets by.
    pub(crate) fn of(params: &Params, programs: &[Program]) -> Self {
        let asks = params.hardware_time && programs.iter().any(|which| which.is_bound());
        match (asks, params.clock_by_poll) {
            (true, _) => Self::Hardware,
            (false, true) => Self::Batch,
            (false, false) => Self::Packet,
        }
    }

    /// Returns what to ask of a driver that answers `driver`, and whether packets share readings
    /// of the kernel's clock; they cannot where there is something to say in `why_each_packet`.
    ///
    /// # Errors
    /// Why packets cannot be stamped so.
    pub(crate) fn choose(
        self,
        driver: Questions,
        why_each_packet: Option<&'static str>,
    ) -> Result<(Questions, bool), &'static str> {
        let asks = matches!(self, Self::Auto | Self::Hardware);
        let shares = matches!(self, Self::Auto | Self::Batch);
        match (self, why_each_packet) {
            (Self::Hardware, _) if !driver.time => Err(
                "the driver tells programs no hardware time, or stamps nothing (hwstamp_ctl -r 1)",
            ),
            (Self::Batch, Some(why)) => Err(why),
            _ => {
                let questions = Questions { time: driver.time && asks, ..driver };
                Ok((questions, shares && why_each_packet.is_none()))
            }
        }
    }
}

impl fmt::Display for Stamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// CPUs that have a clock of their own in the programs (`TD_CLOCKS`).
const MOST_CPUS: usize = 1024;

/// Why the packets of programs that outlive their owner share none.
pub(crate) const NOBODY_TELLS: &str = "with --persist nobody tells when a poll has ended";

/// Returns why packets cannot share readings of the clock, if they cannot. `rings` is how many
/// rings the capture has, and `lasts` whether the programs outlive this process, which the
/// tracepoint that tells of polls does not.
pub(crate) fn why_each_packet(
    interface: &Interface,
    hook: Hook,
    rings: u32,
    lasts: bool,
) -> Option<&'static str> {
    if lasts {
        return Some(NOBODY_TELLS);
    }
    if hook.ring_unit() == RingUnit::Socket {
        return Some("the kernel stamps what sockets get");
    }
    let units = match hook.ring_unit() {
        // A ring is found by a CPU's number, and there may be gaps.
        RingUnit::Cpu => cpus("present"),
        RingUnit::Queue | RingUnit::Socket => wanted_rings(interface, hook) as usize,
    };
    if (rings as usize) < units {
        return Some("several queues or CPUs share a ring");
    }
    // Such interfaces bring packets from system calls and tasklets.
    let at = Path::new("/sys/class/net").join(&interface.name);
    let is_tun = interface.kind.as_deref() == Some("tun") || at.join("tun_flags").exists();
    if is_tun || at.join("phy80211").exists() {
        return Some("the packets of this interface do not come in NAPI polls");
    }
    if std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|text| text.trim() == "1") {
        return Some("a kernel with PREEMPT_RT polls in a thread that others interrupt");
    }
    (cpus("possible") > MOST_CPUS).then_some("the machine has more than 1024 CPUs")
}

/// Returns how many CPUs are `possible` or `present`, as numbers of CPUs go.
fn cpus(which: &str) -> usize {
    let path = Path::new("/sys/devices/system/cpu").join(which);
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse().ok());
    last.map_or(0, |last: usize| last + 1)
}
