//! What did an interface receive that its hook was not shown?
//!
//! A hook can be detached by whoever may do that, an interface can be deleted and made anew, and
//! another program before the hook can take packets away. The hook itself notices none of it. So
//! what the device has counted is held against what the hook has seen, once a second and whenever a
//! hook that was away is attached again; what no cause explains is [`Unseen`].
//!
//! How far both can be compared depends on the hook ([`Comparable`]). At `xdp` each frame that the
//! device counts is a packet. Where frames are joined before the hook, fewer packets than frames
//! are no loss: there only a hook that sees nothing at all while frames come is blind.
//!
//! This file compares numbers. Who reads them, and who attaches a hook again, is elsewhere.

use std::fmt;
use std::sync::Arc;

use crate::hook::Comparable;
use crate::interface::NicCounters;
use crate::{Clock, Hook};

/// Packets that the interface received, or sent where the hook sees both directions, while the hook
/// was not shown them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// How many packets.
    pub packets: u64,
    /// When the hook was last known to be shown packets, and when it was again: UTC, nanoseconds.
    pub first_ns: u64,
    pub last_ns: u64,
    pub cause: Cause,
}

/// Why packets went unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody else detached the hook, or put another program in its place.
    Detached,
    /// The interface was deleted and made anew, or was in another network namespace.
    Away,
    /// The interface came up while others were recorded, and was not recorded yet.
    Late,
    /// A receive queue was switched on, and the hook was not shown its packets yet.
    Queue,
    /// The owner of the hook was not heard of for so long that the hook let packets pass.
    Abandoned,
    /// The hooks are those of a daemon, which has told its member the number alone.
    Daemon,
    /// The daemon had died, and nobody counted.
    DaemonAway,
    /// The hook stood all the time, and nothing says where the packets went.
    Unexplained,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detached => "the hook was detached",
            Self::Away => "the interface was away",
            Self::Late => "the interface had come up, and was not recorded yet",
            Self::Queue => "a receive queue was switched on",
            Self::Abandoned => "nothing was heard of the recorder, and the hook let them pass",
            Self::Daemon => "the hooks of the daemon were not shown them",
            Self::DaemonAway => "there was no daemon, and nobody counted",
            Self::Unexplained => {
                "the hook was attached, but it was not shown what the device received"
            }
        })
    }
}

/// What device and hook have counted at one moment, since the capture began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Frames that the device handed on or, where the hook sees those, was handed to send.
    moved: u64,
    /// Frames of `moved` that the device received.
    received: u64,
    /// Packets that reached the hook.
    seen: u64,
}

impl Counted {
    pub(crate) fn new(hook: Hook, nic: NicCounters, seen: u64) -> Self {
        let sent = if hook.sees_outbound() { nic.tx_packets } else { 0 };
        Self { moved: nic.rx_packets + sent, received: nic.rx_packets, seen }
    }

    fn divergence(self) -> i64 {
        self.moved as i64 - self.seen as i64
    }
}

/// Looks after a start in which a divergence is taken for what came between reading the device's
/// counters and attaching the hook, or for counters that the driver brings up to date late.
const SETTLING: u32 = 3;
/// Looks over which a divergence must have lasted while packets flow.
const LASTING: usize = 5;
/// The share of the packets, one in so many, below which a divergence while packets flow is taken
/// for packets on their way.
const ON_THEIR_WAY: i64 = 100;
/// Looks at a hook that sees nothing any more in which a driver may still bring its counters up to
/// date.
const LATE: u32 = 2;

/// Holds what a device counts against what the hook sees.
#[derive(Debug)]
struct Watch {
    comparable: Comparable,
    /// All packets that went unseen.
    total: u64,
    /// The divergence that is explained.
    base: i64,
    settling: u32,
    last: Counted,
    /// Where frames count: the divergence that was not explained, and frames moved, at the last
    /// looks.
    looks: Vec<(i64, u64)>,
    /// Where frames are joined: looks since the hook saw something, and frames received in those
    /// that are [`LATE`] and in those behind them.
    silent: u32,
    late: u64,
    blind: u64,
}

impl Watch {
    fn new(hook: Hook) -> Self {
        Self {
            comparable: hook.comparable(),
            total: 0,
            base: 0,
            settling: SETTLING,
            last: Counted::default(),
            looks: Vec::new(),
            silent: 0,
            late: 0,
            blind: 0,
        }
    }

    /// Begins to compare, also again after a pause, with what is counted by now.
    fn begin(&mut self, now: Counted) {
        self.last = now;
        self.settling = SETTLING;
        self.base = self.rest(now);
        self.looks.clear();
        (self.silent, self.late, self.blind) = (0, 0, 0);
    }

    /// The divergence that is not counted as unseen.
    fn rest(&self, now: Counted) -> i64 {
        now.divergence() - self.total as i64
    }

    /// Returns how many packets the device must have counted since it was last asked, because the
    /// hook has seen them. The device is gone and cannot be asked any more.
    fn seen_beyond(&self, now: Counted) -> u64 {
        match self.comparable {
            Comparable::Frames => u64::try_from(self.base - self.rest(now)).unwrap_or(0),
            Comparable::JoinedFrames | Comparable::Not => 0,
        }
    }

    /// Takes note that the device is gone. Returns what [`Watch::seen_beyond`] does.
    fn gone(&mut self, now: Counted) -> u64 {
        let more = self.seen_beyond(now);
        if self.comparable != Comparable::Frames {
            // What the hook has seen since the last look is not missed by the device that comes.
            self.last = now;
        }
        more
    }

    /// Counts what came since the last look, at the end of a time in which the hook was not there.
    /// Returns how many packets those were.
    fn missed(&mut self, now: Counted) -> u64 {
        let before = match self.comparable {
            // At the last look packets may have been on their way, or have reached the hook after
            // the device's counters were read.
            Comparable::Frames => self.base,
            Comparable::JoinedFrames | Comparable::Not => self.rest(self.last),
        };
        let grown = self.rest(now) - before;
        let packets = u64::try_from(grown).unwrap_or(0);
        self.total += packets;
        // A device that counts from nought again has another divergence.
        let known = (self.settling == 0 && grown >= 0).then_some(self.base);
        self.begin(now);
        if let Some(base) = known {
            // What the device counts only now came in that time, too.
            (self.base, self.settling) = (base, 0);
        }
        packets
    }

    /// Looks while the hook stands. Returns how many packets have gone unseen all the same.
    fn look(&mut self, now: Counted) -> u64 {
        let before = std::mem::replace(&mut self.last, now);
        let packets = match self.comparable {
            Comparable::Frames => self.look_at_frames(before, now),
            Comparable::JoinedFrames => self.look_at_joined(before, now),
            Comparable::Not => 0,
        };
        self.total += packets;
        packets
    }

    /// Looks after the hook was detached at the end: no packet is on its way any more.
    fn end(&mut self, now: Counted) -> u64 {
        let packets = match self.comparable {
            Comparable::Frames if self.settling == 0 => {
                u64::try_from(self.rest(now) - self.base).unwrap_or(0)
            }
            Comparable::JoinedFrames if self.blind > 0 => self.late + self.blind,
            Comparable::Frames | Comparable::JoinedFrames | Comparable::Not => 0,
        };
        self.total += packets;
        packets
    }

    /// Returns whether the last look has found nothing that may turn out to be unseen.
    fn is_clear(&self) -> bool {
        let excess = self.looks.last().map_or(0, |(excess, _)| *excess);
        excess <= 0 && self.late + self.blind == 0
    }

    fn look_at_frames(&mut self, before: Counted, now: Counted) -> u64 {
        let rest = self.rest(now);
        if self.settling > 0 {
            self.settling -= 1;
            self.base = self.base.max(rest);
            return 0;
        }
        let excess = rest - self.base;
        if self.looks.len() == LASTING {
            self.looks.remove(0);
        }
        self.looks.push((excess, now.moved));
        let least = self.looks.iter().map(|(excess, _)| *excess).min().unwrap_or(0);
        let lasts = self.looks.len() == LASTING && least > self.moved() / ON_THEIR_WAY;
        let packets = match (before == now, lasts) {
            (true, _) => excess,
            (false, true) => least,
            (false, false) => 0,
        };
        if packets <= 0 {
            return 0;
        }
        self.looks.clear();
        packets as u64
    }

    /// Frames moved during the looks that are remembered.
    fn moved(&self) -> i64 {
        let ends = self.looks.first().zip(self.looks.last());
        ends.map_or(0, |(first, last)| last.1.saturating_sub(first.1) as i64)
    }

    /// Returns what goes unseen: all that the device receives as long as the hook sees nothing.
    fn look_at_joined(&mut self, before: Counted, now: Counted) -> u64 {
        if now.seen != before.seen || now.received < before.received {
            (self.silent, self.late, self.blind) = (0, 0, 0);
            return 0;
        }
        self.silent = self.silent.saturating_add(1);
        let received = now.received - before.received;
        if self.silent <= LATE {
            self.late += received;
            return 0;
        }
        // Those that come between reading the two counters are on their way at one look alone.
        let packets = if self.blind > 0 { self.late + self.blind + received } else { 0 };
        if packets > 0 {
            (self.late, self.blind) = (0, 0);
        } else {
            self.blind = received;
        }
        packets
    }
}

/// How often a recording is told that a hook which stands is not shown what comes.
const TOLD_EVERY_NS: u64 = 60_000_000_000;

/// Keeps account of when a hook was there and when not, and of what went unseen.
pub(crate) struct Presence {
    watch: Watch,
    clock: Arc<Clock>,
    /// When the hook was last known to stand.
    stood_ns: u64,
    /// When it was last known to be shown all that comes.
    clear_ns: u64,
    /// Packets that went unseen since then, as long as the hook is away.
    away: Option<u64>,
    /// Packets that went unseen though the hook stands, since when, and that are not told yet.
    unexplained: Option<(u64, u64)>,
    told_ns: Option<u64>,
    untold: Vec<Unseen>,
}

impl Presence {
    pub(crate) fn new(hook: Hook, clock: &Arc<Clock>) -> Self {
        let now_ns = clock.now_ns();
        Self {
            watch: Watch::new(hook),
            clock: clock.clone(),
            stood_ns: now_ns,
            clear_ns: now_ns,
            away: None,
            unexplained: None,
            told_ns: None,
            untold: Vec::new(),
        }
    }

    /// Returns an account of another hook's presence that has not begun, by the same clock.
    pub(crate) fn anew(&self, hook: Hook) -> Self {
        Self::new(hook, &self.clock)
    }

    /// Adds to words what [`Presence::resume`] goes on with.
    pub(crate) fn put(&self, words: &mut Vec<u64>) {
        let Watch { total, base, settling, last, .. } = &self.watch;
        let Counted { moved, received, seen } = *last;
        words.extend([*total, *base as u64, u64::from(*settling), moved, received, seen]);
        words.extend([self.stood_ns, self.clear_ns]);
    }

    /// Goes on where another process has stopped.
    pub(crate) fn resume(&mut self, words: &mut impl Iterator<Item = u64>) {
        let mut next = || words.next().unwrap_or(0);
        self.watch.total = next();
        self.watch.base = next() as i64;
        self.watch.settling = next() as u32;
        self.watch.last = Counted { moved: next(), received: next(), seen: next() };
        (self.stood_ns, self.clear_ns) = (next(), next());
    }

    /// Begins when the hook was attached for the first time or after a pause.
    pub(crate) fn begin(&mut self, now: Counted) {
        self.tell_unexplained();
        self.watch.begin(now);
        self.stood_ns = self.clock.now_ns();
        self.clear_ns = self.stood_ns;
        self.away = None;
    }

    /// Takes note that the interface is one that came later, and since when.
    pub(crate) fn begins_late(&mut self, since_ns: u64) {
        self.stood_ns = since_ns;
    }

    /// Takes note that the hook stands.
    pub(crate) fn stands(&mut self, now: Counted) {
        let packets = self.watch.look(now);
        self.note_unexplained(packets);
        self.stood_ns = self.clock.now_ns();
        let is_due = |told: u64| self.stood_ns.saturating_sub(told) >= TOLD_EVERY_NS;
        if packets == 0 && self.watch.is_clear() || self.told_ns.is_none_or(is_due) {
            self.tell_unexplained();
        }
        if self.watch.is_clear() {
            self.clear_ns = self.stood_ns;
        }
    }

    /// Takes note that the hook is not there, and cannot be attached at present.
    pub(crate) fn is_away(&mut self, now: Counted) {
        self.tell_unexplained();
        let packets = self.watch.missed(now);
        *self.away.get_or_insert(0) += packets;
    }

    /// Takes note that the interface is gone. Returns how many packets it must have received since
    /// it was last asked.
    pub(crate) fn is_gone(&mut self, now: Counted) -> u64 {
        self.tell_unexplained();
        self.away.get_or_insert(0);
        self.watch.gone(now)
    }

    /// Takes note that a hook that was away, for this cause, is attached again.
    pub(crate) fn is_back(&mut self, now: Counted, cause: Cause) {
        self.tell_unexplained();
        let packets = self.away.take().unwrap_or(0) + self.watch.missed(now);
        self.tell(packets, self.stood_ns, cause);
        self.stood_ns = self.clock.now_ns();
        self.clear_ns = self.stood_ns;
    }

    /// Takes note that nothing is captured any more, and of what the hook has seen in the end. This
    /// ends the time of a hook that is away.
    pub(crate) fn end(&mut self, now: Counted) {
        if let Some(packets) = self.away.take() {
            self.tell(packets, self.stood_ns, Cause::Away);
        } else {
            let packets = self.watch.end(now);
            self.note_unexplained(packets);
        }
        self.tell_unexplained();
    }

    fn note_unexplained(&mut self, packets: u64) {
        if packets > 0 {
            let (_, all) = self.unexplained.get_or_insert((self.clear_ns, 0));
            *all += packets;
        }
    }

    fn tell_unexplained(&mut self) {
        if let Some((first_ns, packets)) = self.unexplained.take() {
            self.told_ns = Some(self.clock.now_ns());
            self.tell(packets, first_ns, Cause::Unexplained);
            self.clear_ns = self.clock.now_ns();
        }
    }

    fn tell(&mut self, packets: u64, first_ns: u64, cause: Cause) {
        if packets == 0 && cause == Cause::Late {
            return;
        }
        let last_ns = self.clock.now_ns();
        self.untold.push(Unseen { packets, first_ns: first_ns.min(last_ns), last_ns, cause });
    }

    /// Returns when the hook was last known to stand.
    pub(crate) fn stood_ns(&self) -> u64 {
        self.stood_ns
    }

    /// Returns whether the hook is away.
    pub(crate) fn has_gone(&self) -> bool {
        self.away.is_some()
    }

    /// Returns how many packets went unseen so far.
    pub(crate) fn unseen(&self) -> u64 {
        self.watch.total
    }

    /// Takes what went unseen and was not taken before.
    pub(crate) fn take(&mut self) -> Vec<Unseen> {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests {
    use super::{Counted, LASTING, SETTLING, Watch};
    use crate::Hook;

    fn at(received: u64, seen: u64) -> Counted {
        Counted { moved: received, received, seen }
    }

    /// A watch that has looked often enough to know the divergence of its start.
    fn settled(hook: Hook, start: Counted) -> Watch {
        let mut watch = Watch::new(hook);
        watch.begin(at(0, 0));
        for _ in 0..SETTLING {
            assert_eq!(watch.look(start), 0);
        }
        watch
    }

    #[test]
    fn what_came_while_the_hook_was_away_is_missed_to_the_packet() {
        for hook in [Hook::Xdp, Hook::Tcx, Hook::Netfilter] {
            let mut watch = settled(hook, at(107, 100));
            assert_eq!(watch.look(at(1107, 1100)), 0, "{hook}");
            assert_eq!(watch.missed(at(1607, 1100)), 500, "{hook}");
            assert_eq!(watch.missed(at(1617, 1100)), 10, "{hook}: still away");
            assert_eq!(watch.look(at(2617, 2100)), 0, "{hook}");
            assert_eq!(watch.total, 510, "{hook}");
        }
    }

    #[test]
    fn what_the_device_counts_late_is_unseen_all_the_same() {
        for is_at_the_end in [false, true] {
            let mut watch = settled(Hook::Xdp, at(107, 100));
            assert_eq!(watch.look(at(1107, 1100)), 0);
            assert_eq!(watch.missed(at(1606, 1100)), 499, "the device is one behind");
            let late = at(1707, 1200);
            let packets =
                if is_at_the_end { watch.end(late) } else { watch.look(late) + watch.look(late) };
            assert_eq!((packets, watch.total), (1, 500));
        }
    }

    #[test]
    fn a_device_that_counts_from_nought_when_the_hook_is_back_is_watched_on() {
        let mut watch = settled(Hook::Xdp, at(107, 100));
        assert_eq!(watch.look(at(1107, 1100)), 0);
        assert_eq!(watch.missed(at(20, 1100)), 0);
        for _ in 0..SETTLING {
            assert_eq!(watch.look(at(20, 1100)), 0);
        }
        assert_eq!((watch.look(at(70, 1100)), watch.look(at(70, 1100))), (0, 50));
    }

    /// The device is asked before the hook.
    #[test]
    fn packets_that_came_while_the_last_look_was_taken_are_not_missed_later() {
        let mut watch = settled(Hook::Xdp, at(107, 100));
        assert_eq!(watch.look(at(1107, 1102)), 0);
        assert_eq!(watch.missed(at(1609, 1102)), 500);
    }

    #[test]
    fn packets_on_their_way_at_the_last_look_do_not_hide_what_was_missed() {
        let mut watch = settled(Hook::Xdp, at(100, 100));
        assert_eq!(watch.look(at(1100, 1090)), 0);
        assert_eq!(watch.missed(at(1600, 1100)), 500);
    }

    #[test]
    fn a_divergence_that_stays_when_nothing_flows_is_unseen() {
        let mut watch = settled(Hook::Xdp, at(1000, 1000));
        assert_eq!(watch.look(at(2000, 1993)), 0, "they may be on their way");
        assert_eq!(watch.look(at(2000, 1993)), 7);
        assert_eq!(watch.look(at(2000, 1993)), 0, "counted once");
        assert_eq!(watch.total, 7);
    }

    #[test]
    fn a_divergence_that_grows_while_packets_flow_is_unseen() {
        let mut watch = settled(Hook::Xdp, at(0, 0));
        let mut told = 0;
        for second in 1..=2 * LASTING as u64 {
            told += watch.look(at(second * 1000, second * 500));
        }
        let most = 2 * LASTING as u64 * 500;
        assert!(told > 0 && told <= most, "{told}");
        assert_eq!(watch.look(at(10_000, 5000)), most - told, "the rest when it is quiet");
    }

    #[test]
    fn packets_on_their_way_are_no_divergence() {
        let mut watch = settled(Hook::Xdp, at(0, 0));
        for second in 1..100 {
            assert_eq!(watch.look(at(second * 1000, second * 1000 - second % 10)), 0);
        }
        assert_eq!(watch.look(at(100_000, 100_000)), 0);
        // A hook that sees more than the device counts loses nothing.
        assert_eq!(watch.look(at(100_000, 200_000)), 0);
        assert_eq!(watch.look(at(100_000, 200_000)), 0);
        assert_eq!(watch.total, 0);
    }

    #[test]
    fn joined_frames_are_no_divergence_but_seeing_none_is() {
        let mut watch = settled(Hook::Tcx, at(0, 0));
        for second in 1..10 {
            assert_eq!(watch.look(at(second * 1000, second * 30)), 0);
        }
        let told: u64 = (10..30).map(|second| watch.look(at(second * 1000, 270))).sum();
        assert_eq!(told + watch.end(at(29_000, 270)), 20_000);
        assert_eq!(watch.look(at(30_000, 271)), 0, "it sees again");
        let mut watch = settled(Hook::Netfilter, at(0, 0));
        let told: u64 = (1..30).map(|second| watch.look(at(second * 1000, 0))).sum();
        assert_eq!(told, 0, "netfilter sees IP alone");
    }

    #[test]
    fn counters_that_a_driver_brings_up_to_date_late_are_no_divergence() {
        let mut watch = settled(Hook::Tcx, at(0, 0));
        for second in 1..10 {
            assert_eq!(watch.look(at((second - 1) * 1000, second * 1000)), 0);
        }
        for _ in 0..10 {
            assert_eq!(watch.look(at(9000, 9000)), 0);
        }
        // Nor is a packet that comes between reading one counter and the other.
        assert_eq!(watch.look(at(9001, 9000)), 0);
        assert_eq!(watch.look(at(9001, 9001)), 0);
        assert_eq!(watch.end(at(9001, 9001)), 0);
    }

    #[test]
    fn what_is_left_at_the_end_is_unseen() {
        let mut watch = settled(Hook::Xdp, at(0, 0));
        assert_eq!(watch.look(at(1000, 990)), 0);
        assert_eq!(watch.end(at(1000, 993)), 7);
        assert_eq!(watch.total, 7);
    }

    #[test]
    fn a_device_that_is_gone_has_counted_what_the_hook_saw() {
        let mut watch = settled(Hook::Xdp, at(100, 100));
        watch.look(at(200, 200));
        assert_eq!(watch.seen_beyond(at(200, 230)), 30);
        assert_eq!(watch.seen_beyond(at(200, 190)), 0);
        let mut watch = settled(Hook::Tcx, at(0, 0));
        assert_eq!(watch.gone(at(0, 30)), 0, "copies of what is sent may be among them");
        assert_eq!(watch.missed(at(40, 30)), 40, "of the device that came");
    }
}
