//! stenographer, the server that answers from what stenotype wrote. It speaks HTTP over TLS and
//! believes only clients with a certificate; curl asks, as its own stenoread does.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::process::{Answer, Group, read_so_far_mib};
use super::recorder::{STENOTYPE, files};
use super::words;
use tapdeck_testkit::Net;

/// Before the packets of an answer, which is a pcap file.
const HEADER_BYTES: u64 = 24;
/// In a network namespace of its own, nobody else has it.
const URL: &str = "https://127.0.0.1:1234/query";

/// A server in namespace `b`.
pub struct Stenographer<'a> {
    net: &'a Net,
    dir: PathBuf,
    process: Group,
}

/// What stenotype does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stenotype {
    /// The server starts it, on `vb`.
    Records,
    /// The recorder has ended; the server, which cannot be without, gets something that sleeps.
    Ended,
}

impl<'a> Stenographer<'a> {
    /// Serves what is in `PKT0` and `IDX0` of a directory.
    pub fn start(net: &'a Net, dir: &Path, stenotype: Stenotype) -> Result<Self, String> {
        let io = |e: std::io::Error| e.to_string();
        for part in ["PKT0", "IDX0", "tmp"] {
            fs::create_dir_all(dir.join(part)).map_err(io)?;
        }
        finish_last_file(&dir.join("PKT0")).map_err(io)?;
        certificate(dir)?;
        let config = dir.join("config");
        fs::write(&config, configuration(dir, stenotype)?).map_err(io)?;
        let log = File::create(dir.join("server.log")).map_err(io)?;
        let mut command = net.b.command("stenographer");
        command.arg("--config").arg(&config).args(["--syslog=false", "-v", "1"]);
        // Where it makes links to the store.
        command.env("TMPDIR", dir.join("tmp")).stdin(Stdio::null()).stderr(log);
        let process = Group::start(&mut command)?;
        let server = Self { net, dir: dir.to_owned(), process };
        server.wait_until_it_serves(stenotype)?;
        Ok(server)
    }

    /// Until it takes questions, and has looked at all files once or stenotype has begun one.
    fn wait_until_it_serves(&self, stenotype: Stenotype) -> Result<(), String> {
        let begin = Instant::now();
        let log = || fs::read_to_string(self.dir.join("server.log")).unwrap_or_default();
        loop {
            let ready = match stenotype {
                Stenotype::Records => files(&self.dir.join("PKT0"))?.len() == 1,
                Stenotype::Ended => log().contains("disk space is sufficient"),
            };
            if ready && self.ask("host 192.0.2.200").is_ok() {
                return Ok(());
            }
            if begin.elapsed() > Duration::from_secs(30) {
                let log = log();
                let last = log.lines().last().unwrap_or("it said nothing");
                return Err(format!("stenographer does not serve: {last}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The answer to a question in its own language, which is a part of pcap-filter(7).
    pub fn ask(&self, question: &str) -> Result<Answer, String> {
        let before_mib = read_so_far_mib(self.process.0.id());
        let mut command = self.net.b.command("curl");
        command.args(["-sSfkN", "--http1.1", "--cert"]).arg(self.dir.join("server_cert.pem"));
        command.arg("--key").arg(self.dir.join("server_key.pem"));
        let mut answer = Answer::of(command.args(["-d", question, URL]), HEADER_BYTES)?;
        answer.used.read_mib += read_so_far_mib(self.process.0.id()) - before_mib;
        Ok(answer)
    }
}

/// Packets in a pcap file, of which the beginning is here.
pub fn packets(pcap: &[u8]) -> u64 {
    let mut rest = pcap.get(HEADER_BYTES as usize..).unwrap_or_default();
    let mut packets = 0;
    while let Some(length) = rest.get(8..12) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        packets += 1;
        rest = rest.get(16 + length..).unwrap_or_default();
    }
    packets
}

/// The last packet file keeps the name of an unfinished one when stenotype ends, and the server
/// deletes such.
fn finish_last_file(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str().and_then(|n| n.strip_prefix('.')) {
            fs::rename(entry.path(), dir.join(name))?;
        }
    }
    Ok(())
}

/// One certificate for everybody: authority, server and client.
fn certificate(dir: &Path) -> Result<(), String> {
    let line = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
                -keyout server_key.pem -out server_cert.pem -days 2 -subj /CN=127.0.0.1";
    let mut command = Command::new("openssl");
    command.args(words(line)).current_dir(dir).stderr(Stdio::null());
    let made = command.status().map_err(|e| format!("openssl: {e}"))?;
    if !made.success() {
        return Err("openssl made no certificate".into());
    }
    let copied = fs::copy(dir.join("server_cert.pem"), dir.join("ca_cert.pem"));
    copied.map(|_| ()).map_err(|e| e.to_string())
}

fn configuration(dir: &Path, stenotype: Stenotype) -> Result<String, String> {
    let path = |name: &str| dir.join(name).display().to_string();
    let (program, flags) = match stenotype {
        Stenotype::Records => ("/usr/sbin/stenotype".to_owned(), words(STENOTYPE)),
        Stenotype::Ended => {
            use std::os::unix::fs::PermissionsExt;
            let sleeper = path("sleeper");
            let executable = fs::Permissions::from_mode(0o755);
            fs::write(&sleeper, "#!/bin/sh\nexec sleep 86400\n")
                .and_then(|()| fs::set_permissions(&sleeper, executable))
                .map_err(|e| e.to_string())?;
            (sleeper, Vec::new())
        }
    };
    let config = serde_json::json!({
        "Threads": [{
            "PacketsDirectory": path("PKT0"),
            "IndexDirectory": path("IDX0"),
            "MaxDirectoryFiles": 30000,
            "DiskFreePercentage": 1,
        }],
        "StenotypePath": program,
        "Interface": "vb",
        "Port": 1234,
        "Host": "127.0.0.1",
        "Flags": flags,
        "CertPath": dir,
    });
    Ok(config.to_string())
}
