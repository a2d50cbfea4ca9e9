//! From any input to a distribution. What is an input? Its beginning tells: of a capture file the
//! magic number, of text the first line that is no comment.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use tapdeck_packet::trace;

use super::lines::Lines;
use super::text::fields;
use super::{Counts, Error, Fault, LeftOut, Length, Tally, TwoStage, pktgen, text, toml};

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A capture file, pcap or pcapng.
    Trace,
    /// Sizes with space between them.
    Sizes,
    /// Lines `<size> <count>`.
    Dist,
    /// Commands for the kernel packet generator, bare or `pgset "..."`.
    Pktgen,
    /// What [`write_toml`](super::write_toml) writes.
    Toml,
}

/// How an input is read. By default its format is found out, and a damaged capture file is an
/// error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub format: Option<Format>,
    /// The sizes that are wanted. By default those that the input states; of a capture file,
    /// frames.
    pub length: Option<Length>,
    /// The character between size and count in a line of a distribution, besides space.
    pub separator: Option<char>,
    /// Whether a damaged capture file is used up to the damage.
    pub up_to_damage: bool,
}

/// A distribution as it was read, which is never empty.
#[derive(Debug)]
pub struct DistInput {
    pub format: Format,
    /// Packets of each size. Pktgen's commands hold shares and not packets: of them, whole numbers
    /// in the proportion of the shares.
    pub counts: Counts,
    /// What the sizes measure, as far as the input says it.
    pub length: Option<Length>,
    pub left_out: LeftOut,
    /// Where a capture file is damaged, which was used up to there.
    pub damage: Option<trace::Error>,
    /// The two-stage model, where the input holds one.
    pub model: Option<TwoStage>,
}

/// Reads a file. Memory does not grow with its size.
pub fn read_file(path: &Path, options: Options) -> Result<DistInput, Error> {
    read(File::open(path)?, options)
}

/// Reads a distribution from anything.
pub fn read(mut input: impl Read, options: Options) -> Result<DistInput, Error> {
    /// Enough to tell a capture file by.
    const HEAD: u64 = 64;
    let mut head = Vec::new();
    input.by_ref().take(HEAD).read_to_end(&mut head)?;
    let is_trace = match options.format {
        Some(format) => format == Format::Trace,
        None => trace::looks_like_trace(&head),
    };
    let input = Cursor::new(head).chain(input);
    let contents = if is_trace {
        read_trace(input, options)?
    } else {
        read_text(Lines::new(BufReader::with_capacity(1 << 16, input)), options)?
    };
    match (contents.length, options.length) {
        (Some(stated), Some(asked)) if stated != asked => Err(Error::Length { stated, asked }),
        _ => Ok(contents),
    }
}

fn read_trace(input: impl Read, options: Options) -> Result<DistInput, Error> {
    let mut tally = Tally::new(options.length.unwrap_or(Length::Frame));
    let mut damage = None;
    let mut reader = trace::Reader::new(input).map_err(trace_error)?;
    loop {
        match reader.next_packet() {
            Ok(Some(p)) => tally.packet(p.link, p.original_len, p.frame)?,
            Ok(None) => break,
            Err(e @ (trace::Error::CutShort { .. } | trace::Error::Damaged { .. }))
                if options.up_to_damage =>
            {
                damage = Some(e);
                break;
            }
            Err(e) => return Err(trace_error(e)),
        }
    }
    if tally.counts.packets() == 0 {
        return Err(Error::NoPackets { packets: tally.left_out.packets() });
    }
    Ok(DistInput {
        format: Format::Trace,
        counts: tally.counts,
        length: Some(tally.length),
        left_out: tally.left_out,
        damage,
        model: None,
    })
}

fn trace_error(e: trace::Error) -> Error {
    match e {
        trace::Error::CutShort { .. } | trace::Error::Damaged { .. } => Error::Damaged(e),
        e => Error::Trace(e),
    }
}

fn read_text(mut lines: Lines<impl BufRead>, options: Options) -> Result<DistInput, Error> {
    let first = lines.next()?.ok_or(Error::Empty)?;
    let format = match options.format {
        Some(format) => format,
        None => detect(&first, options.separator)
            .ok_or_else(|| Fault::Unknown(Fault::shown(&first)).at(lines.number()))?,
    };
    let mut counts = Counts::new();
    let mut model = None;
    match format {
        // A capture file has no lines to be read here.
        Format::Trace => return Err(Fault::NotText.at(lines.number())),
        Format::Sizes => lines.each(first, |line| text::sizes(&mut counts, line))?,
        Format::Dist => {
            lines.each(first, |line| text::dist(&mut counts, line, options.separator))?;
        }
        Format::Pktgen => {
            let mut commands = pktgen::Commands::default();
            lines.each(first, |line| commands.line(line))?;
            let read = commands.finish().map_err(Error::Model)?;
            counts = read.counts()?;
            model = Some(read);
        }
        Format::Toml => {
            let contents = toml::parse(&lines.into_text(&first)?)?;
            return finish(format, contents.counts, Some(contents.length), contents.model);
        }
    }
    finish(format, counts, lines.length, model)
}

fn finish(
    format: Format,
    counts: Counts,
    length: Option<Length>,
    model: Option<TwoStage>,
) -> Result<DistInput, Error> {
    if counts.packets() == 0 {
        return Err(Error::AllZero);
    }
    Ok(DistInput { format, counts, length, left_out: LeftOut::default(), damage: None, model })
}

/// Returns the format of a text whose first line this is. Two numbers are a size and a count.
fn detect(line: &str, separator: Option<char>) -> Option<Format> {
    let begins_as_number =
        |field: &&str| field.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    if pktgen::is_command(line) {
        return Some(Format::Pktgen);
    }
    if toml::is_toml(line) && separator != Some('=') {
        return Some(Format::Toml);
    }
    let fields = fields(line, separator);
    let numbers = fields.iter().all(begins_as_number);
    match fields.len() {
        // One number is enough, so that a fault in the other is told with its place.
        2 if fields.iter().any(begins_as_number) => Some(Format::Dist),
        _ if numbers => Some(Format::Sizes),
        _ => None,
    }
}
