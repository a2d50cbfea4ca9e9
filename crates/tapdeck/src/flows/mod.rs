//! `tapdeck flows`: flow tables of a store's closed segments.
//!
//! `tapdeck_store::walk` reads a segment, `tapdeck_flow` makes rows of its packets; here they meet,
//! and files get their names. With `--watch` that goes on as segments are closed.

mod files;
mod watch;

use std::io::{ErrorKind, IsTerminal, stderr};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tapdeck_flow::{FlowTable, Rows};
use tapdeck_packet::link::LinkType;
use tapdeck_store::io::{Directory, Storage};
use tapdeck_store::query::{Matcher, Note, Snapshot, Span};
use tapdeck_store::walk::{Listing, Step, Walk, closed};
use tapdeck_store::{SegmentName, Shed};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::progress_line::{ProgressLine, say};
use crate::query::time;
use crate::units::{counted, show_bytes, show_count};
use files::{SegmentFiles, Tables};
use tapdeck_store::filter::Filter;

pub fn run(flags: &flags::Flows) -> Result<()> {
    let question = Question::new(flags)?;
    let interrupt = Interrupt::listen()?;
    crate::query::yield_to_recorder();
    let snapshot = Snapshot::open(&flags.dir, question.span)?;
    let tables = Tables::open(&flags.out, flags.format)?;
    let store = Directory::new(&flags.dir);
    if flags.watch {
        // Damage in a closed segment is told when its files are made.
        let is_later = |note: &&Note| match note {
            Note::Damaged { segment, .. } => SegmentName::parse(segment).is_some_and(|n| !n.live),
            _ => false,
        };
        let notes = snapshot.notes().iter().filter(|note| !is_later(note)).cloned();
        let faults = tell(&notes.collect::<Vec<_>>());
        return watch::run(&store, &question, &tables, &interrupt, faults);
    }
    let names = closed(&snapshot);
    let mut total = Made::default();
    let mut faults = tell(snapshot.notes());
    for (done, name) in names.iter().enumerate() {
        let mut progress = ProgressLine::new();
        let mut watch = |read: u64| {
            progress.show(|| format!("{done} of {} segments, {}", names.len(), show_bytes(read)));
            ensure!(
                !interrupt.asked(),
                "stopped by a signal after {}",
                counted(done as u64, "segment")
            );
            Ok(())
        };
        let made = make(&store, name, &question, &tables, &mut watch)?;
        drop(progress);
        let Some(made) = made else {
            let is_mended = Listing::read(&store)?.numbers.contains(&name.number);
            if is_mended {
                say(&format!("{name} is being mended, and has no flow table yet"));
            } else {
                say(&Note::Deleted(name.to_string()).to_string());
            }
            faults += usize::from(is_mended);
            continue;
        };
        faults += made.tell(name);
        total.packets += made.packets;
        total.rows += made.rows;
        total.files += made.files;
    }
    if stderr().is_terminal() {
        let parts = [(total.packets, "packet"), (total.rows, "row"), (total.files, "file")];
        say(&parts.map(|(n, one)| counted(n, one)).join(", "));
    }
    verdict(faults)
}

/// Tells notes on standard error. Returns how many of them mean that packets are missing.
fn tell(notes: &[Note]) -> usize {
    for note in notes {
        say(&note.to_string());
    }
    notes.iter().filter(|note| note.is_fault()).count()
}

fn verdict(faults: usize) -> Result<()> {
    ensure!(faults == 0, "not every packet of the store is in a row, as said above");
    Ok(())
}

/// What rows are made of, and what all of them have in common.
struct Question {
    span: Span,
    filter: Option<Filter>,
    sensor: String,
}

impl Question {
    fn new(flags: &flags::Flows) -> Result<Self> {
        let expression = flags.expression.join(" ");
        // A segment has packets of no other link types.
        let links = [LinkType::ETHERNET, LinkType::RAW];
        let filter = (!expression.is_empty()).then(|| Filter::for_links(&expression, links, false));
        let this_machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Self {
            span: time::span(flags.after, flags.before)?,
            filter: filter.transpose()?,
            sensor: flags.sensor.clone().unwrap_or_else(this_machine),
        })
    }

    /// Whether rows are made of all packets.
    fn is_of_all(&self) -> bool {
        self.span == Span::ALL && self.filter.is_none()
    }
}

/// What the first file of a segment says of it, for whoever has the files alone.
#[derive(Serialize)]
struct Told<'a> {
    sensor: &'a str,
    segment: String,
    /// Files that hold the segment's rows, and how many rows and packets they have.
    files: u64,
    rows: u64,
    packets_in_rows: u64,
    /// Packets in the segment as its statistics tell; null without statistics.
    packets: Option<u64>,
    /// When the segment began and ended, UTC nanoseconds; null without statistics.
    began_ns: Option<u64>,
    ended_ns: Option<u64>,
    lost: u64,
    unseen: u64,
    cutoff: u64,
    bytes_cutoff: u64,
    shed_packets: u64,
    shed_bytes: u64,
}

impl<'a> Told<'a> {
    fn new(walk: &Walk, (sensor, segment): (&'a str, String), made: &Made, shed: Shed) -> Self {
        let account = walk.account();
        let (began_ns, ended_ns) = account.times_ns.unzip();
        Self {
            sensor,
            segment,
            files: made.files,
            rows: made.rows,
            packets_in_rows: made.packets,
            packets: account.packets,
            began_ns,
            ended_ns,
            lost: account.lost,
            unseen: account.unseen,
            cutoff: account.cut.packets,
            bytes_cutoff: account.cut.bytes,
            shed_packets: shed.packets,
            shed_bytes: shed.bytes,
        }
    }
}

/// What was made of a segment.
#[derive(Default)]
struct Made {
    packets: u64,
    rows: u64,
    files: u64,
    notes: Vec<Note>,
    /// How many packets the segment's statistics tell, if rows should have as many and have not.
    told: Option<u64>,
}

impl Made {
    /// Tells what the user should know. Returns how many times packets are missing.
    fn tell(&self, name: &SegmentName) -> usize {
        tell(&self.notes) + usize::from(self.tell_difference(name))
    }

    /// Tells where rows and statistics differ. Returns whether they do.
    fn tell_difference(&self, name: &SegmentName) -> bool {
        let Some(told) = self.told else { return false };
        let (rows, told) = (counted(self.packets, "packet"), show_count(told));
        say(&format!("{name}: its rows have {rows}, and its statistics tell of {told}"));
        true
    }
}

/// Makes the files of a segment; `None` where that is gone.
fn make(
    store: &dyn Storage,
    name: &SegmentName,
    question: &Question,
    tables: &Tables,
    watch: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<Made>> {
    let cannot = || format!("cannot read {}", store.location(name.to_string().as_ref()).display());
    let mut walk = match Walk::open(store, name) {
        Ok(Some(walk)) => walk,
        Ok(None) => return Ok(Some(Made::default())),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(cannot),
    };
    let mut files = SegmentFiles::new(tables, name, &question.sensor);
    let mut made = Made::default();
    let mut table = FlowTable::new(walk.is_indexed());
    let mut lost = 0;
    let mut shed = Shed::default();
    let mut put = |rows: &Rows, files: &mut SegmentFiles<'_>| -> Result<()> {
        made.packets += rows.rows.iter().map(|row| row.packets[0] + row.packets[1]).sum::<u64>();
        made.rows += files.write(rows)?;
        Ok(())
    };
    walk.run(|step| -> Result<()> {
        match step {
            Step::Packet(packet) => {
                lost += packet.dropped;
                shed.add_packet(packet.shed);
                let matches = || question.filter.as_ref().is_none_or(|f| f.matches(&packet));
                if question.span.contains(packet.time_ns) && matches() {
                    let (link, len) = (packet.link, packet.original_len);
                    table.packet(link, packet.frame, len, packet.time_ns);
                }
            }
            Step::GranuleEnd(place) => {
                watch(place.end)?;
                table.end_granule(place, std::mem::take(&mut lost));
                if table.is_full() {
                    put(table.take(), &mut files)?;
                }
            }
        }
        Ok(())
    })
    .with_context(cannot)?;
    put(table.finish(), &mut files)?;
    made.notes = walk.take_notes();
    made.files = files.count();
    let whose = (&*question.sensor, name.stem());
    let told = question.is_of_all().then(|| Told::new(&walk, whose, &made, shed));
    files.finish(told.map(|told| serde_json::to_string(&told)).transpose()?.as_deref())?;
    let is_whole = question.is_of_all() && !made.notes.iter().any(Note::is_fault);
    made.told = walk.packets_told().filter(|told| is_whole && *told != made.packets);
    Ok(Some(made))
}
