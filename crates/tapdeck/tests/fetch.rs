//! `tapdeck fetch`: each row of a flow table gives its packets and no others, as many and as long
//! as the row tells; what is missing is said.

#[allow(dead_code)]
mod awkward;
mod flow_tables;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray,
    TimestampMicrosecondArray, TimestampNanosecondArray,
};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, MetadataVersion};
use awkward::store::{Packet, SECOND, Store, write_closed};
use flow_tables::{Row, is_null, made, number, parquet_of, read, said, segments, tapdeck, text};
use parquet::record::Field;
use serde_json::{Map, Value};
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::frame::{IPV4, IPV6, TCP, UDP, ethernet, ipv4, ipv6, tcp, udp};

const T0: i64 = 1_767_323_045 * SECOND;

/// How many rows are fetched one by one, of a test that does that.
fn rows_asked() -> usize {
    std::env::var("TAPDECK_FETCH_ROWS").map_or(100, |n| n.parse().expect("a number"))
}

/// Returns a row as DuckDB writes it in JSON.
fn line(row: &Row) -> String {
    let mut object = Map::new();
    for (name, field) in row {
        let value = match field {
            Field::Null => Value::Null,
            Field::Str(text) => Value::from(text.as_str()),
            Field::TimestampMicros(_) => {
                let us = number(row, name);
                let seconds = us.div_euclid(1_000_000);
                let date = Command::new("date")
                    .args(["-u", "+%F %T", "-d", &format!("@{seconds}")])
                    .output()
                    .expect("date");
                let date = String::from_utf8(date.stdout).expect("text");
                Value::from(format!("{}.{:06}", date.trim(), us.rem_euclid(1_000_000)))
            }
            Field::Bytes(bytes) => {
                let escaped = bytes.data().iter().map(|byte| format!("\\x{byte:02X}"));
                Value::from(escaped.collect::<String>())
            }
            _ => Value::from(number(row, name)),
        };
        object.insert(name.clone(), value);
    }
    Value::from(object).to_string() + "\n"
}

/// Returns rows as an engine holds them in Arrow, one with wide types and one with narrow ones.
fn batch(rows: &[Row], is_wide: bool) -> RecordBatch {
    let column = |name: &String| -> (String, ArrayRef, bool) {
        let numbers = || rows.iter().map(|row| (!is_null(row, name)).then(|| number(row, name)));
        let kind = rows.iter().map(|row| &row[name]).find(|field| !matches!(field, Field::Null));
        let array: ArrayRef = match kind {
            Some(Field::Str(_)) => {
                let texts = rows.iter().map(|row| (!is_null(row, name)).then(|| text(row, name)));
                if is_wide {
                    Arc::new(texts.collect::<LargeStringArray>())
                } else {
                    Arc::new(texts.collect::<StringArray>())
                }
            }
            Some(Field::TimestampMicros(_)) if is_wide => {
                let times = numbers().map(|us| us.map(|us| us * 1000));
                let times: TimestampNanosecondArray = times.collect();
                Arc::new(times.with_timezone("Asia/Tokyo"))
            }
            Some(Field::TimestampMicros(_)) => {
                Arc::new(numbers().collect::<TimestampMicrosecondArray>())
            }
            Some(Field::Bytes(_)) => {
                let bytes = rows.iter().map(|row| match &row[name] {
                    Field::Bytes(bytes) => Some(bytes.data()),
                    _ => None,
                });
                Arc::new(bytes.collect::<BinaryArray>())
            }
            Some(Field::Long(_)) => Arc::new(numbers().collect::<Int64Array>()),
            _ if is_wide => Arc::new(numbers().collect::<Int64Array>()),
            _ => {
                let small = numbers().map(|n| n.map(|n| i32::try_from(n).expect("a small one")));
                Arc::new(small.collect::<Int32Array>())
            }
        };
        (name.clone(), array, true)
    };
    RecordBatch::try_from_iter_with_nullable(rows[0].keys().map(column)).expect("rows")
}

fn options(compression: Option<CompressionType>) -> IpcWriteOptions {
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).expect("options");
    options.try_with_compression(compression).expect("a kind")
}

/// Returns rows as a stream of Arrow, of so many at a time.
fn arrow_stream(batch: &RecordBatch, at_a_time: usize) -> Vec<u8> {
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options(None)).unwrap();
    for from in (0..batch.num_rows()).step_by(at_a_time) {
        let len = at_a_time.min(batch.num_rows() - from);
        writer.write(&batch.slice(from, len)).expect("room");
    }
    writer.into_inner().expect("its end")
}

/// Returns rows as a file of Arrow.
fn arrow_file(batch: &RecordBatch, compression: CompressionType) -> Vec<u8> {
    let options = options(Some(compression));
    let mut writer =
        FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).expect("a writer");
    writer.write(batch).expect("room");
    writer.into_inner().expect("its end")
}

/// Fetches the packets behind rows that come on standard input.
fn fetch_rows(rows: &[u8], store: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["fetch", "--flows", "-", "-w", "-", "--store"]).arg(store).args(more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program was built");
    // It may end before it has read all.
    let _ = child.stdin.take().expect("a pipe").write_all(rows);
    child.wait_with_output().expect("its end")
}

/// Fetches the packets behind lines of JSON.
fn fetch_lines(lines: &str, store: &Path, more: &[&str]) -> Output {
    fetch_rows(lines.as_bytes(), store, more)
}

/// The packets of a capture file, in its order.
fn packets(bytes: &[u8]) -> Vec<Packet> {
    let mut packets = Vec::new();
    for record in Reader::new(bytes) {
        if let Record::Packet(packet) = record.expect("a whole file") {
            packets.push(Packet {
                time_ns: packet.timestamp as i64,
                original_len: packet.original_len,
                frame: packet.frame.to_vec(),
            });
        }
    }
    packets
}

/// Packets as a bag.
fn sorted(packets: &[Packet]) -> Vec<(i64, &[u8])> {
    let mut all: Vec<_> = packets.iter().map(|p| (p.time_ns, &p.frame[..])).collect();
    all.sort_unstable();
    all
}

fn is_in_order(packets: &[Packet]) -> bool {
    packets.is_sorted_by_key(|packet| packet.time_ns)
}

/// Every row of every table of a store, and the files they are in.
fn all_rows(store: &Path, out: &Path) -> (Vec<Row>, Vec<PathBuf>) {
    made(store, out, &[]);
    let mut files: Vec<PathBuf> =
        fs::read_dir(out).expect("tables").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    (files.iter().flat_map(|file| read(file)).collect(), files)
}

/// What lies in the closed segments of a store.
fn closed_packets(store: &Path) -> Vec<Packet> {
    let paths = segments(store);
    paths.iter().flat_map(|path| packets(&fs::read(path).expect("a segment"))).collect()
}

#[test]
fn rows_of_awkward_traffic_give_each_packet_once() {
    for (seed, is_indexed) in [(0, true), (1, false), (2, true)] {
        let store = Store::new(&mut SplitMix64(seed), is_indexed);
        let out = store.dir.path().join("out");
        let (rows, files) = all_rows(&store.path(), &out);
        let closed = closed_packets(&store.path());
        // All tables at once, as they are.
        let answer = store.dir.path().join("answer.pcapng");
        let [dir, answer_name] = [&store.path(), &answer].map(|path| path.display().to_string());
        let mut words = vec!["fetch", "--store", &dir, "-w", &answer_name];
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        words.extend(names.iter().flat_map(|name| ["--flows", name]));
        let done = tapdeck(&words);
        assert!(done.status.success(), "seed {seed}: {}", said(&done));
        let fetched = packets(&fs::read(&answer).expect("an answer"));
        assert!(is_in_order(&fetched), "seed {seed}");
        assert_eq!(sorted(&fetched), sorted(&closed), "seed {seed}");
        // And rows one by one, each with what it tells.
        let mut rng = SplitMix64(seed);
        let mut checked = 0;
        while checked < rows_asked().min(rows.len()) {
            let row = &rows[rng.below(rows.len())];
            let one = fetch_lines(&line(row), &store.path(), &[]);
            assert!(one.status.success(), "seed {seed}, {row:?}: {}", said(&one));
            let one = packets(&one.stdout);
            let bytes: i64 = one.iter().map(|packet| i64::from(packet.original_len)).sum();
            let sum = |columns: [&str; 2]| number(row, columns[0]) + number(row, columns[1]);
            assert_eq!(one.len() as i64, sum(["fwd_packets", "rev_packets"]), "{row:?}");
            assert_eq!(bytes, sum(["fwd_bytes", "rev_bytes"]), "{row:?}");
            assert_eq!(one[0].time_ns / 1000, number(row, "start"), "{row:?}");
            assert_eq!(one[one.len() - 1].time_ns / 1000, number(row, "end"), "{row:?}");
            checked += 1;
        }
    }
}

/// Flows of some hosts, over two segments of a store.
fn plain(dir: &Path, rng: &mut SplitMix64, count: usize) {
    let v4 = |n: u8| Ipv4Addr::new(10, 0, 0, n);
    let v6 = |n: u8| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into());
    let mut time_ns = T0;
    for number in 1..=2 {
        let mut packets = Vec::new();
        for n in 0..count {
            time_ns += 1 + rng.below(2_000_000_i64);
            let (a, b) = (1 + rng.below(6_u8), 1 + rng.below(6_u8));
            let ports = [rng.below(4_u16) + 1000, [53, 443, 1001][rng.below(3)]];
            let payload = vec![n as u8; rng.below(400)];
            let (segment, protocol) = match rng.below(2) {
                0 => (udp(ports, &payload), UDP),
                _ => (tcp(ports, n as u32, &payload), TCP),
            };
            let (kind, packet) = match rng.below(2) {
                0 => (IPV4, ipv4(v4(a), v4(b), protocol, &segment)),
                _ => (IPV6, ipv6(v6(a), v6(b), protocol, &segment)),
            };
            let frame = ethernet([2, 0, 0, 0, 0, b], [2, 0, 0, 0, 0, a], &[], kind, &packet);
            packets.push(Packet { time_ns, original_len: frame.len() as u32, frame });
        }
        write_closed(dir, number, &packets);
    }
}

/// Returns what `tcpdump -r` gives of a segment for a row's ends, as a capture file's packets.
fn by_tcpdump(segment: &Path, row: &Row) -> String {
    let (source, destination) = (text(row, "src_ip"), text(row, "dst_ip"));
    let (from, to) = (number(row, "src_port"), number(row, "dst_port"));
    let protocol = if number(row, "proto") == i64::from(TCP) { "tcp" } else { "udp" };
    let one_way = |a: &str, b: &str, from: i64, to: i64| {
        format!("(src host {a} and src port {from} and dst host {b} and dst port {to})")
    };
    let filter = format!(
        "{protocol} and ({} or {})",
        one_way(source, destination, from, to),
        one_way(destination, source, to, from)
    );
    printed(segment, &filter)
}

/// Returns packets as tcpdump prints them, to the byte and the nanosecond.
fn printed(file: &Path, filter: &str) -> String {
    let words = ["-nn", "-tt", "-xx", "-q", "--time-stamp-precision=nano", "-r"];
    let out = Command::new("tcpdump").args(words).arg(file).arg(filter).output().expect("tcpdump");
    assert!(out.status.success(), "{filter}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn random_rows_give_what_tcpdump_finds() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, one] = ["store", "out", "one.pcapng"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    let mut rng = SplitMix64(11);
    plain(&store, &mut rng, 4000);
    let done = tapdeck(&["recover", "--dir", store.to_str().unwrap()]);
    assert!(done.status.success(), "{}", said(&done));
    let (rows, _) = all_rows(&store, &out);
    assert!(rows.len() > 1000, "{} rows", rows.len());
    assert!(rows.iter().any(|row| !is_null(row, "runs")), "some lie in several runs");
    for _ in 0..rows_asked() {
        let row = &rows[rng.below(rows.len())];
        let answer = fetch_lines(&line(row), &store, &[]);
        assert!(answer.status.success(), "{row:?}: {}", said(&answer));
        fs::write(&one, &answer.stdout).unwrap();
        let segment = store.join(format!("{}.pcapng", text(row, "segment")));
        let found = by_tcpdump(&segment, row);
        assert!(!found.is_empty());
        assert_eq!(printed(&one, ""), found, "{row:?}");
    }
    // Without an index what rows name is read in pieces, all of them.
    let paths = segments(&store);
    for path in &paths {
        assert!(path.metadata().unwrap().len() > 1 << 20, "more than a piece");
        fs::remove_file(path.with_extension("index")).unwrap();
    }
    let lines: String = rows.iter().map(line).collect();
    let all = fetch_lines(&lines, &store, &[]);
    assert!(all.status.success(), "{}", said(&all));
    assert_eq!(sorted(&packets(&all.stdout)), sorted(&closed_packets(&store)));
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    plain(&store, &mut SplitMix64(12), 500);
    let done = tapdeck(&["recover", "--dir", store.to_str().unwrap()]);
    assert!(done.status.success(), "{}", said(&done));
    let (rows, files) = all_rows(&store, &out);
    let paths = segments(&store);
    let first: Vec<&Row> = rows
        .iter()
        .filter(|row| paths[0].ends_with(format!("{}.pcapng", text(row, "segment"))))
        .collect();
    let lines: String = first.iter().map(|row| line(row)).collect();
    let whole = fetch_lines(&lines, &store, &[]);
    assert!(whole.status.success() && whole.stderr.is_empty(), "{}", said(&whole));
    // Twice the same rows are the same packets.
    let twice = fetch_lines(&(lines.clone() + &lines), &store, &[]);
    assert!(twice.status.success(), "{}", said(&twice));
    assert_eq!(packets(&twice.stdout), packets(&whole.stdout));
    // A row that tells of more than there is.
    let mut more = first[0].clone();
    more.insert("fwd_packets".into(), Field::Long(1_000_000));
    let out_of = fetch_lines(&line(&more), &store, &[]);
    assert_eq!(out_of.status.code(), Some(1));
    assert!(said(&out_of).contains("were found"), "{}", said(&out_of));
    // A byte of a frame that changed.
    let sound = fs::read(&paths[0]).unwrap();
    let wanted = packets(&whole.stdout)[7].frame.clone();
    let at = sound.windows(wanted.len()).position(|bytes| bytes == wanted).unwrap();
    let mut changed = sound.clone();
    changed[at + wanted.len() - 1] ^= 1;
    fs::write(&paths[0], &changed).unwrap();
    let damaged = fetch_lines(&lines, &store, &[]);
    assert_eq!(damaged.status.code(), Some(1), "{}", said(&damaged));
    let stem = paths[0].file_stem().unwrap().to_str().unwrap();
    assert!(said(&damaged).contains(stem), "{}", said(&damaged));
    // Without its index the segment has no checksums, and gives its packets all the same.
    fs::write(&paths[0], &sound).unwrap();
    fs::remove_file(paths[0].with_extension("index")).unwrap();
    let bare = fetch_lines(&lines, &store, &[]);
    assert!(bare.status.success(), "{}", said(&bare));
    assert_eq!(packets(&bare.stdout), packets(&whole.stdout));
    // A segment that is gone; what lies in the other is given.
    fs::remove_file(&paths[0]).unwrap();
    let answer = dir.path().join("answer.pcapng");
    let names: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let mut words = vec!["fetch", "--store", store.to_str().unwrap()];
    words.extend(["-w", answer.to_str().unwrap()]);
    words.extend(names.iter().flat_map(|name| ["--flows", name]));
    let gone = tapdeck(&words);
    assert_eq!(gone.status.code(), Some(1));
    let text = said(&gone);
    assert!(text.contains(stem) && text.contains("is gone"), "{text}");
    let rest = packets(&fs::read(&answer).unwrap());
    assert_eq!(sorted(&rest), sorted(&closed_packets(&store)));
}

#[test]
fn what_leads_nowhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("berlin");
    fs::create_dir(&store).unwrap();
    plain(&store, &mut SplitMix64(13), 50);
    let out = dir.path().join("out");
    let (rows, files) = all_rows(&store, &out);
    let row = line(&rows[0]);
    let changed = |column: &str, value: Value| {
        let mut object: BTreeMap<String, Value> = serde_json::from_str(&row).unwrap();
        object.insert(column.into(), value);
        serde_json::to_string(&object).unwrap()
    };
    for (lines, code, what) in [
        (changed("segment", "../berlin/x".into()), 2, "is no segment's name"),
        (changed("src_ip", "ten".into()), 1, "src_ip is ten"),
        (changed("offset", Value::Null), 1, "the row has no offset"),
        ("{".into(), 1, "row 1"),
        (changed("sensor", "x".repeat(256).into()), 1, "the sensor of a row is longer than 255"),
    ] {
        let answer = fetch_lines(&lines, &store, &[]);
        assert_eq!(answer.status.code(), Some(code), "{lines}: {}", said(&answer));
        assert!(said(&answer).contains(what), "{lines}: {}", said(&answer));
        assert!(answer.stdout.is_empty());
    }
    // The sensor may say where its store is, and lead to no other place.
    let template = dir.path().join("{sensor}");
    let of_sensor = |sensor: &str| fetch_lines(&changed("sensor", sensor.into()), &template, &[]);
    assert!(of_sensor("berlin").status.success(), "{}", said(&of_sensor("berlin")));
    for sensor in ["..", "", "a/b", ".", "a b"] {
        assert_eq!(of_sensor(sensor).status.code(), Some(2), "{sensor}");
    }
    // Each store elsewhere takes a process.
    let of_sensors = |count: usize| -> Output {
        let lines = (0..count).map(|n| changed("sensor", format!("s{n}").into()) + "\n");
        let store = Path::new("https://127.0.0.1:1/{sensor}/");
        fetch_lines(&lines.collect::<String>(), store, &[])
    };
    let many = of_sensors(65);
    assert_eq!(many.status.code(), Some(2), "{}", said(&many));
    assert!(said(&many).contains("at most 64 stores elsewhere"), "{}", said(&many));
    let nowhere = dir.path().join("nowhere.parquet");
    let nowhere = tapdeck(&["fetch", "--flows", nowhere.to_str().unwrap(), "-w", "-"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(said(&nowhere).contains("nowhere.parquet does not exist"), "{}", said(&nowhere));
    let missing = of_sensor("hamburg");
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("is gone"), "{}", said(&missing));
    // Without --store it is the directory of the file.
    let beside = store.join("rows.parquet");
    let table = parquet_of(&out, &segments(&store)[0]);
    assert!(files.contains(&table));
    fs::copy(&table, &beside).unwrap();
    let answer = dir.path().join("answer.pcapng");
    let [beside, answer_name] = [&beside, &answer].map(|path| path.to_str().unwrap());
    let done = tapdeck(&["fetch", "--flows", beside, "-w", answer_name]);
    assert!(done.status.success(), "{}", said(&done));
    let first = packets(&fs::read(&segments(&store)[0]).unwrap());
    assert_eq!(sorted(&packets(&fs::read(&answer).unwrap())), sorted(&first));
    let nothing = tapdeck(&["fetch", "--flows", "-", "-w", answer_name]);
    assert!(nothing.status.success(), "no row needs no store: {}", said(&nothing));
}

#[test]
fn rows_give_the_same_packets_in_each_form() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, rows_file, pipe] =
        ["store", "out", "rows", "pipe"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    plain(&store, &mut SplitMix64(14), 2000);
    let done = tapdeck(&["recover", "--dir", store.to_str().unwrap()]);
    assert!(done.status.success(), "{}", said(&done));
    let (rows, files) = all_rows(&store, &out);
    assert!(rows.iter().any(|row| !is_null(row, "runs")), "some lie in several runs");
    // Behind its first block, which names where the rows come from.
    let answer = |out: &Output| {
        assert!(out.status.success() && out.stderr.is_empty(), "{}", said(out));
        let len = u32::from_ne_bytes(out.stdout[4..8].try_into().unwrap());
        out.stdout[len as usize..].to_vec()
    };
    let from_file = |path: &Path| {
        let [path, store] = [path, &store].map(|path| path.to_str().unwrap());
        tapdeck(&["fetch", "--flows", path, "--store", store, "-w", "-"])
    };
    let lines: String = rows.iter().map(line).collect();
    let expected = answer(&fetch_lines(&lines, &store, &[]));
    assert!(expected.len() > 1 << 20);
    let names = files.iter().flat_map(|file| ["--flows", file.to_str().unwrap()]);
    let [all, store_name] = ["-", store.to_str().unwrap()];
    let words = ["fetch", "-w", all, "--store", store_name].into_iter().chain(names);
    assert!(answer(&tapdeck(&words.collect::<Vec<_>>())) == expected, "Parquet");
    for is_wide in [false, true] {
        let batch = batch(&rows, is_wide);
        let forms = [
            arrow_stream(&batch, usize::MAX),
            arrow_stream(&batch, 100),
            arrow_file(&batch, CompressionType::LZ4_FRAME),
            arrow_file(&batch, CompressionType::ZSTD),
        ];
        for (n, bytes) in forms.iter().enumerate() {
            let wide = if is_wide { "wide" } else { "narrow" };
            if n < 2 {
                assert!(answer(&fetch_rows(bytes, &store, &[])) == expected, "{wide}, {n}");
            }
            fs::write(&rows_file, bytes).unwrap();
            assert!(answer(&from_file(&rows_file)) == expected, "{wide}, {n}, a file");
        }
    }
    // What comes by a pipe with a name cannot be read twice, and does not have to be.
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let stream = arrow_stream(&batch(&rows, false), 1000);
    for bytes in [&stream[..], lines.as_bytes()] {
        let piped = std::thread::scope(|scope| {
            scope.spawn(|| fs::write(&pipe, bytes).unwrap());
            from_file(&pipe)
        });
        assert!(answer(&piped) == expected);
    }
    // What is not whole gives nothing, and says so in a line.
    let whole = arrow_file(&batch(&rows, false), CompressionType::ZSTD);
    let one = rows.iter().find(|row| !is_null(row, "runs")).unwrap();
    let [mut without, mut other] = [one.clone(), one.clone()];
    without.remove("offset");
    other.insert("offset".into(), Field::Str("4096".into()));
    let parquet = fs::read(&files[0]).unwrap();
    for (bytes, code, what) in [
        (&stream[..stream.len() - 100], 1, "it ends early, so rows are missing"),
        (&stream[..100], 1, "it ends early, so rows are missing"),
        (&arrow_stream(&batch(&[without], false), 1), 1, "it has no column offset"),
        (&arrow_stream(&batch(&[other], false), 1), 1, "the column offset is Utf8"),
        (&[&stream[..], &stream].concat(), 1, "something follows the end of the stream"),
        (&parquet, 2, "files of Parquet and of Arrow are given by their names"),
        (&whole, 2, "files of Parquet and of Arrow are given by their names"),
    ] {
        let refused = fetch_rows(bytes, &store, &[]);
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(code), "{text}");
        assert!(text.contains(what) && text.lines().count() == 1, "{text}");
        assert!(refused.stdout.is_empty());
        if code == 1 {
            fs::write(&rows_file, bytes).unwrap();
            let text = said(&from_file(&rows_file));
            assert!(text.contains(what) && text.contains(rows_file.to_str().unwrap()), "{text}");
        }
    }
    fs::write(&rows_file, &whole[..whole.len() - 1]).unwrap();
    let cut = from_file(&rows_file);
    assert_eq!(cut.status.code(), Some(1));
    assert!(said(&cut).contains("rows: it ends early, so rows are missing"), "{}", said(&cut));
}
