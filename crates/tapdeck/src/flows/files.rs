//! The files of one segment. As Parquet: `STEM.parquet` of the first day it has packets of, and
//! `STEM-YYYY-MM-DD.parquet` of each later one; as lines one file.
//!
//! A file has another name until it is whole and durable, and the first gets its own last: so where
//! that is, all of the segment's files are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, OFlags, flock};
use tapdeck_flow::{LineFile, LineForm, ParquetFile, Row, Rows};
use tapdeck_store::SegmentName;

use crate::flags::FlowsFormat;

/// The most days that one segment may have packets of, since each has a file that is open.
const MOST_DAYS: usize = 400;
/// How the name of a file ends that is not whole.
const DRAFT: &str = ".new";

/// A directory of flow tables, which one process writes at a time.
pub struct Tables {
    dir: PathBuf,
    format: FlowsFormat,
    /// The directory, which is locked as long as it is open.
    open: File,
}

impl Tables {
    /// Opens a directory, making it if need be. What a process left there that was killed is
    /// removed.
    pub fn open(dir: &Path, format: FlowsFormat) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let open = File::open(dir).with_context(|| cannot_write(dir))?;
        ensure!(
            flock(&open, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "{} is being written by another process: name another directory",
            dir.display()
        );
        let tables = Self { dir: dir.to_owned(), format, open };
        for name in tables.list()?.iter().filter(|name| is_draft(name)) {
            let path = dir.join(name);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(tables)
    }

    /// Returns the names of segments that have all their files, by their stems.
    pub fn done(&self) -> Result<BTreeSet<String>> {
        let ending = ending(self.format);
        let names = self.list()?;
        let stems = names.iter().filter_map(|name| name.strip_suffix(ending));
        Ok(stems.filter(|stem| segment_named(stem).is_some()).map(str::to_owned).collect())
    }

    /// Lists the files whose names are text.
    fn list(&self) -> Result<Vec<String>> {
        let cannot = || format!("cannot list {}", self.dir.display());
        let mut names = Vec::new();
        for entry in self.dir.read_dir().with_context(cannot)? {
            names.extend(entry.with_context(cannot)?.file_name().into_string().ok());
        }
        Ok(names)
    }
}

/// Returns the closed segment with a stem.
pub fn segment_named(stem: &str) -> Option<SegmentName> {
    SegmentName::parse(&format!("{stem}.pcapng"))
}

/// Whether a name is one that [`SegmentFiles`] gives a file that is not whole.
fn is_draft(name: &str) -> bool {
    let parts = name.strip_prefix('.').and_then(|name| name.strip_suffix(DRAFT));
    FlowsFormat::value_variants().iter().any(|format| {
        let name = parts.and_then(|name| name.strip_suffix(ending(*format)));
        let parts = name.and_then(|name| name.split_at_checked(name.rfind(['+', '-'])?));
        parts.is_some_and(|(stem, day)| {
            let number = day.parse::<i32>();
            segment_named(stem).is_some() && number.is_ok_and(|number| format!("{number:+}") == day)
        })
    })
}

const fn ending(format: FlowsFormat) -> &'static str {
    match format {
        FlowsFormat::Parquet => ".parquet",
        FlowsFormat::Zeek => ".conn.log",
        FlowsFormat::ZeekJson => ".conn.json",
        FlowsFormat::Eve => ".eve.json",
    }
}

/// The files of a segment while they are written. What is not finished is removed.
pub struct SegmentFiles<'a> {
    tables: &'a Tables,
    stem: String,
    sensor: &'a str,
    days: BTreeMap<i32, Draft>,
}

/// A file that has no name of its own yet.
struct Draft {
    path: PathBuf,
    writer: Option<Writer>,
}

enum Writer {
    Parquet(Box<ParquetFile<BufWriter<File>>>),
    Lines(LineFile<BufWriter<File>>),
}

impl<'a> SegmentFiles<'a> {
    pub fn new(tables: &'a Tables, name: &SegmentName, sensor: &'a str) -> Self {
        Self { tables, stem: name.stem(), sensor, days: BTreeMap::new() }
    }

    /// Writes rows, each into the file of its day where days have files of their own. Returns how
    /// many were written.
    pub fn write(&mut self, rows: &Rows) -> Result<u64> {
        let mut written = 0;
        for (day, of_day) in rows.days() {
            let has_days = self.tables.format == FlowsFormat::Parquet;
            let draft = self.draft(if has_days { day } else { 0 })?;
            written += draft.write(of_day, rows).with_context(|| cannot_write(&draft.path))?;
        }
        Ok(written)
    }

    fn draft(&mut self, day: i32) -> Result<&mut Draft> {
        let Self { tables, stem, sensor, days } = self;
        if !days.contains_key(&day) {
            ensure!(
                days.len() < MOST_DAYS,
                "{stem} has packets of more than {MOST_DAYS} days: the clock cannot have been right"
            );
            let ending = ending(tables.format);
            let path = tables.dir.join(format!(".{stem}{day:+}{ending}{DRAFT}"));
            let draft = Draft::create(&path, tables.format, sensor, stem);
            days.insert(day, draft.with_context(|| cannot_write(&path))?);
        }
        days.get_mut(&day).context("it was put there")
    }

    /// Returns how many files there will be.
    pub fn count(&self) -> u64 {
        self.days.len().max(1) as u64
    }

    /// Makes the files whole and durable, and gives them their names. The first says what the
    /// segment tells.
    pub fn finish(mut self, told: Option<&str>) -> Result<()> {
        if self.days.is_empty() {
            self.draft(0)?;
        }
        if let Some(told) = told
            && let Some(draft) = self.days.values_mut().next()
            && let Some(Writer::Parquet(first)) = &mut draft.writer
        {
            first.tell_segment(told);
        }
        let ending = ending(self.tables.format);
        let first = self.days.first_key_value().map(|(day, _)| *day);
        for (day, mut draft) in std::mem::take(&mut self.days).into_iter().rev() {
            let name = if Some(day) == first {
                format!("{}{ending}", self.stem)
            } else {
                format!("{}-{}{ending}", self.stem, date(day))
            };
            let path = self.tables.dir.join(name);
            draft.finish(&path).with_context(|| cannot_write(&path))?;
        }
        self.tables.open.sync_all().with_context(|| cannot_write(&self.tables.dir))?;
        Ok(())
    }
}

impl Draft {
    fn create(path: &Path, format: FlowsFormat, sensor: &str, stem: &str) -> Result<Self> {
        let mut draft = Self { path: path.to_owned(), writer: None };
        let to = BufWriter::new(create(path)?);
        let form = match format {
            FlowsFormat::Parquet => None,
            FlowsFormat::Zeek => Some(LineForm::Zeek),
            FlowsFormat::ZeekJson => Some(LineForm::ZeekJson),
            FlowsFormat::Eve => Some(LineForm::Eve),
        };
        draft.writer = Some(match form {
            None => Writer::Parquet(Box::new(ParquetFile::new(to, sensor, stem)?)),
            Some(form) => Writer::Lines(LineFile::new(to, form, sensor, stem)?),
        });
        Ok(draft)
    }

    fn write(&mut self, rows: &[Row], of: &Rows) -> Result<u64> {
        Ok(match &mut self.writer {
            Some(Writer::Parquet(parquet)) => {
                parquet.write(rows, of)?;
                rows.len() as u64
            }
            Some(Writer::Lines(lines)) => lines.write(rows)?,
            None => 0,
        })
    }

    fn finish(&mut self, path: &Path) -> Result<()> {
        let to = match self.writer.take() {
            Some(Writer::Parquet(parquet)) => parquet.finish()?,
            Some(Writer::Lines(lines)) => lines.finish()?,
            None => return Ok(()),
        };
        to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(fs::rename(&self.path, path)?)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Under the name of a file that was finished there is nothing any more.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a file that only its owner reads, in place of one that is there.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Returns the date of a day, counted from 1970.
fn date(day: i32) -> String {
    let begin = Timestamp::from_second(i64::from(day) * 86_400).unwrap_or(Timestamp::UNIX_EPOCH);
    begin.strftime("%Y-%m-%d").to_string()
}
