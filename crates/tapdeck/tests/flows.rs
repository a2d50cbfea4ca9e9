//! `tapdeck flows`: every packet of a closed segment is in one row, the sums are the segment's own,
//! and the same segment gives the same bytes.

#[allow(dead_code)]
mod awkward;
mod flow_tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use awkward::store::{Packet, SECOND, Store, write_closed};
use flow_tables::{
    Row, account, contents, flows, is_null, made, number, parquet_of, read, said, segments, sums,
    tapdeck, text,
};
use rustix::process::Signal;
use serde_json::Value;
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_testkit::frame::{IPV4, UDP, ethernet, ipv4, udp};
use tapdeck_testkit::{SplitMix64, Talking, wait_for};

/// What stands in a segment: packets, and what its statistics tell.
struct Contained {
    packets: Vec<(u64, Packet)>,
    delivered: u64,
    dropped: u64,
}

fn look(segment: &Path) -> Contained {
    look_in(&fs::read(segment).expect("a segment"))
}

fn look_in(bytes: &[u8]) -> Contained {
    let mut contained = Contained { packets: Vec::new(), delivered: 0, dropped: 0 };
    let mut reader = Reader::new(bytes);
    loop {
        let at = reader.offset();
        match reader.next() {
            Some(Ok(Record::Packet(packet))) => {
                let time_ns = packet.timestamp as i64;
                let (original_len, frame) = (packet.original_len, packet.frame.to_vec());
                contained.packets.push((at, Packet { time_ns, original_len, frame }));
            }
            Some(Ok(Record::Statistics(told))) => {
                contained.delivered += told.delivered.unwrap_or(0);
                contained.dropped += told.dropped.unwrap_or(0);
            }
            Some(Ok(_)) => {}
            Some(Err(e)) => panic!("{e:?}"),
            None => return contained,
        }
    }
}

#[test]
fn every_packet_of_a_closed_segment_is_in_a_row() {
    for seed in 0..4 {
        let is_indexed = seed % 2 == 0;
        let store = Store::new(&mut SplitMix64(seed), is_indexed);
        let out = store.dir.path().join("out/flows");
        made(&store.path(), &out, &[]);
        let segments = segments(&store.path());
        assert!(segments.len() > 1, "seed {seed}");
        assert_eq!(contents(&out).len(), segments.len(), "a file for each, and nothing else");
        for segment in segments {
            let path = parquet_of(&out, &segment);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            let rows = read(&path);
            let contained = look(&segment);
            let bytes = contained.packets.iter().map(|(_, p)| i64::from(p.original_len)).sum();
            assert_eq!(sums(&rows), (contained.packets.len() as i64, bytes), "seed {seed}");
            assert_eq!(contained.packets.len() as u64, contained.delivered);
            let stem = segment.file_stem().unwrap().to_str().unwrap();
            let times = || contained.packets.iter().map(|(_, p)| p.time_ns);
            let us = |ns: i64| ns / 1000;
            let starts = rows.iter().map(|row| number(row, "start"));
            assert_eq!(starts.min(), times().min().map(us));
            assert_eq!(rows.iter().map(|row| number(row, "end")).max(), times().max().map(us));
            for row in &rows {
                assert_eq!((text(row, "sensor"), text(row, "segment")), ("here", stem));
                assert_eq!(is_null(row, "granules"), !is_indexed);
                let (offset, span) = (number(row, "offset") as u64, number(row, "span") as u64);
                let within = |at: u64| (offset..offset + span).contains(&at);
                let packets = number(row, "fwd_packets") + number(row, "rev_packets");
                let there = contained.packets.iter().filter(|(at, _)| within(*at)).count();
                assert!(there as i64 >= packets, "seed {seed}: {row:?}");
            }
        }
    }
}

#[test]
fn the_first_file_tells_what_its_segment_has_and_lacks() {
    let store = Store::new(&mut SplitMix64(3), true);
    let out = store.dir.path().join("out");
    made(&store.path(), &out, &[]);
    let mut lost = 0;
    for segment in segments(&store.path()) {
        let path = parquet_of(&out, &segment);
        let told: Value = serde_json::from_str(&account(&path).expect("an account")).unwrap();
        let contained = look(&segment);
        let stem = segment.file_stem().unwrap().to_str().unwrap();
        assert_eq!((&told["sensor"], &told["segment"]), (&"here".into(), &stem.into()));
        assert_eq!((&told["files"], &told["rows"]), (&1.into(), &read(&path).len().into()));
        for packets in ["packets", "packets_in_rows"] {
            assert_eq!(told[packets], contained.delivered);
        }
        assert_eq!(told["lost"], contained.dropped);
        for none in ["unseen", "cutoff", "bytes_cutoff", "shed_packets", "shed_bytes"] {
            assert_eq!(told[none], 0, "{none}");
        }
        lost += contained.dropped;
    }
    assert!(lost > 0, "the store tells of losses");
    // Files of some packets tell nothing of the segment.
    let some = store.dir.path().join("some");
    made(&store.path(), &some, &["udp"]);
    for name in contents(&some).keys() {
        assert_eq!(account(&some.join(name)), None);
    }
}

#[test]
fn the_same_segment_gives_the_same_bytes() {
    let store = Store::new(&mut SplitMix64(9), true);
    let [one, other] = ["one", "other"].map(|name| store.dir.path().join(name));
    made(&store.path(), &one, &[]);
    made(&store.path(), &other, &[]);
    assert_eq!(contents(&one), contents(&other));
    // Also over what is there.
    made(&store.path(), &other, &[]);
    assert_eq!(contents(&one), contents(&other));
}

#[test]
fn other_files_in_the_directory_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    close(&store, 1);
    fs::create_dir(&out).unwrap();
    let stem = "tapdeck-00000001-20260102T030406Z";
    let others = [
        "tapdeck-notes.new".to_owned(),
        format!("{stem}.index.new"),
        format!("{stem}+20455.parquet.new"),
        format!(".{stem}.parquet.new"),
        format!(".{stem}+20455.parquet.old"),
        format!(".{stem}+020455.parquet.new"),
        ".tapdeck-mine+1.parquet.new".to_owned(),
    ];
    let drafts = ["+20455.parquet", "-1.parquet", "+0.conn.log"];
    for name in others.iter().cloned().chain(drafts.map(|end| format!(".{stem}{end}.new"))) {
        fs::write(out.join(name), "something").unwrap();
    }
    made(&store, &out, &[]);
    let mut expected: BTreeSet<_> = others.iter().map(PathBuf::from).collect();
    expected.insert(format!("{stem}.parquet").into());
    assert_eq!(contents(&out).into_keys().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn an_expression_and_a_span_leave_the_packets_that_a_query_finds() {
    let store = Store::new(&mut SplitMix64(5), true);
    for entry in fs::read_dir(store.path()).unwrap().flatten() {
        if entry.path().extension().is_some_and(|end| end == "live") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let mut times: Vec<_> = store.packets.iter().map(|p| p.time_ns).collect();
    times.sort_unstable();
    let seconds = |ns: i64| format!("{}.{:09}", ns / SECOND, ns % SECOND);
    let [after, before] = [times.len() / 4, times.len() / 2].map(|at| seconds(times[at]));
    let span = ["--after", &after, "--before", &before];
    for args in [&["udp"][..], &span, &[&span[..], &["not", "tcp"]].concat(), &["len", ">", "400"]]
    {
        let out = store.dir.path().join("out");
        made(&store.path(), &out, args);
        let rows: Vec<Row> = contents(&out).keys().flat_map(|name| read(&out.join(name))).collect();
        let path = store.path();
        let query = ["query", "--count", "--dir", path.to_str().unwrap()];
        let counted = tapdeck(&[&query[..], args].concat());
        assert!(counted.status.success(), "{}", said(&counted));
        let counted: i64 = String::from_utf8(counted.stdout).unwrap().trim().parse().unwrap();
        assert_eq!(sums(&rows).0, counted, "{args:?}");
        assert!(counted > 0, "{args:?} asks for something");
        fs::remove_dir_all(out).unwrap();
    }
    let out = store.dir.path().join("out");
    made(&store.path(), &out, &["--after", "-10m"]);
    assert_eq!(contents(&out).len(), 0, "nothing is so new");
    let refused = flows(&store.path(), &store.dir.path().join("no"), &["no such thing"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
}

/// A datagram of 10.0.0.1, port 2000, to 10.0.0.2, port 53.
fn datagram(time_ns: i64) -> Packet {
    let packet = ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), UDP, &udp([2000, 53], &[7; 30]));
    let frame = ethernet([2; 6], [4; 6], &[], IPV4, &packet);
    Packet { time_ns, original_len: frame.len() as u32, frame }
}

#[test]
fn a_segment_over_midnight_gives_a_file_for_each_day() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    // 2026-01-03T00:00:00Z
    let midnight = 1_767_398_400 * SECOND;
    let times = [midnight - 5000, midnight, midnight - 1000, midnight + 7];
    write_closed(&store, 1, &times.map(datagram));
    made(&store, &out, &[]);
    let name = segments(&store)[0].file_stem().unwrap().to_str().unwrap().to_owned();
    let days = [format!("{name}-2026-01-03.parquet"), format!("{name}.parquet")];
    assert_eq!(
        contents(&out).keys().collect::<Vec<_>>(),
        days.iter().map(Path::new).collect::<Vec<_>>()
    );
    let told = days.clone().map(|name| account(&out.join(name)));
    assert_eq!(told[0], None, "the first file alone tells of the segment");
    assert!(told[1].as_ref().is_some_and(|told| told.contains(r#""files":2,"rows":2"#)));
    let [later, first] = days.map(|name| read(&out.join(name)));
    let said = |rows: &[Row]| -> Vec<_> {
        let columns = ["start", "duration_ns", "fwd_packets", "end_reason", "proto", "dst_port"];
        rows.iter().map(|row| columns.map(|column| number(row, column))).collect()
    };
    let us = midnight / 1000;
    assert_eq!(said(&first), [[us - 5, 4000, 2, 2, 17, 53]]);
    assert_eq!(said(&later), [[us, 7, 2, 4, 17, 53]]);
    let row = &first[0];
    assert_eq!((text(row, "src_ip"), text(row, "dst_ip")), ("10.0.0.1", "10.0.0.2"));
    assert_eq!((number(row, "src_num"), number(row, "dst_num")), (0x0a00_0001, 0x0a00_0002));
    assert_eq!((number(row, "ip_version"), number(row, "ether_type")), (4, 0x0800));
    for column in ["vlan", "tunnel", "icmp_type_code", "fwd_tcp_flags", "granules", "runs"] {
        assert!(is_null(row, column), "{column}");
    }
}

#[test]
fn a_damaged_segment_is_told_and_what_can_be_read_is_in_rows() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    let packets: Vec<_> = (0..100).map(|n| datagram(1_767_323_045 * SECOND + n)).collect();
    write_closed(&store, 1, &packets);
    let segment = segments(&store).remove(0);
    let at = look(&segment).packets[60].0 as usize;
    let mut bytes = fs::read(&segment).unwrap();
    // The length of a block.
    bytes[at + 4] = 3;
    fs::write(&segment, bytes).unwrap();
    let done = flows(&store, &out, &[]);
    assert_eq!(done.status.code(), Some(1), "{}", said(&done));
    assert!(said(&done).contains("damaged") || said(&done).contains("Damaged"), "{}", said(&done));
    assert_eq!(sums(&read(&parquet_of(&out, &segment))).0, 60);
}

#[test]
fn a_granule_that_is_not_what_was_indexed_is_told() {
    let store = Store::new(&mut SplitMix64(3), true);
    let out = store.dir.path().join("out");
    let segment = segments(&store.path()).remove(0);
    let (at, packet) = look(&segment).packets.swap_remove(20);
    let mut bytes = fs::read(&segment).unwrap();
    // The last byte of the frame, behind the block's head of 28 bytes.
    bytes[at as usize + 27 + packet.frame.len()] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let done = flows(&store.path(), &out, &[]);
    assert_eq!(done.status.code(), Some(1), "{}", said(&done));
    assert!(said(&done).contains("its checksum differs"), "{}", said(&done));
    let packets = look(&segment).packets.len() as i64;
    assert_eq!(sums(&read(&parquet_of(&out, &segment))).0, packets, "it can be read");
}

/// What is in a file of lines, by the names of its columns.
fn tab_separated(text: &str) -> Vec<BTreeMap<String, String>> {
    let header = |mark: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(mark)).expect("a header");
        line.split('\t').map(str::to_owned).collect::<Vec<_>>()
    };
    let (names, types) = (header("#fields\t"), header("#types\t"));
    assert_eq!(names.len(), types.len());
    let rows = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let values: Vec<_> = line.split('\t').map(str::to_owned).collect();
        assert_eq!(values.len(), names.len(), "{line}");
        names.iter().cloned().zip(values).collect()
    });
    rows.collect()
}

#[test]
fn lines_for_zeek_and_suricata_have_the_rows_of_ip() {
    let store = Store::new(&mut SplitMix64(11), true);
    let [parquet, zeek, zeek_json, eve] = ["parquet", "zeek", "zeek-json", "eve"].map(|format| {
        let out = store.dir.path().join(format);
        made(&store.path(), &out, &["--format", format]);
        out
    });
    for segment in segments(&store.path()) {
        let rows: Vec<Row> = read(&parquet_of(&parquet, &segment))
            .into_iter()
            .filter(|row| !is_null(row, "ip_version"))
            .collect();
        let of = |out: &Path, ending: &str| {
            let path = out.join(segment.file_name().unwrap()).with_extension(ending);
            fs::read_to_string(path).expect("text")
        };
        let by_columns: BTreeSet<_> = rows
            .iter()
            .map(|row| {
                let ends = [text(row, "src_ip"), text(row, "dst_ip")].map(str::to_owned);
                let columns = ["fwd_packets", "rev_packets", "proto", "offset", "span"];
                (ends, columns.map(|column| number(row, column)))
            })
            .collect();
        let columns = ["orig_pkts", "resp_pkts", "ip_proto", "offset", "span"];
        let by_zeek: BTreeSet<_> = tab_separated(&of(&zeek, "conn.log"))
            .into_iter()
            .map(|row| {
                let ends = ["id.orig_h", "id.resp_h"].map(|name| row[name].clone());
                (ends, columns.map(|name| row[name].parse::<i64>().expect("a number")))
            })
            .collect();
        assert_eq!(by_zeek, by_columns);
        let json = |out: &Path, ending: &str| -> Vec<Value> {
            let lines = of(out, ending);
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
        };
        let by_zeek_json: BTreeSet<_> = json(&zeek_json, "conn.json")
            .iter()
            .map(|row| {
                let ends = ["id.orig_h", "id.resp_h"];
                let ends = ends.map(|name| row[name].as_str().expect("text").to_owned());
                (ends, columns.map(|name| row[name].as_i64().expect("a number")))
            })
            .collect();
        assert_eq!(by_zeek_json, by_columns);
        let by_eve: BTreeSet<_> = json(&eve, "eve.json")
            .iter()
            .map(|row| {
                let n = |at: &str| row.pointer(at).and_then(Value::as_i64).expect("a number");
                let ends = ["src_ip", "dest_ip"];
                let ends = ends.map(|name| row[name].as_str().expect("text").to_owned());
                let packets = [n("/flow/pkts_toserver"), n("/flow/pkts_toclient")];
                (ends, packets, [n("/tapdeck/offset"), n("/tapdeck/span")])
            })
            .collect();
        let expected = by_columns
            .into_iter()
            .map(|(ends, [there, back, _, offset, span])| (ends, [there, back], [offset, span]));
        assert_eq!(by_eve, expected.collect::<BTreeSet<_>>());
    }
}

#[test]
fn a_line_says_what_others_would_say() {
    let dir = tempfile::tempdir().unwrap();
    let [store, zeek, eve] = ["store", "zeek", "eve"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    let t0 = 1_767_323_045 * SECOND;
    write_closed(&store, 1, &[datagram(t0 + 6999), datagram(t0 + 2 * SECOND)]);
    made(&store, &zeek, &["--format", "zeek"]);
    made(&store, &eve, &["--format", "eve"]);
    let text = |out: &Path| {
        let paths: Vec<_> = contents(out).into_values().collect();
        String::from_utf8(paths.into_iter().next().expect("a file")).unwrap()
    };
    let row = &tab_separated(&text(&zeek))[0];
    // 20 bytes of IPv4, 8 of UDP and 30 each.
    for (name, value) in [
        ("ts", "1767323045.000006"),
        ("id.orig_p", "2000"),
        ("id.resp_p", "53"),
        ("proto", "udp"),
        ("duration", "1.999993"),
        ("conn_state", "S0"),
        ("orig_ip_bytes", "116"),
        ("resp_ip_bytes", "0"),
        ("vlan", "-"),
    ] {
        assert_eq!(row[name], value, "{name}");
    }
    let event: Value = serde_json::from_str(&text(&eve)).unwrap();
    assert_eq!(event["timestamp"], "2026-01-02T03:04:07.000000+0000");
    assert_eq!(event["flow"]["start"], "2026-01-02T03:04:05.000006+0000");
    assert_eq!((&event["host"], &event["proto"]), (&"here".into(), &"UDP".into()));
    assert_eq!(event["flow"]["bytes_toserver"], 2 * (14 + 58));
    assert_eq!((&event["event_type"], &event["dest_port"]), (&"flow".into(), &53.into()));
    // What a query says of the same packets.
    let query = ["query", "--json", "--limit", "1", "--dir", store.to_str().unwrap()];
    let packet: Value = serde_json::from_slice(&tapdeck(&query).stdout).unwrap();
    let id = packet["community_id"].as_str().expect("text");
    assert_eq!((row["community_id"].as_str(), event["community_id"].as_str()), (id, Some(id)));
}

/// Puts a closed segment into a store, at once.
fn close(store: &Path, number: u64) {
    close_changed(store, number, |_| {});
}

/// Puts a closed segment into a store, at once, of which something was changed.
fn close_changed(store: &Path, number: u64, change: impl FnOnce(&mut Vec<u8>)) {
    let aside = tempfile::tempdir_in(store.parent().unwrap()).unwrap();
    write_closed(aside.path(), number, &[datagram((1_767_323_045 + number as i64) * SECOND)]);
    let path = segments(aside.path()).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    fs::rename(&path, store.join(path.file_name().unwrap())).unwrap();
}

fn watch(store: &Path, out: &Path) -> Talking {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["flows", "--watch", "--dir"]).arg(store).arg("-o").arg(out);
    Talking::start(&mut command)
}

#[test]
fn watching_makes_each_file_and_goes_on_where_it_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    close(&store, 1);
    let mut program = watch(&store, &out);
    let has = |number: u64| {
        let segment = segments(&store)
            .into_iter()
            .find(|path| path.to_str().unwrap().contains(&format!("tapdeck-{number:08}-")));
        segment.is_some_and(|segment| parquet_of(&out, &segment).exists())
    };
    wait_for("the first file", || has(1));
    close(&store, 2);
    wait_for("the next file", || has(2));
    // A second one would write the same names.
    let other = flows(&store, &out, &[]);
    assert_eq!(other.status.code(), Some(1));
    assert!(said(&other).contains("is being written by another process"), "{}", said(&other));

    program.process.signal(Signal::KILL);
    program.end();
    let before = contents(&out);
    // What a killed one may leave.
    fs::write(out.join(".tapdeck-00000003-20260102T030408Z+20455.parquet.new"), "half").unwrap();
    for number in 3..=6 {
        close(&store, number);
    }
    // Retention takes what nobody made a table of, and what has one.
    for segment in &segments(&store)[..4] {
        fs::remove_file(segment).unwrap();
    }
    let mut program = watch(&store, &out);
    program.wait_to_say("segments 3 to 4 were deleted before their flow tables were made");
    wait_for("the files of those that are left", || has(5) && has(6));
    program.process.signal(Signal::INT);
    let (status, said) = program.end();
    assert!(status.success(), "{said:#?}");
    let after = contents(&out);
    assert_eq!(after.len(), 4);
    assert!(before.iter().all(|(name, bytes)| after[name] == *bytes), "what was made stays");
    assert_eq!(sums(&after.keys().flat_map(|name| read(&out.join(name))).collect::<Vec<_>>()).0, 4);
}

#[test]
fn watching_tells_what_is_missing_and_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    for number in [1, 2, 4] {
        close(&store, number);
    }
    let mut program = watch(&store, &out);
    program.wait_to_say("segment 3 is missing before tapdeck-00000004-");
    wait_for("the files of what is there", || out.is_dir() && contents(&out).len() == 3);
    // Without statistics it ends within a block.
    close_changed(&store, 5, |bytes| bytes.truncate(look_in(bytes).packets[0].0 as usize + 40));
    program.wait_to_say("tapdeck-00000005-20260102T030410Z.pcapng is damaged at byte");
    close(&store, 7);
    program.wait_to_say("segment 6 is missing, and has no flow table");
    program.process.signal(Signal::INT);
    let (status, said) = program.end();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(!said.iter().any(|line| line.contains("deleted")), "{said:#?}");
}

#[test]
fn watching_waits_for_what_is_mended_and_for_nothing_that_was_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    let live = |path: &Path| PathBuf::from(format!("{}.live", path.display()));
    for number in [1, 2, 3] {
        close(&store, number);
    }
    let [first, crashed, _] = &segments(&store)[..] else { panic!("there are three") };
    fs::rename(crashed, live(crashed)).unwrap();
    let made = |count: usize| out.is_dir() && contents(&out).len() == count;
    let mut program = watch(&store, &out);
    wait_for("the files of what is closed", || made(2));
    // A recovery makes a closed segment live while it is mended.
    fs::rename(first, live(first)).unwrap();
    fs::write(store.join("tapdeck-00000004-20260102T030409Z.pcapng.live"), []).unwrap();
    close(&store, 5);
    wait_for("the file of the next", || made(3));
    let name = "tapdeck-00000004-20260102T030409Z.pcapng.live";
    fs::rename(store.join(name), store.join(format!("{name}.damaged"))).unwrap();
    close(&store, 6);
    wait_for("the file of the next", || made(4));
    for path in [first, crashed] {
        fs::rename(live(path), path).unwrap();
    }
    wait_for("the file of what was mended", || made(5));
    program.process.signal(Signal::INT);
    let (status, said) = program.end();
    assert!(status.success(), "{said:#?}");
    assert_eq!(said.len(), 0, "{said:#?}");
}
