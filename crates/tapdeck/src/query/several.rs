//! One answer from several places: of each store, and of each directory of capture files, its own
//! answer, merged by time.
//!
//! Each place has its memory, its threads and its notes, as if it were asked alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use tapdeck_store::choice::Choice;
use tapdeck_store::query::{
    Described, Error, Missing, Note, Packet, Progress, Query, Search, Snapshot, Span,
};

use super::choice::wanted;
use super::{leave_out, refuse_several_links, refuse_to_overwrite, tell_absent};
use crate::interrupt::Interrupt;
use crate::place::without_indexes;
use crate::{flags, place};

/// The answers of several places as one.
pub struct Several {
    places: Vec<Place>,
    /// The interfaces of all places, each once.
    interfaces: Vec<Described>,
    choice: Choice,
    /// The place that has the packet that was found last.
    current: Option<usize>,
}

struct Place {
    dir: PathBuf,
    query: Query<Choice>,
    next: Next,
    /// For each interface of the place, its number among all.
    numbers: Vec<u32>,
}

/// What is known of a place's next packet.
#[derive(Clone, Copy)]
enum Next {
    Unknown,
    At(i64),
    None,
}

impl Several {
    /// Opens all places, and begins the answer.
    pub fn open(
        flags: &flags::Query,
        span: Span,
        search: Search<'_>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut interfaces: Vec<Described> = Vec::new();
        let mut snapshots = Vec::new();
        let mut seen = BTreeSet::new();
        for dir in &flags.dir {
            // Named twice, in whichever way, a place would give each packet twice.
            let is_elsewhere = place::is_elsewhere(dir);
            let place = if is_elsewhere { Ok(dir.clone()) } else { dir.canonicalize() };
            if place.is_ok_and(|place| !seen.insert(place)) {
                continue;
            }
            let mut snapshot = if is_elsewhere {
                let store = place::open(dir, &flags.shown, Some(interrupt))?;
                Snapshot::open_in(&without_indexes(store, search.ignores_indexes), span)?
            } else {
                Snapshot::open_any(dir, span, search)?
            };
            refuse_to_overwrite(flags.write.as_deref(), &snapshot)?;
            leave_out(flags, &mut snapshot);
            let number = |described: &Described| {
                let known = interfaces.iter().position(|known| known == described);
                known.unwrap_or_else(|| {
                    interfaces.push(described.clone());
                    interfaces.len() - 1
                }) as u32
            };
            let numbers: Vec<u32> = snapshot.interfaces().iter().map(number).collect();
            snapshots.push((dir.clone(), snapshot, numbers));
        }
        refuse_several_links(flags, &interfaces)?;
        // An expression is refused where it means nothing for any interface, of whichever place.
        let choice = Choice::new(&wanted(flags), &interfaces)?;
        tell_absent(flags, &interfaces);
        let mut places = Vec::new();
        for (dir, snapshot, numbers) in snapshots {
            let own = choice.of(&numbers);
            let query = Query::new(snapshot, span, own.plan().clone(), own);
            places.push(Place { dir, query, next: Next::Unknown, numbers });
        }
        Ok(Self { places, interfaces, choice, current: None })
    }

    /// Returns what chooses the packets.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Returns the interfaces of all places.
    pub fn interfaces(&self) -> &[Described] {
        &self.interfaces
    }

    /// Returns whether there is no store among the places.
    pub fn is_foreign(&self) -> bool {
        self.places.iter().all(|place| place.query.snapshot().is_foreign())
    }

    /// Returns how many segments or files lie outside of the span.
    pub fn outside(&self) -> usize {
        self.places.iter().map(|place| place.query.snapshot().segments().1).sum()
    }

    /// Returns how far all places are, together.
    pub fn progress(&self) -> Progress {
        sum(self.places.iter().map(|place| place.query.progress()))
    }

    /// Counts the packets of the answer, as [`Query::count`] does.
    pub fn count(&mut self, mut watch: impl FnMut(Progress) -> bool) -> Result<(), Error> {
        for at in 0..self.places.len() {
            let others = self.others(at);
            let mut goes_on = true;
            self.places[at].query.count(|own| {
                goes_on = watch(sum([others, own]));
                goes_on
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Finds the next packet, as [`Query::find_next`] does.
    pub fn find_next(
        &mut self,
        mut watch: impl FnMut(Progress) -> bool,
    ) -> Result<Option<i64>, Error> {
        if let Some(at) = self.current.take() {
            self.places[at].next = Next::Unknown;
        }
        for at in 0..self.places.len() {
            if matches!(self.places[at].next, Next::Unknown) {
                let others = self.others(at);
                let place = &mut self.places[at];
                let found = place.query.find_next(|own| watch(sum([others, own])))?;
                place.next = found.map_or(Next::None, Next::At);
            }
        }
        let first = self.places.iter().enumerate().filter_map(|(at, place)| match place.next {
            Next::At(time_ns) => Some((time_ns, at)),
            Next::Unknown | Next::None => None,
        });
        let Some((time_ns, at)) = first.min() else { return Ok(None) };
        self.current = Some(at);
        Ok(Some(time_ns))
    }

    /// Returns the packet that was found last, with the number of its interface among all.
    pub fn packet(&self) -> Option<Packet<'_>> {
        let place = &self.places[self.current?];
        let packet = place.query.packet()?;
        Some(Packet { interface: place.numbers[packet.interface as usize], ..packet })
    }

    /// Takes what went unseen and ended by a time, as [`Query::take_unseen`] does.
    pub fn take_unseen(&mut self, until_ns: i64) -> Vec<Missing> {
        let of = |place: &mut Place| {
            let numbers = &place.numbers;
            let mut all = place.query.take_unseen(until_ns);
            for missing in &mut all {
                missing.number = numbers[missing.number as usize];
            }
            all
        };
        self.places.iter_mut().flat_map(of).collect()
    }

    /// Returns what went unseen.
    pub fn unseen(&self) -> impl Iterator<Item = &Missing> {
        self.places.iter().flat_map(|place| place.query.unseen())
    }

    /// Takes what the user should know; where there are several places, with the place.
    pub fn take_notes(&mut self) -> Vec<(Option<&Path>, Note)> {
        let is_alone = self.places.len() == 1;
        let mut notes = Vec::new();
        for Place { dir, query, .. } in &mut self.places {
            let dir = (!is_alone).then_some(&**dir);
            notes.extend(query.take_notes().into_iter().map(|note| (dir, note)));
        }
        notes
    }

    fn others(&self, at: usize) -> Progress {
        let others = self.places.iter().enumerate().filter(|(other, _)| *other != at);
        sum(others.map(|(_, place)| place.query.progress()))
    }
}

fn sum(all: impl IntoIterator<Item = Progress>) -> Progress {
    all.into_iter().fold(Progress::default(), |sum, one| Progress {
        bytes: sum.bytes + one.bytes,
        total_bytes: sum.total_bytes + one.total_bytes,
        matches: sum.matches + one.matches,
        shed: sum.shed + one.shed,
        dropped: sum.dropped + one.dropped,
        segments: sum.segments + one.segments,
        indexed: sum.indexed + one.indexed,
        scanned: sum.scanned + one.scanned,
        granules: sum.granules + one.granules,
        wanted: sum.wanted + one.wanted,
        index_bytes: sum.index_bytes + one.index_bytes,
        read_bytes: sum.read_bytes + one.read_bytes,
    })
}
