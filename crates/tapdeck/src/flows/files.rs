//! The Parquet files of one segment: `STEM.parquet` of the first day it has packets of, and
//! `STEM-YYYY-MM-DD.parquet` of each later one.
//!
//! A file has another name until it is whole and durable, and `STEM.parquet` gets its own last: so
//! where that is, all of the segment's files are.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustix::fs::OFlags;
use tapdeck_flow::{ParquetFile, Rows};
use tapdeck_store::SegmentName;

/// The most days that one segment may have packets of, since each has a file that is open.
const MOST_DAYS: usize = 400;

/// The files of a segment while they are written. What is not finished is removed.
pub struct SegmentFiles {
    dir: PathBuf,
    stem: String,
    sensor: String,
    days: BTreeMap<i32, Draft>,
}

/// A file that has no name of its own yet.
struct Draft {
    path: PathBuf,
    parquet: Option<ParquetFile<BufWriter<File>>>,
}

impl SegmentFiles {
    pub fn new(dir: &Path, name: &SegmentName, sensor: &str) -> Self {
        let (dir, sensor) = (dir.to_owned(), sensor.to_owned());
        Self { dir, stem: name.stem(), sensor, days: BTreeMap::new() }
    }

    /// Returns the name of the first file of a segment.
    pub fn first_name(name: &SegmentName) -> String {
        format!("{}.parquet", name.stem())
    }

    /// Writes rows, each into the file of its day.
    pub fn write(&mut self, rows: &Rows) -> Result<()> {
        for (day, of_day) in rows.days() {
            let draft = self.draft(day)?;
            let Some(parquet) = &mut draft.parquet else { continue };
            parquet.write(of_day, rows).with_context(|| cannot_write(&draft.path))?;
        }
        Ok(())
    }

    fn draft(&mut self, day: i32) -> Result<&mut Draft> {
        let Self { dir, stem, sensor, days } = self;
        if !days.contains_key(&day) {
            ensure!(
                days.len() < MOST_DAYS,
                "{stem} has packets of more than {MOST_DAYS} days: the clock cannot have been right"
            );
            let path = dir.join(format!(".{stem}{day:+}.parquet.new"));
            let file = create(&path).with_context(|| cannot_write(&path))?;
            let mut draft = Draft { path, parquet: None };
            let parquet = ParquetFile::new(BufWriter::new(file), sensor, stem);
            draft.parquet = Some(parquet.with_context(|| cannot_write(&draft.path))?);
            days.insert(day, draft);
        }
        Ok(days.get_mut(&day).expect("it was put there"))
    }

    /// Makes the files whole and durable, and gives them their names. Returns how many there are.
    pub fn finish(mut self) -> Result<u64> {
        if self.days.is_empty() {
            self.draft(0)?;
        }
        let first = self.days.first_key_value().map(|(day, _)| *day);
        let files = self.days.len() as u64;
        for (day, mut draft) in std::mem::take(&mut self.days).into_iter().rev() {
            let name = if Some(day) == first {
                format!("{}.parquet", self.stem)
            } else {
                format!("{}-{}.parquet", self.stem, date(day))
            };
            let path = self.dir.join(name);
            draft.finish(&path).with_context(|| cannot_write(&path))?;
        }
        let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.with_context(|| cannot_write(&self.dir))?;
        Ok(files)
    }
}

impl Draft {
    fn finish(&mut self, path: &Path) -> Result<()> {
        if let Some(parquet) = self.parquet.take() {
            let file = parquet.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            fs::rename(&self.path, path)?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Under the name of a file that was finished there is nothing any more.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a file that only its owner reads, in place of one that a process left that was killed.
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
