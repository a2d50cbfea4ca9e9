//! The packets of a capture file as rules see them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::rules::Tuple;
use tapdeck_packet::rules::cost::Sample;
use tapdeck_packet::rules::fragments::Fragments;
use tapdeck_packet::rules::tuple::is_readable;
use tapdeck_packet::trace::{Error, Reader};

use super::name;
use crate::progress_line::{Watched, say};

/// Gives every packet's tuple, and its length on the wire, in the order of the file. Later
/// fragments have the ports of their first.
pub fn read(path: &Path, up_to_damage: bool, mut each: impl FnMut(&Tuple, u32)) -> Result<()> {
    let name = name(path);
    let (input, total) = open(path).with_context(|| format!("cannot open {name}"))?;
    let mut reader =
        Reader::new(Watched::new(input, &name, total)).with_context(|| name.clone())?;
    let mut fragments = Fragments::default();
    let mut unreadable = HashSet::new();
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(e @ (Error::CutShort { .. } | Error::Damaged { .. })) if up_to_damage => {
                drop(reader);
                say(&format!("{name}: {e}; the packets up to there count"));
                break;
            }
            Err(e @ (Error::CutShort { .. } | Error::Damaged { .. })) => {
                bail!("{name}: {e}; --up-to-damage takes the packets before that");
            }
            Err(e) => return Err(e).context(name),
        };
        if !is_readable(packet.link) {
            unreadable.insert(packet.link);
        }
        let mut tuple = Tuple::read(packet.link, packet.frame);
        fragments.follow(&mut tuple, packet.time_ns);
        // What a judgement depends on.
        tuple.fragment = None;
        each(&tuple, packet.original_len);
    }
    let mut unreadable: Vec<LinkType> = unreadable.into_iter().collect();
    unreadable.sort_unstable();
    for link in unreadable {
        say(&format!(
            "{name} has packets of link type {link}, in which no addresses are known: only rules that say any throughout fit them"
        ));
    }
    Ok(())
}

/// Some packets of a capture file, with which costs are weighed.
pub fn sample(path: &Path, up_to_damage: bool) -> Result<Sample> {
    let mut sample = Sample::default();
    read(path, up_to_damage, |tuple, _| sample.add(*tuple))?;
    if sample.seen() == 0 {
        bail!(
            "{} holds no packet, so it is no sample: name one that does, or leave --sample out",
            name(path)
        );
    }
    Ok(sample)
}

/// What can be read, and its length where it has one.
fn open(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(io::Error::other(
            "it is a directory; of a store, `tapdeck query --dir DIR -w -` gives the packets, and - takes them",
        ));
    }
    Ok((Box::new(file), about.is_file().then_some(about.len())))
}
