//! What reads a store says when it could not read all of it: over a storage that reads less than
//! was asked for, fails in places, loses objects between listing and opening them, or cuts them
//! while they are read.

mod common;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use common::directory;
use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::io::{Access, Directory, Disk, Object, PAGE, State, Storage};
use tapdeck_store::query::{Error, Note, Packet, Query, Snapshot, Span};
use tapdeck_store::stat::{Question, Report, stat_in};
use tapdeck_store::{ClosedScope, Scope, SegmentName, Store, Verdict, verify_in};
use tapdeck_testkit::SplitMix64;

const T0: i64 = 1_767_323_045_000_000_000;
const PACKETS: u32 = 2500;
const EIO: i32 = 5;

/// A directory in which things go wrong.
#[derive(Clone, Debug)]
struct Faulty {
    inner: Directory,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    /// Where each read is cut short: the state of random numbers.
    short: Option<u64>,
    /// Reads that touch a part of an object fail.
    broken: Option<(String, Range<u64>)>,
    /// Objects that are listed and cannot be opened.
    gone: HashSet<String>,
    /// An object ends at a length once so many reads of it were begun.
    cut: Option<(String, usize, u64)>,
    reads: HashMap<String, usize>,
}

impl Faulty {
    fn new(dir: &Path, faults: Faults) -> Self {
        Self { inner: Directory::new(dir), faults: Arc::new(Mutex::new(faults)) }
    }

    fn shared(self) -> Arc<dyn Storage> {
        Arc::new(self)
    }
}

impl Storage for Faulty {
    fn place(&self) -> &Path {
        self.inner.place()
    }

    fn list(&self) -> io::Result<Vec<OsString>> {
        self.inner.list()
    }

    fn open(&self, name: &OsStr, access: Access) -> io::Result<Arc<dyn Object>> {
        let name = name.to_str().expect("names of a store");
        if self.faults.lock().unwrap().gone.contains(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inner = self.inner.open(name.as_ref(), access)?;
        Ok(Arc::new(FaultyObject { name: name.into(), inner, faults: self.faults.clone() }))
    }
}

#[derive(Debug)]
struct FaultyObject {
    name: String,
    inner: Arc<dyn Object>,
    faults: Arc<Mutex<Faults>>,
}

impl FaultyObject {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    /// Where the object was cut, if it was.
    fn end(&self) -> u64 {
        let faults = self.faults();
        let reads = faults.reads.get(&self.name).copied().unwrap_or(0);
        match &faults.cut {
            Some((name, after, len)) if *name == self.name && reads > *after => *len,
            _ => u64::MAX,
        }
    }
}

impl Object for FaultyObject {
    fn state(&self) -> io::Result<State> {
        let state = self.inner.state()?;
        Ok(State { len: state.len.min(self.end()), ..state })
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        *self.faults().reads.entry(self.name.clone()).or_default() += 1;
        let left = usize::try_from(self.end().saturating_sub(at)).unwrap_or(usize::MAX);
        let mut want = buffer.len().min(left);
        if let Some(state) = &mut self.faults().short {
            let mut rng = SplitMix64(*state);
            want = want.min(1 + rng.below(want.max(1)));
            *state = rng.0;
        }
        if let Some((name, broken)) = &self.faults().broken
            && *name == self.name
            && at < broken.end
            && at + want as u64 > broken.start
        {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.inner.read_at(&mut buffer[..want], at)
    }
}

fn fill(bytes: &mut Vec<u8>) {
    match bytes.len().next_multiple_of(PAGE) - bytes.len() {
        0 => {}
        gap @ 1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + PAGE),
        gap => pcapng::fill(bytes, gap),
    }
}

/// Writes a segment of some granules. Returns its name.
fn segment(dir: &Path, number: u64, live: bool) -> SegmentName {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
    let description = InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 0,
        name: "eth0".into(),
        description: "ring".into(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut bytes, &description);
    fill(&mut bytes);
    let began_ns = T0 + number as i64 * 1_000_000_000;
    for i in 0..PACKETS {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        frame.extend(i.to_be_bytes());
        frame.resize(150, 0);
        let dropped = u64::from(i % 300 == 7);
        let (at, len) = (bytes.len(), frame.len() as u32);
        bytes.resize(at + pcapng::packet_len(frame.len(), 0, dropped), 0);
        let (time_ns, frame) = ((began_ns + i64::from(i) * 1000) as u64, [&frame[..], &[], &[]]);
        pcapng::write_packet(&mut bytes[at..], 0, time_ns, frame, len, 0, dropped);
        if i % 100 == 99 {
            fill(&mut bytes);
        }
    }
    fill(&mut bytes);
    if !live {
        let dropped = (0..PACKETS).filter(|i| i % 300 == 7).count() as u64;
        let delivered = u64::from(PACKETS);
        let statistics = StatisticsBlock {
            time_ns: (began_ns + 1_000_000_000) as u64,
            received: delivered + dropped,
            accepted: delivered + dropped,
            dropped,
            delivered,
            ..StatisticsBlock::default()
        };
        pcapng::statistics(&mut bytes, &statistics);
        fill(&mut bytes);
    }
    let name = SegmentName { number, began_s: began_ns / 1_000_000_000, live };
    fs::write(name.path(dir), bytes).unwrap();
    name
}

/// A closed segment with an index, one without, and one that is being written.
fn store(dir: &Path) -> [SegmentName; 3] {
    fs::create_dir_all(dir).unwrap();
    let indexed = segment(dir, 1, false);
    let scope = Scope { closed: ClosedScope::All, index: true };
    Store::open(dir).unwrap().recover(&Disk::new(false), scope, |_| {}).unwrap();
    assert!(dir.join(index_of(&indexed)).exists());
    [indexed, segment(dir, 2, false), segment(dir, 3, true)]
}

fn index_of(name: &SegmentName) -> String {
    name.to_string().replace(".pcapng", ".index")
}

/// What a query answers: times and losses of packets. Every third packet matches.
type Answer = (Vec<(i64, u64)>, Vec<Note>);

fn ask(storage: &Arc<dyn Storage>, span: Span) -> Result<Answer, Error> {
    let snapshot = Snapshot::open_in(storage, span)?;
    let third = |p: &Packet<'_>| p.frame[17].is_multiple_of(3);
    let mut query = Query::new(snapshot, span, Plan::All, third);
    let mut found = Vec::new();
    while let Some(packet) = query.next_packet(|_| true)? {
        found.push((packet.time_ns, packet.dropped));
    }
    Ok((found, query.take_notes()))
}

fn tell(storage: &Arc<dyn Storage>, span: Span) -> Result<Report, Error> {
    stat_in(storage, Question { span, top: 3 }, |_, _| true)
}

fn judge(storage: &dyn Storage) -> Result<Vec<Verdict>, Error> {
    let mut verdicts = Vec::new();
    verify_in(storage, |_| true, |verdict| verdicts.push(verdict.clone()))?;
    Ok(verdicts)
}

/// All of time; and from the midst of the first segment to the midst of the last.
const SPANS: [Span; 2] =
    [Span::ALL, Span { after_ns: T0 + 1_001_000_500, before_ns: T0 + 3_001_000_500 }];

/// What is told of a store where nothing goes wrong.
struct Whole {
    answers: Vec<Answer>,
    reports: Vec<String>,
    verdicts: String,
}

impl Whole {
    fn of(storage: &Faulty) -> Self {
        let shared = || storage.clone().shared();
        Self {
            answers: SPANS.iter().map(|span| ask(&shared(), *span).unwrap()).collect(),
            reports: SPANS.iter().map(|s| format!("{:?}", tell(&shared(), *s).unwrap())).collect(),
            verdicts: format!("{:?}", judge(storage).unwrap()),
        }
    }
}

#[test]
fn short_reads_change_nothing() {
    let (_temp, dir) = directory();
    store(&dir);
    let whole = Whole::of(&Faulty::new(&dir, Faults::default()));
    assert_eq!(
        whole.answers[0].0.len() as u32,
        3 * (0..PACKETS).filter(|i| i % 256 % 3 == 0).count() as u32
    );
    assert!(whole.answers.iter().all(|(_, notes)| notes.is_empty()));
    for seed in 0..5 {
        let short = Faulty::new(&dir, Faults { short: Some(seed), ..Faults::default() });
        let told = Whole::of(&short);
        assert_eq!(told.answers, whole.answers);
        assert_eq!(told.reports, whole.reports);
        assert_eq!(told.verdicts, whole.verdicts);
    }
}

/// Where a disk fails, whoever asks hears of it, or has all the same got everything.
#[test]
fn a_place_that_cannot_be_read_is_never_passed_over() {
    let (_temp, dir) = directory();
    let names = store(&dir);
    let whole = Whole::of(&Faulty::new(&dir, Faults::default()));
    let objects = names.iter().map(ToString::to_string).chain([index_of(&names[0])]);
    let (mut failed, mut whole_all_the_same) = (0, 0);
    for object in objects {
        let len = dir.join(&object).metadata().unwrap().len();
        let is_index = Path::new(&object).extension() == Some("index".as_ref());
        for at in (0..len).step_by(if is_index { 997 } else { 50_021 }) {
            let broken = Some((object.clone(), at..at + 1));
            let storage = Faulty::new(&dir, Faults { broken, ..Faults::default() });
            for (i, span) in SPANS.into_iter().enumerate() {
                match ask(&storage.clone().shared(), span) {
                    Ok((found, notes)) => {
                        assert!(found == whole.answers[i].0, "{object} at {at}");
                        let of_index = |n: &Note| is_index && matches!(n, Note::Index { .. });
                        assert!(notes.iter().all(of_index), "{notes:?}");
                        whole_all_the_same += 1;
                    }
                    Err(Error::Io { path, source }) => {
                        assert!(path == dir.join(&object) && !is_index, "{}", path.display());
                        assert_eq!(source.raw_os_error(), Some(EIO));
                        failed += 1;
                    }
                    Err(e) => panic!("{object} at {at}: {e}"),
                }
                match tell(&storage.clone().shared(), span) {
                    Ok(report) => {
                        let is_same = format!("{report:?}") == whole.reports[i];
                        assert!(is_same || !report.unusable.is_empty(), "{object} at {at}");
                    }
                    Err(e) => assert!(matches!(e, Error::Io { .. }), "{e}"),
                }
            }
            match judge(&storage) {
                Ok(verdicts) => {
                    let is_same = format!("{verdicts:?}") == whole.verdicts;
                    assert!(is_same || verdicts.iter().any(|v| v.count > 0), "{object} at {at}");
                }
                Err(e) => assert!(matches!(e, Error::Io { .. }), "{e}"),
            }
        }
    }
    assert!(failed > 20 && whole_all_the_same > 10, "{failed} and {whole_all_the_same}");
}

#[test]
fn an_object_that_goes_between_listing_and_opening_is_told() {
    let (_temp, dir) = directory();
    let names = store(&dir);
    let whole = Whole::of(&Faulty::new(&dir, Faults::default()));
    let of = |names: &[String]| {
        let gone = names.iter().cloned().collect();
        Faulty::new(&dir, Faults { gone, ..Faults::default() })
    };
    for name in &names {
        // A live segment that is not there may have been closed.
        let storage = of(&[name.to_string(), name.closed().to_string()]);
        let (found, notes) = ask(&storage.clone().shared(), Span::ALL).unwrap();
        assert_eq!(notes, [Note::Deleted(name.to_string())]);
        let mine = |ns: i64| ns / 1_000_000_000 == name.began_s;
        let others: Vec<i64> =
            whole.answers[0].0.iter().map(|p| p.0).filter(|t| !mine(*t)).collect();
        assert_eq!(found.iter().map(|p| p.0).collect::<Vec<_>>(), others);
        let report = tell(&storage.clone().shared(), Span::ALL).unwrap();
        assert_eq!(report.notes, [Note::Deleted(name.to_string())]);
        assert_eq!(report.packets, 2 * u64::from(PACKETS));
        let judged = judge(&storage).unwrap();
        assert!(judged.len() == 2 && judged.iter().all(|v| v.name != *name));
    }
    let unindexed = of(&[index_of(&names[0])]);
    assert_eq!(ask(&unindexed.clone().shared(), Span::ALL).unwrap(), whole.answers[0]);
    assert_eq!(tell(&unindexed.shared(), Span::ALL).unwrap().packets, 3 * u64::from(PACKETS));
}

/// A closed segment becomes shorter while it is read. What is missing then is told, wherever it is
/// cut and however much was read before.
#[test]
fn an_object_that_is_cut_while_it_is_read_is_told() {
    let (_temp, dir) = directory();
    let names = store(&dir);
    let whole = Whole::of(&Faulty::new(&dir, Faults::default()));
    let mut told = 0;
    for name in &names[..2] {
        let object = name.to_string();
        let bytes = fs::read(dir.join(&object)).unwrap();
        // Places between blocks as well as in them.
        let mut borders = vec![0, 5000, 100_000, bytes.len() / 2 + 1];
        borders.extend([20, 200, 1000, 2400].map(|n| block_end(&bytes, n)));
        borders.push(bytes.len() - PAGE);
        for len in borders {
            for after in [1, 2, 3, 4, 6] {
                let cut = Some((object.clone(), after, len as u64));
                let faulty = || {
                    let cut = cut.clone();
                    Faulty::new(&dir, Faults { cut, ..Faults::default() })
                };
                let context = format!("{object} cut to {len} after {after} reads");
                for (i, span) in SPANS.into_iter().enumerate() {
                    let (found, notes) = ask(&faulty().shared(), span).unwrap();
                    let is_told =
                        notes.iter().any(|n| n.is_fault() || matches!(n, Note::Deleted(_)));
                    assert!(found == whole.answers[i].0 || is_told, "{context}: {notes:?}");
                    told += u32::from(is_told);
                    let report = tell(&faulty().shared(), span).unwrap();
                    let is_same = format!("{report:?}") == whole.reports[i];
                    let is_told = !report.notes.is_empty() || !report.unusable.is_empty();
                    assert!(is_same || is_told, "{context}: {report:?}");
                }
                match judge(&faulty()) {
                    Ok(verdicts) => {
                        let is_same = format!("{verdicts:?}") == whole.verdicts;
                        assert!(is_same || verdicts.iter().any(|v| v.count > 0), "{context}");
                    }
                    Err(e) => assert!(matches!(e, Error::Io { .. }), "{context}: {e}"),
                }
            }
        }
    }
    assert!(told > 40, "{told}");
}

/// Where the `n`th block of a segment ends.
fn block_end(bytes: &[u8], n: usize) -> usize {
    let len = |at: usize| u32::from_ne_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
    (0..n).fold(0, |at, _| at + len(at))
}
