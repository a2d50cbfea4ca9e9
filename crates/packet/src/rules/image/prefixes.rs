//! Which signatures can fit at an address?
//!
//! The prefixes of all rules cut the address space into **intervals** in which the same signatures
//! have a covering prefix. A **node** cuts a range of keys into equal buckets and has a **place**
//! for each: a list of signatures, or where to look further. A bucket that several intervals fall
//! into gets the list of all their signatures together if that is short; otherwise a **chunk**,
//! which tells up to six intervals apart, or a node of its own. Keys have 64 bits: an IPv4 address
//! in the high half, or the high half of an IPv6 address. Where prefixes are longer than that, the
//! low half is looked up after it.
//!
//! How these tables lie in memory is in `layout.rs`.

use std::collections::HashMap;

/// How many signatures a list holds. A longer set is a row with a bitmap.
pub const LIST: usize = 4;
/// How many signatures fit in a place itself.
const INLINE: usize = 2;
/// How many places a chunk has.
const CHUNK: usize = 6;

pub const KIND_ROW: u32 = 1 << 30;
pub const KIND_CHUNK: u32 = 2 << 30;
pub const KIND_NODE: u32 = 3 << 30;
pub const LOW: u32 = 1 << 29;
pub const LANE_NO_SOURCE: u16 = 0x4000;

/// How finely addresses are told apart.
#[derive(Clone, Copy, Debug)]
pub struct Fineness {
    /// Binary logarithm of the number of buckets that the first node has at most.
    root_bits: u32,
    /// How many nodes stand behind one another at most, in each half of an address. `TD_STEPS`
    /// bounds this to 4.
    depth: u32,
}

/// The choices of fineness, the finest first. The last makes tables of a few KiB whatever the rules
/// are.
pub const FINENESS: [Fineness; 3] = [
    Fineness { root_bits: 16, depth: 4 },
    Fineness { root_bits: 12, depth: 2 },
    Fineness { root_bits: 8, depth: 1 },
];

/// Bytes of an image up to which no coarser fineness is tried.
pub const WELCOME_BYTES: u64 = 24 << 20;

/// A covering prefix, left-aligned, with the number of its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    pub address: u128,
    pub bits: u8,
    pub signature: u16,
}

/// A place: its kind, and an index into one of the vectors of [`Tables`], where the image has an
/// offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeRef {
    Set(u32),
    Chunk(u32),
    Node(u32),
    /// A node for the low half of an address.
    Low(u32),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub min: u64,
    pub span: u64,
    pub below: TreeRef,
    pub above: TreeRef,
    pub shift: u32,
    pub table: Vec<TreeRef>,
}

/// Six places, and the five keys between them.
pub type Chunk = ([TreeRef; CHUNK], [u64; CHUNK - 1]);

/// The tables for one address, source or destination, of one family. Looking up begins at the node
/// of number 0.
#[derive(Debug, Default)]
pub struct Tables {
    pub nodes: Vec<Node>,
    pub chunks: Vec<Chunk>,
    /// The sets of signatures that places lead to. Each is sorted.
    pub sets: Vec<Vec<u16>>,
    numbers: HashMap<Vec<u16>, u32>,
    depth: u32,
}

/// What holds from a key on, up to the next item.
#[derive(Clone, Debug)]
enum Item {
    Set(u32),
    /// The items of the low half, on which the set depends.
    Low(Vec<(u64, Item)>),
}

impl Tables {
    pub fn build(mut prefixes: Vec<Prefix>, fineness: Fineness) -> Self {
        let mut tables = Self { depth: fineness.depth, ..Self::default() };
        prefixes.sort_unstable();
        prefixes.dedup();
        let items = halves(&tables.intervals(&prefixes));
        tables.root(&items, fineness.root_bits);
        tables
    }

    /// Returns for each set whether some address leads to it.
    pub fn used(&self) -> Vec<bool> {
        let nodes = self.nodes.iter().flat_map(|node| [node.below, node.above]);
        let tables = self.nodes.iter().flat_map(|node| node.table.iter().copied());
        let chunks = self.chunks.iter().flat_map(|chunk| chunk.0);
        let mut is_used = vec![false; self.sets.len()];
        for place in nodes.chain(tables).chain(chunks) {
            if let TreeRef::Set(set) = place {
                is_used[set as usize] = true;
            }
        }
        is_used
    }

    /// Returns whether some address leads to a set that is too long for a list.
    pub fn is_long(&self) -> bool {
        self.sets.iter().zip(self.used()).any(|(set, is_used)| is_used && set.len() > LIST)
    }

    fn set(&mut self, set: Vec<u16>) -> u32 {
        if let Some(&number) = self.numbers.get(&set) {
            return number;
        }
        let number = self.sets.len() as u32;
        self.numbers.insert(set.clone(), number);
        self.sets.push(set);
        number
    }

    /// Returns the first address of each interval, and the interval's set. The first interval
    /// begins at 0.
    fn intervals(&mut self, prefixes: &[Prefix]) -> Vec<(u128, u32)> {
        let nothing = self.set(Vec::new());
        let mut intervals = vec![(0, nothing)];
        // The last address and the set of each prefix that the present address lies in.
        let mut open: Vec<(u128, u32)> = vec![(u128::MAX, nothing)];
        for same in prefixes.chunk_by(|a, b| (a.address, a.bits) == (b.address, b.bits)) {
            let Prefix { address, bits, .. } = same[0];
            close(&mut open, &mut intervals, Some(address));
            let mut set = self.sets[open.last().map_or(nothing, |open| open.1) as usize].clone();
            set.extend(same.iter().map(|prefix| prefix.signature));
            set.sort_unstable();
            set.dedup();
            let set = self.set(set);
            let last = address | u128::MAX.checked_shr(bits.into()).unwrap_or(0);
            open.push((last, set));
            begin(&mut intervals, address, set);
        }
        close(&mut open, &mut intervals, None);
        intervals
    }

    fn root(&mut self, items: &[(u64, Item)], bits: u32) {
        // With eight buckets for each interval, most buckets fall into one interval.
        let wanted = (items.len() * 8).next_power_of_two().ilog2().clamp(5, bits);
        let [first, .., last] = items else {
            let place = self.place(items, self.depth);
            let number = self.reserve_root(place);
            debug_assert_eq!(number, 0);
            return;
        };
        let ends_alike = matches!((&first.1, &last.1), (Item::Set(a), Item::Set(b)) if a == b);
        let place = self.nothing();
        self.reserve_root(place);
        self.nodes[0] = if ends_alike {
            self.node(items, wanted, self.depth)
        } else {
            // The intervals at the two ends differ, so the table spans all keys.
            self.table(items, 0, u64::MAX, wanted, self.depth, [place; 2])
        };
    }

    fn nothing(&mut self) -> TreeRef {
        TreeRef::Set(self.set(Vec::new()))
    }

    /// Adds a node that leads to one place whatever the key is, and returns its number.
    fn reserve_root(&mut self, place: TreeRef) -> u32 {
        let (below, above) = (place, place);
        self.nodes.push(Node {
            min: 0,
            span: u64::MAX,
            below,
            above,
            shift: 63,
            table: vec![place; 2],
        });
        self.nodes.len() as u32 - 1
    }

    /// Makes a node whose table has the keys from the first boundary up to the last.
    fn node(&mut self, items: &[(u64, Item)], bits: u32, depth: u32) -> Node {
        let (first, last) = (items[1].0, &items[items.len() - 1]);
        let below = self.place(&items[..1], depth);
        let above = self.place(std::slice::from_ref(last), depth);
        self.table(&items[1..], first, last.0 - 1 - first, bits, depth, [below, above])
    }

    fn table(
        &mut self,
        items: &[(u64, Item)],
        min: u64,
        span: u64,
        bits: u32,
        depth: u32,
        [below, above]: [TreeRef; 2],
    ) -> Node {
        let shift = (64 - span.leading_zeros()).saturating_sub(bits);
        let mut from = 0;
        let table = (0..=span >> shift)
            .map(|bucket| {
                let begin = min + (bucket << shift);
                let end = min + (bucket << shift | ((1 << shift) - 1)).min(span);
                while items.get(from + 1).is_some_and(|item| item.0 <= begin) {
                    from += 1;
                }
                let n = items[from + 1..].iter().take_while(|item| item.0 <= end).count();
                self.place(&items[from..=from + n], depth - 1)
            })
            .collect();
        Node { min, span, below, above, shift, table }
    }

    fn place(&mut self, items: &[(u64, Item)], depth: u32) -> TreeRef {
        if let [(_, Item::Set(set))] = items {
            return TreeRef::Set(*set);
        }
        let mut all = Vec::new();
        self.gather(items, &mut all);
        all.sort_unstable();
        all.dedup();
        if all.len() <= LIST || depth == 0 {
            return TreeRef::Set(self.set(all));
        }
        if let [(_, Item::Low(low))] = items {
            let bits = bits_for(low.len());
            let number = self.reserve();
            // In the low half, nodes behind one another are counted anew.
            self.nodes[number as usize] = match low.as_slice() {
                [_, .., _] if low.len() > 2 => self.node(low, bits, self.depth),
                _ => {
                    let nothing = self.nothing();
                    self.table(low, 0, u64::MAX, bits, self.depth, [nothing; 2])
                }
            };
            return TreeRef::Low(number);
        }
        if items.len() <= CHUNK {
            return self.chunk(items, depth);
        }
        let number = self.reserve();
        self.nodes[number as usize] = self.node(items, bits_for(items.len()), depth);
        TreeRef::Node(number)
    }

    fn reserve(&mut self) -> u32 {
        let place = self.nothing();
        self.reserve_root(place)
    }

    fn chunk(&mut self, items: &[(u64, Item)], depth: u32) -> TreeRef {
        let places: Vec<TreeRef> =
            items.iter().map(|item| self.place(std::slice::from_ref(item), depth)).collect();
        // Places that are left over repeat the last one, from the highest key on.
        let place = |i: usize| places[i.min(places.len() - 1)];
        let from = |i: usize| items.get(i + 1).map_or(u64::MAX, |item| item.0);
        self.chunks.push((std::array::from_fn(place), std::array::from_fn(from)));
        TreeRef::Chunk(self.chunks.len() as u32 - 1)
    }

    fn gather(&self, items: &[(u64, Item)], all: &mut Vec<u16>) {
        for (_, item) in items {
            match item {
                Item::Set(set) => all.extend(&self.sets[*set as usize]),
                Item::Low(low) => self.gather(low, all),
            }
        }
    }
}

fn bits_for(items: usize) -> u32 {
    (items * 4).next_power_of_two().ilog2().clamp(5, 16)
}

/// Ends the prefixes that end before `address`, or all prefixes if it is `None`.
fn close(open: &mut Vec<(u128, u32)>, intervals: &mut Vec<(u128, u32)>, address: Option<u128>) {
    while let [.., (_, outer), (last, _)] = open[..] {
        if address.is_some_and(|address| last >= address) {
            return;
        }
        open.pop();
        if let Some(next) = last.checked_add(1) {
            begin(intervals, next, outer);
        }
    }
}

/// Begins an interval with this set at `address`.
fn begin(intervals: &mut Vec<(u128, u32)>, address: u128, set: u32) {
    if intervals.last().is_some_and(|last| last.0 == address) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|last| last.1 != set) {
        intervals.push((address, set));
    }
}

/// Arranges intervals by the high half of the addresses.
fn halves(intervals: &[(u128, u32)]) -> Vec<(u64, Item)> {
    let high = |interval: &(u128, u32)| (interval.0 >> 64) as u64;
    let mut items: Vec<(u64, Item)> = Vec::new();
    let mut before = 0;
    for same in intervals.chunk_by(|a, b| high(a) == high(b)) {
        let (key, last) = (high(&same[0]), same[same.len() - 1].1);
        let is_whole = same.len() == 1 && same[0].0 as u64 == 0;
        if is_whole {
            set_from(&mut items, key, Item::Set(last));
        } else {
            let low = same.iter().map(|&(address, set)| (address as u64, Item::Set(set)));
            let begins = same[0].0 as u64 == 0;
            let first = (!begins).then_some((0, Item::Set(before)));
            set_from(&mut items, key, Item::Low(first.into_iter().chain(low).collect()));
            if let Some(next) = key.checked_add(1) {
                items.push((next, Item::Set(last)));
            }
        }
        before = last;
    }
    items
}

/// Adds an item. An item that was added for the same key is replaced.
fn set_from(items: &mut Vec<(u64, Item)>, key: u64, item: Item) {
    if items.last().is_some_and(|last| last.0 == key) {
        items.pop();
    }
    items.push((key, item));
}

/// Returns the lanes of a list: the signatures' numbers from 1 on, those of signatures without a
/// source first.
pub fn lanes(set: &[u16], has_no_source: impl Fn(u16) -> bool) -> Vec<u16> {
    let (mut without, with): (Vec<u16>, Vec<u16>) = set.iter().partition(|&&s| has_no_source(s));
    for lane in &mut without {
        *lane |= LANE_NO_SOURCE;
    }
    without.into_iter().chain(with).map(|lane| lane + 1).collect()
}

/// Returns the place that holds these lanes itself, if they fit.
pub fn inline(lanes: &[u16]) -> Option<u32> {
    (lanes.len() <= INLINE)
        .then(|| lanes.iter().rev().fold(0, |place, lane| place << 15 | u32::from(*lane)))
}
