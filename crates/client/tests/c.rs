//! The C header and the shared library, by the example that is compiled here as a user would, and
//! by a program that calls the rest.

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Daemon, EPOCH_NS, Form, Manner, Sent, udp};

/// Where cargo has put the shared library: beside this test.
fn library_directory() -> PathBuf {
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(
        directory.join("libtapdeck_client.so").exists(),
        "no library in {}",
        directory.display()
    );
    directory
}

fn compile(source: &Path, program: &Path) {
    let directory = library_directory();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .args([program, source])
        .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/include"), "-L"])
        .arg(&directory)
        .arg("-ltapdeck_client")
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .status()
        .unwrap();
    assert!(compiled.success(), "{} does not compile", source.display());
}

#[test]
fn the_example_follows_a_group_to_its_end() {
    let daemon =
        Daemon::new(Manner { form: Form { nrings: 1, ..Form::default() }, ..Manner::default() });
    let program = daemon.directory().join("follow");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/follow.c");
    compile(Path::new(source), &program);

    let refused = Command::new(&program).arg("nids").arg(daemon.socket()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "follow: there is no group \"nids\"\n");

    // The socket is named by the environment.
    let mut child = Command::new(&program)
        .arg("ids")
        .env("TAPDECK_SOCKET", daemon.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let joined = daemon.joined();
    assert_eq!(joined.weight, 2);
    assert!(joined.tape().put(0, &Sent { original_len: 1500, ..udp(1) }));
    joined.tape().flush();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = format!("{} eth1 44 of 1500 bytes, 0 lost before", EPOCH_NS + 1_000_001);
    assert_eq!(lines.next().unwrap(), first);
    assert!(joined.tape().put(0, &Sent { interface: 3, ..udp(2) }));
    daemon.die();
    let second = format!("{} ? 44 of 44 bytes, 0 lost before", EPOCH_NS + 2_000_002);
    assert_eq!(lines.next().unwrap(), second);
    // The last block is never closed, so it is never given back.
    assert_eq!(lines.next().unwrap(), "received 2, unread 1, dropped 0");
    assert!(child.wait().unwrap().success());
}

const REST: &str = r#"
#include <poll.h>
#include <string.h>
#include <stdio.h>
#include "tapdeck.h"
#define MUST(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); return 1; } } while (0)
int main(int argc, char **argv)
{
	struct tapdeck_packet packet;
	struct tapdeck_stats stats;
	struct tapdeck_interface interface;
	struct tapdeck *tapdeck;
	(void)argc;
	tapdeck_close(NULL);
	MUST(tapdeck_abi() == TAPDECK_ABI);
	MUST(!tapdeck_open(argv[1], NULL, NULL, NULL));
	MUST((tapdeck = tapdeck_open(argv[1], "ids", NULL, NULL)));
	MUST(tapdeck_snaplen(tapdeck) == 65535);
	MUST(tapdeck_interface(tapdeck, 0, &interface) == TAPDECK_OK);
	MUST(!strcmp(interface.name, "eth1") && interface.link_type == 1 && interface.snaplen == 65535);
	MUST(tapdeck_interface(tapdeck, 1, &interface) == TAPDECK_NOTHING);
	MUST(tapdeck_stats(tapdeck, &stats) == TAPDECK_OK);
	MUST(stats.seen == 1000 && stats.captured == 900 && stats.dropped_other == 1);
	MUST(tapdeck_next_packet(tapdeck, 0, &packet) == TAPDECK_NOTHING);
	puts("ready");
	fflush(stdout);
	struct pollfd fd = { .fd = tapdeck_fd(tapdeck), .events = POLLIN };
	MUST(poll(&fd, 1, 30000) == 1);
	MUST(tapdeck_next_packet(tapdeck, -1, &packet) == TAPDECK_OK);
	MUST(packet.captured == 44 && packet.bytes[35] == (1000 + 5) % 256 && packet.flags == 1);
	MUST(tapdeck_flush(tapdeck) == TAPDECK_OK);
	tapdeck_release(tapdeck);
	puts("read");
	fflush(stdout);
	MUST(tapdeck_next_packet(tapdeck, -1, &packet) == TAPDECK_END);
	MUST(tapdeck_stats(tapdeck, &stats) == TAPDECK_ERROR);
	MUST(strstr(tapdeck_error(tapdeck), "connection to the daemon failed"));
	tapdeck_close(tapdeck);
	return 0;
}
"#;

#[test]
fn every_function_of_the_header_does_what_it_says() {
    let daemon = Daemon::new(Manner::default());
    let source = daemon.directory().join("rest.c");
    let program = daemon.directory().join("rest");
    std::fs::write(&source, REST).unwrap();
    compile(&source, &program);
    let mut child =
        Command::new(&program).arg(daemon.socket()).stdout(Stdio::piped()).spawn().unwrap();
    let joined = daemon.joined();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    assert!(joined.tape().put(1, &Sent { flags: 1, ..udp(5) }));
    joined.tape().flush();
    assert_eq!(lines.next().as_deref(), Some("read"));
    assert_eq!(joined.tape().released(1), 1);
    daemon.die();
    assert!(child.wait().unwrap().success());
}
