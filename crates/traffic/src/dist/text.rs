//! The two plain forms: a list of sizes, and a table of sizes and counts.

use std::io::{self, Write};

use super::lines::{number, size};
use super::{Counts, Error, Fault, Length};

/// Counts the sizes of a line.
pub(super) fn sizes(counts: &mut Counts, line: &str) -> Result<(), Fault> {
    line.split_ascii_whitespace().try_for_each(|word| add(counts, size(word)?, 1))
}

/// Counts a line `<size> <count>`; between them stands the separator or space.
pub(super) fn dist(counts: &mut Counts, line: &str, separator: Option<char>) -> Result<(), Fault> {
    let fields = fields(line, separator);
    let [a, b] = fields[..] else { return Err(Fault::Fields(fields.len())) };
    add(counts, size(a)?, number(b)?)
}

/// Splits a line. One without the separator is split at space, so that a table can be read with one
/// and written with the other.
pub(super) fn fields(line: &str, separator: Option<char>) -> Vec<&str> {
    match separator.filter(|c| !c.is_whitespace() && line.contains(*c)) {
        Some(separator) => line.split(separator).map(str::trim).collect(),
        None => line.split_ascii_whitespace().collect(),
    }
}

pub(super) fn add(counts: &mut Counts, size: u16, packets: u64) -> Result<(), Fault> {
    counts.add(size, packets).map_err(|e| match e {
        Error::SizeZero => Fault::Size("0".into()),
        _ => Fault::Overflow { size },
    })
}

/// Writes sizes, one a line.
pub fn write_sizes(out: &mut impl Write, sizes: impl IntoIterator<Item = u16>) -> io::Result<()> {
    sizes.into_iter().try_for_each(|size| writeln!(out, "{size}"))
}

/// Writes a table of sizes and counts.
pub fn write_dist(
    out: &mut impl Write,
    counts: &Counts,
    length: Length,
    separator: char,
) -> io::Result<()> {
    writeln!(out, "# length: {}", length.name())?;
    counts.iter().try_for_each(|(size, packets)| writeln!(out, "{size}{separator}{packets}"))
}
