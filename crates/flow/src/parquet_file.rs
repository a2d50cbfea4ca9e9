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
//! Each page of 20,000 rows has its least and greatest value in the page index, but for `sensor`,
//! `segment` and `runs`.
//! Rows are sorted by source, so a search for a source finds its pages there; for destinations
//! there is a Bloom filter, as large as the number of different ones wants it.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use crate::columns::{COLUMNS, Values};
use crate::row::{Row, Rows};
use crate::text::put_address;

/// Rows of which columns' values are gathered at a time: few enough for the processor's cache.
const BATCH: usize = 2048;
/// Columns whose values are gathered together. All of them would take as much memory as the rows.
const TOGETHER: usize = 6;
/// Rows of a page.
const PAGE_ROWS: usize = 20_000;
/// How many of the files without a destination a Bloom filter lets through.
const FALSE_POSITIVES: f64 = 0.02;
const ZSTD_LEVEL: i32 = 1;
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
        let mut gathered: [Gathered; TOGETHER] = Default::default();
        for columns in COLUMNS.chunks(TOGETHER) {
            gathered.iter_mut().for_each(Gathered::clear);
            for rows in rows.chunks(BATCH) {
                for ((_, values), gathered) in columns.iter().zip(&mut gathered) {
                    gathered.add(*values, rows, of);
                }
            }
            for ((_, values), gathered) in columns.iter().zip(&mut gathered) {
                let Some(mut column) = group.next_column()? else { break };
                match values {
                    Values::Sensor => constant(&mut column, rows.len(), &self.sensor)?,
                    Values::Segment => constant(&mut column, rows.len(), &self.segment)?,
                    values => gathered.write(*values, &mut column)?,
                }
                column.close()?;
            }
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
    // Hardly two rows have the same list of granules.
    properties = properties
        .set_column_dictionary_enabled(path("runs"), false)
        .set_column_encoding(path("runs"), Encoding::DELTA_LENGTH_BYTE_ARRAY);
    // Nobody asks which page has the least of these.
    for name in ["sensor", "segment", "runs"] {
        properties = properties.set_column_statistics_enabled(path(name), EnabledStatistics::Chunk);
    }
    for name in DIFFERENT {
        properties = properties
            .set_column_dictionary_enabled(path(name), false)
            .set_column_encoding(path(name), Encoding::DELTA_BINARY_PACKED);
    }
    Ok(Arc::new(properties.build()))
}

type Column<'a> = SerializedColumnWriter<'a>;

/// The values of a column's rows.
#[derive(Default)]
struct Gathered {
    /// Those of 64 bits, of 32, or the bytes and where each value ends; those that are there.
    longs: Vec<i64>,
    ints: Vec<i32>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// For each row whether there is a value, where one may be missing.
    levels: Vec<i16>,
}

impl Gathered {
    fn clear(&mut self) {
        let Self { longs, ints, bytes, ends, levels } = self;
        longs.clear();
        ints.clear();
        bytes.clear();
        ends.clear();
        levels.clear();
    }

    /// Adds those of further rows, which are some of `of`.
    fn add(&mut self, values: Values, rows: &[Row], of: &Rows) {
        match values {
            Values::Sensor | Values::Segment => {}
            Values::Time(value) | Values::Number(value) => {
                self.longs.extend(rows.iter().map(value));
            }
            Values::Small(value) | Values::Tiny(value) => {
                self.ints.extend(rows.iter().map(value));
            }
            Values::MaybeNumber(value) => {
                maybe(&mut self.longs, &mut self.levels, rows, value);
            }
            Values::MaybeSmall(value) | Values::MaybeShort(value) => {
                maybe(&mut self.ints, &mut self.levels, rows, value);
            }
            Values::Address(value) => self.texts(rows, |row, out| {
                value(row).map(|address| put_address(out, address)).is_some()
            }),
            Values::Runs => self.texts(rows, |row, out| {
                of.runs(row).map(|runs| out.extend_from_slice(runs)).is_some()
            }),
        }
    }

    /// Adds what `put` appends for each row; nothing where it returns false.
    fn texts(&mut self, rows: &[Row], put: impl Fn(&Row, &mut Vec<u8>) -> bool) {
        for row in rows {
            let is_there = put(row, &mut self.bytes);
            self.levels.push(i16::from(is_there));
            if is_there {
                self.ends.push(self.bytes.len());
            }
        }
    }

    fn write(&mut self, values: Values, column: &mut Column<'_>) -> Result<(), ParquetError> {
        let Self { longs, ints, levels, .. } = self;
        match values {
            Values::Sensor | Values::Segment => {}
            Values::Time(_) | Values::Number(_) => {
                column.typed::<Int64Type>().write_batch(longs, None, None)?;
            }
            Values::Small(_) | Values::Tiny(_) => {
                column.typed::<Int32Type>().write_batch(ints, None, None)?;
            }
            Values::MaybeNumber(_) => {
                column.typed::<Int64Type>().write_batch(longs, Some(levels), None)?;
            }
            Values::MaybeSmall(_) | Values::MaybeShort(_) => {
                column.typed::<Int32Type>().write_batch(ints, Some(levels), None)?;
            }
            Values::Address(_) | Values::Runs => self.write_texts(column)?,
        }
        Ok(())
    }

    fn write_texts(&mut self, column: &mut Column<'_>) -> Result<(), ParquetError> {
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let mut at = 0;
        let mut values = self.ends.iter().map(|end| {
            let value = bytes.slice(at..*end);
            at = *end;
            ByteArray::from(value)
        });
        let mut batch = Vec::with_capacity(BATCH);
        for levels in self.levels.chunks(BATCH) {
            batch.clear();
            let there = levels.iter().filter(|level| **level == 1).count();
            batch.extend(values.by_ref().take(there));
            column.typed::<ByteArrayType>().write_batch(&batch, Some(levels), None)?;
        }
        Ok(())
    }
}

fn maybe<T>(
    values: &mut Vec<T>,
    levels: &mut Vec<i16>,
    rows: &[Row],
    value: fn(&Row) -> Option<T>,
) {
    for row in rows {
        let value = value(row);
        levels.push(i16::from(value.is_some()));
        values.extend(value);
    }
}

fn constant(column: &mut Column<'_>, rows: usize, value: &ByteArray) -> Result<(), ParquetError> {
    let values = vec![value.clone(); BATCH.min(rows)];
    let mut left = rows;
    while left > 0 {
        let some = left.min(BATCH);
        let (values, only) = (&values[..some], Some(value));
        let column = column.typed::<ByteArrayType>();
        column.write_batch_with_statistics(values, None, None, only, only, None)?;
        left -= some;
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
