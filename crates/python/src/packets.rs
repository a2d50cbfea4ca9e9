//! Packets as columns: how a question of packets becomes batches of Arrow.
//!
//! Columns are filled packet by packet, and become those of a batch as they are; the bytes of all
//! its packets lie one behind the other. A batch goes out when it is full, and what was found also
//! when more has to be looked for: the first packets come soon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BinaryArray, DictionaryArray, PrimitiveArray, RecordBatch, StringArray,
    TimestampNanosecondArray, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use tapdeck_store::choice::{Choice, Direction, Wanted};
use tapdeck_store::query::{self, Described, Error, Packet, Query, Search, Snapshot, Span};

use crate::answer::{End, Failure};
use crate::place;
use crate::worker::{Left, Outlet};

/// Packets of a batch, at most.
const MOST_PACKETS: usize = 1 << 16;
/// Bytes of a batch's packets, about, at most.
const MOST_BYTES: usize = 4 << 20;
/// What was found goes out after so long where more has to be looked for.
const HELD: Duration = Duration::from_millis(50);

/// What is asked for.
pub struct Question {
    pub path: PathBuf,
    pub wanted: Wanted,
    pub span: Span,
    /// The most packets of the answer, the earliest.
    pub limit: u64,
    /// The directory of indexes that are not beside their files.
    pub cache: Option<PathBuf>,
}

/// The columns, by their places in a batch.
pub mod column {
    pub const TIME: usize = 0;
    pub const INTERFACE: usize = 1;
    pub const LINK_TYPE: usize = 2;
    pub const DIRECTION: usize = 3;
    pub const ORIGINAL_LENGTH: usize = 4;
    pub const DROPPED: usize = 5;
    pub const SHED: usize = 6;
    pub const DATA: usize = 7;
}

/// Returns the columns of packets.
pub fn schema() -> SchemaRef {
    let words = |keys| DataType::Dictionary(Box::new(keys), Box::new(DataType::Utf8));
    let field = |name, of, is_nullable| Field::new(name, of, is_nullable);
    let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        field("time", time, false),
        field("interface", words(DataType::Int32), false),
        field("link_type", DataType::UInt16, false),
        field("direction", words(DataType::Int8), true),
        field("original_length", DataType::UInt32, false),
        field("dropped", DataType::UInt64, false),
        field("shed", DataType::UInt32, false),
        field("data", DataType::Binary, false),
    ]))
}

/// Makes the answer to a question.
pub fn answer(question: &Question, outlet: &mut Outlet) -> Result<End, Failure> {
    match attempt(question, outlet, false) {
        // That turns out before the first packet.
        Err(Failure::Store(Error::LateInterface(_))) => attempt(question, outlet, true),
        done => done,
    }
}

/// Opens what a question asks.
fn prepare(question: &Question, whole: bool, left: &Left) -> Result<(Snapshot, Choice), Failure> {
    let Question { path, wanted, span, cache, .. } = question;
    let search = Search { whole, cache: cache.as_deref(), ignores_indexes: false };
    let mut snapshot = place::look_at(path, *span, search, left)?;
    if !wanted.interfaces.is_empty() {
        snapshot.want_interfaces(|interface| wanted.takes(interface));
    }
    let choice = Choice::new(wanted, snapshot.interfaces())?;
    Ok((snapshot, choice))
}

/// Returns spans of time that have the whole answer together, each packet once.
pub fn split(question: &Question, bytes: u64, left: &Left) -> Result<Vec<Span>, Failure> {
    let (snapshot, choice) = prepare(question, false, left)?;
    let plan = choice.plan().clone();
    let spans = query::split(snapshot, question.span, plan, bytes, || !left.is_set())?;
    if left.is_set() { Err(Failure::Left) } else { Ok(spans) }
}

fn attempt(question: &Question, outlet: &mut Outlet, whole: bool) -> Result<End, Failure> {
    let Question { wanted, span, limit, .. } = question;
    let (snapshot, choice) = prepare(question, whole, &outlet.left)?;
    let interfaces = snapshot.interfaces().to_vec();
    outlet.begin()?;
    let mut query = Query::new(snapshot, *span, choice.plan().clone(), choice);
    let mut end = End { notes: absent(wanted, &interfaces), ..End::default() };
    let mut columns = Columns::new(&interfaces);
    let mut last_ns = i64::MIN;
    while !end.is_limited {
        let mut is_paused = false;
        query.find_next(|_| {
            is_paused = outlet.left.is_set() || columns.want_out();
            !is_paused
        })?;
        match query.packet() {
            Some(packet) => {
                columns.push(&packet);
                end.rows += 1;
                end.dropped += packet.dropped;
                end.shed.add_packet(packet.shed);
                end.is_limited = end.rows == *limit;
                last_ns = packet.time_ns;
            }
            None if outlet.left.is_set() => return Err(Failure::Left),
            None if is_paused => outlet.batch(columns.take()?)?,
            None => break,
        }
        if columns.is_full() {
            outlet.batch(columns.take()?)?;
        }
    }
    outlet.batch(columns.take()?)?;
    finish(&mut query, last_ns, &mut end);
    Ok(end)
}

/// Returns which of the interfaces that are asked for are not there, where others are.
fn absent(wanted: &Wanted, interfaces: &[Described]) -> Vec<String> {
    let mut there: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
    there.dedup();
    let there = there.join(", ");
    let tell = |pattern| format!("no interface is named {pattern} here; there are {there}");
    wanted.absent(interfaces).map(tell).collect()
}

/// Takes in what is known of an answer at its end.
fn finish(query: &mut Query<Choice>, last_ns: i64, end: &mut End) {
    let until_ns = if end.is_limited { last_ns } else { i64::MAX };
    if !end.is_limited {
        let progress = query.progress();
        (end.dropped, end.shed) = (progress.dropped, progress.shed);
    }
    let unseen = query.unseen().iter().filter(|missing| missing.first_ns <= until_ns);
    end.unseen = unseen.map(|missing| missing.packets).sum();
    end.add_notes(query.take_notes().into_iter().filter(|note| note.concerns(until_ns)));
}

/// A batch while it is filled.
struct Columns {
    /// The names of interfaces, each once.
    names: Arc<StringArray>,
    directions: Arc<StringArray>,
    /// For each interface, its place in `names` and the direction of all its packets.
    interfaces: Vec<(i32, Option<Direction>)>,
    /// When the batch before went out.
    since: Instant,
    time: Vec<i64>,
    interface: Vec<i32>,
    link_type: Vec<u16>,
    direction: Vec<i8>,
    /// Whether each packet has a direction.
    is_told: Vec<bool>,
    original_length: Vec<u32>,
    dropped: Vec<u64>,
    shed: Vec<u32>,
    ends: Vec<i32>,
    data: Vec<u8>,
}

impl Columns {
    fn new(interfaces: &[Described]) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let mut numbers = Vec::with_capacity(interfaces.len());
        for interface in interfaces {
            let known = names.iter().position(|name| *name == interface.name);
            let place = known.unwrap_or(names.len());
            if known.is_none() {
                names.push(&interface.name);
            }
            numbers.push((place as i32, Direction::of_all(interface)));
        }
        Self {
            names: Arc::new(StringArray::from(names)),
            directions: Arc::new(StringArray::from(vec!["in", "out"])),
            interfaces: numbers,
            since: Instant::now(),
            time: Vec::new(),
            interface: Vec::new(),
            link_type: Vec::new(),
            direction: Vec::new(),
            is_told: Vec::new(),
            original_length: Vec::new(),
            dropped: Vec::new(),
            shed: Vec::new(),
            ends: vec![0],
            data: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.time.len() >= MOST_PACKETS || self.data.len() >= MOST_BYTES
    }

    /// Whether there is something that has waited long enough for more.
    fn want_out(&self) -> bool {
        !self.time.is_empty() && self.since.elapsed() >= HELD
    }

    fn push(&mut self, packet: &Packet<'_>) {
        let (name, of_all) = self.interfaces[packet.interface as usize];
        self.time.push(packet.time_ns);
        self.interface.push(name);
        self.link_type.push(packet.link.0);
        let direction = Direction::told(packet).or(of_all);
        self.direction.push(i8::from(direction == Some(Direction::Out)));
        self.is_told.push(direction.is_some());
        self.original_length.push(packet.original_len);
        self.dropped.push(packet.dropped);
        self.shed.push(packet.shed);
        self.data.extend_from_slice(packet.frame);
        // A batch is far smaller than what an offset can say.
        self.ends.push(self.data.len() as i32);
    }

    /// Takes the batch out, whose columns are the next one's at a time.
    fn take(&mut self) -> Result<RecordBatch, Failure> {
        /// Takes values out, and makes room for as many.
        fn take<T>(values: &mut Vec<T>) -> Vec<T> {
            let room = Vec::with_capacity(values.len());
            std::mem::replace(values, room)
        }
        self.since = Instant::now();
        let time = TimestampNanosecondArray::from(take(&mut self.time)).with_timezone("UTC");
        let interface = PrimitiveArray::<Int32Type>::from(take(&mut self.interface));
        let interface = DictionaryArray::try_new(interface, self.names.clone())?;
        let is_told = take(&mut self.is_told);
        let nulls = is_told.contains(&false).then(|| NullBuffer::from(is_told));
        let direction = ScalarBuffer::from(take(&mut self.direction));
        let direction = PrimitiveArray::<Int8Type>::try_new(direction, nulls)?;
        let direction = DictionaryArray::try_new(direction, self.directions.clone())?;
        let ends = std::mem::replace(&mut self.ends, vec![0]);
        let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
        let data = BinaryArray::try_new(ends, Buffer::from_vec(take(&mut self.data)), None)?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(time),
            Arc::new(interface),
            Arc::new(UInt16Array::from(take(&mut self.link_type))),
            Arc::new(direction),
            Arc::new(UInt32Array::from(take(&mut self.original_length))),
            Arc::new(UInt64Array::from(take(&mut self.dropped))),
            Arc::new(UInt32Array::from(take(&mut self.shed))),
            Arc::new(data),
        ];
        Ok(RecordBatch::try_new(schema(), columns)?)
    }
}
