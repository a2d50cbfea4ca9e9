//! Sending from inside the kernel, as fast as it goes: a BPF program run with
//! `BPF_F_TEST_XDP_LIVE_FRAMES` numbers each copy of a frame and redirects it to an interface.
//!
//! The far end must take redirected frames: a veth peer needs an XDP program or GRO.
//! Each run costs about 25 ms to set up, so this serves floods, not pacing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};

use crate::bpf::object::Aligned;
use crate::sys::generate::TdTransmit;
use crate::sys::kernel::{self, AttachPoint};
use crate::sys::libbpf::{self, io_error, map, program, quiet_libbpf};

static TRANSMIT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/transmit.bpf.o")));

const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// `MAX_PAIRS` of `transmit.bpf.c`.
const MAX_PAIRS: usize = 4096;

/// Floods one interface with copies of one frame.
pub struct Flood {
    object: Object,
    frame: Vec<u8>,
}

impl Flood {
    /// Prepares to send copies of a frame. `sequence_at` is where in the frame 8 bytes of sequence
    /// number go, `gap_ns` the time from one frame to the next (at most about 50 µs; 0: as fast as
    /// it goes).
    ///
    /// # Errors
    /// As bpf(2); `EINVAL` on kernels before 5.18.
    pub fn new(ifindex: u32, frame: &[u8], sequence_at: u32, gap_ns: u32) -> io::Result<Self> {
        let params = TdTransmit { ifindex, sequence_at, gap_ns, ..TdTransmit::default() };
        Ok(Self { object: load(params)?, frame: frame.to_vec() })
    }

    /// Prepares to send copies, as [`Flood::new`] does, of an IPv4 frame whose addresses (source
    /// and destination as they lie in it; the header's checksum stays as it is) are taken from
    /// `pairs` in turn.
    ///
    /// # Errors
    /// As bpf(2); `EINVAL` where the pairs are not a power of two or more than 4096.
    pub fn with_addresses(
        ifindex: u32,
        frame: &[u8],
        sequence_at: u32,
        gap_ns: u32,
        pairs: &[[u8; 8]],
    ) -> io::Result<Self> {
        if !pairs.len().is_power_of_two() || pairs.len() > MAX_PAIRS {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let params = TdTransmit { ifindex, sequence_at, gap_ns, pairs: pairs.len() as u32, tag: 0 };
        let object = load(params)?;
        let map = map(&object, "pairs")?;
        for (key, pair) in (0u32..).zip(pairs) {
            map.update(&key.to_ne_bytes(), pair, MapFlags::ANY).map_err(|e| io_error(&e))?;
        }
        Ok(Self { object, frame: frame.to_vec() })
    }

    /// Sends the frame `count` times. Returns how long the kernel says that it sent: what it takes
    /// to set a run up and to end it is left out, and so is what is less than a nanosecond a frame.
    pub fn send(&self, count: u32) -> io::Result<Duration> {
        let program = program(&self.object, "tapdeck_transmit")?;
        let input = ProgramInput {
            data_in: Some(&self.frame),
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            repeat: count,
            ..ProgramInput::default()
        };
        let output = program.test_run(input).map_err(|e| io_error(&e))?;
        Ok(output.duration * count)
    }
}

/// Drops every packet of an interface in its driver, for as long as this value lives: the least
/// that a receiver can do, against which hooks are measured.
#[derive(Debug)]
pub struct Drain {
    _link: OwnedFd,
}

impl Drain {
    pub fn attach(ifindex: u32) -> io::Result<Self> {
        let object = load(TdTransmit::default())?;
        let drop = program(&object, "tapdeck_drop")?;
        kernel::attach(drop.as_fd(), AttachPoint::Xdp { ifindex, generic: false })
            .map(|link| Self { _link: link })
    }
}

/// Tags every frame that leaves by an interface, for as long as this value lives. The tag (802.1ad)
/// stands beside the frame, as a VLAN device above the interface would put it, so that the far
/// end's device hands it on in the same way.
#[derive(Debug)]
pub struct Tag {
    _link: OwnedFd,
}

impl Tag {
    /// # Errors
    /// `EINVAL` on kernels before 6.6.
    pub fn attach(ifindex: u32, tci: u16) -> io::Result<Self> {
        let object = load(TdTransmit { tag: tci.into(), ..TdTransmit::default() })?;
        let tag = program(&object, "tapdeck_tag")?;
        kernel::attach(tag.as_fd(), AttachPoint::TcxEgress { ifindex })
            .map(|link| Self { _link: link })
    }
}

fn load(params: TdTransmit) -> io::Result<Object> {
    quiet_libbpf();
    let mut object = ObjectBuilder::default().open_memory(&TRANSMIT.0).map_err(|e| io_error(&e))?;
    for mut map in object.maps_mut() {
        if map.name().to_str().is_some_and(|n| n.ends_with(".rodata.params")) {
            map.set_initial_value(params.bytes()).map_err(|e| io_error(&e))?;
        }
    }
    libbpf::load(object)
}
