//! Generating inside the kernel: a BPF program makes each frame and redirects it to the interface.
//!
//! The program runs with `BPF_F_TEST_XDP_LIVE_FRAMES` in the calling thread, and keeps it until the
//! run is over or a signal comes. It waits for due times by reading the clock over and over, so it
//! takes a whole CPU. Setting up takes about 25 ms.
//!
//! The far end must take redirected frames: a veth peer needs an XDP program or GRO, and many
//! drivers send them only while an XDP program is on the interface
//! ([`takes_redirected_frames`](crate::interface::Interface::takes_redirected_frames)). Frames that
//! the interface does not take are counted.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::{
    Link, MapCore, MapFlags, Object, ObjectBuilder, OpenMapMut, OpenObject, ProgramInput,
};
use tapdeck_packet::generate::{
    Column, FILLER_BYTES, Flow, GAP_PARTS, Limits, MAX_HEADERS, Pace, Plan, Sizes, Sum, Transport,
    Tunnel, filler_sums,
};

use crate::bpf::object::Aligned;
use crate::clock::{SystemClock, WallClock};
use crate::sys::generate::{TdColumn, TdFlow, TdGenerate, TdState};
use crate::sys::kernel;
use crate::sys::libbpf::{self, io_error, quiet_libbpf};
use crate::sys::mapping::Mapping;

static GENERATE: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/generate.bpf.o")));

/// The longest frame that fits in a page beside what the kernel keeps there: in Linux 6.1, whose
/// notes are the longest, and therefore in all.
pub const LONGEST: usize = 3368;
/// Sizes that a sequence can have at most.
pub const LONGEST_SEQUENCE: usize = 1 << 26;
/// The program writes headers before it cuts the frame to its length.
const SHORTEST_BUFFER: usize = 256;

// As in bpf/generate.h.
pub(crate) const MAX_FRAME: usize = 4096;
pub(crate) const BUCKETS: usize = 4096;
const SUMS: usize = FILLER_BYTES / 2 + MAX_FRAME / 2 + 4;

/// What a run has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets made and numbered.
    pub made: u64,
    /// Packets that the interface took. The rest was refused, but for those on their way.
    pub taken: u64,
    pub bytes: u64,
    pub done: bool,
    /// The run ended because a packet could not be made.
    pub failed: bool,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub progress: Progress,
    /// Packets made, by length.
    pub sizes: Vec<(u16, u64)>,
    /// Packets made of each flow, the mark's last if there is one.
    pub sequences: Vec<u64>,
    /// `CLOCK_MONOTONIC` nanoseconds: the start, the first packet and the last.
    pub start_ns: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    /// UTC minus `CLOCK_MONOTONIC`.
    pub utc_offset_ns: i64,
    /// Gaps between packets, and how far each was from its plan: nanoseconds and how many there
    /// were.
    pub gaps: Vec<(u64, u64)>,
    pub jitters: Vec<(u64, u64)>,
    pub gap_max_ns: u64,
    pub jitter_max_ns: u64,
    pub late_max_ns: u64,
    /// How far behind its time the last packet was.
    pub late_last_ns: u64,
}

/// A generator in the kernel, of one sender.
pub struct Live {
    object: Object,
    monitor: Monitor,
    frame: Vec<u8>,
    batch: u32,
    flows: u32,
    utc_offset_ns: i64,
    _taken: Link,
}

impl Live {
    /// Loads the program and its tables. `pace`: `None` is as fast as it goes.
    ///
    /// # Errors
    /// As bpf(2); `EINVAL` where the plan has frames longer than [`LONGEST`] or a longer sequence
    /// than [`LONGEST_SEQUENCE`].
    pub fn open(
        ifindex: u32,
        plan: &Plan,
        mark_every_ns: u64,
        pace: Option<Pace>,
        limits: Limits,
    ) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        if usize::from(plan.longest) > LONGEST || plan.headers.bytes.len() > MAX_HEADERS {
            return Err(invalid());
        }
        if matches!(&plan.sizes, Sizes::Sequence { sizes, .. } if sizes.len() > LONGEST_SEQUENCE) {
            return Err(invalid());
        }
        quiet_libbpf();
        let utc_offset_ns = SystemClock.utc_offset_ns();
        let frame = vec![0; usize::from(plan.longest).max(SHORTEST_BUFFER)];
        let params = TransmitParams { ifindex, plan, mark_every_ns, pace, limits, utc_offset_ns };
        let mut open =
            ObjectBuilder::default().open_memory(&GENERATE.0).map_err(|e| io_error(&e))?;
        fill_in(&mut open, plan, &params.bytes(frame.len()))?;
        let object = libbpf::load(open)?;
        load_tables(&object, plan)?;
        let map = |name: &str, len| Mapping::of_fd(libbpf::map(&object, name)?.as_fd(), len, true);
        let state = Arc::new(map(".data.state", size_of::<TdState>())?);
        let control = Arc::new(map(".data.control", 4)?);
        let taken = libbpf::program(&object, "tapdeck_taken")?;
        let taken = taken.attach_trace().map_err(|e| io_error(&e))?;
        let batch = batch(pace, plan);
        let flows = plan.flows.len() as u32 + u32::from(plan.mark.is_some());
        let monitor = Monitor { state, control };
        Ok(Self { object, monitor, frame, batch, flows, utc_offset_ns, _taken: taken })
    }

    /// Sends until the run is over. It may end before: [`Progress::done`] tells, and the next call
    /// goes on.
    ///
    /// # Errors
    /// `EINTR` after a signal to this thread; else as bpf(2).
    pub fn run(&self) -> io::Result<()> {
        let own = libbpf::program(&self.object, "tapdeck_own")?;
        own.test_run(ProgramInput::default()).map_err(|e| io_error(&e))?;
        let program = libbpf::program(&self.object, "tapdeck_generate")?;
        kernel::run_live(program.as_fd(), &self.frame, i32::MAX as u32, self.batch)
    }

    /// Returns a handle by which other threads see and end the run.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Returns what was done, when [`Live::run`] has returned.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn outcome(&self) -> io::Result<Outcome> {
        let read = |at| self.monitor.state.u64(at).load(Relaxed);
        let tables = libbpf::map(&self.object, ".bss")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let tables = tables.map_err(|e| io_error(&e))?.unwrap_or_default();
        let made_at = FILLER_BYTES + MAX_FRAME + 2 * SUMS;
        let counts = |from: usize, n: usize| {
            let (eights, _) = tables[from..from + n * 8].as_chunks::<8>();
            eights.iter().map(|c| u64::from_ne_bytes(*c)).enumerate().filter(|(_, n)| *n > 0)
        };
        let times = |from| counts(from, BUCKETS).map(|(i, n)| (bucket_ns(i), n)).collect();
        Ok(Outcome {
            progress: self.monitor.progress(),
            sizes: counts(made_at, MAX_FRAME).map(|(len, n)| (len as u16, n)).collect(),
            sequences: self.sequences()?,
            start_ns: read(offset_of!(TdState, start_ns)),
            first_ns: read(offset_of!(TdState, first_ns)),
            last_ns: read(offset_of!(TdState, last_ns)),
            utc_offset_ns: self.utc_offset_ns,
            gaps: times(made_at + MAX_FRAME * 8),
            jitters: times(made_at + MAX_FRAME * 8 + BUCKETS * 8),
            gap_max_ns: read(offset_of!(TdState, gap_max_ns)),
            jitter_max_ns: read(offset_of!(TdState, jitter_max_ns)),
            late_max_ns: read(offset_of!(TdState, late_max_ns)),
            late_last_ns: read(offset_of!(TdState, last_ns))
                .saturating_sub(read(offset_of!(TdState, last_due_ns))),
        })
    }

    fn sequences(&self) -> io::Result<Vec<u64>> {
        let map = libbpf::map(&self.object, "flows")?;
        let batches = map.lookup_batch(65_536, MapFlags::ANY, MapFlags::ANY);
        let mut next = vec![0; self.flows as usize];
        for (key, value) in batches.map_err(|e| io_error(&e))? {
            let (Some(index), Some(sequence)) = (key.first_chunk(), value.last_chunk()) else {
                continue;
            };
            if let Some(n) = next.get_mut(u32::from_ne_bytes(*index) as usize) {
                *n = u64::from_ne_bytes(*sequence);
            }
        }
        Ok(next)
    }
}

/// Returns how many packets leave together. Each batch costs as much as several packets, so at high
/// rates those go together that are due within a few microseconds.
fn batch(pace: Option<Pace>, plan: &Plan) -> u32 {
    const ALONE_NS: u64 = 5_000;
    const TOGETHER_NS: u64 = 20_000;
    const MOST: u64 = 64;
    let gap = pace.map_or(0, |p| (p.gap + p.gap_per_byte * u64::from(plan.longest)) >> GAP_PARTS);
    if gap >= ALONE_NS {
        return 1;
    }
    TOGETHER_NS.checked_div(gap).unwrap_or(MOST).clamp(1, MOST) as u32
}

/// Looks at a run, and ends it.
#[derive(Clone)]
pub struct Monitor {
    state: Arc<Mapping>,
    control: Arc<Mapping>,
}

impl Monitor {
    /// Says when the run starts, in `CLOCK_MONOTONIC` nanoseconds, if it has not begun. Else it
    /// starts when it runs.
    pub fn start_at(&self, ns: u64) {
        self.state.u64(offset_of!(TdState, start_ns)).store(ns, Relaxed);
    }

    /// Has the program send no more. It goes on running until a signal comes.
    pub fn stop(&self) {
        self.control.u32(0).store(1, Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.control.u32(0).load(Relaxed) != 0
    }

    pub fn progress(&self) -> Progress {
        let read = |at| self.state.u64(at).load(Relaxed);
        Progress {
            // Read first, so that what was taken cannot be more than what was made.
            taken: read(offset_of!(TdState, taken)),
            made: read(offset_of!(TdState, made)),
            bytes: read(offset_of!(TdState, bytes)),
            done: self.state.u32(offset_of!(TdState, done)).load(Relaxed) != 0,
            failed: self.state.u32(offset_of!(TdState, done)).load(Relaxed) == 2,
        }
    }
}

/// Returns the time in the middle of a bucket.
fn bucket_ns(index: usize) -> u64 {
    let (octave, part) = (index / 64, index as u64 % 64);
    if octave == 0 { part } else { ((64 + part) << (octave - 1)) + (1 << (octave - 1)) / 2 }
}

struct TransmitParams<'a> {
    ifindex: u32,
    plan: &'a Plan,
    mark_every_ns: u64,
    pace: Option<Pace>,
    limits: Limits,
    utc_offset_ns: i64,
}

impl TransmitParams<'_> {
    /// Returns the plan as the program is told it.
    fn bytes(&self, frame_bytes: usize) -> Vec<u8> {
        let plan = self.plan;
        let headers = &plan.headers;
        let pace = self.pace.unwrap_or(Pace { gap: 0, gap_per_byte: 0, lead_ns: 0 });
        let outer_sum = match headers.tunnel {
            Tunnel::None => 0,
            _ => Sum::default().bytes(&headers.bytes[headers.outer_ip_at..][..20]).fold(),
        };
        let (columns, sequence, first, step) = match &plan.sizes {
            Sizes::Drawn(columns) => (columns.len(), 0, 0, 0),
            Sizes::Sequence { sizes, first, step } => (0, sizes.len(), *first, *step),
        };
        let mut in_front = [0; MAX_HEADERS];
        in_front[..headers.bytes.len()].copy_from_slice(&headers.bytes);
        let params = TdGenerate {
            payload_seed: plan.payload_seed,
            gap: pace.gap,
            gap_per_byte: pace.gap_per_byte,
            duration_ns: self.limits.duration_ns,
            count: self.limits.packets,
            mark_every_ns: if plan.mark.is_some() { self.mark_every_ns } else { 0 },
            lead_ns: pace.lead_ns,
            utc_offset_ns: self.utc_offset_ns,
            paced: self.pace.is_some().into(),
            ifindex: self.ifindex,
            flows: plan.flows.len() as u32,
            shares: plan.shares.as_ref().map_or(0, Vec::len) as u32,
            sizes: columns as u32,
            sequence: sequence as u32,
            first: first as u32,
            step: step as u32,
            frame_bytes: frame_bytes as u32,
            headers_len: headers.bytes.len() as u32,
            ip_at: headers.ip_at as u32,
            outer_ip_at: headers.outer_ip_at as u32,
            tunnel: tunnel_number(headers.tunnel),
            outer_sum: outer_sum.into(),
            ipv6: headers.ipv6.into(),
            pad: 0,
            headers: in_front,
        };
        params.bytes().to_vec()
    }
}

/// Returns a tunnel's number in `bpf/generate.h`.
pub(crate) fn tunnel_number(tunnel: Tunnel) -> u32 {
    match tunnel {
        Tunnel::None => 0,
        Tunnel::Vxlan => 1,
        Tunnel::Gre => 2,
    }
}

/// Returns a transport protocol's number in `bpf/generate.h`.
pub(crate) fn transport_number(transport: Transport) -> u16 {
    match transport {
        Transport::Udp => 0,
        Transport::Tcp => 1,
        Transport::Icmp => 2,
    }
}

/// Sizes the maps and sets what the program begins with.
fn fill_in(open: &mut OpenObject, plan: &Plan, params: &[u8]) -> io::Result<()> {
    let flows = plan.flows.len() + 1;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = |map: &mut OpenMapMut<'_>, n: usize| {
            map.set_max_entries(n.max(1) as u32).map_err(|e| io_error(&e))
        };
        match name.as_str() {
            "flows" => entries(&mut map, flows)?,
            "shares" => entries(&mut map, plan.shares.as_ref().map_or(0, Vec::len))?,
            "sizes" => {
                let Sizes::Drawn(columns) = &plan.sizes else { continue };
                entries(&mut map, columns.len())?;
            }
            "sequence" => {
                let Sizes::Sequence { sizes, .. } = &plan.sizes else { continue };
                entries(&mut map, sizes.len().div_ceil(4))?;
            }
            n if n.ends_with(".rodata.params") => {
                map.set_initial_value(params).map_err(|e| io_error(&e))?;
            }
            n if n.ends_with(".data.state") => {
                let state = TdState { random: plan.seed, ..TdState::default() };
                map.set_initial_value(state.as_bytes()).map_err(|e| io_error(&e))?;
            }
            // The object's name stands before it.
            n if n.rsplit('.').next() == Some("bss") => {
                map.set_initial_value(&tables(plan)).map_err(|e| io_error(&e))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// `tables` of generate.bpf.c before the run.
fn tables(plan: &Plan) -> Vec<u8> {
    let mut bytes = vec![0; FILLER_BYTES + MAX_FRAME + 2 * SUMS + 8 * (MAX_FRAME + 2 * BUCKETS)];
    let used = plan.filler.len().min(FILLER_BYTES + MAX_FRAME);
    bytes[..used].copy_from_slice(&plan.filler[..used]);
    let sums = filler_sums(&plan.filler[..used]);
    let (room, _) = bytes[FILLER_BYTES + MAX_FRAME..].as_chunks_mut::<2>();
    for (at, sum) in room[..SUMS].iter_mut().zip(sums) {
        *at = sum.to_ne_bytes();
    }
    bytes
}

/// Fills the maps of a loaded program.
fn load_tables(object: &Object, plan: &Plan) -> io::Result<()> {
    let flows = plan.flows.iter().chain(&plan.mark).map(flow_bytes);
    load(object, "flows", size_of::<TdFlow>(), &flows.flatten().collect::<Vec<_>>())?;
    let columns = |columns: &[Column]| -> Vec<u8> {
        let column = |c: &Column| {
            TdColumn { threshold: c.threshold, own: c.own, other: c.other }.bytes().to_vec()
        };
        columns.iter().flat_map(column).collect()
    };
    if let Some(shares) = &plan.shares {
        load(object, "shares", size_of::<TdColumn>(), &columns(shares))?;
    }
    match &plan.sizes {
        Sizes::Drawn(sizes) => load(object, "sizes", size_of::<TdColumn>(), &columns(sizes)),
        Sizes::Sequence { sizes, .. } => {
            let four = |four: &[u16]| {
                four.iter().rev().fold(0u64, |all, &size| all << 16 | u64::from(size))
            };
            let bytes: Vec<u8> = sizes.chunks(4).flat_map(|c| four(c).to_ne_bytes()).collect();
            load(object, "sequence", 8, &bytes)
        }
    }
}

/// Writes the elements of an array map, `each` bytes one.
fn load(object: &Object, name: &str, each: usize, values: &[u8]) -> io::Result<()> {
    let map = libbpf::map(object, name)?;
    let count = (values.len() / each) as u32;
    let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    map.update_batch(&keys, values, count, MapFlags::ANY, MapFlags::ANY).map_err(|e| io_error(&e))
}

/// Returns a flow as the program has it before its first packet.
fn flow_bytes(flow: &Flow) -> Vec<u8> {
    let flow = TdFlow {
        source: flow.source,
        destination: flow.destination,
        source_port: flow.source_port.to_be_bytes(),
        destination_port: flow.destination_port.to_be_bytes(),
        tunnel_port: flow.tunnel_port.to_be_bytes(),
        transport: transport_number(flow.transport),
        header_sum: flow.header_sum,
        transport_sum: flow.transport_sum,
        stream: flow.stream,
        tcp_acknowledgement: flow.tcp_acknowledgement.to_be_bytes(),
        tcp_sequence: flow.tcp_sequence,
        next: 0,
    };
    flow.bytes().to_vec()
}
