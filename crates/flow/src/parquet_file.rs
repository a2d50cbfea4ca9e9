//! Writes rows as Parquet: one file for each segment and day, with the columns that
//! `docs/FLEET.md` describes.
//!
//! The same rows give the same bytes: the file says which program wrote it and of which version,
//! and neither when nor where. Rows that were taken out of a table together are one group, so a
//! file of more than one group is one whose flows did not fit into memory at once.
//!
//! What the segment itself tells, of losses for one, stands as text in the metadata of one of its
//! files ([`ParquetFile::tell_segment`]).
//!
//! Each page of 20,000 rows has its least and greatest value in the page index, but for `runs`.
//! Rows are sorted by source, so a search for a source finds its pages there; for destinations
//! there is a Bloom filter, as large as the number of different ones wants it.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use crate::columns::{COLUMNS, Values};
use crate::row::{Row, Rows};
use crate::text::put_address;

/// Rows that are turned into a column's values at a time.
const BATCH: usize = 8192;
/// Rows of a page.
const PAGE_ROWS: usize = 20_000;
/// How many of the files without a destination a Bloom filter lets through.
const FALSE_POSITIVES: f64 = 0.02;
const ZSTD_LEVEL: i32 = 3;
const CREATED_BY: &str = concat!("tapdeck ", env!("CARGO_PKG_VERSION"));
/// What a file says of the meaning of its columns, for readers of later ones.
const VERSION: (&str, &str) = ("tapdeck.flows", "1");

/// The key under which a file says what its segment tells.
const SEGMENT: &str = "tapdeck.segment";

const SCHEMA: &str = "message flows {
    required binary sensor (STRING);
    required binary segment (STRING);
    required int64 start (TIMESTAMP(MICROS, true));
    required int64 end (TIMESTAMP(MICROS, true));
    required int64 duration_ns;
    optional int32 ip_version;
    optional int32 proto;
    optional int32 ether_type;
    optional int32 vlan;
    optional int32 tunnel;
    optional binary src_ip (STRING);
    optional binary dst_ip (STRING);
    optional int64 src_num;
    optional int64 dst_num;
    optional int32 src_port;
    optional int32 dst_port;
    optional int32 icmp_type_code;
    required int64 fwd_packets;
    required int64 rev_packets;
    required int64 fwd_bytes;
    required int64 rev_bytes;
    optional int32 fwd_tcp_flags (INTEGER(16, true));
    optional int32 rev_tcp_flags (INTEGER(16, true));
    required int32 end_reason (INTEGER(8, true));
    required int32 lost_near;
    required int64 offset;
    required int64 span;
    optional int32 granules;
    optional binary runs;
}";

/// A Parquet file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(#[from] ParquetError);

/// A Parquet file while rows are written into it.
pub struct ParquetFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    sensor: ByteArray,
    segment: ByteArray,
}

impl<W: Write + Send> ParquetFile<W> {
    /// Begins a file of rows of a segment, which has a name, recorded by a sensor, which has one,
    /// too.
    pub fn new(to: W, sensor: &str, segment: &str) -> Result<Self, Error> {
        let schema: TypePtr = Arc::new(parse_message_type(SCHEMA)?);
        let writer = SerializedFileWriter::new(to, schema, properties()?)?;
        let text = |text: &str| ByteArray::from(text.as_bytes().to_vec());
        Ok(Self { writer, sensor: text(sensor), segment: text(segment) })
    }

    /// Writes rows as one group. They are some of `of`, which has their lists of granules.
    pub fn write(&mut self, rows: &[Row], of: &Rows) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        let mut columns = COLUMNS.iter();
        while let Some(mut column) = group.next_column()? {
            let values = columns.next().map(|(_, values)| values);
            match values {
                Some(Values::Sensor) => constant(&mut column, rows, &self.sensor)?,
                Some(Values::Segment) => constant(&mut column, rows, &self.segment)?,
                Some(Values::Time(value) | Values::Number(value)) => {
                    numbers::<Int64Type>(&mut column, rows, *value)?;
                }
                Some(Values::Small(value) | Values::Tiny(value)) => {
                    numbers::<Int32Type>(&mut column, rows, *value)?;
                }
                Some(Values::MaybeNumber(value)) => maybe::<Int64Type>(&mut column, rows, *value)?,
                Some(Values::MaybeSmall(value) | Values::MaybeShort(value)) => {
                    maybe::<Int32Type>(&mut column, rows, *value)?;
                }
                Some(Values::Address(value)) => texts(&mut column, rows, |row, out| {
                    value(row).map(|address| put_address(out, address)).is_some()
                })?,
                Some(Values::Runs) => texts(&mut column, rows, |row, out| {
                    of.runs(row).map(|runs| out.extend_from_slice(runs)).is_some()
                })?,
                None => {}
            }
            column.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Says in the file what its segment tells, as JSON (`docs/FLEET.md`).
    pub fn tell_segment(&mut self, account: &str) {
        let told = KeyValue::new(SEGMENT.to_owned(), account.to_owned());
        self.writer.append_key_value_metadata(told);
    }

    /// Writes the file's end. Returns what it was written to.
    pub fn finish(self) -> Result<W, Error> {
        Ok(self.writer.into_inner()?)
    }
}

/// Columns whose values hardly ever come again, or differ little from one row to the next:
/// differences are shorter than a dictionary.
const DIFFERENT: [&str; 6] = ["start", "end", "duration_ns", "src_num", "src_port", "offset"];

fn properties() -> Result<WriterPropertiesPtr, ParquetError> {
    let path = |name: &str| ColumnPath::from(name);
    let (key, value) = VERSION;
    let metadata = KeyValue::new(key.to_owned(), value.to_owned());
    let mut properties = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_key_value_metadata(Some(vec![metadata]))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_max_row_group_row_count(None)
        // An Iceberg table goes by the sensor, and by the whole of its name.
        .set_statistics_truncate_length(None)
        // The writer makes room for so many and then folds the filter to what there were.
        .set_column_bloom_filter_max_ndv(path("dst_ip"), crate::MAX_ROWS as u64)
        .set_column_bloom_filter_fpp(path("dst_ip"), FALSE_POSITIVES);
    // Hardly two rows have the same list of granules, and nobody asks which page has the least.
    properties = properties
        .set_column_dictionary_enabled(path("runs"), false)
        .set_column_encoding(path("runs"), Encoding::DELTA_LENGTH_BYTE_ARRAY)
        .set_column_statistics_enabled(path("runs"), EnabledStatistics::Chunk);
    for name in DIFFERENT {
        properties = properties
            .set_column_dictionary_enabled(path(name), false)
            .set_column_encoding(path(name), Encoding::DELTA_BINARY_PACKED);
    }
    Ok(Arc::new(properties.build()))
}

type Column<'a> = SerializedColumnWriter<'a>;

fn numbers<T: DataType>(
    column: &mut Column<'_>,
    rows: &[Row],
    value: fn(&Row) -> T::T,
) -> Result<(), ParquetError> {
    let mut values = Vec::with_capacity(BATCH.min(rows.len()));
    for rows in rows.chunks(BATCH) {
        values.clear();
        values.extend(rows.iter().map(value));
        column.typed::<T>().write_batch(&values, None, None)?;
    }
    Ok(())
}

fn maybe<T: DataType>(
    column: &mut Column<'_>,
    rows: &[Row],
    value: fn(&Row) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let mut values = Vec::with_capacity(BATCH.min(rows.len()));
    let mut levels = Vec::with_capacity(BATCH.min(rows.len()));
    for rows in rows.chunks(BATCH) {
        values.clear();
        levels.clear();
        for row in rows {
            let value = value(row);
            levels.push(i16::from(value.is_some()));
            values.extend(value);
        }
        column.typed::<T>().write_batch(&values, Some(&levels), None)?;
    }
    Ok(())
}

fn constant(column: &mut Column<'_>, rows: &[Row], value: &ByteArray) -> Result<(), ParquetError> {
    let values = vec![value.clone(); BATCH.min(rows.len())];
    for rows in rows.chunks(BATCH) {
        column.typed::<ByteArrayType>().write_batch(&values[..rows.len()], None, None)?;
    }
    Ok(())
}

/// Writes what `put` appends for each row; nothing where it returns false.
fn texts(
    column: &mut Column<'_>,
    rows: &[Row],
    put: impl Fn(&Row, &mut Vec<u8>) -> bool,
) -> Result<(), ParquetError> {
    let mut values: Vec<ByteArray> = Vec::with_capacity(BATCH.min(rows.len()));
    let mut levels = Vec::with_capacity(BATCH.min(rows.len()));
    let mut ends = Vec::with_capacity(BATCH.min(rows.len()));
    for rows in rows.chunks(BATCH) {
        values.clear();
        levels.clear();
        ends.clear();
        let mut bytes = Vec::with_capacity(rows.len() * 16);
        for row in rows {
            let is_there = put(row, &mut bytes);
            levels.push(i16::from(is_there));
            if is_there {
                ends.push(bytes.len());
            }
        }
        let bytes = Bytes::from(bytes);
        let mut at = 0;
        for end in &ends {
            values.push(ByteArray::from(bytes.slice(at..*end)));
            at = *end;
        }
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, SCHEMA};

    #[test]
    fn columns_stand_in_the_order_of_the_schema() {
        let message = parquet::schema::parser::parse_message_type(SCHEMA).unwrap();
        let names: Vec<&str> = message.get_fields().iter().map(|field| field.name()).collect();
        assert_eq!(names, COLUMNS.map(|(name, _)| name));
    }
}
