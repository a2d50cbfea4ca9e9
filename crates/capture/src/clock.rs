//! Which clock are packets stamped with, and what happens when somebody sets it?
//!
//! A hook reads `CLOCK_MONOTONIC` and adds the offset to UTC that this module keeps. The kernel
//! slews both clocks alike when NTP corrects them, so the offset changes only when somebody
//! steps the clock. Then a new **epoch** begins: blocks opened from now on are stamped with
//! the new offset, those that are open are closed, and the store begins a new
//! segment. No segment holds a step.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Acquire, Ordering::Release};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::bpf::control::Control;

/// Offsets that change by less than this are the two clocks' reading times, not a step.
const STEP_NS: i64 = 1_000_000;
const EPOCHS: u32 = 256;

/// A source of the offset between `CLOCK_MONOTONIC` and UTC.
pub trait WallClock: Send + Sync {
    /// Returns UTC minus `CLOCK_MONOTONIC`, nanoseconds.
    fn utc_offset_ns(&self) -> i64;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

fn read(clock: ClockId) -> i64 {
    let t = clock_gettime(clock);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

impl WallClock for SystemClock {
    fn utc_offset_ns(&self) -> i64 {
        // The reading with the least time around it is the truest.
        let sample = || {
            let before = read(ClockId::Monotonic);
            let wall = read(ClockId::Realtime);
            let after = read(ClockId::Monotonic);
            (after - before, wall - (before + (after - before) / 2))
        };
        (0..8).map(|_| sample()).min_by_key(|(width, _)| *width).map_or(0, |(_, offset)| offset)
    }
}

/// A step of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far the clock went forward, nanoseconds; negative where it went back.
    pub by_ns: i64,
    /// The epoch that began with it.
    pub epoch: u8,
}

/// The offset to UTC, shared by all hooks of a recording.
pub struct Clock {
    wall: Box<dyn WallClock>,
    epoch: AtomicU32,
    offsets: Box<[AtomicI64]>,
    /// `CLOCK_MONOTONIC` when each epoch began.
    began_ns: Box<[AtomicI64]>,
    controls: Mutex<Vec<Control>>,
    /// For how long hook programs record without a beat, nanoseconds; `None` if for ever.
    abandon_ns: Option<u64>,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Box::new(SystemClock))
    }
}

impl Clock {
    pub fn new(wall: Box<dyn WallClock>) -> Self {
        let offset = wall.utc_offset_ns();
        Self {
            wall,
            epoch: AtomicU32::new(0),
            offsets: (0..EPOCHS).map(|_| AtomicI64::new(offset)).collect(),
            began_ns: (0..EPOCHS).map(|_| AtomicI64::new(0)).collect(),
            controls: Mutex::new(Vec::new()),
            abandon_ns: None,
        }
    }

    /// Has hook programs stop recording, and let packets pass, when there was no
    /// [`Clock::beat`] for so long.
    #[must_use]
    pub fn abandoned_after(self, time: Duration) -> Self {
        Self { abandon_ns: u64::try_from(time.as_nanos()).ok(), ..self }
    }

    /// Tells the hook programs that their owner lives. Called once a second.
    pub fn beat(&self) {
        let deadline_ns = self.deadline_ns();
        for control in
            self.controls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter()
        {
            control.set_deadline(deadline_ns);
        }
    }

    fn deadline_ns(&self) -> u64 {
        let now = read(ClockId::Monotonic) as u64;
        self.abandon_ns.map_or(u64::MAX, |after| now.saturating_add(after))
    }

    /// Returns the epoch of blocks opened from now on.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Acquire)
    }

    /// Returns an epoch's offset: `CLOCK_MONOTONIC` plus the offset is UTC.
    pub fn offset_ns(&self, epoch: u32) -> i64 {
        self.offsets[(epoch % EPOCHS) as usize].load(Acquire)
    }

    /// Returns UTC now, by the current epoch's offset.
    pub fn now_ns(&self) -> u64 {
        (read(ClockId::Monotonic) + self.offset_ns(self.epoch())) as u64
    }

    /// Returns UTC now, by an epoch's offset: the timestamp of a packet that the kernel gave none.
    pub(crate) fn stamp(&self, epoch: u32) -> u64 {
        (read(ClockId::Monotonic) + self.offset_ns(epoch)) as u64
    }

    /// Converts the kernel's wall clock time of a packet to the scale of an epoch. The two differ
    /// if the packet came between a step of the clock and the epoch that begins with it, or waited
    /// in a socket while the epoch began. Costs several readings of the clock.
    pub(crate) fn on_scale(&self, wall_ns: u64, epoch: u32) -> u64 {
        let scale = self.offset_ns(epoch);
        let now = self.stamp(epoch);
        let on = |other_scale: i64| wall_ns.wrapping_add_signed(scale - other_scale);
        let before = self.offset_ns((epoch + EPOCHS - 1) % EPOCHS);
        // Only what came before the epoch can have been stamped on the scale before it.
        let began_ns = self.began_ns[(epoch % EPOCHS) as usize].load(Acquire);
        let earlier = (wall_ns as i64).wrapping_sub(before) <= began_ns;
        [Some(on(self.wall.utc_offset_ns())), earlier.then(|| on(before))]
            .into_iter()
            .flatten()
            .filter(|ns| ns.abs_diff(wall_ns) >= STEP_NS.unsigned_abs())
            .chain([wall_ns])
            .min_by_key(|ns| ns.abs_diff(now))
            .unwrap_or(wall_ns)
    }

    /// Adds a hook's copy of the offsets in the kernel, and keeps it up to date.
    pub(crate) fn share_with(&self, control: Control) {
        let mut controls = self.controls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        control.set_deadline(self.deadline_ns());
        control.set(self.epoch(), self.offset_ns(self.epoch()));
        controls.push(control);
    }

    /// Lets go of the copies of hooks that are gone.
    pub(crate) fn forget_gone(&self) {
        let mut controls = self.controls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        controls.retain(Control::is_shared);
    }

    /// Goes on with the epochs of a hook that was there before, of which packets may be waiting,
    /// where they are ahead of this clock's; and keeps that hook's copy up to date.
    pub(crate) fn adopt(&self, control: Control) {
        let mut controls = self.controls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let theirs = control.epoch() % EPOCHS;
        let is_ahead = (theirs as u8).wrapping_sub(self.epoch() as u8) as i8 > 0;
        if is_ahead || controls.is_empty() {
            for epoch in 0..EPOCHS {
                self.offsets[epoch as usize].store(control.offset_ns(epoch), Release);
            }
            self.epoch.store(theirs, Release);
        }
        controls.push(control);
        let deadline_ns = self.deadline_ns();
        for control in controls.iter() {
            control.set_deadline(deadline_ns);
            control.set(self.epoch(), self.offset_ns(self.epoch()));
        }
    }

    /// Looks whether the clock was stepped, and begins a new epoch if so.
    pub fn check(&self) -> Option<Step> {
        let epoch = self.epoch();
        let old = self.offset_ns(epoch);
        let new = self.wall.utc_offset_ns();
        if (new - old).abs() < STEP_NS {
            return None;
        }
        let next = (epoch + 1) % EPOCHS;
        self.offsets[next as usize].store(new, Release);
        self.began_ns[next as usize].store(read(ClockId::Monotonic), Release);
        for control in
            self.controls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter()
        {
            control.set(next, new);
        }
        self.epoch.store(next, Release);
        Some(Step { by_ns: new - old, epoch: next as u8 })
    }
}
