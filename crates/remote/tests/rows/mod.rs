//! Rows of flow tables as JSON, as `tapdeck fetch` takes them.

use std::fs::File;
use std::path::Path;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Map, Value};

/// Returns the rows of a table.
pub fn rows(table: &Path) -> Vec<Map<String, Value>> {
    let reader = SerializedFileReader::new(File::open(table).expect("a file")).expect("Parquet");
    let rows = reader.get_row_iter(None).expect("rows");
    rows.map(|row| {
        let row = row.expect("a row");
        row.get_column_iter().map(|(name, field)| (name.clone(), value(name, field))).collect()
    })
    .collect()
}

fn value(name: &str, field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Str(text) => text.as_str().into(),
        Field::TimestampMicros(n) | Field::Long(n) => (*n).into(),
        Field::Int(n) => (*n).into(),
        Field::Short(n) => (*n).into(),
        Field::Byte(n) => (*n).into(),
        Field::Bytes(bytes) => {
            let escaped = bytes.data().iter().map(|byte| format!("\\x{byte:02X}"));
            escaped.collect::<String>().into()
        }
        other => panic!("{name} is {other:?}"),
    }
}

/// Returns a row as a line of JSON.
pub fn line(row: &Map<String, Value>) -> String {
    Value::from(row.clone()).to_string() + "\n"
}
