//! `tapdeck dist`: which packet sizes are there, and how often?
//!
//! Packets, lists or tables go in, and a distribution of sizes comes out in the form that a
//! generator reads. The formats, the two-stage model and the plot are `tapdeck_traffic::dist`'s;
//! this module opens inputs, adds them up, writes the output and tells what was found.

mod live;
pub mod output;
mod report;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tapdeck_traffic::dist::{
    self, Counts, DistInput, Format, LeftOut, Length, Options, Parameters, TwoStage,
};
use tapdeck_traffic::sampling::{Alias, SplitMix64};

use crate::flags::{self, FromChoice, LengthChoice, ToChoice};
use crate::interrupt::Interrupt;
use crate::progress_line::{Watched, say};
use crate::recording::{self, Recorded};
use crate::standard_input::{self, name};
use crate::units::show_count;
use crate::usage::usage;
use output::{Staged, Target};

/// How many sizes are drawn where the user does not say. The program of the model's thesis draws
/// ten million.
const SAMPLES: u64 = 1_000_000;
const SEED: u64 = 1;

/// All inputs together.
struct Gathered {
    counts: Counts,
    length: Length,
    /// Whether neither an input nor the user said what sizes measure.
    length_is_assumed: bool,
    left_out: LeftOut,
    /// Packets that `--max-size` leaves out.
    above_max: u64,
    /// Whether the counts are shares, not packets.
    is_model: bool,
}

pub fn run(flags: &flags::Dist) -> Result<()> {
    let output = Target::new(flags.output.clone());
    let plot = flags.plot.clone().map(|path| Target::new(Some(path)));
    check(flags, &output, plot.as_ref())?;
    for target in plot.iter().chain([&output]) {
        target.check()?;
    }
    let gathered = gather(flags)?;
    let parameters = parameters(flags);
    let model = TwoStage::new(&gathered.counts, &parameters)?;
    report::summary(&gathered, &model, flags.top);

    // Before this there is nothing that an end at once would leave behind.
    let interrupt = Interrupt::listen()?;
    let mut plotted = plot.as_ref().map(Staged::open).transpose()?;
    if let Some(out) = &mut plotted {
        let title = title(flags);
        let (source_p, model_p) = (gathered.counts.probabilities(), model.probabilities());
        let svg = dist::plot::svg(&title, gathered.length, &source_p, &model_p);
        out.write_all(svg.map_err(anyhow::Error::msg)?.as_bytes())?;
    }
    let mut out = Staged::open(&output)?;
    write(&mut out, flags, &gathered, &model, &interrupt)?;
    out.finish()?;
    plotted.map_or(Ok(()), Staged::finish)
}

/// Refuses flags that do not go together, as far as clap cannot.
fn check(flags: &flags::Dist, output: &Target, plot: Option<&Target>) -> Result<()> {
    if flags.interface.is_none() && flags.from.is_empty() {
        return usage("what to read? Name files, - for standard input, or -i IFACE");
    }
    if flags.interface.is_none() && (flags.duration.is_some() || flags.count.is_some()) {
        return usage("--duration and --count are for -i: files are read to their end");
    }
    standard_input::refuse_twice(flags.from.iter().map(PathBuf::as_path))?;
    if plot == Some(output) {
        return usage("-o and --plot are the same: give each its own file");
    }
    if flags.surround_pgset && flags.to != ToChoice::Pktgen {
        return usage("--surround-pgset is for --to pktgen");
    }
    if (flags.samples.is_some() || flags.seed.is_some()) && flags.to != ToChoice::Sizes {
        return usage("-n and --seed are for --to sizes: nothing else is drawn");
    }
    if !(flags.outlier_bound > 0.0 && flags.outlier_bound <= 1.0) {
        return usage("--outlier-bound is a share above 0 and up to 1");
    }
    Ok(())
}

fn parameters(flags: &flags::Dist) -> Parameters {
    Parameters {
        outlier_bound: flags.outlier_bound,
        bin_width: flags.bin_width,
        precision: flags.precision,
        max_size: flags.max_size,
    }
}

/// Reads all inputs, or counts on the interface.
fn gather(flags: &flags::Dist) -> Result<Gathered> {
    let asked = flags.length.map(|choice| match choice {
        LengthChoice::Frame => Length::Frame,
        LengthChoice::Ip => Length::Ip,
    });
    let mut all = match &flags.interface {
        Some(name) => count(flags, name, asked.unwrap_or(Length::Frame))?,
        None => read_all(flags, asked)?,
    };
    if let Some(max_size) = flags.max_size {
        all.above_max = all.counts.above(max_size);
        all.counts = all.counts.up_to(max_size);
        if all.counts.packets() == 0 {
            return Err(dist::Error::AllAbove { max_size }.into());
        }
    }
    Ok(all)
}

fn count(flags: &flags::Dist, name: &str, length: Length) -> Result<Gathered> {
    let limits = live::Limits { duration: flags.duration, count: flags.count };
    let interrupt = Interrupt::listen()?;
    let tally = live::count(name, length, &limits, &interrupt)?;
    if tally.counts.packets() == 0 {
        let packets = tally.left_out.packets();
        let why = if packets == 0 { "no packet came" } else { "no packet that counts came" };
        anyhow::bail!("{name}: {why}, so there is no distribution; {packets} were left out");
    }
    Ok(Gathered {
        counts: tally.counts,
        length,
        length_is_assumed: false,
        left_out: tally.left_out,
        above_max: 0,
        is_model: false,
    })
}

fn read_all(flags: &flags::Dist, asked: Option<Length>) -> Result<Gathered> {
    let mut counts = Counts::new();
    let mut left_out = LeftOut::default();
    let mut is_model = false;
    // What sizes measure, and the input that said so first.
    let mut stated: Option<(Length, String)> = None;
    let recorded = recording::resolve(flags.from.iter().map(PathBuf::as_path))?;
    let is_alone = recorded.len() == 1;
    for recorded in &recorded {
        let length = asked.or(stated.as_ref().map(|(length, _)| *length));
        let name = recorded.name();
        let read = read(flags, recorded, &name, length);
        let input = match (read, &stated) {
            // A segment, or a file, of many may be empty.
            (Err(dist::Error::NoPackets { packets: 0 }), _) if !is_alone => continue,
            (Err(dist::Error::Length { stated, asked }), Some((_, first))) => anyhow::bail!(
                "{name} holds the lengths of {stated}s and {} those of {asked}s, which do not add up: count one kind (--length {} has capture files counted so)",
                first,
                stated.name(),
            ),
            (read, _) => read.with_context(|| name.clone())?,
        };
        if let Some(damage) = input.damage.as_ref().filter(|_| !recorded.may_be_cut()) {
            say(&format!("{name}: {damage}; the packets up to there count"));
        }
        is_model |= input.format == Format::Pktgen;
        if is_model && !is_alone {
            anyhow::bail!(
                "{name}: pktgen's commands hold shares and no packets, so that nothing can be added to them: read the file by itself"
            );
        }
        counts.merge(&input.counts).with_context(|| name.clone())?;
        left_out.add(&input.left_out);
        stated = stated.or(input.length.map(|length| (length, name)));
    }
    if counts.packets() == 0 {
        anyhow::bail!("{}: there are no packets, so there is no distribution", title(flags));
    }
    let length = asked.or(stated.map(|(length, _)| length));
    Ok(Gathered {
        counts,
        length: length.unwrap_or(Length::Frame),
        length_is_assumed: length.is_none(),
        left_out,
        above_max: 0,
        is_model,
    })
}

fn read(
    flags: &flags::Dist,
    recorded: &Recorded,
    name: &str,
    length: Option<Length>,
) -> Result<DistInput, dist::Error> {
    let options = Options {
        format: match flags.format {
            FromChoice::Auto => None,
            FromChoice::Trace => Some(Format::Trace),
            FromChoice::Sizes => Some(Format::Sizes),
            FromChoice::Dist => Some(Format::Dist),
            FromChoice::Pktgen => Some(Format::Pktgen),
            FromChoice::Toml => Some(Format::Toml),
        },
        length,
        separator: flags.separator,
        up_to_damage: flags.up_to_damage || recorded.may_be_cut(),
    };
    let (input, bytes) = recorded.open()?;
    dist::read(Watched::new(input, name, bytes), options)
}

/// Returns the heading of the plot.
fn title(flags: &flags::Dist) -> String {
    match (&flags.interface, &flags.from[..]) {
        (Some(interface), _) => format!("Packet sizes on {interface}"),
        (None, [path]) => format!("Packet sizes of {}", name(path)),
        (None, paths) => format!("Packet sizes of {} inputs", paths.len()),
    }
}

fn write(
    out: &mut impl Write,
    flags: &flags::Dist,
    gathered: &Gathered,
    model: &TwoStage,
    interrupt: &Interrupt,
) -> Result<()> {
    let Gathered { counts, length, .. } = gathered;
    match flags.to {
        ToChoice::Dist => dist::write_dist(out, counts, *length, flags.separator.unwrap_or(' '))?,
        ToChoice::Pktgen => dist::write_pktgen(out, model, *length, flags.surround_pgset)?,
        ToChoice::Toml => dist::write_toml(out, counts, *length, Some(model))?,
        ToChoice::Sizes => draw(out, flags, counts, interrupt)?,
    }
    Ok(())
}

/// Draws sizes, each exactly as probable as in the source, and says how far the sample is from the
/// source.
fn draw(
    out: &mut impl Write,
    flags: &flags::Dist,
    counts: &Counts,
    interrupt: &Interrupt,
) -> Result<()> {
    /// Sizes between two looks for Ctrl-C.
    const ROUND: u64 = 1 << 16;
    let (samples, seed) = (flags.samples.unwrap_or(SAMPLES), flags.seed.unwrap_or(SEED));
    let (sizes, weights): (Vec<u16>, Vec<u64>) = counts.iter().unzip();
    let alias = Alias::new(&weights);
    let mut random = SplitMix64::new(seed);
    let mut sample = Counts::new();
    let mut left = samples;
    while left > 0 {
        anyhow::ensure!(!interrupt.asked(), "interrupted; the output is not complete");
        for _ in 0..left.min(ROUND) {
            let size = sizes[alias.pick(random.next_u64())];
            sample.add(size, 1)?;
            writeln!(out, "{size}")?;
        }
        left -= left.min(ROUND);
    }
    say(&format!(
        "sample: {} sizes, seed {seed}, KS distance to the source {:.4}",
        show_count(samples),
        sample.ks_distance(&counts.probabilities())
    ));
    Ok(())
}
