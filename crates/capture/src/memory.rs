//! Is there memory for the rings?
//!
//! It is asked before they are made, for the kernel would rather end some process than refuse.

use crate::Error;

/// Whether the rings fit into the memory that is free.
pub(crate) fn check_memory(name: &str, needed: u64) -> Result<(), Error> {
    let available = available_memory();
    if available.is_some_and(|a| needed > a / 10 * 9) {
        return Err(Error::Memory {
            name: name.to_owned(),
            available_mib: available.unwrap_or(0) >> 20,
        });
    }
    Ok(())
}

/// Memory that programs may still take, bytes.
pub(crate) fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}
