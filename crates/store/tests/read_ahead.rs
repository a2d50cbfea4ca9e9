//! What the page cache has of a file that is read.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tapdeck_store::io::{Access, Directory, Object, Storage};
use tapdeck_testkit::wait_for;

const KIB: u64 = 1 << 10;
const FILE: u64 = 16 << 20;
/// What is read at once, and how often.
const PART: u64 = 128 * KIB;
const PARTS: u64 = 16;
const READ: u64 = PART * PARTS;
/// What is read ahead at most, and pages that the kernel adds at the ends.
const AHEAD: u64 = 1024 * KIB;
const SLACK: u64 = 64 * KIB;

/// Files of which the page cache has nothing.
fn files(dir: &Path, count: usize) -> Vec<PathBuf> {
    let made = (0..count).map(|number| {
        let path = dir.join(number.to_string());
        fs::write(&path, vec![1; FILE as usize]).expect("there is room");
        File::open(&path).and_then(|file| file.sync_all()).expect("it can be written");
        let path_of = |key: &str| format!("{key}={}", path.display());
        let mut drop = Command::new("dd");
        drop.arg(path_of("of")).args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0"]);
        assert!(drop.output().expect("dd runs").status.success());
        assert_eq!(cached(&path), 0, "{}: is it on a disk?", path.display());
        path
    });
    made.collect()
}

/// Bytes of a file that the page cache has.
fn cached(path: &Path) -> u64 {
    let mut command = Command::new("fincore");
    let out = command.args(["-b", "-n", "-o", "RES"]).arg(path).output().expect("fincore runs");
    String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
}

fn read(object: &Arc<dyn Object>) {
    let mut buffer = vec![0; PART as usize];
    for part in 0..PARTS {
        assert_eq!(object.read_at(&mut buffer, part * PART).expect("it is there"), PART as usize);
    }
}

#[test]
fn little_is_read_ahead_and_of_few_files() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let paths = files(dir.path(), 6);
    let directory = Directory::new(dir.path());
    let open = |number: usize, access| {
        directory.open(number.to_string().as_ref(), access).expect("it is there")
    };
    let here_and_there = open(0, Access::Scattered);
    read(&here_and_there);
    assert!(cached(&paths[0]) <= READ + SLACK, "{}", cached(&paths[0]));
    // Kept open: as many are read ahead as may be.
    let in_a_row: Vec<_> = (1..5).map(|number| open(number, Access::Sequential)).collect();
    for (object, path) in in_a_row.iter().zip(&paths[1..]) {
        read(object);
        wait_for("what is next to be read", || cached(path) >= READ + AHEAD);
        assert!(cached(path) <= READ + AHEAD + SLACK, "{}", cached(path));
    }
    let one_more = open(5, Access::Sequential);
    read(&one_more);
    assert!(cached(&paths[5]) <= READ + SLACK, "{}", cached(&paths[5]));
}
