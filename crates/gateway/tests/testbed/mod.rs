//! A recorder in a network of its own, a gateway beside it, and a way to ask that.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tapdeck_testkit::frame::UdpFrame;
use tapdeck_testkit::{Net, Sender, Talking};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Returns the program `tapdeck` that was built beside the gateway.
///
/// # Panics
/// Where it was not built: cargo builds the programs of a test's own package alone.
pub fn tapdeck() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tapdeck-gateway")).with_file_name("tapdeck");
    assert!(path.exists(), "{} is not there: cargo build -p tapdeck", path.display());
    path
}

/// Two namespaces with a cable, and a directory.
pub struct Bed {
    pub net: Net,
    pub dir: tempfile::TempDir,
    sent: u32,
}

impl Bed {
    pub fn new() -> Self {
        Self { net: Net::new(), dir: tempfile::tempdir().expect("a directory"), sent: 0 }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Starts `tapdeck record -i vb` into the store, and waits until it records.
    pub fn record(&self, flags: &str) -> Talking {
        let mut command = self.net.b.command(tapdeck().to_str().expect("it is UTF-8"));
        command.args(["record", "-i", "vb", "--dir"]).arg(self.store());
        command.args(flags.split_whitespace()).stdout(Stdio::null());
        let mut recorder = Talking::start(&mut command);
        recorder.wait_to_say("recording vb");
        recorder
    }

    /// Sends UDP frames of so many bytes to port 9, and returns how many were sent so far.
    pub fn send(&mut self, count: u32, len: usize) -> u64 {
        let first = self.sent;
        self.sent += count;
        let frames = (first..self.sent)
            .map(|number| UdpFrame { to: MAC, len, number, ..UdpFrame::default() }.bytes());
        self.net.a.inside(|| Sender::on("va").send_all(frames));
        u64::from(self.sent)
    }

    /// Starts a gateway in `b`, with a configuration that gets the store and more lines, and waits
    /// until it listens.
    pub fn gateway(&self, more: &str) -> Gateway<'_> {
        self.gateway_with(more, "")
    }

    /// Starts a gateway as [`Bed::gateway`] does, with more lines for the store.
    pub fn gateway_with(&self, more: &str, of_store: &str) -> Gateway<'_> {
        let config = self.path("gateway.toml");
        let store = self.store();
        let text = format!(
            "{more}\n[[listen]]\naddress = \"127.0.0.1:0\"\n[[store]]\nname = \"edge\"\ndirectory = \"{}\"\n{of_store}",
            store.display()
        );
        fs::write(&config, text).expect("it can be written");
        let program = env!("CARGO_BIN_EXE_tapdeck-gateway");
        let mut command = self.net.b.command(program);
        let mut program = Talking::start(command.arg("--config").arg(config));
        let line = program.wait_to_say("listening at http://");
        let (_, address) = line.rsplit_once("http://").expect("an address");
        Gateway { bed: self, program, address: address.to_owned() }
    }
}

/// A gateway that runs.
pub struct Gateway<'a> {
    bed: &'a Bed,
    pub program: Talking,
    pub address: String,
}

/// What somebody answered over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("it is text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

impl Gateway<'_> {
    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// Asks with more lines in the head.
    pub fn get_with(&self, path: &str, head: &str) -> Answer {
        let address = &self.address;
        self.bed.net.b.inside(|| get(address, path, head))
    }
}

/// Asks somebody in this thread's namespace.
pub fn get(address: &str, path: &str, head: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    get_as(&mut stream, address, path, head)
}

/// Asks somebody who is known under another name.
pub fn get_as(stream: &mut TcpStream, host: &str, path: &str, head: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n");
    stream.write_all(request.as_bytes()).expect("it takes the request");
    answer(stream)
}

/// Asks somebody in this thread's namespace by another method, and with a body.
pub fn send(address: &str, method: &str, path: &str, head: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    let len = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {len}\r\n{head}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it takes the request");
    answer(&mut stream)
}

/// Reads an answer up to the connection's end.
pub fn answer(stream: &mut impl Read) -> Answer {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head ends");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let mut body = answer.split_off(end + 4);
    if head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Answer { status, head, body }
}

/// Returns the bytes of a body that came in chunks, which is whole.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("a chunk's length");
        let len = std::str::from_utf8(&rest[..end]).expect("a number");
        let len = usize::from_str_radix(len, 16).expect("a number");
        if len == 0 {
            return body;
        }
        body.extend(&rest[end + 2..end + 2 + len]);
        rest = &rest[end + 4 + len..];
    }
}

/// Runs a program that must succeed, and returns what it has said on both outputs.
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(out.status.success(), "{command:?}: {said}");
    said
}
