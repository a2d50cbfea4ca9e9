//! Stores on real S3 servers, of two makers: what is asked of them is answered as it is of their
//! directory, and rows of flow tables give the same packets.
//!
//! `make test-fleet` fetches the servers and names them in `TAPDECK_S3_SERVER`, which is versitygw,
//! and `TAPDECK_S3PROXY`, a file of Java's.

#[allow(dead_code)]
#[path = "../../tapdeck/tests/awkward/mod.rs"]
mod awkward;
mod rows;

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use awkward::store::Store;
use tapdeck_testkit::{SplitMix64, wait_for};

const KEY: &str = "reader";
const SECRET: &str = "a secret of some length";

/// A server with a bucket `tape`.
struct S3 {
    server: Child,
    endpoint: String,
    _dir: tempfile::TempDir,
}

impl S3 {
    /// Starts versitygw.
    fn versitygw() -> Self {
        Self::start("TAPDECK_S3_SERVER", |program, address, dir| {
            let mut server = Command::new(program);
            server.args(["--port", address, "--quiet", "posix"]).arg(dir.join("objects"));
            server.envs([("ROOT_ACCESS_KEY", KEY), ("ROOT_SECRET_KEY", SECRET)]);
            server
        })
    }

    /// Starts S3Proxy on a directory.
    fn s3proxy() -> Self {
        Self::start("TAPDECK_S3PROXY", |jar, address, dir| {
            let objects = dir.join("objects").display().to_string();
            let settings = [
                ("s3proxy.endpoint", &*format!("http://{address}")),
                ("s3proxy.authorization", "aws-v4"),
                ("s3proxy.identity", KEY),
                ("s3proxy.credential", SECRET),
                ("jclouds.provider", "filesystem-nio2"),
                ("jclouds.filesystem.basedir", &objects),
                // It asks for them, and does not use them.
                ("jclouds.identity", KEY),
                ("jclouds.credential", SECRET),
            ];
            let settings = settings.map(|(name, value)| format!("{name}={value}\n")).concat();
            let file = dir.join("s3proxy.conf");
            fs::write(&file, settings).expect("room");
            let mut server = Command::new("java");
            server.arg("-jar").arg(jar).arg("--properties").arg(file);
            server
        })
    }

    fn start(variable: &str, command: impl Fn(&OsStr, &str, &Path) -> Command) -> Self {
        let program = std::env::var_os(variable).expect("`make test-fleet` names it");
        let dir = tempfile::tempdir().expect("a directory");
        // Nobody else takes a port that was just given back.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr());
        let address = port.expect("an address").to_string();
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        fs::create_dir(dir.path().join("objects")).expect("a directory");
        let server = command(&program, &address, dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("its file"))
            .stderr(log)
            .spawn()
            .expect("the server");
        let s3 = Self { server, endpoint: format!("http://{address}"), _dir: dir };
        wait_for("the server", || std::net::TcpStream::connect(&address).is_ok());
        s3.put(&[], "tape");
        s3
    }

    /// Puts a file, or nothing, which makes a bucket.
    fn put(&self, file: &[&str], name: &str) {
        let out = Command::new("curl")
            .args(["-sS", "--fail-with-body", "-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3"])
            .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
            .args(["--user", &format!("{KEY}:{SECRET}")])
            .args(file)
            .arg(format!("{}/{name}", self.endpoint))
            .output()
            .expect("curl");
        assert!(out.status.success(), "{}", text(&out));
    }

    /// Copies a directory's files below a prefix.
    fn copy(&self, dir: &Path, prefix: &str) {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().expect("text"));
            let path = path.to_str().expect("text");
            self.put(&["-T", path], &format!("tape/{prefix}/{name}"));
        }
    }

    fn tapdeck(&self, words: &[&str]) -> Output {
        let mut command = Command::new(program("tapdeck"));
        command.args(words).envs([
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", &*self.endpoint),
            ("AWS_REGION", "us-east-1"),
        ]);
        command.output().expect("it was built")
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Returns a program that was built beside the one under test.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tapdeck-remote")).with_file_name(name);
    assert!(path.exists(), "{} is not there: cargo build -p {name}", path.display());
    path
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Returns the bytes of a capture file behind its first block, which names the place.
fn blocks(file: &Path) -> Vec<u8> {
    let bytes = fs::read(file).expect("a file");
    let len = u32::from_ne_bytes(bytes[4..8].try_into().expect("four"));
    bytes[len as usize..].to_vec()
}

#[test]
#[ignore = "needs an S3 server: make test-fleet"]
fn a_store_on_s3_is_answered_as_its_directory_is() {
    for s3 in [S3::versitygw(), S3::s3proxy()] {
        answers_as_a_directory(&s3);
    }
}

fn answers_as_a_directory(s3: &S3) {
    let store = Store::new(&mut SplitMix64(3), true);
    s3.copy(&store.path(), "sensors/berlin");
    let here = store.path().display().to_string();
    let there = "s3://tape/sensors/berlin";
    let same = |words: &[&str]| {
        let [here, there] = [&here, there].map(|place| {
            let out = s3.tapdeck(&[&[words[0], "--dir", place], &words[1..]].concat());
            (out.status.code(), text(&out).replace(place, "PLACE"))
        });
        assert_eq!(here, there, "{words:?}");
    };
    for words in [
        &["query"][..],
        &["query", "--count", "udp"],
        &["query", "--json", "-c", "20", "port 53 or vlan 42"],
        &["query", "--no-trust-index", "--count"],
        &["stat"],
        &["stat", "--json"],
        &["verify"],
        &["verify", "--json"],
    ] {
        same(words);
    }
    let files = ["here.pcapng", "there.pcapng"].map(|name| store.dir.path().join(name));
    for (place, file) in [(&*here, &files[0]), (there, &files[1])] {
        let out = s3.tapdeck(&["query", "--dir", place, "-w", file.to_str().expect("text")]);
        assert!(out.status.success(), "{}", text(&out));
    }
    assert!(blocks(&files[0]).len() > 100_000);
    assert_eq!(blocks(&files[0]), blocks(&files[1]));
    for (place, code, what) in [
        ("s3://tape/sensors/hamburg", 1, "has no segments"),
        ("s3://nothing/sensors", 1, "s3://nothing/sensors"),
    ] {
        let out = s3.tapdeck(&["query", "--dir", place]);
        assert_eq!(out.status.code(), Some(code), "{}", text(&out));
        assert!(text(&out).contains(what), "{}", text(&out));
    }
}

/// How many rows are fetched one by one.
fn rows_asked() -> usize {
    std::env::var("TAPDECK_FETCH_ROWS").map_or(100, |n| n.parse().expect("a number"))
}

#[test]
#[ignore = "needs an S3 server: make test-fleet"]
fn rows_give_the_packets_that_lie_on_s3() {
    for s3 in [S3::versitygw(), S3::s3proxy()] {
        gives_packets_of_rows(&s3);
    }
}

fn gives_packets_of_rows(s3: &S3) {
    let store = Store::new(&mut SplitMix64(4), true);
    s3.copy(&store.path(), "sensors/berlin");
    let here = store.path().display().to_string();
    let out = store.dir.path().join("flows");
    let out = out.to_str().expect("text");
    let made = s3.tapdeck(&["flows", "--dir", &here, "-o", out, "--sensor", "berlin"]);
    assert!(made.status.success(), "{}", text(&made));
    let tables: Vec<PathBuf> =
        fs::read_dir(out).expect("tables").map(|entry| entry.expect("an entry").path()).collect();
    assert!(tables.len() > 2, "{tables:?}");
    let fetched = |store: &str, table: &Path| {
        let table = table.to_str().expect("text");
        let out = s3.tapdeck(&["fetch", "--flows", table, "--store", store, "-w", "-"]);
        assert!(out.status.success(), "{store}: {}", String::from_utf8_lossy(&out.stderr));
        let len = u32::from_ne_bytes(out.stdout[4..8].try_into().expect("four"));
        out.stdout[len as usize..].to_vec()
    };
    for table in &tables {
        let there = fetched("s3://tape/sensors/{sensor}", table);
        assert!(there.len() > 10_000);
        assert!(there == fetched(&here, table), "{}", table.display());
    }
    // Rows one by one, of parts of a file that have one.
    let mut rng = SplitMix64(4);
    let parts = store.dir.path().join("part.parquet");
    for _ in 0..rows_asked() {
        let table = &tables[rng.below(tables.len())];
        part(table, &parts, &mut rng);
        let there = fetched("s3://tape/sensors/{sensor}", &parts);
        assert!(there.len() > 100 && there == fetched(&here, &parts));
    }
    // A segment that is not there any more is named.
    let gone = s3.tapdeck(&[
        "fetch",
        "--flows",
        tables[0].to_str().expect("text"),
        "-w",
        "-",
        "--store",
        "s3://tape/else",
    ]);
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert_eq!(gone.status.code(), Some(1), "{said}");
    let stem = tables[0].file_stem().and_then(|stem| stem.to_str()).expect("text");
    assert!(said.contains(&format!("s3://tape/else/{}", &stem[..33])), "{said}");
    assert!(said.contains("is gone"), "{said}");
}

/// Writes one row of a table into another file.
fn part(table: &Path, to: &Path, rng: &mut SplitMix64) {
    let rows = rows::rows(table);
    fs::write(to, rows::line(&rows[rng.below(rows.len())])).expect("room");
}
