//! The packets of a capture file or of a recording, as rules see them.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::rules::Tuple;
use tapdeck_packet::rules::cost::Sample;
use tapdeck_packet::rules::fragments::Fragments;
use tapdeck_packet::rules::tuple::is_readable;

use crate::capture_file::{self, OnDamage};
use crate::progress_line::say;
use crate::recording;
use crate::standard_input::name;

/// Hands every packet's tuple, and its length on the wire, to `each`, in the order of the file.
/// Later fragments have the ports of their first.
pub fn read(path: &Path, up_to_damage: bool, mut each: impl FnMut(&Tuple, u32)) -> Result<()> {
    let name = name(path);
    let mut fragments = Fragments::default();
    let mut unreadable = HashSet::new();
    for recorded in recording::resolve([path])? {
        let name = recorded.name();
        let input = recorded.open().with_context(|| format!("cannot open {name}"))?;
        let (on_damage, may_be_cut) = (OnDamage::of(up_to_damage), recorded.may_be_cut());
        capture_file::read(input, &name, on_damage, may_be_cut, |packet| {
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
