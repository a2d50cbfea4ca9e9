//! A recording that outlives its process (`--persist`): what its writer notes, and what the next
//! owner goes on with.
//!
//! `tapdeck_capture::persist` has what is pinned, `tapdeck_store` what a writer notes; neither
//! knows the other.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use tapdeck_capture::persist::{Persist, RingWritten, Written, WrittenRecord};
use tapdeck_store::{InterfaceTotals, Ledger, LedgerEntry, SegmentEnd, Store, Totals};

use super::resolve::{Origin, RecordPlan, Target};
use crate::usage::usage;

/// A lasting recording that this process owns.
pub struct Lasting {
    persist: Persist,
    name: String,
    /// What an owner before had written.
    before: Option<Written>,
}

impl Lasting {
    /// Becomes the owner of the lasting recording that is asked for, if one is.
    pub fn open(plan: &RecordPlan) -> Result<Option<Self>> {
        let (Some(name), Origin::Interfaces { interfaces, .. }) = (&plan.persist, &plan.origin)
        else {
            return Ok(None);
        };
        let interfaces: Vec<_> =
            interfaces.iter().map(|(name, config)| (name.as_str(), config.hook)).collect();
        let persist = Persist::open(name, &interfaces)?;
        let before = persist.written().filter(|_| persist.is_taken_over()).map(|r| r.read());
        if let (Some(Written { segment: Some(_), .. }), Target::Store { dir, .. }) =
            (&before, &plan.target)
        {
            let theirs = persist.store();
            if dir.canonicalize().ok().as_ref() != Some(&theirs) {
                return usage(format!(
                    "the last recorder of {name} died while it wrote to {}: record there, or give it up by tapdeck ctl persist drop {name}",
                    theirs.display()
                ));
            }
        }
        Ok(Some(Self { persist, name: name.clone(), before }))
    }

    /// Pins all that is to last, while this process may.
    pub fn prepare(&mut self, captures: &[tapdeck_capture::Capture]) -> Result<()> {
        Ok(self.persist.prepare(captures)?)
    }

    pub fn persist(&self) -> &Persist {
        &self.persist
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the owner before has noted that its segments end.
    pub fn segment_end(&self) -> Option<SegmentEnd> {
        self.before.as_ref()?.segment
    }

    /// Returns the losses that the segments of owners before tell, by interface.
    pub fn told_lost(&self) -> Vec<u64> {
        self.before.iter().flat_map(|before| &before.rings).map(|ring| ring.told_lost).collect()
    }

    /// Goes on counting where the owner before has stopped.
    pub fn go_on(&self, totals: &Totals) {
        let rings = self.before.iter().flat_map(|before| &before.rings);
        for (totals, ring) in totals.interfaces.iter().zip(rings) {
            totals.packets.store(ring.packets, Relaxed);
            totals.frame_bytes.store(ring.frame_bytes, Relaxed);
            totals.unwritten.store(ring.unwritten, Relaxed);
        }
    }

    /// Takes away from a store what the owner before had written and not noted.
    pub fn cut(&self, store: &mut Store) -> Result<()> {
        let Some(end) = self.segment_end() else { return Ok(()) };
        let cut = store.cut_unnoted(end);
        cut.with_context(|| format!("cannot go on in {}", store.dir().display()))?;
        Ok(())
    }

    /// Has all last that is pinned: the hooks stand.
    pub fn begin(&mut self, captures: &[tapdeck_capture::Capture], dir: &Path) -> Result<()> {
        self.persist.begin(captures);
        let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
        Ok(self.persist.set_store(&dir)?)
    }

    /// Returns where the writer notes what it does.
    pub fn ledger(&self) -> Option<Box<dyn Ledger>> {
        let record = self.persist.written()?;
        let rings = record.read().rings;
        let before = vec![RingWritten::default(); rings.len()];
        Some(Box::new(PinnedLedger { record, rings, before }))
    }
}

/// Notes what a writer does where the next owner finds it.
struct PinnedLedger {
    record: WrittenRecord,
    rings: Vec<RingWritten>,
    /// What was counted under the number of each ring before it came.
    before: Vec<RingWritten>,
}

impl Ledger for PinnedLedger {
    fn note(&mut self, entry: &LedgerEntry<'_>) {
        for interface in entry.blocks {
            if let Some(ring) = self.rings.get_mut(*interface as usize) {
                ring.next = ring.next.wrapping_add(1);
            }
        }
        let rings = self.rings.iter_mut().zip(&self.before);
        for ((ring, before), totals) in rings.zip(&entry.totals.interfaces) {
            let counted = counted(totals);
            // A segment that could not be made durable takes packets back.
            ring.packets = counted.packets.saturating_sub(before.packets);
            ring.frame_bytes = counted.frame_bytes.saturating_sub(before.frame_bytes);
            ring.unwritten = counted.unwritten.saturating_sub(before.unwritten);
        }
        for (ring, told) in self.rings.iter_mut().zip(entry.told_lost) {
            ring.told_lost = *told;
        }
        self.record.write(entry.segment, &self.rings);
    }

    fn comes(&mut self, interface: u32, totals: &Totals) {
        let at = interface as usize;
        let len = self.rings.len().max(at + 1);
        self.rings.resize(len, RingWritten::default());
        self.before.resize(len, RingWritten::default());
        self.rings[at] = self.record.nothing_of(interface);
        self.before[at] = totals.interfaces.get(at).map(counted).unwrap_or_default();
    }
}

/// Returns what a writer has counted under the number of a ring.
fn counted(totals: &InterfaceTotals) -> RingWritten {
    RingWritten {
        packets: totals.packets.load(Relaxed),
        frame_bytes: totals.frame_bytes.load(Relaxed),
        unwritten: totals.unwritten.load(Relaxed),
        ..RingWritten::default()
    }
}
