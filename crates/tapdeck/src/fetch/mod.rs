//! `tapdeck fetch`: the packets behind rows of flow tables.
//!
//! A row says in which segment its packets lie and in which granules ([`Pointer`]), and its key
//! decides which of the packets there they are ([`Chooser`]). This module reads rows, sorts them by
//! segment, and says where the answer is incomplete; [`merge`] reads the segments.
//!
//! A store in a directory is read by this program alone; one elsewhere as any other command reads
//! it ([`crate::place`]).
//!
//! [`Chooser`]: tapdeck_flow::Chooser

mod merge;
mod segment;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{
    self, BufReader, Cursor, ErrorKind, IsTerminal as _, Read, Seek as _, stderr, stdin,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use tapdeck_flow::{
    ARROW_FILE, ARROW_STREAM, Pointer, PointerError, pointers, pointers_of_arrow_file,
    pointers_of_arrow_stream, pointers_of_lines,
};
use tapdeck_packet::printable;
use tapdeck_store::SegmentName;
use tapdeck_store::io::Storage;

use crate::interrupt::Interrupt;
use crate::progress_line::say;
use crate::query::Output;
use crate::units::{counted, show_count};
use crate::usage::usage;
use crate::{flags, place};
use merge::Merge;
use segment::Segment;

/// Rows that are fetched at a time, at most. Each takes some 300 bytes.
const MOST_ROWS: usize = 1_000_000;
/// Stores elsewhere that rows may lead to. Each is read by a process of its own.
const MOST_ELSEWHERE: usize = 64;
/// What a file begins with that is Parquet.
const PARQUET: &[u8] = b"PAR1";
/// How many bytes of a file say what it is.
const FIRST: u64 = 6;
/// What stands for a row's sensor in the name of a store.
const SENSOR: &str = "{sensor}";

pub fn run(flags: &flags::Fetch) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let rows = Rows::read(flags)?;
    crate::query::yield_to_recorder();
    let segments = rows.by_segment(flags, &interrupt)?;
    let question =
        flags::Query { write: Some(flags.write.clone()), ..flags::Query::of(PathBuf::new()) };
    let mut output = Output::open(&question, None)?;
    let cannot = format!("cannot write {}", output.name);
    output.begin(&rows.comment(flags), &[]).with_context(|| cannot.clone())?;
    let mut merge = Merge::new(segments);
    let mut packets = 0;
    loop {
        let packet = match merge.next_packet(&interrupt) {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // What was waited for does not matter any more.
            Err(_) if interrupt.asked() => break,
            Err(e) => return Err(e),
        };
        if let Some(described) = packet.described {
            output.describe(std::slice::from_ref(described)).with_context(|| cannot.clone())?;
        }
        output.packet("", &packet.packet).with_context(|| cannot.clone())?;
        packets += 1;
    }
    output.flush().with_context(|| cannot.clone())?;
    if interrupt.asked() {
        say(&format!("stopped by a signal: {}", counted(packets, "packet")));
        interrupt.heard();
        return Ok(());
    }
    let faults = merge.tell();
    if stderr().is_terminal() {
        let rows = counted(rows.pointers.len() as u64, "row");
        say(&format!("{} of {rows}", counted(packets, "packet")));
    }
    ensure!(faults == 0, "the answer is not whole, as said above");
    Ok(())
}

/// The rows of all flow tables that are asked for.
struct Rows {
    /// Each row with the store that it leads to.
    pointers: Vec<(String, Pointer)>,
}

impl Rows {
    fn read(flags: &flags::Fetch) -> Result<Self> {
        let mut rows = Self { pointers: Vec::new() };
        for file in &flags.flows {
            let name = file.display();
            if file.as_os_str() == "-" {
                let mut from = stdin().lock();
                let first = first(&mut from).with_context(|| format!("cannot read {name}"))?;
                if is_sought(&first) {
                    return usage(
                        "--flows -: files of Parquet and of Arrow are given by their names; what comes here are streams of Arrow, or JSON lines",
                    );
                }
                rows.add_from_front(flags, file, first, from)?;
                continue;
            }
            let mut open = match File::open(file) {
                Err(e) if e.kind() == ErrorKind::NotFound => bail!("{name} does not exist"),
                open => open.with_context(|| format!("cannot open {name}"))?,
            };
            let cannot = || format!("cannot read {name}");
            let first = first(&mut open).with_context(cannot)?;
            if !is_sought(&first) {
                rows.add_from_front(flags, file, first, open)?;
                continue;
            }
            open.rewind().with_context(|| {
                format!("cannot read {name} twice: a pipe takes streams of Arrow and JSON lines, and no files of Parquet or Arrow")
            })?;
            if first.starts_with(PARQUET) {
                rows.add(flags, file, pointers(open, MOST_ROWS).with_context(cannot)?)?;
            } else {
                rows.add(flags, file, pointers_of_arrow_file(open).with_context(cannot)?)?;
            }
        }
        Ok(rows)
    }

    /// Adds rows that are read from the front, of which the first bytes have been.
    fn add_from_front(
        &mut self,
        flags: &flags::Fetch,
        file: &Path,
        first: Vec<u8>,
        rest: impl Read,
    ) -> Result<()> {
        let is_arrow = first.starts_with(ARROW_STREAM);
        let from = BufReader::new(Cursor::new(first).chain(rest));
        if is_arrow {
            let rows = pointers_of_arrow_stream(from);
            let rows = rows.with_context(|| format!("cannot read {}", file.display()))?;
            return self.add(flags, file, rows);
        }
        self.add(flags, file, pointers_of_lines(from))
    }

    fn add(
        &mut self,
        flags: &flags::Fetch,
        file: &Path,
        rows: impl Iterator<Item = Result<Pointer, PointerError>>,
    ) -> Result<()> {
        let name = file.display();
        for (number, row) in (1_u64..).zip(rows) {
            let pointer = row.with_context(|| format!("{name}, row {}", show_count(number)))?;
            if self.pointers.len() == MOST_ROWS {
                return usage(format!(
                    "{name}: more than {} rows: select fewer",
                    show_count(MOST_ROWS as u64)
                ));
            }
            let store = store_of(flags, file, &pointer)?;
            self.pointers.push((store, pointer));
        }
        Ok(())
    }

    /// Returns the comment of the answer's section header.
    fn comment(&self, flags: &flags::Fetch) -> String {
        let files: Vec<String> =
            flags.flows.iter().map(|file| file.display().to_string()).collect();
        let rows = counted(self.pointers.len() as u64, "row");
        let store = flags.store.as_ref().map(|store| format!(" in {store}")).unwrap_or_default();
        format!("behind {rows} of {}{store}", files.join(" and "))
    }

    /// Opens the stores, and sorts the rows by their segments.
    fn by_segment(&self, flags: &flags::Fetch, interrupt: &Interrupt) -> Result<Vec<Segment<'_>>> {
        let mut by_place: BTreeMap<(&str, SegmentName), Vec<&Pointer>> = BTreeMap::new();
        for (store, pointer) in &self.pointers {
            let name = SegmentName::parse(&format!("{}.pcapng", pointer.segment));
            let Some(name) = name else {
                let shown = printable::name(&pointer.segment);
                return usage(format!("{shown} is no segment's name, and a row leads to it"));
            };
            by_place.entry((store, name)).or_default().push(pointer);
        }
        let elsewhere: BTreeSet<&str> = by_place
            .keys()
            .map(|(store, _)| *store)
            .filter(|store| place::is_elsewhere(Path::new(store)))
            .collect();
        if elsewhere.len() > MOST_ELSEWHERE {
            return usage(format!(
                "rows lead to {}, and at most {MOST_ELSEWHERE} stores elsewhere are read at a time: select fewer",
                show_count(elsewhere.len() as u64)
            ));
        }
        let mut stores: BTreeMap<&str, Arc<dyn Storage>> = BTreeMap::new();
        let mut segments = Vec::new();
        for ((store, name), pointers) in by_place {
            let storage = if let Some(storage) = stores.get(store) {
                storage.clone()
            } else {
                let storage = place::open(Path::new(store), &flags.shown, Some(interrupt))?;
                stores.insert(store, storage.clone());
                storage
            };
            segments.push(Segment::new(storage, name, pointers));
        }
        Ok(segments)
    }
}

/// Whether what begins so has contents at its end that say where its rows are.
fn is_sought(first: &[u8]) -> bool {
    first.starts_with(PARQUET) || first.starts_with(ARROW_FILE)
}

/// Reads the bytes that say what a file is; fewer where it has no more.
fn first(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut first = Vec::new();
    from.take(FIRST).read_to_end(&mut first)?;
    Ok(first)
}

/// Returns which store a row leads to.
fn store_of(flags: &flags::Fetch, file: &Path, pointer: &Pointer) -> Result<String> {
    let Some(store) = &flags.store else {
        if file.as_os_str() == "-" {
            return usage("--store: rows on standard input do not say where their store is");
        }
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
        return Ok(dir.unwrap_or(Path::new(".")).display().to_string());
    };
    if !store.contains(SENSOR) {
        return Ok(store.clone());
    }
    // A row shall not lead out of where its store is.
    let sensor = &pointer.sensor;
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if sensor.is_empty() || sensor.starts_with('.') || !sensor.chars().all(is_fit) {
        let shown = printable::name(sensor);
        return usage(format!(
            "--store {store}: a row's sensor is {shown:?}, which is no name there"
        ));
    }
    Ok(store.replace(SENSOR, sensor))
}
