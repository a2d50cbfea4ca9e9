//! A distribution and its two-stage model in one file that says everything about itself.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::text::add;
use super::{Counts, Error, Fault, Length, TwoStage};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    length: Length,
    packets: u64,
    /// Size and packets.
    sizes: Vec<(u16, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    two_stage: Option<TwoStage>,
}

/// Returns whether a line begins a TOML file: `key = value` or `[table]`.
pub(super) fn is_toml(line: &str) -> bool {
    line.contains('=') || line.starts_with('[')
}

/// What a file holds.
pub(super) struct Contents {
    pub counts: Counts,
    pub length: Length,
    pub model: Option<TwoStage>,
}

pub(super) fn parse(text: &str) -> Result<Contents, Error> {
    let file: File = ::toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        let message = e.message().lines().next().unwrap_or("").to_owned();
        Fault::Toml(message).at(before.matches('\n').count() as u64 + 1)
    })?;
    let line_of = |key: &str| {
        let line = text.lines().position(|line| line.trim_start().starts_with(key));
        line.unwrap_or(0) as u64 + 1
    };
    let mut counts = Counts::new();
    for (size, packets) in &file.sizes {
        add(&mut counts, *size, *packets).map_err(|fault| fault.at(line_of("sizes")))?;
    }
    if counts.packets() != file.packets {
        let fault = Fault::Sum { said: file.packets, sum: counts.packets() };
        return Err(fault.at(line_of("packets")));
    }
    Ok(Contents { counts, length: file.length, model: file.two_stage })
}

/// Writes a distribution and, if there is one, its model.
pub fn write_toml(
    out: &mut impl Write,
    counts: &Counts,
    length: Length,
    two_stage: Option<&TwoStage>,
) -> io::Result<()> {
    let file = File {
        length,
        packets: counts.packets(),
        sizes: counts.iter().collect(),
        two_stage: two_stage.cloned(),
    };
    let text = ::toml::to_string(&file).map_err(io::Error::other)?;
    out.write_all(text.as_bytes())
}
