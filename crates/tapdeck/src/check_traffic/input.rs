//! The recording: files, standard input and the segments of stores, one after the other.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::trace::{Error, Reader};
use tapdeck_store::{SegmentName, Store};
use tapdeck_traffic::check::Check;

use crate::progress_line::Watched;

/// A piece of the recording.
pub enum Input {
    Stdin,
    File(PathBuf),
    Segment { dir: PathBuf, name: SegmentName },
}

/// What was told beside the packets.
#[derive(Default)]
pub struct RecordingNotes {
    /// Packets that the recording says it dropped, of whatever traffic.
    pub dropped: u64,
    /// Where files were damaged.
    pub damage: Vec<String>,
}

/// The pieces of what was named on the command line.
pub fn resolve(paths: &[PathBuf]) -> Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            inputs.push(Input::Stdin);
        } else if path.is_dir() {
            let name = path.display();
            let segments = Store::segments(path).with_context(|| format!("cannot read {name}"))?;
            if segments.is_empty() {
                bail!(
                    "{name} has no segments: name a store that `tapdeck record --dir` wrote, or files"
                );
            }
            let segment =
                |s: tapdeck_store::Stored| Input::Segment { dir: path.clone(), name: s.name };
            inputs.extend(segments.into_iter().map(segment));
        } else {
            inputs.push(Input::File(path.clone()));
        }
    }
    Ok(inputs)
}

impl Input {
    fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".into(),
            Self::File(path) => path.display().to_string(),
            Self::Segment { dir, name } => name.path(dir).display().to_string(),
        }
    }

    /// What can be read, and its length where it has one.
    fn open(&self) -> io::Result<(Box<dyn Read>, Option<u64>)> {
        let file = match self {
            Self::Stdin => return Ok((Box::new(io::stdin().lock()), None)),
            Self::File(path) => File::open(path)?,
            Self::Segment { dir, name } => open_segment(dir, name)?,
        };
        let about = file.metadata()?;
        Ok((Box::new(file), about.is_file().then_some(about.len())))
    }

    /// A segment that is being written may end anywhere.
    fn may_be_cut(&self) -> bool {
        matches!(self, Self::Segment { name, .. } if name.live)
    }

    /// Has all its packets checked.
    pub fn read(
        &self,
        check: &mut Check,
        told: &mut RecordingNotes,
        up_to_damage: bool,
    ) -> Result<()> {
        let name = self.name();
        let (input, total) = self.open().with_context(|| format!("cannot open {name}"))?;
        let mut reader =
            Reader::new(Watched::new(input, &name, total)).with_context(|| name.clone())?;
        loop {
            let packet = match reader.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(()),
                Err(Error::CutShort { .. }) if self.may_be_cut() => return Ok(()),
                Err(e @ (Error::CutShort { .. } | Error::Damaged { .. })) if up_to_damage => {
                    drop(reader);
                    let damage = format!("{name}: {e}");
                    let _ =
                        writeln!(io::stderr(), "tapdeck: {damage}; the packets up to there count");
                    told.damage.push(damage);
                    return Ok(());
                }
                Err(e @ (Error::CutShort { .. } | Error::Damaged { .. })) => {
                    bail!("{name}: {e}; --up-to-damage takes the packets before that");
                }
                Err(e) => return Err(e).context(name),
            };
            if packet.link != LinkType::ETHERNET {
                bail!(
                    "{name} holds packets of link type {}: generated ones are Ethernet frames (link type {})",
                    packet.link,
                    LinkType::ETHERNET.0
                );
            }
            told.dropped += packet.dropped;
            check.packet(packet.time_ns, packet.original_len, packet.frame);
        }
    }
}

/// A segment that was live when it was listed may have been closed meanwhile.
fn open_segment(dir: &Path, name: &SegmentName) -> io::Result<File> {
    match File::open(name.path(dir)) {
        Err(e) if e.kind() == ErrorKind::NotFound && name.live => {
            File::open(name.closed().path(dir))
        }
        result => result,
    }
}
