//! The recording that is checked, and what it says beside its packets.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tapdeck_packet::link::LinkType;
use tapdeck_store::query::{Error, Note, Snapshot, Span};
use tapdeck_store::stat::left_out;
use tapdeck_traffic::check::Check;

use crate::capture_file::{self, OnDamage};
use crate::progress_line::say;
use crate::query::describe_missing;
use crate::recording::Recorded;
use crate::standard_input;

/// What the recording says beside its packets, for the report.
#[derive(Default)]
pub struct RecordingNotes {
    /// Packets that the recording says it dropped, of whatever traffic.
    pub dropped: u64,
    /// Packets that it says it left out of flows that had had their bytes.
    pub cutoff: u64,
    /// Packets that it says it kept in part, because a ring was nearly full.
    pub shed: u64,
    /// Where files were damaged that were used up to the damage.
    pub damage: Vec<String>,
}

/// Tells on standard error what the stores among `paths` say that they do not hold. Returns whether
/// segments are missing.
pub fn tell_missing(paths: &[PathBuf]) -> Result<bool> {
    let mut has_hole = false;
    for path in paths.iter().filter(|path| !standard_input::is_named_by(path) && path.is_dir()) {
        let snapshot = match Snapshot::open(path, Span::ALL) {
            // Files of other programs tell nothing of that.
            Err(Error::NotAStore(_)) => continue,
            snapshot => snapshot?,
        };
        for hole in snapshot.notes().iter().filter(|note| matches!(note, Note::Hole { .. })) {
            say(&hole.to_string());
            has_hole = true;
        }
        for missing in snapshot.unseen() {
            say(&describe_missing(missing));
        }
    }
    Ok(has_hole)
}

/// Checks all packets of a file.
pub fn read(
    recorded: &Recorded,
    check: &mut Check,
    notes: &mut RecordingNotes,
    up_to_damage: bool,
) -> Result<()> {
    let name = recorded.name();
    let input = recorded.open().with_context(|| format!("cannot open {name}"))?;
    let on_damage = OnDamage::of(up_to_damage);
    let damage = capture_file::read(input, &name, on_damage, recorded.may_be_cut(), |packet| {
        if packet.link != LinkType::ETHERNET {
            bail!(
                "{name} holds packets of link type {}: generated ones are Ethernet frames (link type {})",
                packet.link,
                LinkType::ETHERNET.0
            );
        }
        notes.dropped += packet.dropped;
        notes.shed += u64::from(packet.shed > 0);
        check.packet(packet.time_ns, packet.original_len, packet.frame);
        Ok(())
    })?;
    notes.damage.extend(damage);
    // The file's end tells it; of one that cannot be read there nothing is known.
    let left_out = recorded.path().and_then(|path| left_out(&path).ok());
    notes.cutoff += left_out.unwrap_or_default().packets;
    Ok(())
}
