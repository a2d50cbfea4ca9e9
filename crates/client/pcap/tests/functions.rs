//! What programs call of libpcap beyond tcpdump, by a program in C, and by one that loads libpcap
//! itself.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{Daemon, Joined, Manner, udp};

/// Where cargo has put the object: beside this test.
fn object() -> PathBuf {
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let object = directory.join("libtapdeck_pcap.so");
    assert!(object.exists(), "no {}", object.display());
    object
}

fn compile(source: &Path, program: &Path, flags: &[&str]) {
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .args([program, source])
        .args(flags)
        .status()
        .unwrap();
    assert!(compiled.success(), "{} does not compile", source.display());
}

fn put(joined: &Joined, numbers: std::ops::Range<u16>) {
    let mut tape = joined.tape();
    for n in numbers {
        assert!(tape.put(0, &udp(n)));
    }
    tape.flush();
}

#[test]
fn a_sensor_finds_everything_as_with_libpcap() {
    let daemon = Daemon::new(Manner::default());
    let program = daemon.directory().join("sensor");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sensor.c");
    compile(Path::new(source), &program, &["-lpcap", "-pthread"]);
    let mut child = Command::new(&program)
        .arg(daemon.directory().join("out.pcap"))
        .env("LD_PRELOAD", object())
        .env("TAPDECK_SOCKET", daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let joined = daemon.joined();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for numbers in [0..10, 10..20, 20..22] {
        if lines.next().as_deref() == Some("ready") {
            put(&joined, numbers);
        }
    }
    if lines.next().as_deref() == Some("end") {
        put(&joined, 22..23);
        daemon.die();
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(
        errors.lines().last(),
        Some("sensor: deck:ids: the daemon has ended; there are no more packets")
    );
}

/// What a shared object defines.
fn defined(object: &Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(object).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    listed.lines().filter_map(|line| Some(line.split(' ').next_back()?.to_owned())).collect()
}

#[test]
fn every_function_of_libpcap_that_takes_a_handle_is_defined() {
    let cc = |arguments: &[&str]| {
        String::from_utf8(Command::new("cc").args(arguments).output().unwrap().stdout).unwrap()
    };
    let header = cc(&["-E", "-include", "pcap/pcap.h", "-x", "c", "/dev/null"]);
    // Some that are declared are not built.
    let libpcap = defined(Path::new(cc(&["-print-file-name=libpcap.so"]).trim()));
    let wanted: Vec<&str> = header
        .split("(pcap_t *")
        .filter_map(|before| before.rsplit([' ', '*', '\t', '\n']).next())
        .filter(|name| libpcap.iter().any(|defined| defined == name))
        .collect();
    assert!(wanted.len() >= 40, "{wanted:?}");
    let ours = defined(&object());
    for name in wanted {
        assert!(ours.iter().any(|defined| defined == name), "{name} would be libpcap's own");
    }
}

const MODULE: &str = r"
#include <pcap/pcap.h>
int first(const char *device)
{
	char error[PCAP_ERRBUF_SIZE];
	struct pcap_pkthdr *header;
	const u_char *frame;
	pcap_t *p = pcap_open_live(device, 65535, 1, 0, error);
	if (!p || pcap_next_ex(p, &header, &frame) != 1)
		return -1;
	int number = (frame[34] << 8 | frame[35]) - 1000;
	pcap_close(p);
	return number;
}
";

const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	void *module = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : 0;
	int (*first)(const char *) = module ? (int (*)(const char *))dlsym(module, "first") : 0;
	if (!first) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	printf("%d\n", first("deck:ids"));
	return 0;
}
"#;

#[test]
fn a_module_that_is_loaded_with_its_libpcap_reads_a_group() {
    let daemon =
        Daemon::new(Manner { prepare: |tape| assert!(tape.put(1, &udp(77))), ..Manner::default() });
    let at = |name: &str| daemon.directory().join(name);
    std::fs::write(at("module.c"), MODULE).unwrap();
    std::fs::write(at("loader.c"), LOADER).unwrap();
    compile(&at("module.c"), &at("module.so"), &["-shared", "-fPIC", "-lpcap"]);
    compile(&at("loader.c"), &at("loader"), &["-ldl"]);
    let output = Command::new(at("loader"))
        .arg(at("module.so"))
        .env("LD_PRELOAD", object())
        .env("TAPDECK_SOCKET", daemon.socket())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "77\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Waits for the descriptor without setting a timeout, and reads without `pcap_setnonblock`, as
/// softflowd does.
const POLLER: &str = r#"
#include <pcap/pcap.h>
#include <poll.h>
#include <stdio.h>
static void show(u_char *user, const struct pcap_pkthdr *header, const u_char *frame)
{
	(void)user, (void)header, (void)frame;
}
int main(void)
{
	char error[PCAP_ERRBUF_SIZE];
	pcap_t *p = pcap_open_live("deck:ids", 65535, 1, 0, error);
	struct pollfd fd = { .fd = p ? pcap_get_selectable_fd(p) : -1, .events = POLLIN };
	if (!p)
		return 1;
	for (;;) {
		if (poll(&fd, 1, -1) < 0)
			return 1;
		printf("%d\n", pcap_dispatch(p, -1, show, NULL));
		fflush(stdout);
	}
}
"#;

#[test]
fn a_program_that_waits_itself_is_never_held_by_a_read() {
    let daemon = Daemon::new(Manner::default());
    let at = |name: &str| daemon.directory().join(name);
    std::fs::write(at("poller.c"), POLLER).unwrap();
    compile(&at("poller.c"), &at("poller"), &["-lpcap"]);
    let mut poller = Command::new(at("poller"))
        .env("LD_PRELOAD", object())
        .env("TAPDECK_SOCKET", daemon.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(poller.stdout.take().unwrap()).lines();
    let (says, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| says.send(line)));
    let said = || said.recv_timeout(Duration::from_secs(180));
    let joined = daemon.joined();
    // It is woken, and there is nothing.
    joined.tape().wake();
    let woken = said();
    put(&joined, 0..3);
    let shown = said();
    let _ = poller.kill();
    let _ = poller.wait();
    assert_eq!((woken.as_deref(), shown.as_deref()), (Ok("0"), Ok("3")));
}
