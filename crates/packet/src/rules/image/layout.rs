//! The bytes of an image, as `crates/capture/bpf/rules.h` has them, and how they are written.
#![allow(clippy::trivially_copy_pass_by_ref, reason = "signatures are looked at where they lie")]

use super::super::signature::{Key, Signature, prefix_mask};
use super::super::tuple::Family;
use super::error::Error;
use super::options::Engine;
use super::perfect::{self, Table};
use super::prefixes::{self, Fineness, LIST, Prefix, Tables, TreeRef};
use super::sorted::{Outcome, Sorted, SortedFamily};

/// The number with which an image begins (`TD_IMAGE_MAGIC`).
pub const MAGIC: u32 = 0x3167_6d69;
/// Length of the header: `sizeof(struct td_rules)`.
pub const HEADER_BYTES: usize = 400;
/// Where in the header the fields of [`Lanes`] stand: `hits` and what follows it.
const LANES_AT: usize = 60;
const FAMILIES_AT: usize = 80;
const FAMILY_BYTES: usize = 128;
const LOWEST_AT: usize = 336;
const DE_BRUIJN: u64 = 0x03f7_9d71_b4cb_0a89;
const NODE_BYTES: usize = 32;
const SEEDS: u64 = 16;

const REST_PORTS: u64 = 1 << 40;
const REST_SIGNATURE: u32 = 48;

const HAS_SOURCE_ONLY: u32 = 1;
const HAS_DESTINATION_ONLY: u32 = 2;
const HAS_GENERIC: u32 = 4;
const HAS_ADDRESSES: u32 = 8;

/// What an image holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Number of rules of the set, including those that are not enabled: each has a counter.
    pub rules: u32,
    /// Number of patterns in the tables, without those that can never be the first to fit.
    pub patterns: u64,
    /// Number of signatures of IPv4 and of IPv6.
    pub signatures: [u32; 2],
    /// Size of the Bloom filter in bits.
    pub bloom_bits: u64,
    /// Bytes of the tables that find signatures by address, with lists and bitmaps.
    pub prefix_bytes: u64,
    /// Bytes of the lists and bitmaps alone.
    pub row_bytes: u64,
    /// Bytes of the hash tables.
    pub hash_bytes: u64,
    /// Whether some addresses are covered by too many signatures for lists.
    pub has_bitmaps: bool,
}

/// Where packets are counted, behind an image: in lanes of counters of 8 bytes, one counter for
/// each rule and one for packets that no rule takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Place of the first lane from the image's beginning, a multiple of 64.
    pub at: u32,
    pub lane_bytes: u32,
    /// Number of lanes, a power of two.
    pub lanes: u32,
    /// Whether there are more CPUs than lanes.
    pub is_shared: bool,
}

impl Lanes {
    /// Writes this into an image, for the programs that read it.
    ///
    /// # Panics
    /// If the bytes are too few for an image's header.
    pub fn write(&self, image: &mut [u8]) {
        let words = [self.at, self.lane_bytes, self.lanes - 1, u32::from(self.is_shared)];
        for (word, to) in words.iter().zip(image[LANES_AT..HEADER_BYTES].chunks_exact_mut(4)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// The bytes of an image that is being written.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.align(64);
        self.0
    }

    /// Fills up to a multiple of `to`, and returns that place. An image beyond the bound is refused
    /// in the end, so a place that has lost its high bits is never read.
    fn align(&mut self, to: usize) -> u32 {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
        self.0.len() as u32
    }

    fn put32(&mut self, words: &[u32]) {
        self.0.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    fn put64(&mut self, words: &[u64]) {
        self.0.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    fn set32(&mut self, at: usize, words: &[u32]) {
        for (word, to) in words.iter().zip(self.0[at..].chunks_exact_mut(4)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    }

    fn set64(&mut self, at: usize, words: &[u64]) {
        for (word, to) in words.iter().zip(self.0[at..].chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Writes a bitmap of so many bits, in whole words of 8 bytes, and returns its place, a
    /// multiple of 64.
    fn bitmap(&mut self, bits: u64, set: impl Iterator<Item = u64>) -> u32 {
        let at = self.align(64);
        let mut words = vec![0u64; bits.div_ceil(64) as usize];
        for bit in set {
            words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        self.put64(&words);
        at
    }
}

/// Which of ports and protocol a signature looks at: bits 0 to 2, as `td_types` has them.
fn asks(signature: &Signature) -> usize {
    usize::from(signature.source_port)
        | usize::from(signature.destination_port) << 1
        | usize::from(signature.protocol) << 2
}

fn is_generic(signature: &Signature) -> bool {
    signature.source_bits == 0 && signature.destination_bits == 0
}

fn mask_rest(signature: &Signature) -> u64 {
    let has_port = signature.source_port || signature.destination_port;
    let field = |is_set: bool, mask: u64| if is_set { mask } else { 0 };
    field(signature.destination_port, 0xffff)
        | field(signature.source_port, 0xffff << 16)
        | field(signature.protocol, 0xff << 32)
        | field(has_port, REST_PORTS)
}

fn key_rest(signature: &Signature, number: u16, key: &Key) -> u64 {
    let has_port = signature.source_port || signature.destination_port;
    u64::from(key.destination_port)
        | u64::from(key.source_port) << 16
        | u64::from(key.protocol) << 32
        | if has_port { REST_PORTS } else { 0 }
        | u64::from(number) << REST_SIGNATURE
}

/// Returns two addresses as they are compared: in one word for IPv4, in four for IPv6.
fn words(family: Family, source: u128, destination: u128) -> Vec<u64> {
    let (high, low) = (|address: u128| (address >> 64) as u64, |address: u128| address as u64);
    match family {
        Family::V4 => vec![high(source) | high(destination) >> 32],
        Family::V6 => vec![high(source), low(source), high(destination), low(destination)],
    }
}

fn hash(seed: u64, words: &[u64], rest: u64) -> u64 {
    match *words {
        [a, b, c, d] => perfect::hash6(seed, [a, b, c, d], rest),
        _ => perfect::hash4(seed, words[0], rest),
    }
}

/// A family's hash table, and the hashes in it.
struct Hashed {
    table: Table,
    hashes: Vec<u64>,
}

fn hash_family(family: &SortedFamily, seed: u64) -> Option<Hashed> {
    let of = |(number, key, _): &(u16, Key, Outcome)| {
        let signature = &family.signatures[usize::from(*number)];
        let words = words(family.family, key.source, key.destination);
        hash(seed, &words, key_rest(signature, *number, key))
    };
    let hashes: Vec<u64> = family.patterns.iter().map(of).collect();
    Some(Hashed { table: Table::build(&hashes)?, hashes })
}

pub fn write(
    sorted: &Sorted,
    engine: Engine,
    bloom_bits: u64,
    fineness: Fineness,
) -> Result<(Vec<u8>, Facts), Error> {
    let find = |seed| {
        let [four, six] = &sorted.families;
        Some((seed, [hash_family(four, seed)?, hash_family(six, seed)?]))
    };
    // Two 64-bit hashes are equal once in many million sets, so sixteen seeds never all fail.
    let (seed, hashed) = (0..SEEDS).find_map(find).ok_or(Error::Hashes)?;
    let mut facts = Facts {
        rules: sorted.rules,
        patterns: hashed.iter().map(|hashed| hashed.hashes.len() as u64).sum(),
        bloom_bits,
        ..Facts::default()
    };
    let mut out = Writer(vec![0; HEADER_BYTES]);
    let bloom = {
        let hashes = hashed.iter().flat_map(|hashed| &hashed.hashes);
        let bits = hashes.flat_map(|&hash| perfect::bloom_bits(seed, hash));
        out.bitmap(bloom_bits, bits.map(|bit| u64::from(bit) & (bloom_bits - 1)))
    };
    let mut needs_types = false;
    for (i, (family, hashed)) in sorted.families.iter().zip(&hashed).enumerate() {
        facts.signatures[i] = family.signatures.len() as u32;
        let written = write_family(&mut out, family, hashed, fineness, &mut facts);
        needs_types |= written.needs_types;
        out.set64(FAMILIES_AT + i * FAMILY_BYTES, &written.roots);
        out.set32(FAMILIES_AT + i * FAMILY_BYTES + 2 * NODE_BYTES, &written.words);
    }
    let types = if needs_types { write_used(&mut out, sorted) } else { [0; 3] };
    let walk = u32::from(engine == Engine::Walk);
    out.set32(0, &[MAGIC, walk, sorted.rules, bloom]);
    out.set64(16, &[bloom_bits - 1, seed]);
    out.set32(32, &sorted.any.unwrap_or(Outcome::NONE).words());
    out.set32(48, &types);
    for bit in 0..64 {
        out.0[LOWEST_AT + (DE_BRUIJN.wrapping_shl(bit) >> 58) as usize] = bit as u8;
    }
    Ok((out.into_bytes(), facts))
}

/// Writes which ports and protocols some rule asks for.
fn write_used(out: &mut Writer, sorted: &Sorted) -> [u32; 3] {
    let patterns = || {
        sorted.families.iter().flat_map(|family| {
            let signature = |number: u16| &family.signatures[usize::from(number)];
            family.patterns.iter().map(move |(number, key, _)| (signature(*number), key))
        })
    };
    let mut bitmap = |bits, of: fn(&Signature, &Key) -> Option<u64>| {
        out.bitmap(bits, patterns().filter_map(|(signature, key)| of(signature, key)))
    };
    [
        bitmap(1 << 16, |s, key| s.source_port.then_some(key.source_port.into())),
        bitmap(1 << 16, |s, key| s.destination_port.then_some(key.destination_port.into())),
        bitmap(1 << 8, |s, key| s.protocol.then_some(key.protocol.into())),
    ]
}

/// A family's part of the header.
struct Written {
    /// Both roots, as they stand in the header.
    roots: Vec<u64>,
    /// The words that follow the roots.
    words: [u32; 10],
    needs_types: bool,
}

fn write_family(
    out: &mut Writer,
    family: &SortedFamily,
    hashed: &Hashed,
    fineness: Fineness,
    facts: &mut Facts,
) -> Written {
    let signatures = &family.signatures;
    let is = |of: fn(&Signature) -> bool| signatures.iter().any(of);
    let mut flags = 0;
    for (flag, is_set) in [
        (HAS_SOURCE_ONLY, is(|s| s.source_bits > 0 && s.destination_bits == 0)),
        (HAS_DESTINATION_ONLY, is(|s| s.source_bits == 0 && s.destination_bits > 0)),
        (HAS_GENERIC, is(is_generic)),
        (HAS_ADDRESSES, is(|s| !is_generic(s))),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    let masks = write_masks(out, family);
    let before = out.0.len();
    let [source, destination] = [Side::Source, Side::Destination]
        .map(|side| Tables::build(side.prefixes(family), fineness));
    let is_long = source.is_long() || destination.is_long();
    let words = if is_long { signatures.len().div_ceil(64) as u32 } else { 0 };
    facts.has_bitmaps |= is_long;
    let sides = [(Side::Source, &source), (Side::Destination, &destination)];
    let roots = sides.map(|(side, tables)| {
        let rows = out.0.len();
        let places = write_rows(out, side, tables, signatures, words as usize);
        facts.row_bytes += (out.0.len() - rows) as u64;
        write_tables(out, tables, &places)
    });
    let types = if is_long { write_types(out, signatures, words as usize) } else { 0 };
    let generic = write_generic(out, signatures);
    facts.prefix_bytes += (out.0.len() - before) as u64;
    let before = out.0.len();
    let (displacements, entries) = write_entries(out, family, &hashed.table);
    facts.hash_bytes += (out.0.len() - before) as u64;
    Written {
        roots: roots.concat(),
        words: [
            flags,
            signatures.len() as u32,
            masks,
            words,
            types,
            generic,
            displacements,
            hashed.table.bucket_mask,
            hashed.table.slot_shift,
            entries,
        ],
        needs_types: is_long || flags & HAS_GENERIC != 0,
    }
}

fn write_masks(out: &mut Writer, family: &SortedFamily) -> u32 {
    let at = out.align(64);
    for signature in &family.signatures {
        let (source, destination) =
            (prefix_mask(signature.source_bits), prefix_mask(signature.destination_bits));
        let mut mask = words(family.family, source, destination);
        mask.push(mask_rest(signature));
        // Each mask stands at a multiple of its size.
        mask.resize(mask.len().next_power_of_two(), 0);
        out.put64(&mask);
    }
    at
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

impl Side {
    fn bits(self, signature: &Signature) -> u8 {
        match self {
            Self::Source => signature.source_bits,
            Self::Destination => signature.destination_bits,
        }
    }

    fn prefixes(self, family: &SortedFamily) -> Vec<Prefix> {
        let prefix = |(number, key, _): &(u16, Key, Outcome)| {
            let bits = self.bits(&family.signatures[usize::from(*number)]);
            let address = if self == Self::Source { key.source } else { key.destination };
            (bits > 0).then_some(Prefix { address, bits, signature: *number })
        };
        family.patterns.iter().filter_map(prefix).collect()
    }
}

/// Writes the rows of the sets of signatures that do not fit in a place, and returns the place of
/// each set.
fn write_rows(
    out: &mut Writer,
    side: Side,
    tables: &Tables,
    signatures: &[Signature],
    words: usize,
) -> Vec<u32> {
    let number = |lane: u16| &signatures[usize::from(lane)];
    // Signatures that look at the other address alone fit any address of this side.
    let free = signatures.iter().enumerate().filter(|(_, s)| side.bits(s) == 0 && !is_generic(s));
    let free: Vec<u16> = free.map(|(number, _)| number as u16).collect();
    out.align(64);
    let mut place = |set: &Vec<u16>| {
        let lanes = prefixes::lanes(set, |signature| number(signature).source_bits == 0);
        if words == 0
            && let Some(place) = prefixes::inline(&lanes)
        {
            return place;
        }
        let place = prefixes::KIND_ROW | (out.align(8) / 8);
        let list = lanes.iter().rev().fold(0, |list, &lane| list << 16 | u64::from(lane));
        out.put64(&[if lanes.len() > LIST { u64::MAX } else { list }]);
        if words > 0 {
            write_bits(out, set.iter().chain(&free), words);
        }
        place
    };
    let is_used = tables.used();
    let sets = tables.sets.iter().zip(is_used);
    sets.map(|(set, is_used)| if is_used { place(set) } else { 0 }).collect()
}

/// Writes a bitmap: a word that says which words are not 0, and the words.
fn write_bits<'a>(out: &mut Writer, numbers: impl Iterator<Item = &'a u16>, words: usize) {
    let mut row = vec![0u64; 1 + words];
    for &number in numbers {
        let (word, bit) = (usize::from(number / 64), number % 64);
        row[0] |= 1 << word;
        row[1 + word] |= 1 << bit;
    }
    out.put64(&row);
}

fn write_types(out: &mut Writer, signatures: &[Signature], words: usize) -> u32 {
    let at = out.align(64);
    for used in 0..8 {
        let fits = |s: &Signature| !is_generic(s) && asks(s) & !used == 0;
        let numbers: Vec<u16> =
            (0..).zip(signatures).filter(|(_, s)| fits(s)).map(|(number, _)| number).collect();
        write_bits(out, numbers.iter(), words);
    }
    at
}

fn write_generic(out: &mut Writer, signatures: &[Signature]) -> u32 {
    let at = out.align(64);
    for used in 0..8 {
        let fits = |s: &Signature| is_generic(s) && asks(s) & !used == 0;
        let mut lists = [0u64; 2];
        let numbers = (1u64..).zip(signatures).filter(|(_, s)| fits(s)).map(|(lane, _)| lane);
        // There are eight such signatures, one for each value of `asks`.
        for (i, lane) in numbers.enumerate().take(8) {
            lists[i / 4] |= lane << (16 * (i % 4));
        }
        out.put64(&lists);
    }
    at
}

/// Writes nodes and chunks, and returns the first node.
fn write_tables(out: &mut Writer, tables: &Tables, sets: &[u32]) -> [u64; NODE_BYTES / 8] {
    let chunks = out.align(64);
    out.0.resize(out.0.len() + tables.chunks.len() * 64, 0);
    let nodes = out.align(NODE_BYTES);
    out.0.resize(out.0.len() + tables.nodes.len() * NODE_BYTES, 0);
    let node_at = |i: u32| nodes / NODE_BYTES as u32 + i;
    let place = |place: TreeRef| match place {
        TreeRef::Set(set) => sets[set as usize],
        TreeRef::Chunk(i) => prefixes::KIND_CHUNK | (chunks / 64 + i),
        TreeRef::Node(i) => prefixes::KIND_NODE | node_at(i),
        TreeRef::Low(i) => prefixes::KIND_NODE | prefixes::LOW | node_at(i),
    };
    for (i, (places, keys)) in tables.chunks.iter().enumerate() {
        let at = chunks as usize + i * 64;
        out.set32(at, &places.map(place));
        out.set64(at + 24, keys);
    }
    let mut first = None;
    for (i, node) in tables.nodes.iter().enumerate() {
        let table = out.align(64);
        let places: Vec<u32> = node.table.iter().map(|&to| place(to)).collect();
        out.put32(&places);
        let at = nodes as usize + i * NODE_BYTES;
        out.set64(at, &[node.min, node.span]);
        out.set32(at + 16, &[place(node.below), place(node.above), table, node.shift]);
        let words = out.0[at..at + NODE_BYTES].as_chunks::<8>().0;
        first.get_or_insert(std::array::from_fn(|i| u64::from_ne_bytes(words[i])));
    }
    first.unwrap_or_default()
}

fn write_entries(out: &mut Writer, family: &SortedFamily, table: &Table) -> (u32, u32) {
    let displacements = out.align(64);
    out.0.extend(table.displacements.iter().flat_map(|d| d.to_ne_bytes()));
    let addresses = if family.family == Family::V4 { 1 } else { 4 };
    let words_each = if family.family == Family::V4 { 4 } else { 8 };
    let entries = out.align(64);
    let mut slots = vec![0u64; table.nslots() * words_each];
    // This value marks a slot as free, because it is no packet's.
    slots.chunks_exact_mut(words_each).for_each(|slot| slot[addresses] = u64::MAX);
    for ((number, key, outcome), &slot) in family.patterns.iter().zip(&table.slots) {
        let signature = &family.signatures[usize::from(*number)];
        let entry = &mut slots[slot as usize * words_each..][..words_each];
        entry[..addresses].copy_from_slice(&words(family.family, key.source, key.destination));
        entry[addresses] = key_rest(signature, *number, key);
        let [rule, priority, value, last] = outcome.words();
        let pair = |a: u32, b: u32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&a.to_ne_bytes());
            bytes[4..].copy_from_slice(&b.to_ne_bytes());
            u64::from_ne_bytes(bytes)
        };
        entry[addresses + 1] = pair(rule, priority);
        entry[addresses + 2] = pair(value, last);
    }
    out.put64(&slots);
    (displacements, entries)
}
