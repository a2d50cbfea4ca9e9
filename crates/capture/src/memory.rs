//! Is there memory for the rings?
//!
//! The question is asked before the rings are made, for the kernel would rather end some process
//! than refuse them.

use crate::Error;

/// Refuses rings of an interface that do not fit into the memory that is free.
pub(crate) fn check_memory(name: &str, needed: u64) -> Result<(), Error> {
    match too_little_for(needed) {
        Some(available) => {
            Err(Error::Memory { name: name.to_owned(), available_mib: available >> 20 })
        }
        None => Ok(()),
    }
}

/// Returns the memory that is free, bytes, if nine tenths of it do not hold what is needed.
pub(crate) fn too_little_for(needed: u64) -> Option<u64> {
    available_memory().filter(|available| needed > available / 10 * 9)
}

/// Returns the memory that programs may still take, bytes.
pub(crate) fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}
