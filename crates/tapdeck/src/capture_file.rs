//! Capture files (pcap, pcapng) that a command reads from beginning to end.
//!
//! What do commands do alike when they read one? They show how far they have come, name the file in
//! every error, and at damage they fail or, with `--up-to-damage`, take the packets before it. The
//! formats themselves are read by `tapdeck_packet::trace`.

use std::io::Read;

use anyhow::{Context, Result, bail};
use tapdeck_packet::trace::{Error, Packet, Reader};

use crate::progress_line::{Watched, say};

/// What is done where a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// The command fails.
    Fail,
    /// What stands before the damage is taken, and the user is told.
    Stop,
}

impl OnDamage {
    /// Returns what `--up-to-damage` means.
    pub fn of(up_to_damage: bool) -> Self {
        if up_to_damage { Self::Stop } else { Self::Fail }
    }
}

/// Hands every packet of a file to `each`, in the order of the file. Returns where the file was
/// damaged, if it was and the packets before count. A file that `may_be_cut` is whole wherever it
/// ends.
pub fn read(
    (input, bytes): (Box<dyn Read>, Option<u64>),
    name: &str,
    on_damage: OnDamage,
    may_be_cut: bool,
    mut each: impl FnMut(&Packet<'_>) -> Result<()>,
) -> Result<Option<String>> {
    let input = Watched::new(input, name, bytes);
    let mut reader = Reader::new(input).with_context(|| name.to_owned())?;
    loop {
        let error = match reader.next_packet() {
            Ok(Some(packet)) => {
                each(&packet)?;
                continue;
            }
            Ok(None) => return Ok(None),
            Err(e) => e,
        };
        if may_be_cut && matches!(error, Error::CutShort { .. }) {
            return Ok(None);
        }
        if !matches!(error, Error::CutShort { .. } | Error::Damaged { .. }) {
            return Err(error).with_context(|| name.to_owned());
        }
        if on_damage == OnDamage::Fail {
            bail!("{name}: {error}; --up-to-damage takes the packets before that");
        }
        // The line that shows progress ends before anything else is said.
        drop(reader);
        let damage = format!("{name}: {error}");
        say(&format!("{damage}; the packets up to there count"));
        return Ok(Some(damage));
    }
}
