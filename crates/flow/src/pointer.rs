//! Where are the packets behind a row, and which are they? Read from a flow table, or from lines of
//! JSON that an engine made of one; [`crate::arrow_rows`] reads what it made as Arrow.
//!
//! A packet is in the row whose key it has, among the packets of the row's granules. The key is
//! that of [`crate::FlowTable`], made again of the row's columns, so a packet that is in no row of
//! those is chosen for none, and none is chosen for two.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::BufRead;
use std::net::IpAddr;
use std::ops::Range;

use arrow_schema::ArrowError;
use jiff::Timestamp;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};
use serde::{Deserialize, Deserializer};
use tapdeck_packet::header::innermost::InnermostReader;
use tapdeck_packet::link::LinkType;

use crate::DAY_NS;
use crate::key::{Around, Key, Kind, halves, icmp_ports};
use crate::runs::take_runs;

const DAY_US: i64 = DAY_NS / 1000;
/// The longest line of JSON.
const LINE: u64 = 64 << 10;
/// The longest text of a column, as names of files are.
const TEXT: usize = 255;

/// Why a row leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum PointerError {
    /// the file is no Parquet, or is damaged
    #[error("it cannot be read as Parquet")]
    Parquet(#[from] ParquetError),
    /// what an array holds is not what its type says
    #[error("it cannot be read as Arrow IPC")]
    Arrow(#[from] ArrowError),
    /// the messages of a stream are none, or are damaged
    #[error("it is no Arrow IPC, or is damaged: {0}")]
    NoArrow(&'static str),
    /// who wrote it was interrupted, or what wrote it forgot to end it
    #[error("it ends early, so rows are missing: have it written anew, to its end")]
    Ends,
    /// streams were put together
    #[error("something follows the end of the stream: give what follows as a file by itself")]
    Behind,
    /// a length is a mistake, or the table is too large to be taken at once
    #[error(
        "{what} takes {bytes} bytes, and at most {most} are taken: select fewer rows and columns, or write smaller batches"
    )]
    Large { what: &'static str, bytes: u64, most: u64 },
    /// no row can have it
    #[error("it has no column {0}, which packets are found by: select it, too")]
    NoColumn(&'static str),
    /// which of them is meant cannot be known
    #[error("the column {0} is there twice: select one of them")]
    Twice(&'static str),
    /// the engine made something else of it
    #[error("the column {column} is {kind}, and {wanted} belong there: cast it")]
    Type { column: &'static str, kind: String, wanted: &'static str },
    /// the line is no object, or a value is not what the column has
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// standard input, or a file
    #[error("cannot read")]
    Io(#[from] std::io::Error),
    /// the line does not end
    #[error("the line is longer than {LINE} bytes")]
    Long,
    /// no flow table has such a text
    #[error("the {0} of a row is longer than {TEXT} bytes")]
    LongText(&'static str),
    /// without it packets are not found, or cannot be told from others
    #[error("the row has no {0}, which its packets are found by")]
    Missing(&'static str),
    /// the value is none that `tapdeck flows` writes
    #[error("{column} is {value}, which no flow table has there")]
    Value { column: &'static str, value: String },
}

/// What a row says of its packets.
#[derive(Clone, Debug)]
pub struct Pointer {
    /// The name of who recorded it; empty where the row does not say.
    pub sensor: String,
    /// The segment's name without `.pcapng`.
    pub segment: String,
    /// The earliest time of a packet, UTC microseconds since 1970.
    pub start_us: i64,
    /// How many packets there are, both ways.
    pub packets: u64,
    /// Where its granules lie in the segment, from the first to the last.
    pub place: Range<u64>,
    /// Runs of their numbers, where they are not one run.
    pub runs: Option<Vec<(u32, u32)>>,
    /// What messages call the row.
    pub name: String,
    key: Key,
}

/// A row as columns have it. What is null may be left out.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Columns {
    #[serde(default)]
    sensor: String,
    segment: Option<String>,
    #[serde(default, deserialize_with = "time")]
    pub start: Option<i64>,
    ip_version: Option<i64>,
    proto: Option<i64>,
    ether_type: Option<i64>,
    vlan: Option<i64>,
    tunnel: Option<i64>,
    src_ip: Option<String>,
    dst_ip: Option<String>,
    src_port: Option<i64>,
    dst_port: Option<i64>,
    icmp_type_code: Option<i64>,
    fwd_packets: Option<i64>,
    rev_packets: Option<i64>,
    offset: Option<i64>,
    span: Option<i64>,
    granules: Option<i64>,
    #[serde(default, deserialize_with = "bytes")]
    pub runs: Option<Vec<u8>>,
}

/// Reads a time: microseconds since 1970, or text. Without an offset it is UTC.
fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Time {
        Number(i64),
        Text(String),
    }
    let text = match Option::<Time>::deserialize(from)? {
        Some(Time::Text(text)) => text,
        Some(Time::Number(us)) => return Ok(Some(us)),
        None => return Ok(None),
    };
    let parsed = text.parse::<Timestamp>().or_else(|_| format!("{text}Z").parse());
    let told = |_| serde::de::Error::custom(format!("{text} is no time"));
    parsed.map(|time| Some(time.as_microsecond())).map_err(told)
}

/// Reads bytes as DuckDB writes them in JSON: characters as they are, and others as `\x1F`. What is
/// written in another way is as good as not there: more is read then than has to be.
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(from)?;
    Ok(value.as_ref().and_then(serde_json::Value::as_str).and_then(blob))
}

fn blob(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let [b'x', digits @ ..] = rest else { return None };
        let (hex, behind) = digits.split_at_checked(2)?;
        out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = behind;
    }
    Some(out)
}

/// Returns a value that fits into a smaller type.
fn small<T: TryFrom<i64>>(
    column: &'static str,
    value: Option<i64>,
) -> Result<Option<T>, PointerError> {
    let fit = |value: i64| {
        let wrong = |_| PointerError::Value { column, value: value.to_string() };
        T::try_from(value).map_err(wrong)
    };
    value.map(fit).transpose()
}

fn needed<T: TryFrom<i64>>(column: &'static str, value: Option<i64>) -> Result<T, PointerError> {
    small(column, value)?.ok_or(PointerError::Missing(column))
}

fn address(column: &'static str, text: Option<&str>) -> Result<Option<IpAddr>, PointerError> {
    let parse = |text: &str| {
        let wrong = |_| PointerError::Value { column, value: text.to_owned() };
        text.parse().map_err(wrong)
    };
    text.map(parse).transpose()
}

impl Columns {
    pub fn pointer(self) -> Result<Pointer, PointerError> {
        for (column, text) in [
            ("sensor", Some(&self.sensor)),
            ("segment", self.segment.as_ref()),
            ("src_ip", self.src_ip.as_ref()),
            ("dst_ip", self.dst_ip.as_ref()),
        ] {
            if text.is_some_and(|text| text.len() > TEXT) {
                return Err(PointerError::LongText(column));
            }
        }
        let start_us = self.start.ok_or(PointerError::Missing("start"))?;
        let fwd: u64 = needed("fwd_packets", self.fwd_packets)?;
        let rev: u64 = needed("rev_packets", self.rev_packets)?;
        let offset: u64 = needed("offset", self.offset)?;
        let span: u64 = needed("span", self.span)?;
        let wrong = || PointerError::Value { column: "span", value: span.to_string() };
        let end = offset.checked_add(span).filter(|end| i64::try_from(*end).is_ok());
        let place = offset..end.ok_or_else(wrong)?;
        let (key, name) = self.key(start_us, fwd)?;
        let granules: Option<u32> = small("granules", self.granules)?;
        // A list that is not that of so many granules is none of a flow table's.
        let runs = self.runs.as_deref().and_then(take_runs).filter(|runs| {
            let all: u64 = runs.iter().map(|(from, to)| u64::from(to - from)).sum();
            granules.is_some_and(|granules| u64::from(granules) == all)
        });
        let segment = self.segment.ok_or(PointerError::Missing("segment"))?;
        let packets = fwd.saturating_add(rev);
        Ok(Pointer { sensor: self.sensor, segment, start_us, packets, place, runs, name, key })
    }

    fn key(&self, start_us: i64, fwd: u64) -> Result<(Key, String), PointerError> {
        let source = address("src_ip", self.src_ip.as_deref())?;
        let destination = address("dst_ip", self.dst_ip.as_deref())?;
        let kind = match (self.ip_version, source) {
            (Some(4), _) => Kind::Ipv4,
            (Some(6), _) => Kind::Ipv6,
            (None, Some(_)) => Kind::Arp,
            (None, None) => Kind::Nothing,
            (Some(other), _) => {
                let value = other.to_string();
                return Err(PointerError::Value { column: "ip_version", value });
            }
        };
        let protocol: u8 = small("proto", self.proto)?.unwrap_or(0);
        let (from, to): (Option<u16>, Option<u16>) =
            (small("src_port", self.src_port)?, small("dst_port", self.dst_port)?);
        let message: Option<u16> = small("icmp_type_code", self.icmp_type_code)?;
        let ports = match message.map(u16::to_be_bytes) {
            Some([kind, code]) => {
                let (sent, back) = icmp_ports(protocol, kind, code);
                // Where nothing went forward the message is one that came back.
                Some(if fwd > 0 { (sent, back) } else { (back, sent) })
            }
            None => from.zip(to),
        };
        let around = Around {
            ether_type: small("ether_type", self.ether_type)?,
            vlan: small("vlan", self.vlan)?,
            tunnel: small("tunnel", self.tunnel)?.unwrap_or(0),
            protocol,
            day: start_us.div_euclid(DAY_US) as i32,
        };
        let ends = [source, destination].map(|address| address.map_or([0; 2], bits));
        let (key, _) = Key::between(kind, ends, ports, around);
        Ok((key, named(protocol, [source, destination], from.zip(to))))
    }
}

/// Returns the bits of an address as a key has them.
fn bits(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => [u64::from(address.to_bits()) << 32, 0],
        IpAddr::V6(address) => halves(address.octets()),
    }
}

/// Returns what messages call a row.
fn named(protocol: u8, ends: [Option<IpAddr>; 2], ports: Option<(u16, u16)>) -> String {
    let [Some(from), Some(to)] = ends else { return "frames without addresses".to_owned() };
    match ports {
        Some((source, destination)) => {
            format!("protocol {protocol}, {from} port {source} to {to} port {destination}")
        }
        None => format!("protocol {protocol}, {from} to {to}"),
    }
}

/// Reads the rows of a flow table, or of any Parquet file with its columns, up to `most` of each
/// group and one more. Of a group whose rows include one that leads nowhere, that is the last.
pub fn pointers<R: ChunkReader + 'static>(
    file: R,
    most: usize,
) -> Result<impl Iterator<Item = Result<Pointer, PointerError>>, PointerError> {
    let reader = SerializedFileReader::new(file)?;
    // A group at a time, so that a file takes the memory of one.
    let groups = (0..reader.num_row_groups()).map(move |number| {
        let group = reader.get_row_group(number)?;
        let rows = group.get_row_iter(None)?.take(most.saturating_add(1));
        let mut pointers = Vec::new();
        for row in rows {
            pointers.push(pointer_of(row));
            if pointers.last().is_some_and(Result::is_err) {
                break;
            }
        }
        Ok(pointers)
    });
    Ok(groups.flat_map(|group: Result<_, PointerError>| match group {
        Ok(rows) => rows,
        Err(e) => vec![Err(e)],
    }))
}

fn pointer_of(row: Result<Row, ParquetError>) -> Result<Pointer, PointerError> {
    let mut columns = Columns::default();
    for (name, field) in row?.into_columns() {
        columns.put(&name, field);
    }
    columns.pointer()
}

impl Columns {
    /// Takes in the value of a column. One of another type is as good as not there.
    fn put(&mut self, name: &str, field: Field) {
        let number = match &field {
            Field::Byte(n) => Some(i64::from(*n)),
            Field::Short(n) => Some(i64::from(*n)),
            Field::Int(n) => Some(i64::from(*n)),
            Field::Long(n) | Field::TimestampMicros(n) => Some(*n),
            Field::UByte(n) => Some(i64::from(*n)),
            Field::UShort(n) => Some(i64::from(*n)),
            Field::UInt(n) => Some(i64::from(*n)),
            Field::TimestampMillis(n) => n.checked_mul(1000),
            _ => None,
        };
        match (name, field) {
            ("start", _) => self.start = number,
            ("runs", Field::Bytes(bytes)) => self.runs = Some(bytes.data().to_vec()),
            (_, Field::Str(text)) => self.put_text(name, text),
            _ => {
                if let Some(to) = self.number(name) {
                    *to = number;
                }
            }
        }
    }

    /// Returns the column that has numbers and a name.
    pub fn number(&mut self, name: &str) -> Option<&mut Option<i64>> {
        Some(match name {
            "ip_version" => &mut self.ip_version,
            "proto" => &mut self.proto,
            "ether_type" => &mut self.ether_type,
            "vlan" => &mut self.vlan,
            "tunnel" => &mut self.tunnel,
            "src_port" => &mut self.src_port,
            "dst_port" => &mut self.dst_port,
            "icmp_type_code" => &mut self.icmp_type_code,
            "fwd_packets" => &mut self.fwd_packets,
            "rev_packets" => &mut self.rev_packets,
            "offset" => &mut self.offset,
            "span" => &mut self.span,
            "granules" => &mut self.granules,
            _ => return None,
        })
    }

    /// Takes in a text, where the column is one that has texts.
    pub fn put_text(&mut self, name: &str, text: String) {
        match name {
            "sensor" => self.sensor = text,
            "segment" => self.segment = Some(text),
            "src_ip" => self.src_ip = Some(text),
            "dst_ip" => self.dst_ip = Some(text),
            _ => {}
        }
    }
}

/// Reads rows that are lines of JSON, an object each. Columns that no packet is found by may be
/// there, and may be missing.
pub fn pointers_of_lines(
    mut from: impl BufRead,
) -> impl Iterator<Item = Result<Pointer, PointerError>> {
    let mut line = Vec::new();
    let mut is_over = false;
    std::iter::from_fn(move || {
        loop {
            line.clear();
            if is_over {
                return None;
            }
            match std::io::Read::take(&mut from, LINE + 1).read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(len) if len as u64 > LINE => {
                    is_over = true;
                    return Some(Err(PointerError::Long));
                }
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let columns: Result<Columns, _> = serde_json::from_slice(&line);
                    return Some(columns.map_err(PointerError::from).and_then(Columns::pointer));
                }
                Err(e) => {
                    is_over = true;
                    return Some(Err(e.into()));
                }
            }
        }
    })
}

/// Chooses packets for the rows of one segment, granule by granule in the order of the segment.
pub struct Chooser {
    reader: InnermostReader,
    /// The rows that packets are chosen for.
    rows: Vec<usize>,
    owners: HashMap<Key, Owners>,
}

/// Whose packets are those of one key: from each place on the number of a row, or of none.
type Owners = Vec<(u64, Option<usize>)>;

impl Chooser {
    /// Makes a chooser for rows, each with a number. A row that is there twice counts once, and
    /// where several of one key lie, packets are those of the lowest number.
    pub fn new<'a>(rows: impl IntoIterator<Item = (usize, &'a Pointer)>) -> Self {
        let mut by_key: HashMap<Key, Vec<(&Range<u64>, usize)>> = HashMap::new();
        let (mut seen, mut numbers) = (HashSet::new(), Vec::new());
        for (number, pointer) in rows {
            if seen.insert((pointer.key, &pointer.place)) {
                numbers.push(number);
                by_key.entry(pointer.key).or_default().push((&pointer.place, number));
            }
        }
        let owners = by_key.into_iter().map(|(key, rows)| (key, owners(&rows))).collect();
        Self { reader: InnermostReader::new(), rows: numbers, owners }
    }

    /// Returns the rows that packets are chosen for, by their numbers.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().copied()
    }

    /// Returns the number of the row that a packet is in, which lies in a granule at `at`; `None`
    /// where it is in none of them.
    pub fn row_of(&mut self, link: LinkType, frame: &[u8], time_ns: i64, at: u64) -> Option<usize> {
        let found = self.reader.read(link, frame, time_ns);
        let (key, _) = Key::of(&found, time_ns.div_euclid(DAY_NS) as i32);
        owner(self.owners.get(&key)?, at)
    }
}

/// Returns which row's packets lie where, of rows with one key.
fn owners(rows: &[(&Range<u64>, usize)]) -> Owners {
    let places = rows.iter().filter(|(place, _)| !place.is_empty());
    let mut ends: Vec<(u64, bool, usize)> = places
        .flat_map(|(place, number)| [(place.start, true, *number), (place.end, false, *number)])
        .collect();
    ends.sort_unstable();
    let (mut here, mut owners) = (BTreeSet::new(), Vec::new());
    for same in ends.chunk_by(|a, b| a.0 == b.0) {
        for (_, begins, number) in same {
            if *begins {
                here.insert(*number);
            } else {
                here.remove(number);
            }
        }
        owners.push((same[0].0, here.first().copied()));
    }
    owners
}

fn owner(owners: &Owners, at: u64) -> Option<usize> {
    let upto = owners.partition_point(|(from, _)| *from <= at);
    owners[upto.checked_sub(1)?].1
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::ops::Range;
    use std::sync::Arc;

    use parquet::data_type::Int64Type;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use tapdeck_testkit::SplitMix64;

    use super::{PointerError, blob, owner, owners, pointers, pointers_of_lines};

    const ROW: &str = r#"{"sensor":"s","segment":"x","start":"2026-01-02 03:04:05.000006","ip_version":4,
        "proto":17,"src_ip":"10.0.0.1","dst_ip":"10.0.0.2","src_port":1,"dst_port":2,"ether_type":2048,
        "fwd_packets":3,"rev_packets":1,"offset":4096,"span":100,"granules":4,"runs":"\\x04\\x07\\x01\\x00"}"#;

    fn one(text: &str) -> Result<super::Pointer, PointerError> {
        pointers_of_lines(text.replace('\n', "").as_bytes()).next().expect("a line")
    }

    #[test]
    fn a_line_is_a_row() {
        let pointer = one(ROW).unwrap();
        assert_eq!((pointer.packets, pointer.place.clone()), (4, 4096..4196));
        assert_eq!(pointer.start_us, 1_767_323_045_000_006);
        assert_eq!(pointer.runs.unwrap(), [(3, 6), (6, 7)]);
        // A list of another number of granules is not believed, nor what is no list.
        for (from, to) in [("\"granules\":4", "\"granules\":5"), ("x04", "x05"), ("x04", "y04")] {
            assert_eq!(one(&ROW.replace(from, to)).unwrap().runs, None, "{to}");
        }
        for (text, us) in [
            ("\"2026-01-02T04:04:05.000006+01:00\"", 1_767_323_045_000_006),
            ("\"2026-01-02 04:04:05+01\"", 1_767_323_045_000_000),
            ("1767323045000006", 1_767_323_045_000_006),
        ] {
            let told = one(&ROW.replace("\"2026-01-02 03:04:05.000006\"", text)).unwrap();
            assert_eq!(told.start_us, us, "{text}");
        }
    }

    #[test]
    fn what_packets_are_found_by_has_to_be_there() {
        for column in ["segment", "start", "offset", "span", "fwd_packets", "rev_packets"] {
            let error = one(&ROW.replace(&format!("\"{column}\""), "\"else\"")).unwrap_err();
            assert!(error.to_string().contains(column), "{error}");
        }
        for (from, to) in [
            ("\"src_port\":1", "\"src_port\":65536"),
            ("10.0.0.1", "ten"),
            ("\"span\":100", "\"span\":-1"),
            ("\"span\":100", "\"span\":9223372036854775807"),
            ("\"ip_version\":4", "\"ip_version\":5"),
            ("2026-01-02 03:04", "once"),
        ] {
            assert!(one(&ROW.replace(from, to)).is_err(), "{to}");
        }
        assert!(one("[]").is_err());
        let error = one("nothing").unwrap_err();
        let cause = error.source().map(ToString::to_string);
        assert!(
            cause.is_none_or(|cause| !error.to_string().contains(&cause)),
            "said twice: {error}"
        );
        for column in ["sensor", "segment", "src_ip", "dst_ip"] {
            let mut row: serde_json::Value = serde_json::from_str(&ROW.replace('\n', "")).unwrap();
            row[column] = "x".repeat(256).into();
            let error = one(&row.to_string()).unwrap_err();
            assert!(matches!(error, PointerError::LongText(long) if long == column), "{error}");
        }
        let runs = "\"runs\":\"\\\\x09".to_owned() + &"\\\\x02".repeat(9);
        let many = ROW.replace("\"granules\":4", "\"granules\":9");
        let many = many.replace("\"runs\":\"\\\\x04\\\\x07\\\\x01\\\\x00", &runs);
        assert_eq!(one(&many).unwrap().runs, None, "more than a flow table has: {many}");
        let long = format!("{{\"segment\": \"{}\"}}", "x".repeat(1 << 20));
        assert!(matches!(one(&long), Err(PointerError::Long)));
    }

    #[test]
    fn rows_end_with_the_first_that_leads_nowhere() {
        let schema = parse_message_type("message rows { required int64 offset; }").unwrap();
        let mut file = Vec::new();
        let mut writer =
            SerializedFileWriter::new(&mut file, schema.into(), Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[1, 2, 3], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let rows: Vec<_> = pointers(bytes::Bytes::from(file), 10).unwrap().collect();
        assert!(matches!(rows[..], [Err(PointerError::Missing("start"))]), "{rows:?}");
    }

    #[test]
    fn of_rows_with_one_key_a_packet_is_the_first_that_it_lies_in() {
        let mut rng = SplitMix64(1);
        for _ in 0..1000 {
            let places: Vec<Range<u64>> = (0..rng.below(6))
                .map(|_| (rng.below(12_u64), rng.below(5_u64)))
                .map(|(start, len)| start..start + len)
                .collect();
            let rows: Vec<_> = places.iter().zip(0..).collect();
            let owners = owners(&rows);
            for at in 0..20 {
                let first = places.iter().position(|place| place.contains(&at));
                assert_eq!(owner(&owners, at), first, "{at} in {places:?}");
            }
        }
    }

    #[test]
    fn bytes_are_read_as_duckdb_writes_them() {
        assert_eq!(blob(r"a\x00\xFFb").unwrap(), b"a\x00\xffb");
        assert!(blob(r"\y").is_none() && blob(r"\x1").is_none() && blob(r"\xzz").is_none());
    }
}
