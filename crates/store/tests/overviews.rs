//! What overviews do for a question, and what they never do to an answer: over random stores in
//! which segments and indexes are deleted and replaced, and overviews are damaged, stale and
//! another's, every answer is the same with overviews as without.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::{Setup, directory, names, rings};
use tapdeck_packet::key::{Class, Plan};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::io::{Access, Directory, Disk, Object, State, Storage};
use tapdeck_store::query::{Note, Packet, Query, Snapshot, Span};
use tapdeck_store::stat::{Question, stat_in};
use tapdeck_store::{ClosedScope, Retention, Scope, SegmentName, Store, Verdict, verify};
use tapdeck_testkit::frame::{ethernet, ipv4, udp};
use tapdeck_testkit::{SplitMix64, wait_for};

const SECOND: i64 = 1_000_000_000;
const T0: i64 = 1_767_323_045 * SECOND;
/// From one segment's beginning to the next one's.
const MINUTE: i64 = 60 * SECOND;
const HOSTS: u32 = 40;

fn host(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + number)
}

fn name(number: u64) -> SegmentName {
    SegmentName { number, began_s: (T0 + number as i64 * MINUTE) / SECOND, live: false }
}

/// Writes a closed segment of a few packets between random hosts.
fn write_segment(dir: &Path, number: u64, rng: &mut SplitMix64) {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
    // The interfaces change now and then, as where a recorder was started anew.
    for ring in 0..=number / 50 % 2 {
        let description = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 0,
            name: "eth0".into(),
            description: format!("hook tcx, CPU {ring}"),
            filter: None,
            hardware: None,
            mac: None,
        };
        pcapng::interface_description(&mut bytes, &description);
    }
    fill(&mut bytes);
    let began = T0 + number as i64 * MINUTE;
    let (packets, mut dropped_in_all) = (rng.below(8u64), 0);
    for _ in 0..packets {
        let (from, to) = (host(rng.below(HOSTS)), host(rng.below(HOSTS)));
        let datagram = udp([1000 + rng.below(20u16), 53], &rng.bytes(20));
        let frame = ethernet([2; 6], [4; 6], &[], 0x0800, &ipv4(from, to, 17, &datagram));
        let time = began + rng.below(MINUTE as u64) as i64;
        let dropped = if rng.one_in(40) { 3 } else { 0 };
        dropped_in_all += dropped;
        let at = bytes.len();
        bytes.resize(at + pcapng::packet_len(frame.len(), 0, dropped), 0);
        let (out, len) = (&mut bytes[at..], frame.len() as u32);
        pcapng::write_packet(out, 0, time as u64, [&frame, &[], &[]], len, 0, dropped);
    }
    fill(&mut bytes);
    for interface in 0..=(number / 50 % 2) as u32 {
        let (delivered, dropped) = if interface == 0 { (packets, dropped_in_all) } else { (0, 0) };
        let (time_ns, received) = ((began + MINUTE) as u64, delivered + dropped);
        let told = StatisticsBlock {
            interface,
            time_ns,
            received,
            delivered,
            dropped,
            ..StatisticsBlock::default()
        };
        pcapng::statistics(&mut bytes, &told);
    }
    fill(&mut bytes);
    fs::write(name(number).path(dir), &bytes).unwrap();
}

fn fill(bytes: &mut Vec<u8>) {
    let gap = bytes.len().next_multiple_of(4096) - bytes.len();
    match gap {
        0 => {}
        1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + 4096),
        _ => pcapng::fill(bytes, gap),
    }
}

fn recover(dir: &Path, closed: ClosedScope) {
    let scope = Scope { closed, index: true };
    Store::open(dir).unwrap().recover(&Disk::new(false), scope, |_| {}).unwrap();
}

fn overviews(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.extension() == Some(OsStr::new("overview"))).collect();
    found.sort();
    found
}

/// A directory that counts what is opened, and may hide its overviews.
#[derive(Debug)]
struct Counting {
    inner: Directory,
    hides: bool,
    opened: Arc<AtomicUsize>,
}

impl Storage for Counting {
    fn place(&self) -> &Path {
        self.inner.place()
    }

    fn list(&self) -> io::Result<Vec<OsString>> {
        let mut names = self.inner.list()?;
        names.retain(|name| !(self.hides && name.to_string_lossy().ends_with(".overview")));
        Ok(names)
    }

    fn open(&self, name: &OsStr, access: Access) -> io::Result<Arc<dyn Object>> {
        let is_overview = name.to_string_lossy().ends_with(".overview");
        if !is_overview {
            self.opened.fetch_add(1, SeqCst);
        }
        self.inner.open(name, access)
    }

    fn state(&self, name: &OsStr) -> io::Result<State> {
        self.inner.state(name)
    }
}

fn storage(dir: &Path, hides: bool) -> (Arc<dyn Storage>, Arc<AtomicUsize>) {
    let opened: Arc<AtomicUsize> = Arc::default();
    (Arc::new(Counting { inner: Directory::new(dir), hides, opened: opened.clone() }), opened)
}

/// A question for packets of a host.
#[derive(Clone, Debug)]
struct Asked {
    host: u32,
    port: Option<u16>,
    span: Span,
}

impl Asked {
    fn draw(rng: &mut SplitMix64) -> Self {
        let span = if rng.one_in(3) {
            let after_ns = T0 + rng.below(200u64) as i64 * MINUTE;
            Span { after_ns, before_ns: after_ns + (1 + rng.below(90u64) as i64) * MINUTE }
        } else {
            Span::ALL
        };
        // Some hosts were never there.
        let port = rng.one_in(3).then(|| 1000 + rng.below(20u16));
        Self { host: rng.below(HOSTS + 4), port, span }
    }

    fn plan(&self) -> Plan {
        let key = u128::from(u32::from(host(self.host)));
        let keys = |class, key| Plan::Keys { class, first: key, last: key };
        let of_host =
            Plan::Any(vec![keys(Class::SourceIpv4, key), keys(Class::DestinationIpv4, key)]);
        match self.port {
            Some(port) => Plan::Every(vec![of_host, keys(Class::SourcePort, u128::from(port))]),
            None => of_host,
        }
    }

    fn takes(&self, packet: &Packet<'_>) -> bool {
        let address = host(self.host).octets();
        let is_host = [26, 30].iter().any(|at| packet.frame[*at..*at + 4] == address);
        is_host && self.port.is_none_or(|port| packet.frame[34..36] == port.to_be_bytes())
    }
}

/// What a store answers: packets, how many were lost, and the faults that were told.
fn answer(storage: &Arc<dyn Storage>, asked: &Asked, plan: Plan) -> (Vec<String>, u64, Vec<Note>) {
    let snapshot = Snapshot::open_in(storage, asked.span).unwrap();
    let matcher = {
        let asked = asked.clone();
        move |packet: &Packet<'_>| asked.takes(packet)
    };
    let mut query = Query::new(snapshot, asked.span, plan, matcher);
    let mut packets = Vec::new();
    while let Some(packet) = query.next_packet(|_| true).unwrap() {
        packets.push(format!("{packet:?}"));
    }
    let mut notes = query.take_notes();
    // Whether segments that are missing were within a span is known more or less well.
    notes.retain(|note| note.is_fault() && asked.span == Span::ALL);
    for note in &mut notes {
        if let Note::Hole { from_ns, .. } = note {
            *from_ns = 0;
        }
    }
    (packets, query.progress().dropped, notes)
}

/// Puts some questions to a store in three ways: with its overviews, without, and with a plan that
/// leaves nothing out.
fn assert_answers(dir: &Path, rng: &mut SplitMix64) {
    let ((with, _), (without, _)) = (storage(dir, false), storage(dir, true));
    for _ in 0..3 {
        let asked = Asked::draw(rng);
        let expected = answer(&without, &asked, asked.plan());
        assert_eq!(answer(&with, &asked, asked.plan()), expected, "{asked:?}");
        assert_eq!(answer(&without, &asked, Plan::All).0, expected.0, "{asked:?}: all of it");
        let question = Question { span: asked.span, top: 0 };
        let packets = |storage| stat_in(storage, question, |_, _| true).unwrap().packets;
        assert_eq!(packets(&with), packets(&without), "{asked:?}");
    }
}

fn write_store(dir: &Path, numbers: impl Iterator<Item = u64>, rng: &mut SplitMix64) {
    fs::create_dir(dir).unwrap();
    numbers.for_each(|number| write_segment(dir, number, rng));
    recover(dir, ClosedScope::Unended);
}

#[test]
fn answers_are_the_same_with_overviews_and_without() {
    for seed in 0..4 {
        let mut rng = SplitMix64(seed);
        let (_temp, dir) = directory();
        write_store(&dir, 20 + rng.below(40u64)..150 + rng.below(60u64), &mut rng);
        assert!(overviews(&dir).len() >= 2, "of the segments up to 63 and to 127");
        assert_answers(&dir, &mut rng);
        for _ in 0..6 {
            mistreat(&dir, &mut rng);
            assert_answers(&dir, &mut rng);
        }
        recover(&dir, ClosedScope::Unended);
        assert_answers(&dir, &mut rng);
    }
}

/// Does something to a store that may happen to it, or that somebody may do.
fn mistreat(dir: &Path, rng: &mut SplitMix64) {
    let segments = names(dir);
    let segment = dir.join(&segments[rng.below(segments.len())]);
    let index = segment.with_extension("index");
    let overviews = overviews(dir);
    let overview = overviews.get(rng.below(overviews.len().max(1)));
    match (rng.below(8u32), overview) {
        (0, _) => {
            fs::remove_file(&segment).unwrap();
            let _ = fs::remove_file(&index);
        }
        (1, _) => drop(fs::remove_file(&index)),
        // Another segment in the place of one, of other hosts, whose index is made anew; and what
        // was an overview of the first is there again.
        (2, Some(overview)) => {
            let before = fs::read(overview).unwrap();
            let number = SegmentName::parse(segment.file_name().unwrap().to_str().unwrap());
            write_segment(dir, number.unwrap().number, rng);
            let _ = fs::remove_file(&index);
            recover(dir, ClosedScope::Unended);
            fs::write(overview, before).unwrap();
        }
        (3, Some(overview)) => {
            let mut bytes = fs::read(overview).unwrap();
            for _ in 0..=rng.below(3u32) {
                let at = rng.below(bytes.len());
                bytes[at] ^= 1 << rng.below(8u32);
            }
            fs::write(overview, bytes).unwrap();
        }
        (4, Some(overview)) => {
            let bytes = fs::read(overview).unwrap();
            fs::write(overview, &bytes[..rng.below(bytes.len())]).unwrap();
        }
        // The overview of others.
        (5, Some(overview)) => {
            fs::copy(&overviews[rng.below(overviews.len())], dir.join("other")).unwrap();
            fs::rename(dir.join("other"), overview).unwrap();
        }
        (6, Some(overview)) => {
            fs::set_permissions(overview, Permissions::from_mode(0o666)).unwrap();
        }
        _ => fs::File::open(&segment).unwrap().set_modified(std::time::SystemTime::now()).unwrap(),
    }
}

#[test]
fn a_question_that_finds_nothing_opens_overviews_and_no_segment() {
    let (_temp, dir) = directory();
    let mut rng = SplitMix64(5);
    // All but the last segment are covered, but those without packets and those that tell of
    // losses.
    write_store(&dir, 64..257, &mut rng);
    let looks = |hides, host| {
        let (storage, opened) = storage(&dir, hides);
        let asked = Asked { host, port: None, span: Span::ALL };
        let (packets, ..) = answer(&storage, &asked, asked.plan());
        assert_eq!(packets.is_empty(), host >= HOSTS);
        opened.load(SeqCst)
    };
    let (with, without) = (looks(false, HOSTS + 1), looks(true, HOSTS + 1));
    assert!(without >= 3 * 193 && with < without / 2, "{with} of {without}");
    assert!(looks(false, 1) > with, "what holds the host is looked at");
    // Of one hour as of all.
    let (storage, opened) = storage(&dir, false);
    let span = Span { after_ns: T0 + 70 * MINUTE, before_ns: T0 + 71 * MINUTE };
    let asked = Asked { host: 1, port: None, span };
    answer(&storage, &asked, asked.plan());
    assert!(opened.load(SeqCst) <= with, "nothing beyond what no overview covers");
}

#[test]
fn an_overview_that_others_could_have_written_is_not_believed() {
    let (_temp, dir) = directory();
    let mut rng = SplitMix64(6);
    write_store(&dir, 64..128, &mut rng);
    let looks = || {
        let (storage, opened) = storage(&dir, false);
        let asked = Asked { host: HOSTS + 1, port: None, span: Span::ALL };
        answer(&storage, &asked, asked.plan());
        opened.load(SeqCst)
    };
    let believed = looks();
    let [overview] = &overviews(&dir)[..] else { panic!("one overview") };
    fs::set_permissions(overview, Permissions::from_mode(0o646)).unwrap();
    assert!(looks() > 3 * believed, "everybody may write to it");
    fs::set_permissions(overview, Permissions::from_mode(0o640)).unwrap();
    assert_eq!(looks(), believed);
    std::os::unix::fs::chown(overview, Some(12345), None).unwrap();
    assert!(looks() > 3 * believed, "it is somebody else's");
}

#[test]
fn a_wrong_overview_is_told_by_verify_and_made_anew_by_recover() {
    let (_temp, dir) = directory();
    let mut rng = SplitMix64(7);
    write_store(&dir, 1..130, &mut rng);
    let faults = || {
        let mut files = Vec::new();
        let each = |verdict: &Verdict| files.extend(verdict.flaws.iter().map(|f| f.file.clone()));
        assert!(verify(&dir, |_| true, each).unwrap());
        files
    };
    assert_eq!(faults(), [""; 0]);
    let all = overviews(&dir);
    let made: Vec<Vec<u8>> = all.iter().map(|path| fs::read(path).unwrap()).collect();
    let mut bytes = made[0].clone();
    // In the keys: behind the header and the table.
    let at = bytes.len() - 5000;
    bytes[at] ^= 1;
    fs::write(&all[0], &bytes).unwrap();
    let name = all[0].file_name().unwrap().to_str().unwrap();
    assert_eq!(faults(), [name]);
    recover(&dir, ClosedScope::All);
    assert_eq!((faults(), fs::read(&all[0]).unwrap()), (Vec::new(), made[0].clone()));
    // One that is missing needs no thorough look.
    fs::remove_file(&all[1]).unwrap();
    recover(&dir, ClosedScope::Unended);
    assert_eq!((overviews(&dir), fs::read(&all[1]).unwrap()), (all.clone(), made[1].clone()));
}

/// Wherever an index is damaged, its segment is left out where it must be, and all else is covered.
#[test]
fn a_damaged_index_keeps_no_overview_from_being_made() {
    let (_temp, dir) = directory();
    write_store(&dir, 1..130, &mut SplitMix64(7));
    let sound: Vec<Vec<u8>> = overviews(&dir).iter().map(|path| fs::read(path).unwrap()).collect();
    let segment = names(&dir).into_iter().find(|name| name.contains("-00000010-")).unwrap();
    let index = dir.join(segment).with_extension("index");
    let whole = fs::read(&index).unwrap();
    let mut left_out = 0;
    for at in (4096..4096 + 600).step_by(24) {
        for path in overviews(&dir) {
            fs::remove_file(path).unwrap();
        }
        let mut bytes = whole.clone();
        bytes[at..at + 16].iter_mut().for_each(|byte| *byte ^= 0xff);
        fs::write(&index, bytes).unwrap();
        recover(&dir, ClosedScope::Unended);
        let made: Vec<Vec<u8>> =
            overviews(&dir).iter().map(|path| fs::read(path).unwrap()).collect();
        assert_eq!(made.len(), 2, "damaged at {at}");
        assert_eq!(made[1], sound[1], "damaged at {at}");
        left_out += u32::from(made[0] != sound[0]);
    }
    assert!(left_out > 0, "some of it was keys");
}

#[test]
fn a_recorder_makes_overviews_and_deletes_them_with_their_segments() {
    let (_temp, dir) = directory();
    let (mut producers, rings) = rings(1);
    let setup = Setup { indexed: true, ..Setup::new(1 << 20) };
    let run = setup.start(&dir, Disk::new(false), rings);
    let mut pushed = 0;
    for _ in 0..70 {
        pushed += u64::from(producers[0].push(3000));
        wait_for("the block to be written", || run.packets() == pushed);
        run.begin_segment();
    }
    wait_for("the first overview", || overviews(&dir).len() == 1);
    let made = fs::read(&overviews(&dir)[0]).unwrap();
    run.stop().unwrap();
    // One that is not there is made by the next recorder.
    fs::remove_file(&overviews(&dir)[0]).unwrap();
    let (_idle, rings) = common::rings(1);
    let run = setup.start(&dir, Disk::new(false), rings);
    wait_for("the overview again", || overviews(&dir).len() == 1);
    run.stop().unwrap();
    assert_eq!(fs::read(&overviews(&dir)[0]).unwrap(), made);
    let flaws = Mutex::new(0);
    verify(&dir, |_| true, |verdict| *flaws.lock().unwrap() += verdict.count).unwrap();
    assert_eq!(*flaws.lock().unwrap(), 0);
    // Retention lets the first segments go, the one that the overview is named after among them.
    let retention = Retention { segments: Some(5), ..Retention::default() };
    let setup = Setup { indexed: true, retention, ..Setup::new(1 << 20) };
    let (_idle, rings) = common::rings(1);
    let run = setup.start(&dir, Disk::new(false), rings);
    wait_for("the first segments to go", || names(&dir).len() <= 6);
    run.stop().unwrap();
    assert_eq!(overviews(&dir), [""; 0].map(PathBuf::from));
}
