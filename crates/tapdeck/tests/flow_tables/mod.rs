//! Flow tables as `tapdeck flows` makes them, read back.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

pub fn tapdeck(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tapdeck")).args(args).output().expect("the program was built")
}

pub fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub fn flows(store: &Path, out: &Path, args: &[&str]) -> Output {
    let [store, out] = [store, out].map(|path| path.to_str().expect("text"));
    tapdeck(&[&["flows", "--dir", store, "-o", out, "--sensor", "here"], args].concat())
}

/// Makes flow tables, which must succeed and have nothing to complain of.
pub fn made(store: &Path, out: &Path, args: &[&str]) {
    let done = flows(store, out, args);
    assert!(done.status.success() && done.stderr.is_empty(), "{args:?}: {}", said(&done));
}

pub type Row = BTreeMap<String, Field>;

pub fn read(path: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("Parquet");
    let rows = reader.get_row_iter(None).expect("rows");
    rows.map(|row| row.expect("a row").into_columns().into_iter().collect()).collect()
}

/// What a file tells of its segment.
pub fn account(path: &Path) -> Option<String> {
    let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("Parquet");
    let told = reader.metadata().file_metadata().key_value_metadata().expect("metadata");
    told.iter().find(|told| told.key == "tapdeck.segment")?.value.clone()
}

pub fn number(row: &Row, column: &str) -> i64 {
    match &row[column] {
        Field::Long(n) | Field::TimestampMicros(n) => *n,
        Field::Int(n) => (*n).into(),
        Field::Short(n) => (*n).into(),
        Field::Byte(n) => (*n).into(),
        other => panic!("{column} is {other:?}"),
    }
}

pub fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    match &row[column] {
        Field::Str(text) => text,
        other => panic!("{column} is {other:?}"),
    }
}

pub fn is_null(row: &Row, column: &str) -> bool {
    matches!(row[column], Field::Null)
}

/// Packets and bytes of rows, both ways together.
pub fn sums(rows: &[Row]) -> (i64, i64) {
    let sum = |columns: [&str; 2]| -> i64 {
        rows.iter().flat_map(|row| columns.map(|column| number(row, column))).sum()
    };
    (sum(["fwd_packets", "rev_packets"]), sum(["fwd_bytes", "rev_bytes"]))
}

/// The closed segments of a store, in order.
pub fn segments(store: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(store).expect("a store").map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "pcapng"));
    paths.sort();
    paths
}

/// The files in a directory with what is in them.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).expect("a directory").map(|e| e.unwrap().path());
    paths.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}

pub fn parquet_of(out: &Path, segment: &Path) -> PathBuf {
    out.join(segment.file_name().unwrap()).with_extension("parquet")
}
