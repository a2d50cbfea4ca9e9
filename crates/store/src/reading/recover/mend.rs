//! How does a segment become sound? By these steps, in the order in which each may be the last:
//!
//! 1. its index is removed, unless it is the log of a live segment of which nothing is changed;
//! 2. a closed segment becomes a live one again, so that nobody takes it for whole meanwhile;
//! 3. damage in the middle becomes fill: only the ends of the fill are written, the damaged bytes
//!    stay;
//! 4. the file is cut behind the last whole block, which frees the space set aside;
//! 5. statistics are written there;
//! 6. sync;
//! 7. its index is made, if it shall have one ([`index::complete`]);
//! 8. rename to the final name, sync of the directory.
//!
//! What is damaged was found before, by [`super::survey`].

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tapdeck_packet::pcapng::{self, FILL, MIN_FILL};
use tapdeck_packet::printable::counted;

use super::fault::Fault;
use super::part::read_at;
use super::resync::LONGEST;
use super::survey::Survey;
#[cfg(doc)]
use crate::format::index;
use crate::format::name::SegmentName;
use crate::format::segment::fill_up;
use crate::io::{Access, File, Io, Object, PAGE, Storage, write_pages};

/// Returns the name under which a segment that holds nothing is set aside.
pub(super) fn aside(name: &SegmentName) -> String {
    format!("{name}.damaged")
}

/// Fails where a name is taken: a rename must not put one file in another's place.
pub(super) fn check_name(dir: &Path, name: &str) -> Result<(), Fault> {
    match fs::symlink_metadata(dir.join(name)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e.into()),
        Ok(_) => Err(Fault::Exists(name.into())),
    }
}

/// Fails where the name is taken that a segment does not have, of its live and its closed one.
pub(super) fn check_names(dir: &Path, name: &SegmentName) -> Result<(), Fault> {
    check_name(dir, &SegmentName { live: !name.live, ..name.clone() }.to_string())
}

pub(super) fn set_aside<I: Io>(io: &I, dir: &Path, name: &SegmentName) -> Result<(), Fault> {
    check_name(dir, &aside(name))?;
    io.rename(&name.path(dir), &dir.join(aside(name)))?;
    Ok(io.sync_dir(dir)?)
}

/// Makes a segment sound: everything up to its index and its final name.
pub(super) fn mend<I: Io>(
    io: &I,
    storage: &dyn Storage,
    name: &SegmentName,
    survey: &Survey,
) -> Result<(), Fault> {
    let dir = storage.place();
    let live = SegmentName { live: true, ..name.clone() };
    let path = live.path(dir);
    check_names(dir, name)?;
    // Index files point into bytes that change; a crash from here on must not leave them beside the
    // changed segment.
    if !name.live || !survey.damage.is_empty() || survey.bytes_cut > 0 {
        for path in name.index_paths(dir) {
            match io.remove(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        io.sync_dir(dir)?;
    }
    if !name.live {
        io.rename(&name.path(dir), &path)?;
        io.sync_dir(dir)?;
    }
    let file = io.open(&path)?;
    if survey.is_ended() {
        file.set_len(survey.end)?;
    } else {
        let source = storage.open(live.to_string().as_ref(), Access::Ranges)?;
        fill_damage(&file, &*source, survey)?;
        file.set_len(survey.body_end())?;
        write_end(&file, &*source, name, survey)?;
    }
    Ok(file.sync()?)
}

/// Gives a segment its final name.
pub(super) fn close<I: Io>(io: &I, dir: &Path, name: &SegmentName) -> Result<(), Fault> {
    let live = SegmentName { live: true, ..name.clone() };
    check_name(dir, &name.closed().to_string())?;
    io.rename(&live.path(dir), &name.closed().path(dir))?;
    Ok(io.sync_dir(dir)?)
}

/// Puts fill blocks over damage, none longer than what readers put up with.
fn fill_damage<F: File>(file: &F, source: &dyn Object, survey: &Survey) -> Result<(), Fault> {
    let mut words = BTreeMap::new();
    for stretch in &survey.damage {
        let mut at = stretch.start;
        while at < stretch.end {
            let left = stretch.end - at;
            let half = LONGEST as u64 / 2;
            // The rest must have room for a fill block too.
            let total = if left > half + MIN_FILL as u64 { half } else { left };
            words.insert(at, FILL);
            words.insert(at + 4, total as u32);
            words.insert(at + total - 4, total as u32);
            at += total;
        }
    }
    // Page by page; the sectors beside the words are written as they are.
    let mut page: Option<(u64, Vec<u8>)> = None;
    for (at, word) in words {
        let base = at / PAGE as u64 * PAGE as u64;
        if page.as_ref().is_none_or(|p| p.0 != base) {
            flush(file, page.take())?;
        }
        let (_, bytes) = match &mut page {
            Some(page) => page,
            none => none.insert((base, {
                let mut bytes = read_at(source, base, survey.len, PAGE)?;
                bytes.resize(PAGE, 0);
                bytes
            })),
        };
        let within = (at - base) as usize;
        bytes[within..within + 4].copy_from_slice(&word.to_ne_bytes());
    }
    flush(file, page)
}

fn flush<F: File>(file: &F, page: Option<(u64, Vec<u8>)>) -> Result<(), Fault> {
    if let Some((base, bytes)) = page {
        write_pages(file, &bytes, base)?;
    }
    Ok(())
}

/// Writes fill and statistics behind the last block, beginning with what its page already holds.
fn write_end<F: File>(
    file: &F,
    source: &dyn Object,
    name: &SegmentName,
    survey: &Survey,
) -> Result<(), Fault> {
    let end = survey.body_end();
    let base = end / PAGE as u64 * PAGE as u64;
    let mut tail = read_at(source, base, end, PAGE)?;
    if survey.gap() > 0 {
        pcapng::fill(&mut tail, survey.gap());
    }
    let comment = format!(
        "recovered: {} readable before and {} now, {} damaged bytes were replaced with fill and {} cut",
        counted(survey.packets_before(), "packet"),
        survey.packets(),
        survey.bytes_replaced(),
        survey.bytes_cut,
    );
    let began_ns = u64::try_from(name.began_s).unwrap_or(0).saturating_mul(1_000_000_000);
    for statistics in survey.statistics(began_ns, &comment) {
        pcapng::statistics(&mut tail, &statistics);
    }
    fill_up(&mut tail);
    Ok(write_pages(file, &tail, base)?)
}
