//! How old is a segment? As old as its last packet, by the time that passed since, whatever
//! somebody did to the clock meanwhile.
//!
//! Packets are stamped with UTC, which somebody may set, so a segment's age cannot be read off the
//! clock. It is counted on a scale of the store's own, the **store time**, which goes on evenly
//! through steps of the clock and through recorders that come and go. Within one start of the
//! machine the kernel's count of time since then says how store time goes on. Over a restart of the
//! machine nothing does but the clock, and that is believed only if something kept it at UTC both
//! before and after; else the time between two recorders counts as none, or as that since the
//! machine was started. An error is thus always on the side of keeping.
//!
//! Which UTC goes with which store time stands in a file of the store, a line for each recorder and
//! each step. Where the file is lost, the clock's word is all that is left.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::format::store::TIMES;
use crate::io::{Access, Directory, Storage as _, Uptime};

/// How far a clock and the line about it may be apart before another line is needed.
const STEP_NS: i64 = 1_000_000_000;
/// More than the lines of a year take.
const MOST_BYTES: u64 = 16 << 20;

/// What is known of the clock, from one segment on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// The number of the first segment that it is about.
    first: u64,
    /// UTC less store time, nanoseconds.
    utc_ns: i64,
    /// Time since the machine's start less store time, nanoseconds.
    boot_ns: i64,
    boot: String,
    is_synchronised: bool,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let line = Self {
            first: words.next()?.parse().ok()?,
            utc_ns: words.next()?.parse().ok()?,
            boot_ns: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
            is_synchronised: match words.next()? {
                "right" => true,
                "unsure" => false,
                _ => return None,
            },
        };
        words.next().is_none().then_some(line)
    }

    fn show(&self) -> String {
        let Self { first, utc_ns, boot_ns, boot, is_synchronised } = self;
        let clock = if *is_synchronised { "right" } else { "unsure" };
        format!("{first} {utc_ns} {boot_ns} {boot} {clock}\n")
    }
}

/// The newest segment of a store that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newest {
    pub number: u64,
    /// The time of its last packet, UTC nanoseconds.
    pub last_ns: i64,
}

/// The store time.
pub(crate) struct Ages {
    path: PathBuf,
    uptime: Uptime,
    lines: Vec<Line>,
    /// When the store was opened, in store time.
    opened_ns: i64,
}

impl Ages {
    /// Goes on with the store time of a directory whose segments from `next` on are still to be
    /// recorded. `oldest` is the number of the oldest segment, and `utc_ns` what the clock says.
    pub fn open(
        dir: &Path,
        uptime: Uptime,
        utc_ns: i64,
        (oldest, newest): (u64, Option<Newest>),
        next: u64,
    ) -> (Self, io::Result<()>) {
        let path = dir.join(TIMES);
        let text = read(dir).unwrap_or_default();
        let mut lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
        lines.sort_by_key(|line| line.first);
        let mut ages = Self { path, uptime, lines, opened_ns: 0 };
        ages.opened_ns = ages.resume(utc_ns, newest);

        // What is about segments that are gone is needed no more.
        let needed = ages.lines.partition_point(|line| line.first <= oldest).saturating_sub(1);
        ages.lines.drain(..needed);
        ages.lines.retain(|line| line.first < next);
        let line = ages.line(next, utc_ns, ages.opened_ns);
        ages.lines.push(line);
        let written = ages.write();
        (ages, written)
    }

    /// Returns the store time now.
    pub fn now_ns(&self) -> i64 {
        let boot_ns = self.lines.last().map_or(0, |line| line.boot_ns);
        self.since_boot_ns().saturating_sub(boot_ns)
    }

    /// Returns the store time of a moment in this recorder's life, told as time since the machine's
    /// start.
    pub fn at(&self, since_boot: Duration) -> i64 {
        let boot_ns = self.lines.last().map_or(0, |line| line.boot_ns);
        nanoseconds(since_boot).saturating_sub(boot_ns)
    }

    /// Returns the store time of the last packet of a segment that was there when the store was
    /// opened, which is stamped `last_ns`.
    pub fn of_found(&self, number: u64, last_ns: i64) -> i64 {
        last_ns.saturating_sub(self.utc_of(number)).min(self.opened_ns)
    }

    /// Takes note that a segment begins when the clock says `utc_ns`, for ages after this recorder.
    pub fn begin(&mut self, number: u64, utc_ns: i64) -> io::Result<()> {
        let line = self.line(number, utc_ns, self.now_ns());
        match self.lines.last_mut() {
            Some(last) if (last.utc_ns - line.utc_ns).abs() < STEP_NS => {
                if last.is_synchronised || !line.is_synchronised {
                    return Ok(());
                }
                last.is_synchronised = true;
            }
            _ => self.lines.push(line),
        }
        self.write()
    }

    /// Finds the store time at which a recorder goes on.
    fn resume(&self, utc_ns: i64, newest: Option<Newest>) -> i64 {
        let since_boot = self.since_boot_ns();
        let last = self.lines.last();
        if let Some(last) = last.filter(|last| last.boot == self.uptime.boot) {
            return since_boot.saturating_sub(last.boot_ns);
        }
        let Some(newest) = newest else { return utc_ns };
        let before = newest.last_ns.saturating_sub(self.utc_of(newest.number));
        let was_right = last.is_none_or(|last| last.is_synchronised);
        let away = if was_right && (self.uptime.is_synchronised)() {
            utc_ns.saturating_sub(newest.last_ns).max(0)
        } else {
            0
        };
        // The machine was started after the last recorder had ended.
        let at_least = if last.is_some() { since_boot } else { 0 };
        before.saturating_add(away.max(at_least))
    }

    /// Returns UTC less store time, as it was while a segment was recorded. Segments that no line
    /// is about are from before there were lines: the first scale was UTC.
    fn utc_of(&self, number: u64) -> i64 {
        let after = self.lines.partition_point(|line| line.first <= number);
        after.checked_sub(1).map_or(0, |at| self.lines[at].utc_ns)
    }

    fn line(&self, first: u64, utc_ns: i64, now_ns: i64) -> Line {
        Line {
            first,
            utc_ns: utc_ns.saturating_sub(now_ns),
            boot_ns: self.since_boot_ns().saturating_sub(now_ns),
            boot: self.uptime.boot.clone(),
            is_synchronised: (self.uptime.is_synchronised)(),
        }
    }

    fn since_boot_ns(&self) -> i64 {
        nanoseconds((self.uptime.since_boot)())
    }

    /// Writes all lines, in place of those that were there.
    fn write(&self) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        match fs::remove_file(&draft) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let text: String = self.lines.iter().map(Line::show).collect();
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o640).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&draft, &self.path)?;
        if let Some(dir) = self.path.parent() {
            // Where that cannot be done, the lines last as long as the machine runs.
            let _ = fs::File::open(dir).and_then(|dir| dir.sync_all());
        }
        Ok(())
    }
}

/// Returns the lines of a directory.
fn read(dir: &Path) -> io::Result<String> {
    let object = Directory::new(dir).open(TIMES.as_ref(), Access::Ranges)?;
    let mut bytes = vec![0; object.length()?.min(MOST_BYTES) as usize];
    object.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::time::Duration;

    use super::{Ages, Line, Newest};
    use crate::io::Uptime;

    const S: i64 = 1_000_000_000;
    const YEARS: i64 = 10 * 365 * 86_400 * S;
    const UTC: i64 = 1_767_323_045 * S;

    /// A machine whose time a test sets.
    struct Machine {
        boot: &'static str,
        seconds: Arc<AtomicU64>,
        is_synchronised: bool,
    }

    impl Machine {
        fn new(boot: &'static str, seconds: u64) -> Self {
            Self { boot, seconds: Arc::new(AtomicU64::new(seconds)), is_synchronised: true }
        }

        fn open(&self, dir: &Path, utc_ns: i64, newest: Option<Newest>, next: u64) -> Ages {
            let (seconds, right) = (self.seconds.clone(), self.is_synchronised);
            let uptime = Uptime {
                boot: self.boot.into(),
                since_boot: Arc::new(move || Duration::from_secs(seconds.load(SeqCst))),
                is_synchronised: Arc::new(move || right),
            };
            let (ages, written) = Ages::open(dir, uptime, utc_ns, (1, newest), next);
            written.unwrap();
            ages
        }
    }

    fn newest(number: u64, last_ns: i64) -> Newest {
        Newest { number, last_ns }
    }

    #[test]
    fn lines_read_back_and_others_are_passed_over() {
        let line =
            Line { first: 42, utc_ns: -7, boot_ns: 8, boot: "b00-7".into(), is_synchronised: true };
        assert_eq!(Line::parse(line.show().trim_end()), Some(line));
        for text in ["", "1", "1 2 3 b", "1 2 3 b right x", "1 2 3 b true", "x 2 3 b right"] {
            assert_eq!(Line::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_clock_that_is_set_between_two_recorders_changes_no_age() {
        for step in [-YEARS, 0, YEARS] {
            let dir = tempfile::tempdir().unwrap();
            let machine = Machine::new("a", 1000);
            drop(machine.open(dir.path(), UTC, None, 1));
            machine.seconds.store(1100, SeqCst);
            // The segment's last packet came 60 s after the recorder began.
            let found = Some(newest(1, UTC + 60 * S));
            let ages = machine.open(dir.path(), UTC + 100 * S + step, found, 2);
            assert_eq!(ages.now_ns() - ages.of_found(1, UTC + 60 * S), 40 * S, "{step}");
        }
    }

    #[test]
    fn a_clock_that_is_set_while_recording_changes_no_age() {
        for step in [-YEARS, YEARS] {
            let dir = tempfile::tempdir().unwrap();
            let machine = Machine::new("a", 1000);
            let mut ages = machine.open(dir.path(), UTC, None, 1);
            ages.begin(1, UTC).unwrap();
            machine.seconds.store(1060, SeqCst);
            ages.begin(2, UTC + 60 * S + step).unwrap();
            assert_eq!(ages.at(Duration::from_secs(1030)), ages.now_ns() - 30 * S);
            machine.seconds.store(1100, SeqCst);
            let ages =
                machine.open(dir.path(), UTC + 100 * S, Some(newest(2, UTC + step + 70 * S)), 3);
            let age = |number, last| (ages.now_ns() - ages.of_found(number, last)) / S;
            assert_eq!(age(1, UTC + 50 * S), 50, "{step}");
            assert_eq!(age(2, UTC + step + 70 * S), 30, "{step}");
        }
    }

    #[test]
    fn over_a_restart_of_the_machine_only_a_clock_that_is_kept_right_counts() {
        for (before, after, age) in
            [(true, true, 86_400), (false, true, 5), (true, false, 5), (false, false, 5)]
        {
            let dir = tempfile::tempdir().unwrap();
            let mut machine = Machine::new("a", 1000);
            machine.is_synchronised = before;
            drop(machine.open(dir.path(), UTC, None, 1));
            // Five seconds ago the machine was started.
            let mut machine = Machine::new("b", 5);
            machine.is_synchronised = after;
            let ages = machine.open(dir.path(), UTC + 86_400 * S, Some(newest(1, UTC)), 2);
            assert_eq!((ages.now_ns() - ages.of_found(1, UTC)) / S, age, "{before} {after}");
        }
    }

    #[test]
    fn a_clock_that_becomes_right_is_believed_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = Machine::new("a", 1000);
        machine.is_synchronised = false;
        drop(machine.open(dir.path(), UTC, None, 1));
        machine.is_synchronised = true;
        let mut ages = machine.open(dir.path(), UTC, None, 1);
        ages.begin(1, UTC).unwrap();
        let ages = Machine::new("b", 5).open(dir.path(), UTC + 86_400 * S, Some(newest(1, UTC)), 2);
        assert_eq!((ages.now_ns() - ages.of_found(1, UTC)) / S, 86_400);
    }

    #[test]
    fn nothing_is_from_the_future_and_nothing_known_is_the_clocks_word() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::new("a", 1000);
        let ages = machine.open(dir.path(), UTC, Some(newest(9, UTC - 60 * S)), 10);
        assert_eq!(ages.now_ns() - ages.of_found(9, UTC - 60 * S), 60 * S);
        assert_eq!(ages.now_ns() - ages.of_found(8, UTC + YEARS), 0);
    }
}
