//! A daemon without a kernel behind it: it answers on a socket as `tapdeck serve` does, and gives
//! rings that the test fills.
#![allow(dead_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::PipeFlags;
use serde_json::{Value, json};
use tapdeck_packet::pcapng::{MIN_FILL, packet_len, write_packet};
use tapdeck_packet::ring::{FRAME_SHIFT, PACKET_SHIFT, layout};
use tapdeck_testkit::frame;
use tapdeck_testkit::wait::LIMIT;

/// The form of a member's rings.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub nrings: usize,
    pub nblocks: u32,
    pub block_shift: u32,
}

impl Default for Form {
    fn default() -> Self {
        Self { nrings: 2, nblocks: 4, block_shift: 16 }
    }
}

impl Form {
    fn ring_stride(&self) -> usize {
        layout::RING + self.nblocks as usize * layout::BLOCK
    }

    fn data_stride(&self) -> usize {
        ((self.nblocks as usize) << self.block_shift) + 4096
    }
}

/// A packet to put into a ring.
#[derive(Clone, Debug)]
pub struct Sent {
    pub time_ns: u64,
    pub frame: Vec<u8>,
    pub original_len: u32,
    pub interface: u32,
    pub flags: u32,
}

/// 2026-11-22 09:00 UTC.
pub const EPOCH_NS: u64 = 1_795_338_000_000_000_000;

/// An Ethernet frame with an IPv4 UDP datagram from 10.0.0.1 to 10.0.0.2, whose source port is 1000
/// + `n`.
pub fn udp(n: u16) -> Sent {
    let datagram = frame::udp([1000 + n, 53], &n.to_be_bytes());
    let packet = frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), frame::UDP, &datagram);
    let (to, from) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let frame = frame::ethernet(to, from, &[], frame::IPV4, &packet);
    let original_len = frame.len() as u32;
    let time_ns = EPOCH_NS + u64::from(n) * 1_000_001;
    Sent { time_ns, frame, original_len, interface: 0, flags: 0 }
}

/// One ring's producer. It is alone, so its own numbers are the ring's.
#[derive(Clone, Debug)]
struct Producer {
    block: u32,
    bytes: u32,
    commits: Vec<u64>,
    lost: u64,
    told: u64,
}

/// A member's memory, as the kernel would fill it. It is written with `pwrite`: the files lie in
/// memory, so the member's mappings show it at once.
pub struct Tape {
    form: Form,
    rings: File,
    data: File,
    release: File,
    wake: Option<OwnedFd>,
    producers: Vec<Producer>,
}

fn memory(name: &str, len: usize) -> File {
    let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
    file.set_len(len.next_multiple_of(4096) as u64).unwrap();
    file
}

impl Tape {
    fn new(form: Form, wake: OwnedFd) -> Self {
        let n = form.nrings;
        let producer = Producer {
            block: 0,
            bytes: 0,
            commits: vec![0; form.nblocks as usize],
            lost: 0,
            told: 0,
        };
        Self {
            form,
            rings: memory("rings", n * form.ring_stride()),
            data: memory("data", n * form.data_stride()),
            release: memory("release", n * layout::RELEASE),
            wake: Some(wake),
            producers: vec![producer; n],
        }
    }

    fn store(&self, ring: usize, offset: usize, bytes: &[u8]) {
        self.rings.write_all_at(bytes, (ring * self.form.ring_stride() + offset) as u64).unwrap();
    }

    /// The first block that the member has not released.
    pub fn released(&self, ring: usize) -> u32 {
        let mut bytes = [0; 4];
        self.release.read_exact_at(&mut bytes, (ring * layout::RELEASE) as u64).unwrap();
        u32::from_ne_bytes(bytes)
    }

    fn set_word(&self, ring: usize) {
        let p = &self.producers[ring];
        let word = u64::from(p.block) << 32 | u64::from(p.bytes);
        self.store(ring, 0, &word.to_ne_bytes());
    }

    fn commit(&mut self, ring: usize, block: u32, n: u64) {
        let slot = (block % self.form.nblocks) as usize;
        let sum = &mut self.producers[ring].commits[slot];
        *sum = sum.wrapping_add(n);
        let sum = *sum;
        self.store(ring, layout::RING + slot * layout::BLOCK, &sum.to_ne_bytes());
    }

    /// Closes the open block; false where the next one is not free or there is nothing in it.
    pub fn close(&mut self, ring: usize) -> bool {
        let (block, bytes) = (self.producers[ring].block, self.producers[ring].bytes);
        let ahead = block.wrapping_add(1).wrapping_sub(self.released(ring));
        if bytes == 0 || ahead as i32 >= self.form.nblocks as i32 {
            return false;
        }
        self.producers[ring].block = block.wrapping_add(1);
        self.producers[ring].bytes = 0;
        self.set_word(ring);
        let slot = (block % self.form.nblocks) as usize;
        let at = layout::RING + slot * layout::BLOCK;
        self.store(ring, at + layout::USED, &bytes.to_ne_bytes());
        self.store(ring, at + layout::EPOCH, &0u32.to_ne_bytes());
        self.commit(ring, block, (1 << self.form.block_shift) - u64::from(bytes));
        true
    }

    /// Closes all open blocks and wakes the member.
    pub fn flush(&mut self) {
        for ring in 0..self.form.nrings {
            self.close(ring);
        }
        self.wake();
    }

    pub fn wake(&self) {
        if let Some(wake) = &self.wake {
            // The member may be gone, or the pipe full.
            let _ = rustix::io::write(wake, &[1]);
        }
    }

    /// Reserves room for a packet and leaves it uncommitted, as a producer does that is at work.
    /// Returns what the commit is.
    pub fn begin(&mut self, ring: usize, sent: &Sent) -> Option<(u32, u64)> {
        let p = &self.producers[ring];
        let dropped = p.lost - p.told;
        let total = packet_len(sent.frame.len(), sent.flags, dropped) as u32;
        let room = (1 << self.form.block_shift) - MIN_FILL as u32;
        assert!(total <= room, "a packet larger than a block");
        if p.bytes + total > room && !self.close(ring) {
            let p = &mut self.producers[ring];
            p.lost += 1;
            let lost = p.lost;
            self.store(ring, layout::LOST, &lost.to_ne_bytes());
            return None;
        }
        let p = &mut self.producers[ring];
        p.told = p.lost;
        let (block, offset) = (p.block, p.bytes);
        p.bytes += total;
        self.set_word(ring);
        let mut out = vec![0; total as usize];
        let frame = [&sent.frame[..], &[], &[]];
        let Sent { interface, time_ns, original_len, flags, .. } = *sent;
        write_packet(&mut out, interface, time_ns, frame, original_len, flags, dropped);
        let slot = (block % self.form.nblocks) as usize;
        let at = ring * self.form.data_stride() + (slot << self.form.block_shift);
        self.data.write_all_at(&out, at as u64 + u64::from(offset)).unwrap();
        let frame = (sent.frame.len() as u64) << FRAME_SHIFT;
        Some((block, u64::from(total) | frame | 1 << PACKET_SHIFT))
    }

    pub fn end(&mut self, ring: usize, begun: (u32, u64)) {
        self.commit(ring, begun.0, begun.1);
    }

    /// Puts a packet into a ring; false where it is full.
    pub fn put(&mut self, ring: usize, sent: &Sent) -> bool {
        match self.begin(ring, sent) {
            Some(begun) => {
                self.end(ring, begun);
                true
            }
            None => false,
        }
    }

    /// Overwrites what lies in the open block, which a kernel never does.
    pub fn damage(&self, ring: usize, offset: u64, bytes: &[u8]) {
        let p = &self.producers[ring];
        let slot = (p.block % self.form.nblocks) as usize;
        let at = ring * self.form.data_stride() + (slot << self.form.block_shift);
        self.data.write_all_at(bytes, at as u64 + offset).unwrap();
    }

    pub fn lost(&self) -> u64 {
        self.producers.iter().map(|p| p.lost).sum()
    }
}

/// A member as the daemon sees it.
#[derive(Clone)]
pub struct Joined {
    tape: Arc<Mutex<Tape>>,
    left: Arc<AtomicBool>,
    pub weight: u64,
}

impl Joined {
    pub fn tape(&self) -> MutexGuard<'_, Tape> {
        self.tape.lock().unwrap()
    }

    /// Whether its connection has ended.
    pub fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }
}

/// How the daemon behaves.
#[derive(Clone)]
pub struct Manner {
    pub form: Form,
    pub group: String,
    pub snaplen: u32,
    pub interfaces: Value,
    /// What happens to the rings before the member hears of them.
    pub prepare: fn(&mut Tape),
    /// Changes the answer to `attach` before it is sent.
    pub twist: fn(&mut Value),
    /// Descriptors that come with it.
    pub fds: usize,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            form: Form::default(),
            group: "ids".into(),
            snaplen: 65_535,
            interfaces: json!([{"name": "eth1", "link": 1, "snaplen": 65535, "description": "queue 0", "filter": null,
                "hardware": null, "mac": "02:00:00:00:00:01"}]),
            prepare: |_| {},
            twist: |_| {},
            fds: 4,
        }
    }
}

/// The members with their connections.
type Connections = Mutex<Vec<(UnixStream, Joined)>>;

pub struct Daemon {
    directory: tempfile::TempDir,
    connections: Arc<Connections>,
    joined: Mutex<Receiver<Joined>>,
}

impl Daemon {
    pub fn new(manner: Manner) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (tell, joined) = channel();
        let theirs = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                let (manner, tell, connections) = (manner.clone(), tell.clone(), theirs.clone());
                std::thread::spawn(move || converse(&stream, &manner, &tell, &connections));
            }
        });
        Self { directory, connections, joined: joined.into() }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The next member to join.
    pub fn joined(&self) -> Joined {
        self.joined.lock().unwrap().recv_timeout(LIMIT).expect("nobody attaches")
    }

    /// The next member, if one has joined.
    pub fn try_joined(&self) -> Option<Joined> {
        self.joined.lock().unwrap().try_recv().ok()
    }

    /// Dies: the connections and the pipes are closed, what lies in the rings stays.
    pub fn die(&self) {
        for (stream, joined) in self.connections.lock().unwrap().iter() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            joined.tape().wake = None;
        }
    }
}

fn converse(
    stream: &UnixStream,
    manner: &Manner,
    tell: &Sender<Joined>,
    connections: &Connections,
) {
    let mut member: Option<Joined> = None;
    let answer = |mut text: Vec<u8>| {
        text.push(b'\n');
        let mut stream = stream;
        let _ = stream.write_all(&text);
    };
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let asked: Value = serde_json::from_str(&line).unwrap();
        let said = match asked["verb"].as_str().unwrap() {
            "attach" if asked["group"] != manner.group.as_str() => {
                json!({"ok": false, "error": format!("there is no group {}", asked["group"])})
            }
            "attach" => {
                let joined = attach(stream, manner, asked["weight"].as_u64().unwrap());
                connections.lock().unwrap().push((stream.try_clone().unwrap(), joined.clone()));
                let _ = tell.send(joined.clone());
                member = Some(joined);
                continue;
            }
            "groups" => {
                json!({"ok": true, "groups": [{"name": manner.group, "interfaces": ["eth1"], "members": 0}]})
            }
            "stats" => {
                let lost = member.as_ref().map(|m| m.tape().lost());
                json!({"ok": true, "member": 7, "seen": 1000, "captured": 900, "dropped_ring": lost,
                    "dropped_other": 1})
            }
            "flush" => {
                member.as_ref().unwrap().tape().flush();
                json!({"ok": true})
            }
            "leave" => {
                let joined = member.as_ref().unwrap();
                joined.tape().flush();
                joined.tape().wake = None;
                joined.left.store(true, SeqCst);
                json!({"ok": true, "captured": 900})
            }
            other => json!({"ok": false, "error": format!("no verb {other}")}),
        };
        answer(serde_json::to_vec(&said).unwrap());
    }
    if let Some(joined) = member {
        joined.left.store(true, SeqCst);
    }
}

fn attach(stream: &UnixStream, manner: &Manner, weight: u64) -> Joined {
    let form = manner.form;
    let (wake, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let mut tape = Tape::new(form, ours);
    (manner.prepare)(&mut tape);
    let mut said = json!({
        "ok": true, "protocol": 1, "group": manner.group, "member": 7, "nrings": form.nrings,
        "nblocks": form.nblocks, "block_shift": form.block_shift, "snaplen": manner.snaplen,
        "ring_stride": form.ring_stride(), "data_stride": form.data_stride(),
        "release_stride": layout::RELEASE, "interfaces": manner.interfaces,
    });
    (manner.twist)(&mut said);
    let mut line = serde_json::to_vec(&said).unwrap();
    line.push(b'\n');
    let fds = [tape.rings.as_fd(), tape.data.as_fd(), tape.release.as_fd(), wake.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if manner.fds > 0 {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds[..manner.fds])));
    }
    // In two pieces: the descriptors come with the first.
    let (first, rest) = line.split_at(5);
    sendmsg(stream, &[IoSlice::new(first)], &mut ancillary, SendFlags::empty()).unwrap();
    let mut stream = stream;
    stream.write_all(rest).unwrap();
    Joined { tape: Arc::new(Mutex::new(tape)), left: Arc::new(AtomicBool::new(false)), weight }
}
