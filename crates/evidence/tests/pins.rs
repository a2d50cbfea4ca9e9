//! Pins: what is copied, when, what is told of it, and that the budget holds.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::{Made, SECOND, made, packets_of, question, recorders, segment};
use tapdeck_evidence::{
    Bundle, Driver, Error, Most, Order, Pin, PinStore, PrivateKey, State, Time, Wish, check,
};
use tempfile::TempDir;

/// A store in which somebody recorded two packets a second from a time on; and no pins yet.
struct Case {
    dir: TempDir,
    now_ns: i64,
}

impl Case {
    /// A store of so many segments of ten seconds, the last of which ends so many seconds ago.
    fn new(segments: i64, ago_s: i64) -> Self {
        let now_ns = Time::now().0;
        let case = Self { dir: tempfile::tempdir().expect("a directory"), now_ns };
        fs::create_dir(case.store()).expect("a directory");
        let begin_ns = now_ns - (ago_s + segments * 10) * SECOND;
        for number in 0..segments {
            let (from, to) =
                (begin_ns + number * 10 * SECOND, begin_ns + (number + 1) * 10 * SECOND);
            let packets: Vec<Made> =
                (0..20).map(|i| made(from + i * SECOND / 2, 53 + (i % 2) as u16)).collect();
            segment(&case.store(), number as u64 + 1, (from, to), &packets);
        }
        recorders(&case.store(), &[1]);
        case
    }

    fn store(&self) -> std::path::PathBuf {
        self.dir.path().join("store")
    }

    fn pins(&self, budget: u64) -> PinStore {
        PinStore::make(&PinStore::beside(&self.store()), Some(budget)).expect("a directory")
    }

    /// A wish for packets to port 53 from `after` seconds ago until `before` seconds ago.
    fn wish(&self, after_s: i64, before_s: i64) -> Wish {
        let at = |ago_s: i64| Time(self.now_ns - ago_s * SECOND);
        Wish {
            store: self.store(),
            question: question("port 53", 0, 0),
            after: at(after_s),
            before: at(before_s),
            until: None,
            reason: "a case".into(),
            rule: None,
            order: None,
        }
    }
}

/// Returns the pins of a directory, all of which can be read.
fn all(pins: &PinStore) -> Vec<Pin> {
    pins.list().unwrap().into_iter().map(|(_, pin)| pin.unwrap()).collect()
}

fn times(pins: &PinStore, pin: &Pin) -> Vec<i64> {
    let paths = pin.files.iter().map(|file| pins.packets_of(pin.number).join(&file.name));
    paths.flat_map(|path| packets_of(&path)).map(|(time, _)| time).collect()
}

#[test]
fn a_pin_has_its_packets_and_outlives_the_store() {
    let case = Case::new(4, 60);
    let pins = case.pins(1 << 20);
    let pin = pins.add(case.wish(95, 75)).unwrap();
    assert_eq!((pin.number, pin.state), (1, State::Open));
    let done = pins.advance(1, || true).unwrap();
    assert_eq!((done.state, done.packets), (State::Done, 20));
    assert!(done.account.complete, "{:?}", done.account);
    assert_eq!(pins.advance(1, || true).unwrap(), done, "there is no more to be done");

    fs::remove_dir_all(case.store()).unwrap();
    let (key, out) = (PrivateKey::generate().unwrap(), case.dir.path().join("bundle"));
    let bundle = Bundle::begin(&out).unwrap();
    let manifest = bundle.add_pin(&pins, &pins.pin(1).unwrap()).unwrap();
    let manifest = bundle.finish(manifest, &key).unwrap();
    assert_eq!(manifest.reason.as_deref(), Some("a case"));
    assert_eq!(check(&out, &key.public()).unwrap().faults, Vec::<String>::new());

    let path = pins.packets_of(1).join(&done.files[0].name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    let bundle = Bundle::begin(&case.dir.path().join("other")).unwrap();
    let refused = bundle.add_pin(&pins, &done).unwrap_err();
    assert!(matches!(refused, Error::Changed(_)), "{refused}");

    pins.remove(1).unwrap();
    assert!(matches!(pins.pin(1), Err(Error::NoPin { .. })));
    assert!(!pins.place(1).exists());
    assert_eq!(all(&pins), vec![]);
}

#[test]
fn a_pin_whose_span_is_not_over_goes_on_where_it_was() {
    let case = Case::new(4, 6);
    let pins = case.pins(1 << 20);
    // Its end is ten seconds ahead, and the store's end six seconds ago.
    pins.add(case.wish(40, -10)).unwrap();
    let begun = pins.advance(1, || true).unwrap();
    assert_eq!(begun.state, State::Open);
    assert!(begun.due().is_some_and(|due| due > Time::now()));
    assert_eq!(begun.files.len(), 1);
    let reached = begun.reached;

    // Another process goes on; the recording has gone on, too. What a copy left that was never
    // taken down is not believed.
    fs::write(pins.packets_of(1).join("part-00002.pcapng"), b"half").unwrap();
    let at = |ago_s: i64| case.now_ns - ago_s * SECOND;
    let packets: Vec<Made> = (0..20).map(|i| made(at(4) + i * SECOND, 53)).collect();
    segment(&case.store(), 5, (at(4), at(-20)), &packets);
    let again = PinStore::open(pins.dir()).unwrap();
    tapdeck_testkit::wait_for("all of the span to be on disk", || {
        again.advance(1, || true).unwrap().state == State::Done
    });
    let done = again.pin(1).unwrap();
    assert!(done.files.len() >= 2);
    let found = times(&again, &done);
    let mut expected: Vec<i64> = (0..40).map(|i| at(46) + i * SECOND).collect();
    expected.extend((0..14).map(|i| at(4) + i * SECOND));
    expected.retain(|ns| *ns >= at(40));
    assert_eq!(found, expected, "each packet once, at first up to {reached}");
    assert_eq!(done.packets, expected.len() as u64);
    assert_eq!(done.account.faults, Vec::<String>::new());
}

#[test]
fn packets_that_come_to_disk_too_late_are_told() {
    let case = Case::new(4, 6);
    let pins = case.pins(1 << 20);
    pins.add(case.wish(40, -2)).unwrap();
    assert_eq!(pins.advance(1, || true).unwrap().state, State::Open);
    let at = |ago_s: i64| case.now_ns - ago_s * SECOND;
    segment(&case.store(), 5, (at(6), at(-20)), &[made(at(20), 53), made(at(0), 53)]);
    tapdeck_testkit::wait_for("all of the span to be on disk", || {
        pins.advance(1, || true).unwrap().state == State::Done
    });
    let faults = pins.pin(1).unwrap().account.faults;
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].ends_with("copied: 1 packet"), "{faults:?}");
}

#[test]
fn what_is_gone_before_it_is_copied_is_told() {
    let case = Case::new(4, 60);
    let pins = case.pins(1 << 20);
    // Retention has taken the two oldest segments.
    for entry in fs::read_dir(case.store()).unwrap() {
        let path = entry.unwrap().path();
        if ["00000001", "00000002"].iter().any(|n| path.to_string_lossy().contains(n)) {
            fs::remove_file(path).unwrap();
        }
    }
    pins.add(case.wish(95, 65)).unwrap();
    let done = pins.advance(1, || true).unwrap();
    assert_eq!((done.state, done.packets), (State::Done, 15));
    assert!(!done.account.complete);
    let unrecorded = &done.account.unrecorded;
    assert_eq!(unrecorded.len(), 1, "{unrecorded:?}");
    let lasted_s = (unrecorded[0].last.0 - unrecorded[0].first.unwrap().0) / SECOND;
    assert_eq!(lasted_s, 15);
}

#[test]
fn a_full_budget_refuses_and_evicts_nothing() {
    let case = Case::new(6, 60);
    let pins = case.pins(80 << 10);
    pins.add(case.wish(115, 65)).unwrap();
    let first = pins.advance(1, || true).unwrap();
    assert_eq!(first.state, State::Done);
    let used = pins.used().unwrap();
    assert!(used < 80 << 10);

    // A smaller budget has room for no other.
    let pins = case.pins((64 << 10) + used - 1);
    let refused = pins.add(case.wish(115, 65)).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    // And one that is just large enough for it to begin has none for its packets.
    let pins = case.pins((64 << 10) + used + 4000);
    pins.add(case.wish(115, 65)).unwrap();
    let refused = pins.advance(2, || true).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert!(!pins.place(2).exists(), "nothing of it is left");
    assert_eq!(all(&pins), vec![first.clone()]);
    assert_eq!(times(&pins, &first).len(), 50);

    // A budget that is full later ends a pin, which keeps what it has and says so.
    let pins = case.pins(1 << 20);
    let open = pins.add(case.wish(115, -3600)).unwrap();
    let open = pins.advance(open.number, || true).unwrap();
    assert_eq!(open.state, State::Open);
    let more: Vec<Made> = (0..400).map(|i| made(Time::now().0 + i * SECOND / 1000, 53)).collect();
    segment(&case.store(), 7, (case.now_ns, case.now_ns + 60 * SECOND), &more);
    let pins = case.pins((64 << 10) + pins.used().unwrap());
    tapdeck_testkit::wait_for("packets that the budget has no room for", || {
        pins.advance(open.number, || true).unwrap().state == State::Full
    });
    let full = pins.pin(open.number).unwrap();
    assert_eq!(full.packets, open.packets);
    assert!(full.account.faults[0].contains("budget"), "{:?}", full.account.faults);
}

#[test]
fn a_pin_goes_when_its_time_is_over_and_numbers_do_not_come_again() {
    let case = Case::new(2, 60);
    let pins = case.pins(1 << 20);
    let over = Wish { until: Some(Time(case.now_ns)), ..case.wish(70, 65) };
    pins.add(over).unwrap();
    assert_eq!(pins.advance(1, || true).unwrap().state, State::Done);
    assert_eq!(all(&pins).len(), 1, "it goes when there is another");
    let next = pins.add(case.wish(70, 65)).unwrap();
    assert_eq!(next.number, 2);
    assert_eq!(all(&pins), vec![next]);
    pins.remove(2).unwrap();
    assert_eq!(pins.add(case.wish(70, 65)).unwrap().number, 3);
    assert!(matches!(PinStore::open(Path::new("/nowhere")), Err(Error::NoPins(_))));
}

#[test]
fn what_a_killed_process_left_of_a_pin_goes_with_the_next() {
    let case = Case::new(2, 60);
    let pins = case.pins(80 << 10);
    let kept = pins.add(case.wish(70, 65)).unwrap();
    // A pin that was being removed: its packets are there, and take the whole budget.
    let left = pins.packets_of(7);
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("part-00001.pcapng"), vec![0; 80 << 10]).unwrap();
    let next = pins.add(case.wish(70, 65)).unwrap();
    assert!(!pins.place(7).exists(), "it is gone");
    assert_eq!(all(&pins), vec![kept, next]);
}

#[test]
fn whoever_stops_it_leaves_a_pin_as_it_was() {
    let case = Case::new(2, 60);
    let pins = case.pins(1 << 20);
    let pin = pins.add(case.wish(75, 65)).unwrap();
    assert!(matches!(pins.advance(1, || false), Err(Error::Stopped)));
    assert_eq!(pins.pin(1).unwrap(), pin);
    let files = || fs::read_dir(pins.packets_of(1)).unwrap().count();
    let mut most = 0;
    let done = pins.advance(1, || {
        most = most.max(files());
        true
    });
    assert_eq!(done.unwrap().packets, 10);
    assert_eq!((most, files()), (0, 1), "no file is there before it is whole");
}

#[test]
fn a_pin_for_somebody_afar_keeps_to_what_they_may_have() {
    let case = Case::new(4, 60);
    let pins = case.pins(1 << 20);
    let wish = |packets, bytes| {
        let mut wish = case.wish(95, 75);
        wish.question.filter = String::new();
        wish.question.ceiling = "port 53".into();
        wish.order = Some(Order { by: "alice".into(), most: Most { packets, bytes } });
        wish
    };
    pins.add(wish(20, 1 << 20)).unwrap();
    let done = pins.advance(1, || true).unwrap();
    assert_eq!((done.state, done.packets), (State::Done, 20), "half of them");
    let expected: Vec<i64> = (0..20).map(|i| case.now_ns - 95 * SECOND + i * SECOND).collect();
    assert_eq!(times(&pins, &done), expected);

    // A bundle says what the packets match besides.
    let (key, out) = (PrivateKey::generate().unwrap(), case.dir.path().join("bundle"));
    let bundle = Bundle::begin(&out).unwrap();
    let manifest = bundle.add_pin(&pins, &done).unwrap();
    bundle.finish(manifest, &key).unwrap();
    let checked = check(&out, &key.public()).unwrap();
    assert_eq!(checked.faults, Vec::<String>::new());
    assert_eq!(checked.manifest.unwrap().question.ceiling, "port 53");

    // Who asked from afar does not wait for it, and is told by what stays.
    for (number, (packets, bytes), says) in
        [(2, (19, 1 << 20), "no more than 19 packets"), (3, (20, 1000), "1,000 bytes")]
    {
        pins.add(wish(packets, bytes)).unwrap();
        let full = pins.advance(number, || true).unwrap();
        assert_eq!((full.state, full.packets, full.bytes), (State::Full, 0, 0));
        assert!(full.account.faults[0].contains(says), "{:?}", full.account.faults);
        assert_eq!(fs::read_dir(pins.packets_of(number)).unwrap().count(), 0);
    }
    assert_eq!(all(&pins).len(), 3);
}

#[test]
fn a_driver_copies_what_it_takes_and_says_when_there_is_more() {
    let case = Case::new(4, 60);
    let pins = case.pins(1 << 20);
    let mine = |wish: Wish| {
        let order = Some(Order { by: "alice".into(), most: Most::ALL });
        pins.add(Wish { order, ..wish }).unwrap()
    };
    pins.add(case.wish(95, 75)).unwrap();
    mine(case.wish(95, 75));
    mine(case.wish(95, -3600));
    let mut driver = Driver::default();
    let mut done = Vec::new();
    let takes = |pin: &Pin| pin.order.is_some();
    let told = |number, outcome: Result<&Pin, Error>| done.push((number, outcome.is_ok()));
    let next = driver.drive(&pins, takes, told, || true).unwrap();
    assert_eq!(done, [(2, true)]);
    let wait_ns = next.unwrap().0 - Time::now().0;
    assert!((50 * SECOND..70 * SECOND).contains(&wait_ns), "{wait_ns}");
    let states: Vec<State> = all(&pins).iter().map(|pin| pin.state).collect();
    assert_eq!(states, [State::Open, State::Done, State::Open]);

    // One that cannot be copied waits, and keeps no other waiting.
    pins.remove(3).unwrap();
    mine(Wish { store: "/nowhere".into(), ..case.wish(95, 75) });
    mine(case.wish(95, 75));
    let mut done = Vec::new();
    let told = |number, outcome: Result<&Pin, Error>| done.push((number, outcome.is_ok()));
    let next = driver.drive(&pins, takes, told, || true).unwrap();
    assert_eq!(done, [(4, false), (5, true)]);
    assert!(next.unwrap() > Time::now());
    let told = |number, _: Result<&Pin, Error>| panic!("pin {number} was to wait");
    assert_eq!(driver.drive(&pins, takes, told, || true).unwrap(), next);
}

#[test]
fn the_user_whose_the_directory_is_changes_pins_and_nobody_else() {
    let case = Case::new(2, 60);
    let pins = case.pins(1 << 20);
    pins.add(case.wish(70, 65)).unwrap();
    assert!(PinStore::check(pins.dir()).is_ok());
    std::os::unix::fs::chown(pins.dir(), Some(65_534), None).expect("tests run as root");
    let is_refused =
        |result: Result<Pin, Error>| matches!(result, Err(Error::NotOurs { uid: 65_534, .. }));
    assert!(is_refused(pins.add(case.wish(70, 65))));
    assert!(is_refused(pins.advance(1, || true)));
    assert!(is_refused(pins.remove(1)));
    assert!(matches!(PinStore::make(pins.dir(), None), Err(Error::NotOurs { .. })));
    assert!(matches!(PinStore::check(pins.dir()), Err(Error::NotOurs { .. })));
    assert_eq!(all(&pins).len(), 1, "who may read may look");
}

/// Makes directories below one, so deep that the path of the last cannot be read.
fn bury(root: &Path, spare: &Path) {
    let deep = |from: &Path| (0..10).fold(from.join("x"), |path, _| path.join("d".repeat(250)));
    fs::create_dir_all(deep(root)).unwrap();
    fs::create_dir_all(deep(spare)).unwrap();
    fs::rename(spare.join("x"), deep(root).join("x")).unwrap();
}

#[test]
fn a_budget_that_cannot_be_told_for_a_moment_ends_no_pin() {
    let case = Case::new(2, 60);
    let pins = case.pins(1 << 20);
    let pin = pins.add(case.wish(75, 65)).unwrap();
    bury(pins.dir(), case.dir.path());
    let part = pins.place(1).join("part-00001.pcapng");
    let failed = pins.advance(1, || {
        if part.exists() {
            let _ = fs::remove_dir_all(pins.dir().join("x"));
        }
        true
    });
    assert!(matches!(failed, Err(Error::Io { what: "read", .. })), "{failed:?}");
    assert_eq!(pins.pin(1).unwrap(), pin);
    fs::remove_dir_all(pins.dir().join("x")).unwrap();
    assert_eq!(pins.advance(1, || true).unwrap().packets, 10);
}

#[test]
fn what_is_used_can_be_told_while_pins_go() {
    let case = Case::new(1, 60);
    let pins = case.pins(1 << 20);
    std::thread::scope(|scope| {
        let going = scope.spawn(|| {
            for number in (1..=20).cycle().take(2_000) {
                fs::create_dir(pins.place(number)).unwrap();
                fs::remove_dir(pins.place(number)).unwrap();
            }
        });
        while !going.is_finished() {
            pins.used().unwrap();
        }
    });
}

#[test]
fn somebody_who_keeps_the_lock_keeps_nobody_waiting_without_end() {
    let case = Case::new(1, 60);
    let pins = case.pins(1 << 20);
    let pin = pins.add(case.wish(70, 65)).unwrap();
    let path = pins.dir().join(".lock");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600, "who may not open it cannot take it");
    // One that an earlier version has made.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    pins.add(case.wish(70, 65)).unwrap();
    assert_eq!(mode(), 0o600);

    let held = File::open(&path).unwrap();
    held.lock().unwrap();
    let is_busy = |result: Result<(), Error>| matches!(result, Err(Error::Busy { .. }));
    let later = Time(case.now_ns);
    std::thread::scope(|scope| {
        let tries = [
            scope.spawn(|| pins.add(case.wish(70, 65)).map(drop)),
            scope.spawn(|| pins.remove(1).map(drop)),
            scope.spawn(|| pins.extend(1, later).map(drop)),
            scope.spawn(|| PinStore::make(pins.dir(), None).map(drop)),
        ];
        assert!(tries.into_iter().all(|tried| is_busy(tried.join().unwrap())));
    });
    // What was copied is written down as soon as that can be, or its maker asks for the end.
    let mut asked = 0;
    let stopped = pins.advance(1, || {
        asked += 1;
        asked < 100
    });
    assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    assert_eq!(pins.pin(1).unwrap(), pin);
    drop(held);
    assert_eq!(pins.advance(1, || true).unwrap().state, State::Done);
}

#[test]
fn settings_that_are_damaged_or_lost_give_no_number_twice() {
    let case = Case::new(1, 60);
    let pins = case.pins(1 << 20);
    let first = pins.add(case.wish(70, 65)).unwrap();
    let settings = pins.dir().join("settings.json");
    fs::write(&settings, "{").unwrap();
    let refused = PinStore::make(pins.dir(), Some(1 << 30)).unwrap_err();
    assert!(matches!(refused, Error::Io { what: "read", .. }), "{refused}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "{", "nothing is written over it");
    let refused = PinStore::open(pins.dir()).unwrap_err();
    assert!(matches!(refused, Error::Io { what: "read", .. }), "there are pins: {refused}");

    fs::remove_file(&settings).unwrap();
    assert!(matches!(PinStore::open(pins.dir()), Err(Error::NoPins(_))));
    let pins = PinStore::make(pins.dir(), None).unwrap();
    assert_eq!(pins.add(case.wish(70, 65)).unwrap().number, 2);
    assert_eq!(pins.pin(1).unwrap(), first);
    // Settings of long ago.
    fs::write(&settings, r#"{"budget_bytes":1048576,"next":1}"#).unwrap();
    assert_eq!(pins.add(case.wish(70, 65)).unwrap().number, 3);
    assert_eq!(pins.pin(1).unwrap(), first);
}

#[test]
fn a_pin_that_cannot_be_read_keeps_no_other_from_being_made_copied_or_listed() {
    let case = Case::new(2, 60);
    let pins = case.pins(1 << 20);
    pins.add(case.wish(75, 65)).unwrap();
    fs::write(pins.place(1).join("pin.json"), "{").unwrap();
    assert_eq!(pins.add(case.wish(75, 65)).unwrap().number, 2);
    let mut driver = Driver::default();
    let mut done = Vec::new();
    let told = |number, outcome: Result<&Pin, Error>| done.push((number, outcome.is_ok()));
    let next = driver.drive(&pins, |_| true, told, || true).unwrap();
    assert_eq!(done, [(1, false), (2, true)]);
    let told = |number, _: Result<&Pin, Error>| panic!("pin {number} was to wait");
    assert_eq!(driver.drive(&pins, |_| true, told, || true).unwrap(), next);
    let listed = pins.list().unwrap();
    let listed: Vec<_> = listed.iter().map(|(number, pin)| (*number, pin.is_ok())).collect();
    assert_eq!(listed, [(1, false), (2, true)]);
    pins.remove(2).unwrap();
}

#[test]
fn a_pin_that_is_removed_while_it_is_copied_ends_so_and_is_no_fault() {
    let case = Case::new(4, 60);
    let pins = case.pins(1 << 20);
    pins.add(case.wish(95, 65)).unwrap();
    let part = pins.place(1).join("part-00001.pcapng");
    let mut asked = 0;
    let watch = || {
        if part.exists() {
            pins.remove(1).unwrap();
            asked += 1;
        }
        true
    };
    let told = |number, _: Result<&Pin, Error>| panic!("pin {number} is told of");
    let next = Driver::default().drive(&pins, |_| true, told, watch).unwrap();
    assert_eq!((next, asked), (None, 1));
}
