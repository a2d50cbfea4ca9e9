//! What is in the store, and who talked in its last minute? Read on a thread of its own, at the
//! lowest priority.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tapdeck_packet::header::innermost::InnermostReader;
use tapdeck_store::io::{Directory, Storage};
use tapdeck_store::query::Span;
use tapdeck_store::recent::Recent;
use tapdeck_store::stat::{Question, Rate, Report, stat_in};

use super::board::Board;
use super::tally::{Sums, Tally};

/// What is told of flows and hosts: so many seconds.
const WINDOW_S: i64 = 60;
/// How long it takes at least until the whole store is looked at again.
const WHOLE_AGAIN: Duration = Duration::from_secs(10);
/// Reading takes one part in so many of the time, or less: of the last minute, of the whole store.
const REST: u32 = 4;
const REST_WHOLE: u32 = 20;

/// What a store holds.
pub struct Whole {
    pub segments: u64,
    pub packets: u64,
    pub bytes: u64,
    pub index_bytes: u64,
    /// First and last packet, UTC nanoseconds.
    pub times: Option<(i64, i64)>,
    pub lost: u64,
    pub unseen: u64,
    pub rate: Rate,
}

impl Whole {
    fn new(report: Report) -> Self {
        Self {
            segments: report.segments,
            packets: report.packets,
            bytes: report.bytes_stored,
            index_bytes: report.index_bytes,
            times: report.times,
            lost: report.gaps.lost(),
            unseen: report.unseen.iter().map(|missing| missing.packets).sum(),
            rate: report.rate,
        }
    }
}

/// The last minute of a store.
pub struct Minute {
    pub sums: Sums,
    /// How many seconds it has: fewer where the recording is young.
    pub seconds: f64,
    /// When it ends, UTC nanoseconds.
    pub to_ns: i64,
    /// Bytes that are not in the sums, because the index is behind.
    pub unread_bytes: u64,
    /// Why something is not in the sums.
    pub fault: Option<String>,
}

/// A store that is looked at again and again.
pub struct StoreReader {
    storage: Arc<dyn Storage>,
    recent: Recent<Tally>,
    packets: InnermostReader,
    /// When the whole was looked at, and how long that took.
    looked: Option<(Instant, Duration)>,
    times: Option<(i64, i64)>,
}

impl StoreReader {
    pub fn new(dir: &Path) -> Self {
        let storage: Arc<dyn Storage> = Arc::new(Directory::new(dir));
        let (recent, packets) = (Recent::new(storage.clone()), InnermostReader::new());
        Self { storage, recent, packets, looked: None, times: None }
    }

    /// Looks, and puts up what there is.
    pub fn look(&mut self, board: &Board) -> Result<()> {
        let is_due =
            |(at, took): (Instant, Duration)| at.elapsed() > WHOLE_AGAIN.max(took * REST_WHOLE);
        if self.looked.is_none_or(is_due) {
            let began = Instant::now();
            let question = Question { span: Span::ALL, top: 0 };
            let whole = Whole::new(stat_in(&self.storage, question, |_, _| true)?);
            self.looked = Some((Instant::now(), began.elapsed()));
            self.times = whole.times;
            board.store_is(whole);
        }
        // While a recorder runs the minute ends now, though nothing may come.
        let to_ns = if board.is_recording() { now_ns() } else { self.times.map_or(0, |t| t.1) };
        let minute = self.minute(to_ns)?;
        board.minute_is(minute);
        Ok(())
    }

    fn minute(&mut self, to_ns: i64) -> Result<Minute> {
        let to_s = to_ns.div_euclid(1_000_000_000);
        let from_s = to_s.saturating_sub(WINDOW_S - 1);
        let span = Span { after_ns: from_s.saturating_mul(1_000_000_000), ..Span::ALL };
        let packets = &mut self.packets;
        let look = self.recent.look(span, |tally, packet| tally.add(packets, packet))?;
        let span = look.span;
        let from_s = from_s.max(span.after_ns.div_euclid(1_000_000_000));
        let sums = Sums::of(self.recent.pieces(span), from_s, to_s);
        let first_ns = self.times.map_or(span.after_ns, |times| times.0.max(span.after_ns));
        let seconds = (to_ns.saturating_sub(first_ns) as f64 / 1e9).clamp(1.0, WINDOW_S as f64);
        let fault = look.faults.into_iter().next();
        Ok(Minute { sums, seconds, to_ns, unread_bytes: look.unread_bytes, fault })
    }

    /// Looks for ever.
    pub fn run(mut self, board: &Board, interval: Duration) {
        crate::query::yield_to_recorder();
        loop {
            let began = Instant::now();
            if let Err(e) = self.look(board) {
                board.store_fails(&format!("{e:#}"));
            }
            std::thread::sleep(interval.max(began.elapsed() * REST));
        }
    }
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
