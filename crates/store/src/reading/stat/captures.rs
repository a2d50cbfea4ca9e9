//! What is in capture files of other recorders? Nothing tells but their packets, so all of them are
//! read, in any order.
//!
//! A piece is here what one thread reads one after the other of about the length of a granule, so
//! that the shares of hosts and ports mean the same as in a store.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tapdeck_packet::header;
use tapdeck_packet::key::{Class, Keys, Plan};

use super::gaps::Finder;
use super::rate::{Amount, Rate};
use super::tops::KeyTally;
use super::{Question, Report};
use crate::format::index::GRANULE;
use crate::reading::query::{Error, Matcher, Packet, Query, Search, Snapshot};

/// What a thread has counted.
struct Part {
    packets: u64,
    bytes: u64,
    times: Option<(i64, i64)>,
    rate: Rate,
    gaps: Vec<(u32, i64, u64)>,
    hosts: KeyTally<IpAddr>,
    ports: KeyTally<u16>,
    piece: Piece,
}

/// What is in the piece that is being read.
#[derive(Default)]
struct Piece {
    bytes: u64,
    hosts: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

impl Keys for Piece {
    fn key(&mut self, class: Class, key: u128) {
        match class {
            Class::SourceIpv4 | Class::DestinationIpv4 => {
                self.hosts.insert(Ipv4Addr::from(key as u32).into());
            }
            Class::SourceIpv6 | Class::DestinationIpv6 => {
                self.hosts.insert(Ipv6Addr::from(key).into());
            }
            Class::SourcePort | Class::DestinationPort => {
                self.ports.insert(key as u16);
            }
            _ => {}
        }
    }
}

impl Part {
    fn new() -> Self {
        Self {
            packets: 0,
            bytes: 0,
            times: None,
            rate: Rate::new(),
            gaps: Vec::new(),
            hosts: KeyTally::new(),
            ports: KeyTally::new(),
            piece: Piece::default(),
        }
    }

    fn add(&mut self, packet: &Packet<'_>, with_keys: bool) {
        let (bytes, time_ns) = (packet.frame.len() as u64, packet.time_ns);
        self.packets += 1;
        self.bytes += bytes;
        let (first, last) = self.times.unwrap_or((time_ns, time_ns));
        self.times = Some((first.min(time_ns), last.max(time_ns)));
        self.rate.add(time_ns, time_ns, Amount { packets: 1.0, bytes: bytes as f64 });
        if packet.dropped > 0 {
            self.gaps.push((packet.interface, time_ns, packet.dropped));
        }
        if with_keys {
            header::keys(packet.link, packet.frame, &mut self.piece);
            self.piece.bytes += bytes;
            if self.piece.bytes >= GRANULE {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        let Piece { bytes, hosts, ports } = std::mem::take(&mut self.piece);
        if bytes == 0 {
            return;
        }
        self.hosts.of += 1;
        self.ports.of += 1;
        for host in hosts {
            self.hosts.add(host, 1);
        }
        for port in ports {
            self.ports.add(port, 1);
        }
    }
}

/// Counts what it is shown, each clone for itself, and takes nothing.
struct Counter {
    own: Arc<Mutex<Part>>,
    all: Arc<Mutex<Vec<Arc<Mutex<Part>>>>>,
    with_keys: bool,
}

impl Counter {
    fn new(all: Arc<Mutex<Vec<Arc<Mutex<Part>>>>>, with_keys: bool) -> Self {
        let own = Arc::new(Mutex::new(Part::new()));
        all.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
        Self { own, all, with_keys }
    }
}

impl Clone for Counter {
    fn clone(&self) -> Self {
        Self::new(self.all.clone(), self.with_keys)
    }
}

impl Matcher for Counter {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.add(packet, self.with_keys);
        false
    }
}

/// Reads capture files, one or a directory of them. `watch` is called with how many bytes are read,
/// and how many there are; where it returns false, only what was read by then is told.
pub fn stat_captures(
    path: &Path,
    question: Question,
    mut watch: impl FnMut(u64, u64) -> bool,
) -> Result<Report, Error> {
    let attempt = |whole| {
        // An index tells which packets are not wanted, and all are.
        let search = Search { whole, cache: None, ignores_indexes: true };
        let snapshot = Snapshot::open_any(path, question.span, search)?;
        let all = Arc::default();
        let counter = Counter::new(Arc::clone(&all), question.top > 0);
        Ok::<_, Error>((Query::new(snapshot, question.span, Plan::All, counter), all))
    };
    let mut go_on =
        |progress: super::super::query::Progress| watch(progress.bytes, progress.total_bytes);
    let (mut query, mut all) = attempt(false)?;
    match query.count(&mut go_on) {
        Err(Error::LateInterface(_)) => {
            (query, all) = attempt(true)?;
            query.count(&mut go_on)?;
        }
        done => done?,
    }
    Ok(report(query, &all, question))
}

fn report(
    mut query: Query<Counter>,
    all: &Mutex<Vec<Arc<Mutex<Part>>>>,
    question: Question,
) -> Report {
    let mut report = Report::empty();
    let (mut hosts, mut ports, mut gaps) = (KeyTally::new(), KeyTally::new(), Finder::default());
    for part in all.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        let mut part = std::mem::replace(&mut *part, Part::new());
        part.end_piece();
        report.packets += part.packets;
        report.bytes_stored += part.bytes;
        if let Some((first_ns, last_ns)) = part.times {
            let (first, last) = report.times.unwrap_or((first_ns, last_ns));
            report.times = Some((first.min(first_ns), last.max(last_ns)));
        }
        report.rate.join(part.rate);
        hosts.join(part.hosts);
        ports.join(part.ports);
        for (interface, time_ns, lost) in part.gaps {
            let name = query.snapshot().interfaces()[interface as usize].name.clone();
            gaps.add(Some(&name), time_ns, time_ns, lost);
        }
    }
    (report.hosts, report.ports) = (hosts.top(question.top), ports.top(question.top));
    report.gaps = gaps.finish();
    report.segments = query.snapshot().segments().0 as u64;
    report.is_foreign = true;
    report.notes = query.take_notes();
    report.unseen = query.unseen().to_vec();
    report
}
