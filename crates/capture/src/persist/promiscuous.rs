//! How is an interface promiscuous for longer than a process lives, and who takes that back?
//!
//! The flag `IFF_PROMISC` stays until somebody takes it away. So whoever sets it writes it down
//! first, as an empty directory beside the pins: it counts from the moment it is there, and goes
//! with them. A flag that somebody else had set is neither written down nor taken away. The note
//! says the network namespace, too: elsewhere an interface of that name is another's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{with_dots, without_dots};
use crate::lock::namespace;
use crate::sys::pins::{is_promiscuous, set_promiscuous};

/// What stands between the owner of a note and its interface.
const MARK: &str = "-promiscuous-";

/// An interface that was made promiscuous, for whom, and where that is written down.
struct Note {
    of: String,
    namespace: u64,
    interface: String,
    path: PathBuf,
}

/// Makes an interface promiscuous for `of`, or no longer.
///
/// # Errors
/// Where nothing can be written down.
pub(super) fn put(dir: &Path, of: &str, interface: &str, wants: bool) -> io::Result<()> {
    let here = namespace()?;
    let is_its = |note: &Note| (note.namespace, note.interface.as_str()) == (here, interface);
    let own = dir.join(format!("{of}{MARK}{here}-{}", without_dots(interface)));
    if wants {
        if is_promiscuous(interface)? && !notes(dir)?.any(|note| is_its(&note)) {
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
    if notes(dir)?.filter(is_its).count() == 1 {
        // An interface that is gone has no flag.
        let _ = set_promiscuous(interface, false);
    }
    fs::remove_dir(&own)
}

/// Takes the flags away that are written down for one; where `of` is empty, all. Returns the
/// interfaces of other network namespaces, whose flags cannot be reached from here.
pub(super) fn take_away(dir: &Path, of: &str) -> io::Result<Vec<String>> {
    let (here, mut elsewhere) = (namespace()?, Vec::new());
    let is_its = |note: &Note| of.is_empty() || note.of == of;
    let (its, others): (Vec<Note>, Vec<Note>) = notes(dir)?.partition(is_its);
    for note in its {
        let is_same =
            |other: &Note| (other.namespace, &other.interface) == (note.namespace, &note.interface);
        if others.iter().any(is_same) {
            // It stays for that one.
        } else if note.namespace == here {
            // As above.
            let _ = set_promiscuous(&note.interface, false);
        } else if !elsewhere.contains(&note.interface) {
            elsewhere.push(note.interface);
        }
        fs::remove_dir(note.path)?;
    }
    Ok(elsewhere)
}

fn notes(dir: &Path) -> io::Result<impl Iterator<Item = Note>> {
    Ok(fs::read_dir(dir)?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (of, noted) = name.split_once(MARK)?;
        let (namespace, interface) = noted.split_once('-')?;
        let (namespace, interface) = (namespace.parse().ok()?, with_dots(interface));
        Some(Note { of: of.to_owned(), namespace, interface, path: entry.path() })
    }))
}
