//! The packets of a capture file, as rules see them.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::rules::Tuple;
use tapdeck_packet::rules::cost::Sample;
use tapdeck_packet::rules::fragments::Fragments;
use tapdeck_packet::rules::tuple::is_readable;

use crate::capture_file::{self, OnDamage};
use crate::progress_line::say;
use crate::standard_input::{self, name};

/// Hands every packet's tuple, and its length on the wire, to `each`, in the order of the file.
/// Later fragments have the ports of their first.
pub fn read(path: &Path, up_to_damage: bool, mut each: impl FnMut(&Tuple, u32)) -> Result<()> {
    let name = name(path);
    let input = open(path).with_context(|| format!("cannot open {name}"))?;
    let mut fragments = Fragments::default();
    let mut unreadable = HashSet::new();
    capture_file::read(input, &name, OnDamage::of(up_to_damage), false, |packet| {
        if !is_readable(packet.link) {
            unreadable.insert(packet.link);
        }
        let mut tuple = Tuple::read(packet.link, packet.frame);
        fragments.follow(&mut tuple, packet.time_ns);
        // No judgement depends on which fragment a packet is.
        tuple.fragment = None;
        each(&tuple, packet.original_len);
        Ok(())
    })?;
    let mut unreadable: Vec<LinkType> = unreadable.into_iter().collect();
    unreadable.sort_unstable();
    for link in unreadable {
        say(&format!(
            "{name} has packets of link type {link}, in which no addresses are known: only rules that say any throughout fit them"
        ));
    }
    Ok(())
}

/// Returns the packets of a capture file by which costs are weighed.
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

/// Opens an input. Returns its length, too, where it has one.
fn open(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    if !standard_input::is_named_by(path) && path.is_dir() {
        return Err(io::Error::other(
            "it is a directory; of a store, `tapdeck query --dir DIR -w -` gives the packets, and - takes them",
        ));
    }
    standard_input::open(path)
}
