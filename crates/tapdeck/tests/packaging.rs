//! What the package has beside the program: examples that are usable, units that are confined, and
//! pages and completions for every command.

#[path = "../examples/pages.rs"]
#[expect(dead_code, reason = "it is a program as well")]
mod pages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tapdeck_testkit::Net;

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

const RULE: &str = "accept src any dst any sport any dport 53 proto udp\n";

/// Returns an example whose interface is one of a test's, where nobody may be another
/// user than this machine has.
fn example(path: &str, dir: &Path) -> PathBuf {
    let text = fs::read_to_string(packaging(path)).expect("the example is there");
    let text = text.replace("\"eth0\"", "\"vb\"").replace("\"tapdeck\"", "\"daemon\"");
    let here = dir.join(Path::new(path).file_name().expect("a name"));
    fs::write(&here, text).expect("the directory is ours");
    here
}

fn check(net: &Net, file: &Path) -> String {
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    let out = command.args(["config", "check"]).arg(file).output().expect("it was built");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {said}", file.display());
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Returns an example with every key in it that it shows behind a `#`.
fn all_keys(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("it was written");
    let uncomment = |line: &str| {
        let is_key = line.starts_with('#') && !line.starts_with("# ") && line.contains(" = ");
        if is_key { line[1..].to_owned() } else { line.to_owned() }
    };
    text.lines().map(uncomment).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_examples_are_usable_and_so_is_every_key_that_they_show() {
    let (net, dir) = (Net::new(), tempfile::tempdir().expect("a directory"));
    fs::write(dir.path().join("example.rules"), RULE).expect("it is ours");
    fs::write(dir.path().join("ids.rules"), RULE).expect("it is ours");

    let file = example("etc/record.d/example.toml", dir.path());
    let page = check(&net, &file);
    assert!(page.contains("/var/lib/tapdeck/example"), "{page}");
    let keys = all_keys(&file);
    assert!(keys.contains("\nfilter = "), "{keys}");
    // A place for rules, and limits that exclude the others, are for who needs them.
    fs::write(&file, keys.replace("keep-bytes = \"100GiB\"", "keep-bytes = \"200GiB\"")).unwrap();
    check(&net, &file);

    let file = example("etc/serve.toml", dir.path());
    let page = check(&net, &file);
    assert!(page.contains("socket    /run/tapdeck/serve.sock, mode 0660, group daemon"), "{page}");
    let keys = all_keys(&file).replace("user:ids", "user:daemon").replace("netops", "daemon");
    fs::write(&file, keys).expect("it is ours");
    let page = check(&net, &file);
    assert!(page.contains("filter not port 22"), "{page}");
}

/// Returns the figure in which `systemd-analyze security` sums up how much a service may do.
fn exposure(unit: &str) -> f64 {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]).arg(packaging(unit));
    let out = command.output().expect("it is there");
    let said = String::from_utf8_lossy(&out.stdout);
    let line = said.lines().find(|line| line.contains("Overall exposure level"));
    let line = line.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&out.stderr)));
    let figure = line.split_once(".service: ").expect("a figure").1;
    figure.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn the_units_may_do_little() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("SKIPPED: this machine has no systemd-analyze, which judges the units");
        return;
    }
    for (unit, most) in [
        ("systemd/tapdeck-record@.service", 3.0),
        ("systemd/tapdeck-serve.service", 3.0),
        ("systemd/tapdeck-gateway.service", 1.5),
        ("systemd/tapdeck-pins@.service", 1.0),
        ("systemd/tapdeck-watch-alerts@.service", 1.0),
    ] {
        let exposure = exposure(unit);
        assert!(exposure < most, "{unit}: {exposure}");
    }
}

#[test]
fn the_rules_for_alerts_are_usable_and_so_are_those_that_they_show() {
    let text = fs::read_to_string(packaging("etc/alerts.d/example.toml")).expect("it is there");
    let rules = |text: &str| tapdeck_evidence::alerts::Rules::parse(text).map(|_| ());
    assert_eq!(rules(&text), Ok(()));
    let is_proposed = |line: &&str| line.starts_with("# [[") || line.contains(" = ");
    let shown = |line| if is_proposed(&line) { line.trim_start_matches("# ") } else { line };
    let all = text.lines().map(shown).collect::<Vec<_>>().join("\n");
    assert_eq!(all.matches("\n[[rule]]").count(), 2, "{all}");
    assert_eq!(rules(&all), Ok(()), "{all}");
}

#[test]
fn every_command_has_a_page_and_completions() {
    fn names(command: &clap::Command, path: &str, all: &mut Vec<String>) {
        all.push(path.to_owned());
        for below in command.get_subcommands() {
            names(below, &format!("{path}-{}", below.get_name()), all);
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    pages::write(dir.path()).expect("the directory is ours");
    let mut commands = Vec::new();
    names(&tapdeck_program::command_line(), "tapdeck", &mut commands);
    assert!(commands.len() > 30, "{commands:?}");
    for name in &commands {
        let page = fs::read_to_string(dir.path().join(format!("man/{name}.1")));
        let page = page.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    for (file, word) in [
        ("tapdeck.bash", "--keep-bytes"),
        ("_tapdeck", "keep-bytes"),
        ("tapdeck.fish", "keep-bytes"),
    ] {
        let text = fs::read_to_string(dir.path().join("completions").join(file)).expect(file);
        assert!(text.contains(word) && text.contains("check-traffic"), "{file}");
    }
}
