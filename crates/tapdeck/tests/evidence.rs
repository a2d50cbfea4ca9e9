//! `tapdeck evidence`: bundles, made by the program and checked by it, and by openssl and jq as
//! docs/EVIDENCE.md says.

#[path = "../../evidence/tests/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SECOND, T0, made, packets_of, recorders, segment};
use tempfile::TempDir;

fn tapdeck(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tapdeck")).args(words).output().expect("it runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// A store, a key, and a bundle of the packets to port 53.
struct Case {
    dir: TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self { dir: tempfile::tempdir().expect("a directory") };
        let store = case.path("store");
        fs::create_dir(&store).unwrap();
        let packets: Vec<_> =
            (0..20).map(|i| made(T0 + i * SECOND / 10, 53 + (i % 2) as u16)).collect();
        segment(&store, 1, (T0, T0 + 2 * SECOND), &packets);
        recorders(&store, &[1]);
        let made = tapdeck(&["evidence", "key", "new", "-o", text(&case.path("key"))]);
        assert!(made.status.success(), "{}", said(&made));
        let exported = case.export("bundle", &["port", "53"]);
        assert!(exported.status.success(), "{}", said(&exported));
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn export(&self, name: &str, expression: &[&str]) -> Output {
        let [store, key, out] = ["store", "key", name].map(|name| self.path(name));
        let mut words = vec!["evidence", "export", "--dir", text(&store), "--key", text(&key)];
        words.extend(["-o", text(&out), "--after", "2026-01-02T03:04:05Z"]);
        words.extend(["--before", "2026-01-02T03:04:06Z"]);
        words.extend(expression);
        tapdeck(&words)
    }

    fn check(&self) -> Output {
        let (bundle, key) = (self.path("bundle"), self.path("key.pub"));
        tapdeck(&["evidence", "check", text(&bundle), "--key", text(&key)])
    }
}

/// The shell commands of a section of docs/EVIDENCE.md.
fn commands(section: &str) -> String {
    let document = fs::read_to_string("../../docs/EVIDENCE.md").expect("it is there");
    let rest = document.split(&format!("\n## {section}\n")).nth(1).expect("the section");
    let block = rest.split("```sh\n").nth(1).expect("commands");
    block.split("```").next().expect("an end").to_owned()
}

fn shell(script: &str, words: &[&Path], dir: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).args(words).current_dir(dir);
    shell.output().expect("there is a shell")
}

#[test]
fn a_bundle_is_made_and_checked() {
    let case = Case::new();
    let mode = |name: &str| case.path(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("key"), 0o600);
    assert_eq!(mode("key.pub"), 0o644);
    assert_eq!(packets_of(&case.path("bundle/packets.pcapng")).len(), 5);
    let checked = case.check();
    let page = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && page.contains("complete in the span"), "{page}");
    let again = case.export("bundle", &[]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("is there already"), "{}", said(&again));

    fs::set_permissions(case.path("key"), fs::Permissions::from_mode(0o640)).unwrap();
    let refused = case.export("other", &[]);
    assert!(said(&refused).contains("chmod 600"), "{}", said(&refused));

    let packets = case.path("bundle/packets.pcapng");
    let mut bytes = fs::read(&packets).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&packets, bytes).unwrap();
    let checked = case.check();
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stdout.is_empty(), "nothing of it is to be believed");
    assert!(said(&checked).contains("packets.pcapng is not what was signed"), "{}", said(&checked));
}

#[test]
fn openssl_and_jq_check_a_bundle_as_the_document_says() {
    let script = commands("Check one with openssl and jq");
    let case = Case::new();
    let (bundle, key) = (case.path("bundle"), case.path("key.pub"));
    let check = || shell(&script, &[&bundle, &key], case.dir.path());
    let sound = check();
    assert!(sound.status.success(), "{}", said(&sound));
    assert!(String::from_utf8_lossy(&sound.stdout).contains("\"complete\": true"));

    for name in ["packets.pcapng", "manifest.json", "manifest.sig"] {
        let path = bundle.join(name);
        let whole = fs::read(&path).unwrap();
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            fs::write(&path, &changed).unwrap();
            assert!(!check().status.success(), "byte {at} of {name}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(!check().status.success(), "{name} is cut");
        fs::remove_file(&path).unwrap();
        assert!(!check().status.success(), "{name} is gone");
        fs::write(&path, &whole).unwrap();
    }
    fs::write(bundle.join("more"), b"").unwrap();
    assert!(!check().status.success(), "a file was added");
    fs::remove_file(bundle.join("more")).unwrap();
    assert!(check().status.success(), "it is as it was");

    let fingerprint = shell(
        "openssl pkey -pubin -in \"$1\" -outform DER | openssl dgst -sha256 -r",
        &[&key],
        case.dir.path(),
    );
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(bundle.join("manifest.json")).unwrap()).unwrap();
    let told = String::from_utf8_lossy(&fingerprint.stdout).into_owned();
    assert!(told.starts_with(manifest["key"].as_str().unwrap()), "{told}");
}

/// The server's side of a time stamp: an authority, and its answer to a query.
const AUTHORITY: &str = "
set -eu
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out stamps-ca.pem -days 2 -subj /CN=ca 2>&1
openssl req -newkey rsa:2048 -nodes -keyout tsa.key -out tsa.csr -subj /CN=tsa 2>&1
echo extendedKeyUsage=critical,timeStamping >tsa.ext
openssl x509 -req -in tsa.csr -CA stamps-ca.pem -CAkey ca.key -CAcreateserial -days 2 \\
    -extfile tsa.ext -out tsa.pem 2>&1
cat >tsa.cnf <<END
[tsa]
default_tsa = one
[one]
serial = serial
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
END
echo 01 >serial
openssl ts -reply -config tsa.cnf -section one -queryfile case-7.tsq -out case-7.tsr 2>&1
";

#[test]
fn a_bundle_gets_a_time_stamp_as_the_document_says() {
    let case = Case::new();
    fs::rename(case.path("bundle"), case.path("case-7")).unwrap();
    let script = commands("A time stamp");
    let (query, rest) = script.split_once("curl ").expect("a query, and its way to a server");
    let verify = &rest[rest.find("openssl").expect("a check")..];
    let run = |script: &str| shell(script, &[], case.dir.path());
    let out = run(query);
    assert!(out.status.success(), "{}", said(&out));
    let out = run(AUTHORITY);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    let out = run(verify);
    assert!(out.status.success(), "{}", said(&out));
    let signature = case.path("case-7/manifest.sig");
    let mut bytes = fs::read(&signature).unwrap();
    bytes[0] ^= 1;
    fs::write(&signature, bytes).unwrap();
    assert!(!run(verify).status.success(), "it is of another signature");
}
