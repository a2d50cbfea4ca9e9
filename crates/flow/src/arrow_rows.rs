//! Reads the rows of a flow table that an engine hands over as Arrow IPC, as a stream or as a file
//! ("Feather V2").
//!
//! A stream is read from its front, a batch at a time; of a file the contents at its end say where
//! its batches are. `arrow-ipc` makes arrays of the bytes and checks what is in them. What it takes
//! on trust is checked here before it gets a message: that what the message names lies inside of
//! it, in whole values, and how much it unfolds to.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::{MessageBuffer, try_fb_to_schema};
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{Endianness, MessageHeader, MetadataVersion, root_as_footer};
use arrow_schema::{DataType, Schema, SchemaRef, TimeUnit, UnionMode};
use tapdeck_packet::printable;

use crate::columns::COLUMNS;
use crate::pointer::{Columns, Pointer, PointerError};

/// The bytes of a batch, at most, and of all dictionaries, both as they come and unfolded.
const MOST: u64 = 512 << 20;
/// The bytes of the header of a message, at most. That of a schema has what an engine tells itself.
const MOST_HEADER: u64 = 16 << 20;
/// What stands in front of each message, and so what a stream begins with.
pub const ARROW_STREAM: &[u8] = &[0xff; 4];
/// What a file begins and ends with.
pub const ARROW_FILE: &[u8] = b"ARROW1";
/// The columns that each row has to have.
const NEEDED: [&str; 6] = ["segment", "start", "offset", "span", "fwd_packets", "rev_packets"];
/// How much of the name of a type is shown.
const SHOWN: usize = 60;

/// Reads the rows of a stream of Arrow IPC that has the columns of a flow table. Others may be
/// there. What cannot be read ends the rows.
pub fn pointers_of_arrow_stream(
    from: impl Read,
) -> Result<impl Iterator<Item = Result<Pointer, PointerError>>, PointerError> {
    let mut stream = Stream { from };
    let (first, _) = stream.next()?.ok_or(PointerError::Ends)?;
    let schema = first.as_ref().header_as_schema();
    let schema = schema.ok_or(PointerError::NoArrow("it begins with no schema"))?;
    Ok(rows_of(Table::new(stream, schema)?))
}

/// Reads the rows of a file of Arrow IPC, as [`pointers_of_arrow_stream`] those of a stream.
pub fn pointers_of_arrow_file(
    mut from: impl Read + Seek,
) -> Result<impl Iterator<Item = Result<Pointer, PointerError>>, PointerError> {
    // The length of the contents, and what the file ends with.
    let mut end = [0; 10];
    let len = from.seek(SeekFrom::End(0))?;
    let before = len.checked_sub(end.len() as u64).ok_or(PointerError::Ends)?;
    from.seek(SeekFrom::Start(before))?;
    from.read_exact(&mut end)?;
    let Some((contents, ARROW_FILE)) = end.split_first_chunk() else {
        return Err(PointerError::Ends);
    };
    let contents = i64::from(i32::from_le_bytes(*contents));
    let begin = before.checked_add_signed(-contents).ok_or(CONTENTS)?;
    from.seek(SeekFrom::Start(begin))?;
    let contents = bytes(&mut from, "the list of contents", contents, MOST_HEADER)?;
    let contents = root_as_footer(&contents).map_err(|_| CONTENTS)?;
    let blocks = [contents.dictionaries(), contents.recordBatches()];
    let blocks = blocks.into_iter().flatten().flatten().map(|block| u64::try_from(block.offset()));
    let blocks: Vec<u64> = blocks.collect::<Result<_, _>>().map_err(|_| CONTENTS)?;
    let blocks = Blocks { from, blocks: blocks.into_iter() };
    Ok(rows_of(Table::new(blocks, contents.schema().ok_or(CONTENTS)?)?))
}

fn rows_of(mut table: Table<impl Messages>) -> impl Iterator<Item = Result<Pointer, PointerError>> {
    let (mut batch, mut row, mut is_over) = (None::<RecordBatch>, 0, false);
    std::iter::from_fn(move || {
        while !is_over {
            if let Some(batch) = batch.as_ref().filter(|batch| row < batch.num_rows()) {
                let pointer = table.pointer(batch, row);
                row += 1;
                return Some(pointer);
            }
            // Before the next is read, which may be as large.
            (batch, row) = (None, 0);
            match table.next_batch() {
                Ok(Some(next)) => batch = Some(next),
                Ok(None) => is_over = true,
                Err(e) => {
                    is_over = true;
                    return Some(Err(e));
                }
            }
        }
        None
    })
}

/// What a column is read as.
#[derive(Clone, Copy)]
enum Wanted {
    Text,
    Number,
    Time,
    Bytes,
}

impl Wanted {
    /// Returns the name of a column that packets are found by, and what it is read as.
    fn of(column: &str) -> Option<(&'static str, Self)> {
        let (name, _) = COLUMNS.iter().find(|(name, _)| *name == column)?;
        let wanted = match *name {
            "sensor" | "segment" | "src_ip" | "dst_ip" => Self::Text,
            "start" => Self::Time,
            "runs" => Self::Bytes,
            _ => Columns::default().number(name).map(|_| Self::Number)?,
        };
        Some((name, wanted))
    }

    fn takes(self, kind: &DataType) -> bool {
        use DataType::{
            Binary, BinaryView, Dictionary, Float64, LargeBinary, LargeUtf8, Null, Timestamp, Utf8,
            Utf8View,
        };
        match (self, kind) {
            // All of it is null.
            (_, Null)
            | (Self::Text, Utf8 | LargeUtf8 | Utf8View)
            | (Self::Time, Timestamp(..))
            | (Self::Bytes, Binary | LargeBinary | BinaryView) => true,
            (Self::Text, Dictionary(_, kind)) => matches!(**kind, Utf8 | LargeUtf8 | Utf8View),
            // What has nulls comes as Float64 from some.
            (Self::Number, kind) => kind.is_integer() || *kind == Float64,
            (Self::Time, kind) => kind.is_integer(),
            _ => false,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "whole numbers",
            Self::Time => "timestamps, or microseconds since 1970,",
            Self::Bytes => "bytes",
        }
    }
}

/// Rows of which those columns are read that packets are found by.
struct Table<M> {
    messages: M,
    schema: SchemaRef,
    /// The columns that are read, and their numbers.
    names: Vec<&'static str>,
    numbers: Vec<usize>,
    /// The columns that name values of a dictionary, by its number: a schema of each.
    named: HashMap<i64, Schema>,
    dictionaries: HashMap<i64, ArrayRef>,
    /// What each dictionary takes.
    sizes: HashMap<i64, u64>,
}

impl<M: Messages> Table<M> {
    fn new(messages: M, described: arrow_ipc::Schema<'_>) -> Result<Self, PointerError> {
        if described.endianness() != Endianness::Little {
            return Err(PointerError::NoArrow("its numbers begin with their highest byte"));
        }
        let schema = try_fb_to_schema(described)?;
        let (mut names, mut numbers, mut named) = (Vec::new(), Vec::new(), HashMap::new());
        for (number, field) in schema.fields().iter().enumerate() {
            let Some((name, wanted)) = Wanted::of(field.name()) else { continue };
            if names.contains(&name) {
                return Err(PointerError::Twice(name));
            }
            if !wanted.takes(field.data_type()) {
                let kind: String = field.data_type().to_string().chars().take(SHOWN).collect();
                let kind = printable::name(&kind).into_owned();
                return Err(PointerError::Type { column: name, kind, wanted: wanted.text() });
            }
            names.push(name);
            numbers.push(number);
            let described = described.fields().map(|fields| fields.get(number));
            if let Some(dictionary) = described.and_then(|field| field.dictionary()) {
                named.insert(dictionary.id(), Schema::new(vec![field.clone()]));
            }
        }
        if let Some(missing) = NEEDED.iter().find(|needed| !names.contains(needed)) {
            return Err(PointerError::NoColumn(missing));
        }
        Ok(Self {
            messages,
            schema: Arc::new(schema),
            names,
            numbers,
            named,
            dictionaries: HashMap::new(),
            sizes: HashMap::new(),
        })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, PointerError> {
        while let Some((message, body)) = self.messages.next()? {
            let message = message.as_ref();
            let version = message.version();
            match message.header_type() {
                MessageHeader::RecordBatch => {
                    let batch = message.header_as_record_batch().ok_or(OTHERWISE)?;
                    let fields = self.schema.fields().iter().enumerate();
                    let kinds = fields
                        .map(|(number, field)| (field.data_type(), self.numbers.contains(&number)));
                    unfolded(&batch, &body, version, kinds)?;
                    let (schema, numbers) = (self.schema.clone(), Some(&self.numbers[..]));
                    let dictionaries = &self.dictionaries;
                    let rows =
                        read_record_batch(&body, batch, schema, dictionaries, numbers, &version)?;
                    return Ok(Some(rows));
                }
                MessageHeader::DictionaryBatch => {
                    let batch = message.header_as_dictionary_batch().ok_or(OTHERWISE)?;
                    let Some(schema) = self.named.get(&batch.id()) else { continue };
                    let DataType::Dictionary(_, kind) = schema.field(0).data_type() else {
                        return Err(OTHERWISE);
                    };
                    let values = batch.data().ok_or(OTHERWISE)?;
                    let kind = std::iter::once((&**kind, true));
                    let size = unfolded(&values, &body, version, kind)?;
                    let more = batch.isDelta().then(|| self.sizes.get(&batch.id()).copied());
                    self.sizes.insert(batch.id(), size + more.flatten().unwrap_or(0));
                    bounded("its dictionaries", self.sizes.values().sum())?;
                    read_dictionary(&body, batch, schema, &mut self.dictionaries, &version)?;
                }
                _ => return Err(PointerError::NoArrow("what follows is no batch of rows")),
            }
        }
        Ok(None)
    }

    fn pointer(&self, batch: &RecordBatch, row: usize) -> Result<Pointer, PointerError> {
        let mut columns = Columns::default();
        for (&name, array) in self.names.iter().zip(batch.columns()) {
            match name {
                "start" => columns.start = number_at(name, array, row)?,
                "runs" => columns.runs = bytes_at(array, row).map(<[u8]>::to_vec),
                _ => match columns.number(name) {
                    Some(to) => *to = number_at(name, array, row)?,
                    None => {
                        if let Some(text) = text_at(array, row) {
                            columns.put_text(name, text.to_owned());
                        }
                    }
                },
            }
        }
        columns.pointer()
    }
}

const CONTENTS: PointerError = PointerError::NoArrow("its list of contents is damaged");
const OTHERWISE: PointerError = PointerError::NoArrow("a message is not what it says");

/// Returns what the columns of a batch that are read take when they are unfolded, which have to lie
/// in its message. Of each column of the batch is said whether it is read.
fn unfolded<'a>(
    batch: &arrow_ipc::RecordBatch<'_>,
    body: &Buffer,
    version: MetadataVersion,
    columns: impl Iterator<Item = (&'a DataType, bool)>,
) -> Result<u64, PointerError> {
    let mut buffers = batch.buffers().into_iter().flatten();
    let mut parts = batch.variadicBufferCounts().into_iter().flatten();
    let mut sum = 0_u64;
    for (kind, is_read) in columns {
        for number in 0..buffers_of(kind, version, &mut parts) {
            let buffer = buffers.next().ok_or(OTHERWISE)?;
            if !is_read {
                continue;
            }
            let [from, len] = [buffer.offset(), buffer.length()].map(|n| usize::try_from(n).ok());
            let range = from.zip(len).and_then(|(from, len)| Some(from..from.checked_add(len)?));
            let bytes = range.and_then(|range| body.get(range));
            let bytes = bytes.ok_or(PointerError::NoArrow("a column lies outside of its batch"))?;
            let mut len = bytes.len() as u64;
            // In front of what is compressed stands how long it is else; -1 where it is not.
            if let Some(told) = batch.compression().and(bytes.first_chunk()) {
                len = u64::try_from(i64::from_le_bytes(*told)).unwrap_or(len - 8);
            }
            if number == 1 && !len.is_multiple_of(width(kind)) {
                return Err(PointerError::NoArrow("a part of a value is missing"));
            }
            sum = sum.saturating_add(len);
        }
    }
    bounded("a batch of rows", sum)?;
    Ok(sum.max(body.len() as u64))
}

/// Returns how many buffers a column has in a batch. Those of views have as many parts as stand in
/// the batch.
fn buffers_of(
    kind: &DataType,
    version: MetadataVersion,
    parts: &mut impl Iterator<Item = i64>,
) -> usize {
    let mut of = |kind: &DataType| buffers_of(kind, version, parts);
    match kind {
        DataType::Null => 0,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
        DataType::Utf8View | DataType::BinaryView => {
            let parts = parts.next().and_then(|parts| usize::try_from(parts).ok());
            parts.unwrap_or(0).saturating_add(2)
        }
        DataType::FixedSizeList(field, _) => of(field.data_type()).saturating_add(1),
        DataType::List(field) | DataType::LargeList(field) | DataType::Map(field, _) => {
            of(field.data_type()).saturating_add(2)
        }
        DataType::ListView(field) | DataType::LargeListView(field) => {
            of(field.data_type()).saturating_add(3)
        }
        DataType::Struct(fields) => {
            fields.iter().fold(1, |sum: usize, field| sum.saturating_add(of(field.data_type())))
        }
        DataType::RunEndEncoded(ends, values) => {
            of(ends.data_type()).saturating_add(of(values.data_type()))
        }
        DataType::Union(fields, mode) => {
            let own = 1 + usize::from(*mode == UnionMode::Dense);
            let own = own + usize::from(version < MetadataVersion::V5);
            fields.iter().fold(own, |sum, (_, field)| sum.saturating_add(of(field.data_type())))
        }
        _ => 2,
    }
}

/// Returns the bytes of what the second buffer of a column has for each row, of those kinds whose
/// buffer is looked through as a whole.
fn width(kind: &DataType) -> u64 {
    match kind {
        DataType::Utf8 | DataType::Binary => 4,
        DataType::LargeUtf8 | DataType::LargeBinary => 8,
        DataType::Utf8View | DataType::BinaryView => 16,
        DataType::Dictionary(key, _) => key.primitive_width().map_or(1, |width| width as u64),
        _ => 1,
    }
}

fn bounded(what: &'static str, bytes: u64) -> Result<(), PointerError> {
    if bytes > MOST { Err(PointerError::Large { what, bytes, most: MOST }) } else { Ok(()) }
}

/// Returns the text in a row; none where it is null.
fn text_at(array: &dyn Array, row: usize) -> Option<&str> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(array.as_string_view().value(row)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let at = number_at("", dictionary.keys(), row).ok()??;
            text_at(dictionary.values(), usize::try_from(at).ok()?)
        }
        _ => None,
    }
}

/// Returns the bytes in a row; none where they are null.
fn bytes_at(array: &dyn Array, row: usize) -> Option<&[u8]> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Binary => Some(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Some(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Some(array.as_binary_view().value(row)),
        _ => None,
    }
}

/// Returns the number in a row, or microseconds of a time; none where it is null.
fn number_at(
    column: &'static str,
    array: &dyn Array,
    row: usize,
) -> Result<Option<i64>, PointerError> {
    if array.is_null(row) {
        return Ok(None);
    }
    let scaled = |value: i64, by: i64| (value.checked_mul(by), value.to_string());
    let (number, shown) = match array.data_type() {
        DataType::Int8 => scaled(array.as_primitive::<Int8Type>().value(row).into(), 1),
        DataType::Int16 => scaled(array.as_primitive::<Int16Type>().value(row).into(), 1),
        DataType::Int32 => scaled(array.as_primitive::<Int32Type>().value(row).into(), 1),
        DataType::Int64 => scaled(array.as_primitive::<Int64Type>().value(row), 1),
        DataType::UInt8 => scaled(array.as_primitive::<UInt8Type>().value(row).into(), 1),
        DataType::UInt16 => scaled(array.as_primitive::<UInt16Type>().value(row).into(), 1),
        DataType::UInt32 => scaled(array.as_primitive::<UInt32Type>().value(row).into(), 1),
        DataType::UInt64 => {
            let value = array.as_primitive::<UInt64Type>().value(row);
            (i64::try_from(value).ok(), value.to_string())
        }
        DataType::Float64 => {
            let value = array.as_primitive::<Float64Type>().value(row);
            if value.is_nan() {
                return Ok(None);
            }
            // Beyond that a neighbour may be meant.
            let is_whole =
                value.fract() == 0.0 && value.abs() < (1_u64 << f64::MANTISSA_DIGITS) as f64;
            (is_whole.then_some(value as i64), value.to_string())
        }
        DataType::Timestamp(TimeUnit::Second, _) => {
            scaled(array.as_primitive::<TimestampSecondType>().value(row), 1_000_000)
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            scaled(array.as_primitive::<TimestampMillisecondType>().value(row), 1000)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            scaled(array.as_primitive::<TimestampMicrosecondType>().value(row), 1)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            let value = array.as_primitive::<TimestampNanosecondType>().value(row);
            scaled(value.div_euclid(1000), 1)
        }
        _ => return Ok(None),
    };
    let wrong = || PointerError::Value { column, value: shown };
    number.map(Some).ok_or_else(wrong)
}

/// A message with the bytes that belong to it.
type Message = (MessageBuffer, Buffer);

trait Messages {
    fn next(&mut self) -> Result<Option<Message>, PointerError>;
}

struct Stream<R> {
    from: R,
}

impl<R: Read> Messages for Stream<R> {
    fn next(&mut self) -> Result<Option<Message>, PointerError> {
        // A stream may end without a word.
        let Some(first) = word(&mut self.from)? else { return Ok(None) };
        let message = message(&mut self.from, first)?;
        if message.is_none() && word(&mut self.from)?.is_some() {
            return Err(PointerError::Behind);
        }
        Ok(message)
    }
}

/// The messages of a file, by where they begin.
struct Blocks<R> {
    from: R,
    blocks: std::vec::IntoIter<u64>,
}

impl<R: Read + Seek> Messages for Blocks<R> {
    fn next(&mut self) -> Result<Option<Message>, PointerError> {
        let Some(at) = self.blocks.next() else { return Ok(None) };
        self.from.seek(SeekFrom::Start(at))?;
        let first = word(&mut self.from)?.ok_or(PointerError::Ends)?;
        message(&mut self.from, first)?.ok_or(OTHERWISE).map(Some)
    }
}

/// Reads a message behind its first bytes; none where they end a stream.
fn message(from: &mut impl Read, first: [u8; 4]) -> Result<Option<Message>, PointerError> {
    if first != ARROW_STREAM {
        return Err(PointerError::NoArrow("no message begins where one has to"));
    }
    let len = i32::from_le_bytes(word(from)?.ok_or(PointerError::Ends)?);
    if len == 0 {
        return Ok(None);
    }
    let header = bytes(from, "the header of a message", len.into(), MOST_HEADER)?;
    let damaged = |_| PointerError::NoArrow("the header of a message is damaged");
    let header = MessageBuffer::try_new(header).map_err(damaged)?;
    let len = header.as_ref().bodyLength();
    let body = bytes(from, "a batch of rows", len, MOST)?;
    Ok(Some((header, body)))
}

/// Reads four bytes; none where there is nothing more.
fn word(from: &mut impl Read) -> Result<Option<[u8; 4]>, PointerError> {
    let mut bytes = Vec::new();
    from.take(4).read_to_end(&mut bytes)?;
    match bytes.len() {
        0 => Ok(None),
        _ => Ok(Some(bytes.try_into().map_err(|_| PointerError::Ends)?)),
    }
}

/// Reads as many bytes as are claimed. Memory is taken for those that come.
fn bytes(
    from: &mut impl Read,
    what: &'static str,
    len: i64,
    most: u64,
) -> Result<Buffer, PointerError> {
    let len = u64::try_from(len).map_err(|_| PointerError::NoArrow("a length is negative"))?;
    if len > most {
        return Err(PointerError::Large { what, bytes: len, most });
    }
    let mut bytes = Vec::new();
    from.take(len).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < len {
        return Err(PointerError::Ends);
    }
    Ok(Buffer::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::Arc;

    use arrow_array::types::{Int8Type, UInt32Type};
    use arrow_array::{
        ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, DictionaryArray, Float64Array,
        Int8Array, Int16Array, Int32Array, Int64Array, LargeBinaryArray, LargeStringArray,
        NullArray, RecordBatch, StringArray, StringViewArray, TimestampMicrosecondArray,
        TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt8Array,
        UInt16Array, UInt32Array, UInt64Array,
    };
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use arrow_ipc::{CompressionType, MetadataVersion};
    use arrow_schema::{Field, Schema};
    use tapdeck_testkit::SplitMix64;

    use super::{ARROW_FILE, ARROW_STREAM, MOST, pointers_of_arrow_file, pointers_of_arrow_stream};
    use crate::pointer::{Pointer, PointerError};

    const START_US: i64 = 1_767_323_045_000_000;
    const RUNS: &[u8] = b"\x04\x07\x01\x00";

    type Named = Vec<(&'static str, ArrayRef)>;

    fn array(array: impl arrow_array::Array + 'static) -> ArrayRef {
        Arc::new(array)
    }

    /// Two rows, of which the second has no ports, so many times.
    fn plain(times: usize) -> Named {
        let text = |of: [&str; 2]| array(StringArray::from(of.repeat(times)));
        let small = |of: [Option<i32>; 2]| array(Int32Array::from(of.repeat(times)));
        let number = |of: [i64; 2]| array(Int64Array::from(of.repeat(times)));
        let start = [START_US, START_US + 1_000_000].repeat(times);
        vec![
            ("sensor", text(["berlin"; 2])),
            ("segment", text(["one", "two"])),
            ("start", array(TimestampMicrosecondArray::from(start))),
            ("ip_version", small([Some(4); 2])),
            ("proto", small([Some(17), Some(47)])),
            ("ether_type", small([Some(2048); 2])),
            ("vlan", small([None, Some(7)])),
            ("src_ip", text(["10.0.0.1", "10.0.0.2"])),
            ("dst_ip", text(["10.0.0.3", "10.0.0.3"])),
            ("src_port", small([Some(1000), None])),
            ("dst_port", small([Some(53), None])),
            ("fwd_packets", number([3, 4])),
            ("rev_packets", number([1, 0])),
            ("offset", number([4096, 8192])),
            ("span", number([100, 200])),
            ("granules", small([Some(4), None])),
            ("runs", array(BinaryArray::from([Some(RUNS), None].repeat(times)))),
            ("other", array(BooleanArray::from([true, false].repeat(times)))),
        ]
    }

    fn with(column: &str, array: ArrayRef) -> Named {
        let mut all = plain(1);
        all.iter_mut().find(|(known, _)| *known == column).expect("a column").1 = array;
        all
    }

    fn batch(columns: &Named) -> RecordBatch {
        let field =
            |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
        let fields: Vec<Field> = columns.iter().map(field).collect();
        let arrays = columns.iter().map(|(_, array)| array.clone()).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("rows")
    }

    fn stream(batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
        let (mut out, schema) = (Vec::new(), batches[0].schema());
        let mut writer = StreamWriter::try_new_with_options(&mut out, &schema, options).unwrap();
        for batch in batches {
            writer.write(batch).unwrap();
        }
        writer.finish().unwrap();
        drop(writer);
        out
    }

    fn file(batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
        let (mut out, schema) = (Vec::new(), batches[0].schema());
        let mut writer = FileWriter::try_new_with_options(&mut out, &schema, options).unwrap();
        for batch in batches {
            writer.write(batch).unwrap();
        }
        writer.finish().unwrap();
        drop(writer);
        out
    }

    fn compressed(by: Option<CompressionType>) -> IpcWriteOptions {
        IpcWriteOptions::default().try_with_compression(by).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Pointer>, PointerError> {
        if bytes.starts_with(ARROW_FILE) {
            return pointers_of_arrow_file(Cursor::new(bytes))?.collect();
        }
        pointers_of_arrow_stream(bytes)?.collect()
    }

    /// Returns what the rows of a table lead to.
    fn told(columns: &Named) -> Result<String, PointerError> {
        read(&stream(&[batch(columns)], compressed(None))).map(|pointers| format!("{pointers:?}"))
    }

    #[test]
    fn a_stream_and_a_file_have_the_same_rows() {
        let pointers = read(&stream(&[batch(&plain(1))], compressed(None))).unwrap();
        let [first, second] = &pointers[..] else { panic!("{pointers:?}") };
        assert_eq!((first.packets, first.place.clone()), (4, 4096..4196));
        assert_eq!((&*first.segment, first.start_us), ("one", START_US));
        assert_eq!(first.runs, Some(vec![(3, 6), (6, 7)]));
        assert_eq!((&*second.segment, second.start_us), ("two", START_US + 1_000_000));
        assert_eq!(second.runs, None);
        let expected = format!("{pointers:?}");
        // What is short is left as it is.
        let batches = [batch(&plain(1000)), batch(&plain(1))];
        let lens =
            [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)].map(|by| {
                let forms = [stream(&batches, compressed(by)), file(&batches, compressed(by))];
                for bytes in &forms {
                    let read = read(bytes).unwrap();
                    assert_eq!(read.len(), 2002, "{by:?}");
                    assert_eq!(format!("{:?}", &read[..2]), expected, "{by:?}");
                    assert_eq!(format!("{:?}", &read[2000..]), expected, "{by:?}");
                }
                forms[0].len()
            });
        assert!(lens[0] > 5 * lens[1] && lens[0] > 5 * lens[2], "{lens:?}");
        let older = IpcWriteOptions::try_new(8, false, MetadataVersion::V4).unwrap();
        assert_eq!(format!("{:?}", read(&file(&batches[1..], older)).unwrap()), expected);
        assert!(read(&stream(&[batch(&plain(0))], compressed(None))).unwrap().is_empty());
    }

    #[test]
    fn columns_are_read_as_engines_have_them() {
        let expected = told(&plain(1)).unwrap();
        let words = ["one", "two"];
        let (seconds, null) = (START_US / 1_000_000, None::<&str>);
        let same: [(&str, ArrayRef); 25] = [
            ("segment", array(LargeStringArray::from(words.to_vec()))),
            ("segment", array(StringViewArray::from(words.to_vec()))),
            ("segment", array(DictionaryArray::<Int8Type>::from_iter(words))),
            ("segment", array(DictionaryArray::<UInt32Type>::from_iter(words))),
            ("sensor", array(DictionaryArray::<Int8Type>::from_iter(["berlin"; 2]))),
            ("start", array(TimestampSecondArray::from(vec![seconds, seconds + 1]))),
            ("start", {
                let ms = [seconds, seconds + 1].map(|seconds| seconds * 1000);
                array(TimestampMillisecondArray::from(ms.to_vec()).with_timezone("Asia/Tokyo"))
            }),
            ("start", {
                let us = vec![START_US, START_US + 1_000_000];
                array(TimestampMicrosecondArray::from(us).with_timezone("UTC"))
            }),
            ("start", {
                let ns = [seconds, seconds + 1].map(|seconds| seconds * 1_000_000_000 + 999);
                array(TimestampNanosecondArray::from(ns.to_vec()))
            }),
            ("start", array(Int64Array::from(vec![START_US, START_US + 1_000_000]))),
            ("proto", array(UInt8Array::from(vec![17, 47]))),
            ("proto", array(Int8Array::from(vec![17, 47]))),
            ("proto", array(Int16Array::from(vec![17, 47]))),
            ("proto", array(UInt16Array::from(vec![17, 47]))),
            ("proto", array(UInt32Array::from(vec![17, 47]))),
            ("vlan", array(Float64Array::from(vec![f64::NAN, 7.0]))),
            ("vlan", array(Float64Array::from(vec![None, Some(7.0)]))),
            ("offset", array(UInt64Array::from(vec![4096, 8192]))),
            ("src_port", array(UInt16Array::from(vec![Some(1000), None]))),
            ("runs", array(LargeBinaryArray::from(vec![Some(RUNS), None]))),
            ("runs", array(BinaryViewArray::from(vec![Some(RUNS), None]))),
            ("other", array(NullArray::new(2))),
            ("other", array(StringArray::from(vec![null, Some("x")]))),
            ("other", array(StringViewArray::from(vec!["of more than 12 bytes", "x"]))),
            ("other", array(DictionaryArray::<Int8Type>::from_iter(["a", "b"]))),
        ];
        for (name, array) in same {
            let kind = array.data_type().clone();
            assert_eq!(told(&with(name, array)).unwrap(), expected, "{name} as {kind}");
        }
        // What a packet may lack may be left out, be null, or be null in all rows.
        let (ports, none) = (["src_port", "dst_port"], NullArray::new(2));
        let mut without = plain(1);
        without.retain(|(name, _)| !ports.contains(name));
        let mut null = plain(1);
        null.iter_mut().filter(|(name, _)| ports.contains(name)).for_each(|column| {
            column.1 = array(none.clone());
        });
        assert_eq!(told(&without).unwrap(), told(&null).unwrap());
        assert_ne!(told(&without).unwrap(), expected);
        let one = DictionaryArray::<Int8Type>::from_iter([None, Some("10.0.0.2")]);
        let other = StringArray::from(vec![None, Some("10.0.0.2")]);
        let [one, other] = [array(one), array(other)].map(|array| told(&with("src_ip", array)));
        assert_eq!(one.unwrap(), other.unwrap());
    }

    #[test]
    fn a_column_that_is_not_what_it_has_to_be_is_named() {
        for needed in ["segment", "start", "offset", "span", "fwd_packets", "rev_packets"] {
            let mut columns = plain(1);
            columns.retain(|(name, _)| *name != needed);
            let error = told(&columns).unwrap_err();
            assert!(matches!(error, PointerError::NoColumn(name) if name == needed), "{error}");
            let error = told(&with(needed, array(NullArray::new(2)))).unwrap_err();
            assert!(matches!(error, PointerError::Missing(name) if name == needed), "{error}");
        }
        let mut twice = plain(1);
        twice.push(twice[1].clone());
        assert!(matches!(told(&twice), Err(PointerError::Twice("segment"))));
        for (name, array, what) in [
            ("segment", array(Int64Array::from(vec![1, 2])), "segment is Int64, and text belong"),
            ("start", array(StringArray::from(vec!["x", "y"])), "start is Utf8, and timestamps"),
            ("proto", array(StringArray::from(vec!["x", "y"])), "proto is Utf8, and whole num"),
            ("runs", array(StringArray::from(vec!["x", "y"])), "runs is Utf8, and bytes"),
            ("proto", array(Float64Array::from(vec![1.5, 2.0])), "proto is 1.5"),
            ("span", array(UInt64Array::from(vec![1, u64::MAX])), "span is 18446744073709551615"),
            (
                "start",
                array(TimestampSecondArray::from(vec![0, i64::MAX])),
                "start is 9223372036854775807",
            ),
        ] {
            let error = told(&with(name, array)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn what_ends_early_is_not_taken_for_whole() {
        let batches = [batch(&plain(20)), batch(&plain(1))];
        let whole = file(&batches, compressed(None));
        for len in ARROW_FILE.len()..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
        }
        let whole = stream(&batches, compressed(None));
        let ends = (ARROW_STREAM.len()..whole.len()).filter(|len| read(&whole[..*len]).is_ok());
        // Without the word that ends it a stream has ended as well.
        assert_eq!(ends.count(), 3, "behind its schema and its batches");
        let one = stream(&batches, compressed(None));
        let both = [&one[..], &one].concat();
        assert!(matches!(read(&both), Err(PointerError::Behind)));
        assert!(matches!(read(&one[..20]), Err(PointerError::Ends)));
    }

    /// Returns where bytes are, of which there is one place.
    fn place(of: &[u8], within: &[u8]) -> usize {
        let mut places = (0..within.len()).filter(|at| within[*at..].starts_with(of));
        let place = places.next().expect("they are there");
        assert_eq!(places.next(), None);
        place
    }

    #[test]
    fn what_is_claimed_is_not_believed() {
        let plain_len = |times| stream(&[batch(&plain(times))], compressed(None));
        // The header of a message.
        for len in [i32::MAX, -2] {
            let mut bytes = plain_len(1);
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            let error = read(&bytes).unwrap_err();
            assert!(matches!(error, PointerError::Large { .. } | PointerError::NoArrow(_)));
        }
        // The bytes behind it: of two streams that differ in them alone.
        let bytes = plain_len(100);
        let schema = 8 + i32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let header = i32::from_le_bytes(bytes[schema + 4..schema + 8].try_into().unwrap()) as usize;
        let body = bytes.len() - 8 - (schema + 8 + header);
        let at = schema + place(&(body as i64).to_le_bytes(), &bytes[schema..schema + 8 + header]);
        for len in [MOST as i64 + 1, i64::MAX, -1] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
            let error = read(&bytes).unwrap_err();
            assert!(matches!(error, PointerError::Large { .. } | PointerError::NoArrow(_)));
        }
        let mut short = bytes.clone();
        short[at..at + 8].copy_from_slice(&(MOST as i64).to_le_bytes());
        assert!(matches!(read(&short), Err(PointerError::Ends)));
        // What a column unfolds to.
        for by in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let mut bytes = stream(&[batch(&plain(1000))], compressed(Some(by)));
            let claim = (2000_u64 * 8).to_le_bytes();
            let at = (0..bytes.len()).find(|at| bytes[*at..].starts_with(&claim)).unwrap();
            bytes[at..at + 8].copy_from_slice(&(MOST + 1).to_le_bytes());
            assert!(matches!(read(&bytes), Err(PointerError::Large { .. })), "{by:?}");
            bytes[at..at + 8].copy_from_slice(&(1_u64 << 20).to_le_bytes());
            assert!(matches!(read(&bytes), Err(PointerError::Arrow(_))), "{by:?}");
        }
    }

    #[test]
    fn changed_bytes_are_no_harm() {
        let text = |of: [&str; 2]| array(DictionaryArray::<Int8Type>::from_iter(of));
        let mut columns = plain(1);
        for (name, array) in [
            ("segment", text(["one", "two"])),
            ("src_ip", text(["10.0.0.1", "10.0.0.2"])),
            ("dst_ip", array(StringViewArray::from(vec!["10.0.0.1", "2001:db8::1:2:3:4"]))),
            ("other", text(["a", "b"])),
        ] {
            columns.iter_mut().find(|(known, _)| *known == name).unwrap().1 = array;
        }
        let batches = [batch(&columns), batch(&columns)];
        let seeds = [
            stream(&batches, compressed(None)),
            file(&batches, compressed(None)),
            stream(&batches, compressed(Some(CompressionType::LZ4_FRAME))),
            stream(&[batch(&plain(100))], compressed(Some(CompressionType::ZSTD))),
        ];
        let mut rng = SplitMix64(5);
        let (mut read_whole, mut refused) = (0, 0);
        for n in 0..4000 {
            let mut bytes = seeds[n % seeds.len()].clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len());
                bytes[at] = match rng.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => bytes[at] ^ (1 << rng.below(8)),
                    _ => rng.below(256_u16) as u8,
                };
            }
            match read(&bytes) {
                Ok(_) => read_whole += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(read_whole > 500 && refused > 500, "{read_whole} and {refused}");
    }
}
