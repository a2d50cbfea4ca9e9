//! The commands with which the thesis' kernel packet generator is told a two-stage model (section
//! A.2.2), bare or as lines of a shell script, `pgset "..."`.

use std::io::{self, Write};

use super::lines::number;
use super::{Cells, Fault, Length, TwoStage};

/// Writes the commands; `surround_pgset` makes lines for a shell script of them, which can also
/// hold a comment that says what the sizes measure.
pub fn write_pktgen(
    out: &mut impl Write,
    model: &TwoStage,
    length: Length,
    surround_pgset: bool,
) -> io::Result<()> {
    let mut command = |text: std::fmt::Arguments| {
        if surround_pgset { writeln!(out, "pgset \"{text}\"") } else { writeln!(out, "{text}") }
    };
    let Cells { bin_width, precision, max_size, outliers, bins, .. } = model.cells();
    let (n, m) = (outliers.len(), bins.len());
    command(format_args!("dist {precision} {bin_width} {max_size} {n} {m}"))?;
    for (size, cells) in outliers {
        command(format_args!("outl {size} {cells}"))?;
    }
    for (size, cells) in bins {
        command(format_args!("hist {size} {cells}"))?;
    }
    command(format_args!("flag PKTSIZE_REAL"))?;
    if surround_pgset {
        writeln!(out, "# length: {}", length.name())?;
    }
    Ok(())
}

/// Returns whether a line is one of the commands, bare or surrounded.
pub(super) fn is_command(line: &str) -> bool {
    let word = line.split_ascii_whitespace().next().unwrap_or("");
    ["pgset", "dist", "outl", "hist", "flag"].contains(&word)
}

/// The commands read so far.
#[derive(Default)]
pub(super) struct Commands {
    /// What the command `dist` said: the cells, and how many outliers and bins are to come.
    dist: Option<(Cells, [u64; 2])>,
}

impl Commands {
    pub fn line(&mut self, line: &str) -> Result<(), Fault> {
        let wrong = || Fault::Command(Fault::shown(line));
        let command = unquoted(line).ok_or_else(wrong)?;
        let words: Vec<&str> = command.split_ascii_whitespace().collect();
        match words[..] {
            ["dist", precision, bin_width, max_size, outliers, bins] => {
                if self.dist.is_some() {
                    return Err(Fault::SecondDist);
                }
                let cells = Cells {
                    outlier_bound: None,
                    bin_width: small(bin_width)?,
                    precision: small(precision)?,
                    max_size: small(max_size)?,
                    outliers: Vec::new(),
                    bins: Vec::new(),
                };
                self.dist = Some((cells, [number(outliers)?, number(bins)?]));
            }
            [which @ ("outl" | "hist"), size, n] => {
                let (cells, _) = self.dist.as_mut().ok_or(Fault::DistFirst)?;
                let entries = if which == "outl" { &mut cells.outliers } else { &mut cells.bins };
                entries.push((small(size)?, small(n)?));
            }
            ["flag", "PKTSIZE_REAL"] => {}
            _ => return Err(wrong()),
        }
        Ok(())
    }

    pub fn finish(self) -> Result<TwoStage, Fault> {
        let (cells, [outliers, bins]) = self.dist.ok_or(Fault::DistFirst)?;
        for (what, said, found) in
            [("outl", outliers, cells.outliers.len()), ("hist", bins, cells.bins.len())]
        {
            if said != found as u64 {
                return Err(Fault::Missing { what, said, found: found as u64 });
            }
        }
        TwoStage::try_from(cells)
    }
}

/// Returns what stands between the quotes of `pgset "..."`, and any other line as it is.
fn unquoted(line: &str) -> Option<&str> {
    let Some(rest) = line.strip_prefix("pgset") else { return Some(line) };
    let rest = rest.trim();
    ['"', '\''].into_iter().find_map(|q| rest.strip_prefix(q)?.strip_suffix(q))
}

/// Reads a number into a type of fewer than 64 bits.
fn small<T: TryFrom<u64>>(word: &str) -> Result<T, Fault> {
    T::try_from(number(word)?).map_err(|_| Fault::LargeNumber(Fault::shown(word)))
}
