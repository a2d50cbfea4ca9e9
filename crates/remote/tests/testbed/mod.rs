//! Sensors in networks of their own, each a gateway with a store, and somebody who asks them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::cable::{Cable, End};
use tapdeck_testkit::frame::UdpFrame;
use tapdeck_testkit::process::number;
use tapdeck_testkit::{Namespace, Net, Sender, Talking, wait_for};

/// Returns a program that was built beside the one under test.
///
/// # Panics
/// Where it was not built: cargo builds the programs of a test's own package alone.
pub fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tapdeck-remote")).with_file_name(name);
    assert!(path.exists(), "{} is not there: cargo build -p {name}", path.display());
    path
}

/// Runs a program that must succeed, and returns what it has written to standard output.
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Stores whose packets come by turns.
pub struct Stores {
    pub dir: tempfile::TempDir,
    pub count: usize,
}

impl Stores {
    /// Records so many frames in each of so many stores.
    pub fn record(count: usize, frames: u32) -> Self {
        let stores = Self { dir: tempfile::tempdir().expect("a directory"), count };
        let net = Net::new();
        let start = |at: usize| {
            let mut command = net.b.command(program("tapdeck").to_str().expect("it is UTF-8"));
            command.args(["record", "-i", "vb", "--hook", "tcx", "--dir"]).arg(stores.store(at));
            command.args(["--filter", &format!("udp src port {}", port(at))]);
            let mut recorder = Talking::start(command.stdout(Stdio::null()));
            recorder.wait_to_say("recording vb");
            recorder
        };
        let recorders: Vec<Talking> = (0..count).map(start).collect();
        let frames = (0..frames * count as u32).map(|n| {
            let ports = [port(n as usize % count), 9];
            UdpFrame { ports, len: 400, number: n, ..UdpFrame::default() }.bytes()
        });
        let sent = frames.len() as u64 / count as u64;
        net.a.inside(|| Sender::on("va").send_all(frames));
        for (at, mut recorder) in recorders.into_iter().enumerate() {
            let stats = || {
                let mut ctl = Command::new(program("tapdeck"));
                let text = run(ctl.args(["ctl", "stats", "--json", "--dir"]).arg(stores.store(at)));
                serde_json::from_str::<Value>(&text).expect("JSON")
            };
            wait_for("the packets", || number(&stats(), "captured") == sent);
            recorder.process.signal(Signal::INT);
            let (status, said) = recorder.end();
            assert!(status.success(), "{said:?}");
        }
        stores
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn store(&self, at: usize) -> PathBuf {
        self.path(&format!("store-{at}"))
    }

    /// Returns what one query over some of the stores gives, as tcpdump prints it.
    pub fn queried(&self, which: &[usize], words: &[&str]) -> String {
        let file = self.path("queried.pcapng");
        let mut query = Command::new(program("tapdeck"));
        query.arg("query").args(words).arg("-w").arg(&file);
        for at in which {
            query.arg("--dir").arg(self.store(*at));
        }
        run(&mut query);
        printed(&file)
    }
}

/// Returns the source port of the packets in a store.
fn port(at: usize) -> u16 {
    1000 + at as u16
}

/// Returns the packets of a capture file as tcpdump prints them, to the byte and the nanosecond.
pub fn printed(file: &Path) -> String {
    let words = ["-nn", "-tt", "-xx", "--time-stamp-precision=nano", "-r"];
    run(Command::new("tcpdump").args(words).arg(file))
}

/// Returns how many packets tcpdump has printed.
pub fn packets(printed: &str) -> usize {
    printed.lines().filter(|line| !line.starts_with('\t')).count()
}

/// Makes an authority, a certificate for each sensor, and one for who asks; the certificate of the
/// sensor `expired` is over.
fn certificates(dir: &Path, sensors: usize, expired: Option<usize>) {
    let mut script = format!("set -e; cd {}\n", dir.display());
    script += "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca
        make() {
          openssl req -newkey rsa:2048 -nodes -keyout $1.key -out $1.csr -subj /CN=$1
          printf \"$3\" >$1.ext
          openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $1.pem -days $2 -extfile $1.ext
        }
        make alice 1 'extendedKeyUsage=clientAuth\\n'\n";
    for at in 0..sensors {
        let days = if expired == Some(at) { -1 } else { 1 };
        let names = format!("subjectAltName=IP:{}\\nextendedKeyUsage=serverAuth\\n", address(at));
        writeln!(script, "make sensor-{at} {days} '{names}'").expect("it is a string");
    }
    run(Command::new("bash").args(["-c", &script]));
}

fn address(at: usize) -> String {
    format!("10.77.{at}.2")
}

/// A gateway in a network of its own.
pub struct Sensor {
    pub namespace: Namespace,
    pub interface: String,
    pub gateway: Talking,
    pub url: String,
    /// What its packets and messages are told by.
    pub name: String,
}

/// Somebody who asks, and those who are asked.
pub struct Fleet<'a> {
    pub stores: &'a Stores,
    pub hub: Namespace,
    pub sensors: Vec<Sensor>,
    home: PathBuf,
}

impl<'a> Fleet<'a> {
    /// Starts a gateway for each store. `more` is what a role's ceilings are, of each sensor.
    pub fn start(
        stores: &'a Stores,
        expired: Option<usize>,
        more: impl Fn(usize) -> String,
    ) -> Self {
        certificates(stores.dir.path(), stores.count, expired);
        let hub = Namespace::new();
        let sensors = (0..stores.count).map(|at| {
            let namespace = Namespace::new();
            let (near, far) = (format!("h{at}"), format!("s{at}"));
            Cable::default().plug([End::new(&hub, &near), End::new(&namespace, &far)]);
            hub.run(&format!("ip addr add 10.77.{at}.1/24 dev {near}"));
            namespace.run(&format!("ip addr add {}/24 dev {far}", address(at)));
            let config = stores.path(&format!("gateway-{at}.toml"));
            let path = |name: &str| stores.path(name).display().to_string();
            let text = format!(
                "audit = '{}'\n[[listen]]\naddress = '{}:8443'\ncertificate = '{}'\nkey = '{}'\nclient-ca = '{}'\n\
                 [[store]]\nname = 'edge'\ndirectory = '{}'\n\
                 [[role]]\nname = 'all'\nkind = 'reader'\n{}\n\
                 [[user]]\nname = 'alice'\nrole = 'all'\ncertificate = 'alice'\n",
                path(&format!("audit-{at}.jsonl")), address(at),
                path(&format!("sensor-{at}.pem")), path(&format!("sensor-{at}.key")),
                path("ca.pem"), path(&format!("store-{at}")), more(at),
            );
            fs::write(&config, text).expect("it can be written");
            let program = program("tapdeck-gateway");
            let mut command = namespace.command(program.to_str().expect("it is UTF-8"));
            let mut gateway = Talking::start(command.arg("--config").arg(config));
            gateway.wait_to_say("listening at https://");
            let name = format!("{}:8443", address(at));
            Sensor { namespace, interface: far, gateway, url: format!("https://{name}"), name }
        });
        let sensors = sensors.collect();
        let home = stores.path("home");
        fs::create_dir_all(&home).expect("there is room");
        Self { stores, hub, sensors, home }
    }

    /// Returns where all sensors are, as `--remote` has them.
    pub fn urls(&self) -> String {
        let urls: Vec<&str> = self.sensors.iter().map(|sensor| &*sensor.url).collect();
        urls.join(",")
    }

    /// Returns the file that says what is shown to sensors.
    pub fn remote_toml(&self) -> PathBuf {
        self.home.join("tapdeck/remote.toml")
    }

    /// Returns a command that asks sensors, with nothing to show.
    pub fn query(&self, remote: &str) -> Command {
        let mut command = self.hub.command(program("tapdeck").to_str().expect("it is UTF-8"));
        command.args(["query", "--remote", remote]).env("XDG_CONFIG_HOME", &self.home);
        command
    }

    /// Asks sensors with a certificate, and more words.
    pub fn ask(&self, remote: &str, words: &[&str]) -> Output {
        self.query_with_certificate(remote).args(words).output().expect("it was built")
    }

    /// Returns a command that asks sensors with a certificate.
    pub fn query_with_certificate(&self, remote: &str) -> Command {
        let mut command = self.query(remote);
        for (flag, file) in [("--cert", "alice.pem"), ("--key", "alice.key"), ("--ca", "ca.pem")] {
            command.arg(flag).arg(self.stores.path(file));
        }
        command
    }
}

/// Returns what a program has said on standard error.
pub fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}
