//! How is an interface promiscuous for longer than a process lives, and who takes that back?
//!
//! The flag `IFF_PROMISC` stays until somebody takes it away. So whoever sets it writes it down
//! first, as an empty directory beside the pins: it counts from the moment it is there, and goes
//! with them. A flag that somebody else had set is neither written down nor taken away.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{with_dots, without_dots};
use crate::sys::pins::{is_promiscuous, set_promiscuous};

/// What stands between the owner of a note and its interface.
const MARK: &str = "-promiscuous-";

/// Makes an interface promiscuous for `of`, or no longer.
///
/// # Errors
/// Where nothing can be written down.
pub(super) fn put(dir: &Path, of: &str, interface: &str, wants: bool) -> io::Result<()> {
    let own = dir.join(format!("{of}{MARK}{}", without_dots(interface)));
    if wants {
        if is_promiscuous(interface)? && notes(dir)?.all(|(name, _)| name != interface) {
            return Ok(());
        }
        return match fs::create_dir(&own) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => set_promiscuous(interface, true),
        };
    }
    if !own.is_dir() {
        return Ok(());
    }
    if notes(dir)?.filter(|(name, _)| name == interface).count() == 1 {
        // An interface that is gone has no flag.
        let _ = set_promiscuous(interface, false);
    }
    fs::remove_dir(&own)
}

/// Takes all flags away that are written down.
pub(super) fn take_away(dir: &Path) -> io::Result<()> {
    notes(dir)?.try_for_each(|(interface, note)| {
        // As above.
        let _ = set_promiscuous(&interface, false);
        fs::remove_dir(note)
    })
}

/// Returns the interface and the path of each note.
fn notes(dir: &Path) -> io::Result<impl Iterator<Item = (String, PathBuf)>> {
    Ok(fs::read_dir(dir)?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (_, interface) = name.split_once(MARK)?;
        Some((with_dots(interface), entry.path()))
    }))
}
