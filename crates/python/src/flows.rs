//! Rows of flows as columns: the flow table of each closed segment, as `tapdeck flows` makes it,
//! and of capture files of other programs, which that does not take.
//!
//! Names, types and order of columns are those of the Parquet files, so that rows of both go into
//! one table. Rows of capture files point nowhere: their segment is the path that was asked,
//! `offset` and `span` are 0.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use tapdeck_flow::{COLUMNS, FlowTable, Row, Rows, Values, put_address};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::printable::{count, counted};
use tapdeck_store::SegmentName;
use tapdeck_store::choice::{Choice, Wanted};
use tapdeck_store::filter::Filter;
use tapdeck_store::io::{Directory, Storage};
use tapdeck_store::query::{Error, Matcher, Note, Query, Search, Snapshot, Span};
use tapdeck_store::walk::{Step, Walk, closed};

use crate::answer::{End, Failure};
use crate::place;
use crate::worker::Outlet;

/// Rows of a batch, at most.
const MOST_ROWS: usize = 1 << 16;
/// Packets of capture files that lie between two looks at the memory that their flows take.
const STRETCH: u64 = 4096;

/// What is asked for.
pub struct Question {
    pub path: PathBuf,
    /// An expression as pcap-filter(7) has them; empty takes every packet.
    pub expression: String,
    pub span: Span,
    pub sensor: String,
    /// The directory of indexes that are not beside their files.
    pub cache: Option<PathBuf>,
}

/// Returns the columns of rows.
pub fn schema() -> SchemaRef {
    let time = || DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let field = |(name, values): &(&str, Values)| {
        let (of, is_nullable) = match values {
            Values::Sensor | Values::Segment => (DataType::Utf8, false),
            Values::Time(_) => (time(), false),
            Values::Number(_) => (DataType::Int64, false),
            Values::Small(_) => (DataType::Int32, false),
            Values::Tiny(_) => (DataType::Int8, false),
            Values::MaybeNumber(_) => (DataType::Int64, true),
            Values::MaybeSmall(_) => (DataType::Int32, true),
            Values::MaybeShort(_) => (DataType::Int16, true),
            Values::Address(_) => (DataType::Utf8, true),
            Values::Runs => (DataType::Binary, true),
        };
        Field::new(*name, of, is_nullable)
    };
    Arc::new(Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>()))
}

/// Makes the answer to a question.
pub fn answer(question: &Question, outlet: &mut Outlet) -> Result<End, Failure> {
    let Question { path, span, .. } = question;
    if place::is_elsewhere(path) {
        let store = place::elsewhere(path, &outlet.left)?;
        let snapshot = Snapshot::open_in(&store, *span)?;
        return of_store(question, &*store, &snapshot, outlet);
    }
    match Snapshot::open(path, *span) {
        Err(Error::NotAStore(_) | Error::NotADirectory(_)) => {
            match of_captures(question, outlet, false) {
                // That turns out before the first packet.
                Err(Failure::Store(Error::LateInterface(_))) => of_captures(question, outlet, true),
                done => done,
            }
        }
        snapshot => of_store(question, &Directory::new(path), &snapshot?, outlet),
    }
}

/// Makes rows of each closed segment.
fn of_store(
    question: &Question,
    store: &dyn Storage,
    snapshot: &Snapshot,
    outlet: &mut Outlet,
) -> Result<End, Failure> {
    let expression = &question.expression;
    // A segment has packets of no other link types.
    let links = [LinkType::ETHERNET, LinkType::RAW];
    let filter = Filter::for_links(expression, links, false)?;
    outlet.begin()?;
    let mut end = End::default();
    end.add_notes(snapshot.notes().iter().cloned());
    end.unseen = snapshot.unseen().iter().map(|missing| missing.packets).sum();
    let names = closed(snapshot);
    let live = snapshot.segments().0 - names.len();
    if live > 0 {
        let live = counted(live as u64, "segment");
        end.faults.push(format!("rows are of closed segments, and {live} here may still grow"));
    }
    let mut told = 0;
    for name in &names {
        told += of_segment(question, &filter, store, name, outlet, &mut end)?;
    }
    if question.span == Span::ALL {
        // A loss that no packet came after stands in the statistics only.
        end.dropped = end.dropped.max(told);
    }
    Ok(end)
}

/// Makes rows of a segment. Returns how many packets were lost as its statistics tell.
fn of_segment(
    question: &Question,
    filter: &Filter,
    store: &dyn Storage,
    name: &SegmentName,
    outlet: &Outlet,
    end: &mut End,
) -> Result<u64, Failure> {
    let failed = |why| Failure::Segment { path: store.location(name.to_string().as_ref()), why };
    let mut walk = match Walk::open(store, name) {
        Ok(Some(walk)) => walk,
        Ok(None) => return Ok(0),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            end.add_notes([Note::Deleted(name.to_string())]);
            return Ok(0);
        }
        Err(e) => return Err(failed(e)),
    };
    let segment = name.stem();
    let mut table = FlowTable::new(walk.is_indexed());
    let (mut lost, mut packets) = (0, 0);
    walk.run(|step| -> Result<(), Stop> {
        match step {
            Step::Packet(packet) => {
                lost += packet.dropped;
                if question.span.contains(packet.time_ns) {
                    end.dropped += packet.dropped;
                    if filter.matches(&packet) {
                        packets += 1;
                        let (link, len) = (packet.link, packet.original_len);
                        table.packet(link, packet.frame, len, packet.time_ns);
                    }
                }
            }
            Step::GranuleEnd(place) => {
                if outlet.left.is_set() {
                    return Err(Stop::Answer(Failure::Left));
                }
                table.end_granule(place, std::mem::take(&mut lost));
                if table.is_full() {
                    hand_on(question, &segment, table.take(), outlet, end)?;
                }
            }
        }
        Ok(())
    })
    .map_err(|stop| match stop {
        Stop::Reading(e) => failed(e),
        Stop::Answer(failure) => failure,
    })?;
    hand_on(question, &segment, table.finish(), outlet, end)?;
    let notes = walk.take_notes();
    let is_of_all = question.span == Span::ALL && question.expression.is_empty();
    let is_whole = is_of_all && !notes.iter().any(Note::is_fault);
    if let Some(told) = walk.packets_told().filter(|told| is_whole && *told != packets) {
        let packets = counted(packets, "packet");
        let told = count(told);
        end.faults.push(format!("{name}: its rows have {packets}, its statistics tell of {told}"));
    }
    end.add_notes(notes);
    Ok(walk.dropped_told().unwrap_or(0))
}

/// Why a segment is not read on.
enum Stop {
    Reading(io::Error),
    Answer(Failure),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Self::Reading(e)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Answer(failure)
    }
}

/// Makes rows of capture files of other programs.
fn of_captures(question: &Question, outlet: &mut Outlet, whole: bool) -> Result<End, Failure> {
    let Question { path, expression, span, cache, .. } = question;
    let search = Search { whole, cache: cache.as_deref(), ignores_indexes: false };
    let snapshot = Snapshot::open_any(path, *span, search)?;
    let wanted = Wanted { expression: expression.clone(), ..Wanted::default() };
    let choice = Choice::new(&wanted, snapshot.interfaces())?;
    outlet.begin()?;
    let mut query = Query::new(snapshot, *span, choice.plan().clone(), choice);
    let (segment, mut end) = (path.display().to_string(), End::default());
    let (mut table, mut packets, mut lost) = (FlowTable::new(false), 0, 0);
    loop {
        let found = query.find_next(|_| !outlet.left.is_set())?;
        if outlet.left.is_set() {
            return Err(Failure::Left);
        }
        if let Some(packet) = query.packet() {
            lost += packet.dropped;
            table.packet(packet.link, packet.frame, packet.original_len, packet.time_ns);
            packets += 1;
        }
        if found.is_none() || packets % STRETCH == 0 {
            table.end_granule(0..0, std::mem::take(&mut lost));
        }
        let rows = match found {
            None => table.finish(),
            Some(_) if packets % STRETCH == 0 && table.is_full() => table.take(),
            Some(_) => continue,
        };
        hand_on(question, &segment, rows, outlet, &mut end)?;
        if found.is_none() {
            break;
        }
    }
    end.dropped = query.progress().dropped;
    end.unseen = query.unseen().iter().map(|missing| missing.packets).sum();
    end.add_notes(query.take_notes());
    Ok(end)
}

/// Hands rows on, in batches.
fn hand_on(
    question: &Question,
    segment: &str,
    rows: &Rows,
    outlet: &Outlet,
    end: &mut End,
) -> Result<(), Failure> {
    for part in rows.rows.chunks(MOST_ROWS) {
        end.rows += part.len() as u64;
        let column =
            |(_, values): &(&str, Values)| column(*values, part, rows, &question.sensor, segment);
        outlet.batch(RecordBatch::try_new(schema(), COLUMNS.iter().map(column).collect())?)?;
    }
    Ok(())
}

/// Makes a column of rows, which are some of `of`.
fn column(values: Values, rows: &[Row], of: &Rows, sensor: &str, segment: &str) -> ArrayRef {
    let same =
        |text: &str| Arc::new(StringArray::from_iter_values(std::iter::repeat_n(text, rows.len())));
    match values {
        Values::Sensor => same(sensor),
        Values::Segment => same(segment),
        Values::Time(value) => {
            let times = TimestampMicrosecondArray::from_iter_values(rows.iter().map(value));
            Arc::new(times.with_timezone("UTC"))
        }
        Values::Number(value) => Arc::new(Int64Array::from_iter_values(rows.iter().map(value))),
        Values::Small(value) => Arc::new(Int32Array::from_iter_values(rows.iter().map(value))),
        Values::Tiny(value) => {
            Arc::new(Int8Array::from_iter_values(rows.iter().map(|row| value(row) as i8)))
        }
        Values::MaybeNumber(value) => Arc::new(rows.iter().map(value).collect::<Int64Array>()),
        Values::MaybeSmall(value) => Arc::new(rows.iter().map(value).collect::<Int32Array>()),
        Values::MaybeShort(value) => {
            let short = |row| value(row).map(|n| n as i16);
            Arc::new(rows.iter().map(short).collect::<Int16Array>())
        }
        Values::Address(value) => {
            let (mut texts, mut text) = (StringBuilder::new(), Vec::new());
            for row in rows {
                text.clear();
                let address = value(row).map(|address| put_address(&mut text, address));
                texts.append_option(address.and_then(|()| std::str::from_utf8(&text).ok()));
            }
            Arc::new(texts.finish())
        }
        Values::Runs => {
            let mut lists = BinaryBuilder::new();
            for row in rows {
                lists.append_option(of.runs(row));
            }
            Arc::new(lists.finish())
        }
    }
}
