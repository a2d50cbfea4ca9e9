//! How long are packets? From what a person asks for to the table that senders draw from.
//!
//! Lengths are of frames with their Ethernet header and without check sequence, as tcpdump shows
//! them. Whatever was asked for becomes weights of lengths, and an alias table of the weights, so
//! that a normal distribution costs a sender no more than a single size. Only the sizes of a trace
//! keep their order.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tapdeck_packet::generate::Sizes;
use tapdeck_packet::trace;

use crate::dist::{self, Counts, Length, Parameters, TwoStage};
use crate::sampling::Alias;
use crate::workload::MIN_FRAME;

/// Sizes as a person asks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    One(u16),
    Uniform(u16, u16),
    /// A normal distribution around the middle of the range, which is six standard deviations wide;
    /// nothing is outside of the range.
    Normal(u16, u16),
    /// The "simple IMIX": 7 packets of 40 bytes of IP to 4 of 576 to 1 of 1500, each in a frame.
    Imix,
    /// A distribution in any of the forms that [`dist`] reads.
    Dist(PathBuf),
    /// The sizes of a capture file, in their order.
    Trace(PathBuf),
}

/// How sizes are drawn from a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Each size with its exact share.
    #[default]
    Alias,
    /// Each size with the share that the two-stage model gives it.
    TwoStage,
}

/// Why there are no sizes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// not one of the forms
    #[error("{0:?} is no size; write 64, 64-1500, normal:64-1500, imix, dist:FILE or trace:FILE")]
    Form(String),
    /// shorter than Ethernet's shortest frame, or than what the headers take
    #[error("a size of {size} bytes is too small: {why} take at least {least}")]
    Small { size: u16, least: u16, why: &'static str },
    /// longer than the interface takes
    #[error("a size of {size} bytes is too large: {mtu} of MTU allow frames of {most}")]
    Large { size: u16, most: u16, mtu: u32 },
    /// a file that holds such sizes, as recorders see them where the kernel joins packets
    #[error(
        "{path}: it has a packet of {size} bytes, and {mtu} of MTU allow frames of {most}; leave such out: \
        tapdeck dist {path} --max-size {most} -o FILE, then dist:FILE",
        path = path.display()
    )]
    LargeIn { path: PathBuf, size: u16, most: u16, mtu: u32 },
    /// the distribution cannot be used
    #[error("{path}", path = path.display())]
    Dist {
        path: PathBuf,
        #[source]
        error: dist::Error,
    },
    /// the capture file cannot be read
    #[error("{path}: {error}", path = path.display())]
    Trace { path: PathBuf, error: trace::Error },
    /// a capture file without packets
    #[error("{path}: there is no packet in it", path = .0.display())]
    NoPackets(PathBuf),
    /// more sizes than a table takes
    #[error("{path}: more than {MAX_SEQUENCE} packets; take their distribution: dist:{path}", path = .0.display())]
    TooMany(PathBuf),
    /// the two-stage model is of distributions
    #[error("--method two-stage is for dist:FILE")]
    Method,
}

/// The most sizes that are kept of a capture file: 128 MiB of them.
const MAX_SEQUENCE: usize = 1 << 26;

impl FromStr for Spec {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let form = || Error::Form(s.to_owned());
        let range = |s: &str| -> Result<(u16, u16), Error> {
            let (low, high) = s.split_once('-').ok_or_else(form)?;
            match (low.trim().parse(), high.trim().parse()) {
                (Ok(low), Ok(high)) if low <= high => Ok((low, high)),
                _ => Err(form()),
            }
        };
        match s.split_once(':') {
            Some(("dist", path)) if !path.is_empty() => Ok(Self::Dist(path.into())),
            Some(("trace", path)) if !path.is_empty() => Ok(Self::Trace(path.into())),
            Some(("normal", r)) => range(r).map(|(low, high)| Self::Normal(low, high)),
            Some(_) => Err(form()),
            None if s == "imix" => Ok(Self::Imix),
            None if s.contains('-') => range(s).map(|(low, high)| Self::Uniform(low, high)),
            None => s.parse().map(Self::One).map_err(|_| form()),
        }
    }
}

/// The lengths that a workload and an interface allow.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The shortest frame with room for headers and sequence number.
    pub least: u16,
    /// Bytes before the IP packet.
    pub link_bytes: u16,
    /// The longest frame that the interface takes.
    pub most: u16,
    pub mtu: u32,
}

/// Sizes to draw from.
#[derive(Clone, Debug)]
pub struct Table {
    kind: Kind,
    mean: f64,
    longest: u16,
    /// The share of packets that were made longer, because a frame cannot be so short.
    raised: f64,
    /// Where a capture file is damaged, which was used up to there.
    damage: Option<String>,
}

#[derive(Clone, Debug)]
enum Kind {
    Weights(Vec<(u16, u64)>),
    Sequence(Arc<[u16]>),
}

impl Table {
    /// Reads and checks what was asked for. With `up_to_damage`, a damaged capture file is used up
    /// to the damage.
    pub fn new(
        spec: &Spec,
        method: Method,
        bounds: Bounds,
        up_to_damage: bool,
    ) -> Result<Self, Error> {
        if method == Method::TwoStage && !matches!(spec, Spec::Dist(_)) {
            return Err(Error::Method);
        }
        let even = |low: u16, high: u16| (low..=high).map(|size| (size, 1)).collect();
        let mut damage = None;
        let (kind, strict) = match spec {
            Spec::One(size) => (Kind::Weights(even(*size, *size)), true),
            Spec::Uniform(low, high) => (Kind::Weights(even(*low, *high)), true),
            Spec::Normal(low, high) => (Kind::Weights(normal(*low, *high)), true),
            Spec::Imix => {
                let link = bounds.link_bytes;
                let least = MIN_FRAME.max(40 + link);
                (Kind::Weights(vec![(least, 7), (576 + link, 4), (1500 + link, 1)]), false)
            }
            Spec::Dist(path) => {
                let link = bounds.link_bytes;
                let (weights, hurt) = read_distribution(path, method, link, up_to_damage)?;
                damage = hurt;
                (Kind::Weights(weights), false)
            }
            Spec::Trace(path) => {
                let (sizes, hurt) = read_sizes(path, up_to_damage)?;
                damage = hurt;
                (Kind::Sequence(sizes.into()), false)
            }
        };
        let mut table = Self { kind, mean: 0.0, longest: 0, raised: 0.0, damage };
        table.fit(bounds, strict).map_err(|e| match (e, spec) {
            (Error::Large { size, most, mtu }, Spec::Dist(path) | Spec::Trace(path)) => {
                Error::LargeIn { path: path.clone(), size, most, mtu }
            }
            (e, _) => e,
        })?;
        Ok(table)
    }

    /// Holds the sizes to the bounds. A size that is too short is an error where a person wrote it,
    /// and is made longer where it comes from a file.
    fn fit(&mut self, bounds: Bounds, strict: bool) -> Result<(), Error> {
        let least = bounds.least;
        let (mut packets, mut bytes, mut raised, mut longest) = (0u128, 0u128, 0u128, 0);
        let mut each = |size: &mut u16, n: u64| -> Result<(), Error> {
            if *size < least && strict {
                let why = if *size < MIN_FRAME { "Ethernet frames" } else { "these headers" };
                let least = if *size < MIN_FRAME { MIN_FRAME } else { least };
                return Err(Error::Small { size: *size, least, why });
            }
            raised += if *size < least { u128::from(n) } else { 0 };
            *size = (*size).max(least);
            longest = longest.max(*size);
            packets += u128::from(n);
            bytes += u128::from(n) * u128::from(*size);
            Ok(())
        };
        match &mut self.kind {
            Kind::Weights(weights) => {
                weights.iter_mut().try_for_each(|(size, n)| each(size, *n))?;
            }
            Kind::Sequence(sizes) => {
                let sizes = Arc::get_mut(sizes).expect("nobody has it yet");
                sizes.iter_mut().try_for_each(|size| each(size, 1))?;
            }
        }
        if longest > bounds.most {
            return Err(Error::Large { size: longest, most: bounds.most, mtu: bounds.mtu });
        }
        self.mean = bytes as f64 / packets as f64;
        self.raised = raised as f64 / packets as f64;
        self.longest = longest;
        Ok(())
    }

    /// Returns what sender number `sender` draws from.
    pub fn sizes(&self, sender: u32, senders: u32) -> Sizes {
        match &self.kind {
            Kind::Sequence(sizes) => {
                Sizes::Sequence { sizes: sizes.clone(), first: sender.into(), step: senders.into() }
            }
            Kind::Weights(weights) => {
                let alias = Alias::new(&weights.iter().map(|(_, n)| *n).collect::<Vec<_>>());
                let size = |i: u32| u32::from(weights[i as usize].0);
                let columns = alias.columns().iter().map(|c| {
                    let mut column = *c;
                    (column.own, column.other) = (size(c.own), size(c.other));
                    column
                });
                Sizes::Drawn(columns.collect())
            }
        }
    }

    /// Returns the bytes of a frame in the mean.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    pub fn longest(&self) -> u16 {
        self.longest
    }

    /// Returns the share of packets that were made longer, because a frame cannot be so short.
    pub fn raised(&self) -> f64 {
        self.raised
    }

    /// Returns where a capture file is damaged, which was used up to there.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

/// Returns weights that follow the normal density in the middle of each size.
fn normal(low: u16, high: u16) -> Vec<(u16, u64)> {
    let middle = f64::midpoint(low.into(), high.into());
    let deviation = (f64::from(high - low) / 6.0).max(1e-9);
    let weight = |size: u16| {
        let z = (f64::from(size) - middle) / deviation;
        (1e12 * (-z * z / 2.0).exp()).round() as u64
    };
    (low..=high).map(|size| (size, weight(size))).collect()
}

type Weights = Vec<(u16, u64)>;

fn read_distribution(
    path: &Path,
    method: Method,
    link_bytes: u16,
    up_to_damage: bool,
) -> Result<(Weights, Option<String>), Error> {
    let fault = |error| Error::Dist { path: path.to_owned(), error };
    let options = dist::Options { up_to_damage, ..dist::Options::default() };
    let input = dist::read_file(path, options).map_err(fault)?;
    let modelled = |counts: &Counts| -> Result<Counts, dist::Error> {
        TwoStage::new(counts, &Parameters::default())?.counts()
    };
    let counts = match (method, &input.model) {
        (Method::Alias, _) => input.counts,
        (Method::TwoStage, Some(model)) => model.counts().map_err(fault)?,
        (Method::TwoStage, None) => modelled(&input.counts).map_err(fault)?,
    };
    let link_bytes = if input.length == Some(Length::Ip) { link_bytes } else { 0 };
    let damage = input.damage.map(|d| d.to_string());
    Ok((counts.iter().map(|(size, n)| (size.saturating_add(link_bytes), n)).collect(), damage))
}

fn read_sizes(path: &Path, up_to_damage: bool) -> Result<(Vec<u16>, Option<String>), Error> {
    let fault = |error| Error::Trace { path: path.to_owned(), error };
    let file = File::open(path).map_err(|e| fault(trace::Error::Io(e)))?;
    let mut reader = trace::Reader::new(file).map_err(fault)?;
    let mut sizes = Vec::new();
    let mut damage = None;
    loop {
        match reader.next_packet() {
            Ok(Some(_)) if sizes.len() == MAX_SEQUENCE => {
                return Err(Error::TooMany(path.to_owned()));
            }
            Ok(Some(packet)) => sizes.push(u16::try_from(packet.original_len).unwrap_or(u16::MAX)),
            Ok(None) => break,
            Err(error) if up_to_damage && !matches!(error, trace::Error::Io(_)) => {
                damage = Some(error.to_string());
                break;
            }
            Err(error) => return Err(fault(error)),
        }
    }
    if sizes.is_empty() { Err(Error::NoPackets(path.to_owned())) } else { Ok((sizes, damage)) }
}

#[cfg(test)]
mod tests {
    use super::{Bounds, Error, Method, Spec, Table};
    use crate::dist::Counts;
    use crate::sampling::SplitMix64;
    use tapdeck_packet::generate::{Column, Sizes};

    const BOUNDS: Bounds = Bounds { least: 60, link_bytes: 14, most: 1514, mtu: 1500 };

    fn table(spec: &str) -> Result<Table, Error> {
        Table::new(&spec.parse()?, Method::Alias, BOUNDS, false)
    }

    #[test]
    fn forms() {
        assert_eq!("64".parse::<Spec>().ok(), Some(Spec::One(64)));
        assert_eq!("64-1500".parse::<Spec>().ok(), Some(Spec::Uniform(64, 1500)));
        assert_eq!("normal:64-1500".parse::<Spec>().ok(), Some(Spec::Normal(64, 1500)));
        assert_eq!("dist:a:b".parse::<Spec>().ok(), Some(Spec::Dist("a:b".into())));
        for bad in ["", "-", "64-", "-64", "1500-64", "70000", "dist:", "normal:64", "x:1", "1e3"] {
            assert!(bad.parse::<Spec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn means_and_bounds() {
        assert!((table("64-1500").unwrap().mean() - 782.0).abs() < 1e-9);
        assert!((table("normal:64-1500").unwrap().mean() - 782.0).abs() < 1e-6);
        let imix = table("imix").unwrap();
        assert!((imix.mean() - (7.0 * 60.0 + 4.0 * 590.0 + 1514.0) / 12.0).abs() < 1e-9);
        assert!(imix.raised() == 0.0);
        for (bad, says) in [
            ("59", "at least 60"),
            ("0", "at least 60"),
            ("40-100", "at least 60"),
            ("1515", "frames of 1514"),
            ("60-9000", "frames of 1514"),
        ] {
            let error = table(bad).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_million_packets_are_near_their_source() {
        let mut source = Counts::new();
        for (size, packets) in [(60, 700), (66, 310), (576, 5), (590, 90), (1000, 1), (1514, 800)] {
            source.add(size, packets).expect("it fits");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("source");
        let lines: Vec<String> = source.iter().map(|(size, n)| format!("{size} {n}\n")).collect();
        std::fs::write(&path, lines.concat()).expect("room on the disk");
        for method in [Method::Alias, Method::TwoStage] {
            let table = Table::new(&Spec::Dist(path.clone()), method, BOUNDS, false).unwrap();
            let Sizes::Drawn(columns) = table.sizes(0, 1) else { panic!("sizes are drawn") };
            let mut random = SplitMix64::new(3);
            let mut drawn = Counts::new();
            for _ in 0..1_000_000 {
                let size = Column::pick(&columns, random.next_u64());
                drawn.add(size as u16, 1).expect("it fits");
            }
            let distance = source.ks_distance(&drawn.probabilities());
            assert!(distance <= 0.01, "{method:?}: {distance}");
        }
    }
}
