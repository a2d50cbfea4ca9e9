//! Sending from inside the kernel, as fast as it goes: a BPF program run with
//! `BPF_F_TEST_XDP_LIVE_FRAMES` numbers each copy of a frame and redirects it to an interface.
//!
//! The far end must take redirected frames: a veth peer needs an XDP program or GRO.
//! Each run costs about 25 ms to set up, so this serves floods, not pacing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{Object, ObjectBuilder, ProgramInput, ProgramMut};

use crate::bpf::{Aligned, io_error, quiet_libbpf};
use crate::sys::kernel::{self, AttachPoint};

static TRANSMIT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/transmit.bpf.o")));

const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// Floods one interface with copies of one frame.
pub struct Flood {
    object: Object,
    frame: Vec<u8>,
}

impl Flood {
    /// `sequence_at` is where in the frame 8 bytes of sequence number go, `gap_ns` the time from one
    /// frame to the next (at most about 50 µs; 0: as fast as it goes).
    ///
    /// # Errors
    /// As bpf(2); `EINVAL` on kernels before 5.18.
    pub fn new(ifindex: u32, frame: &[u8], sequence_at: u32, gap_ns: u32) -> io::Result<Self> {
        Ok(Self { object: load(ifindex, sequence_at, 0, gap_ns)?, frame: frame.to_vec() })
    }

    /// Sends the frame `count` times.
    pub fn send(&self, count: u32) -> io::Result<()> {
        let program = program(&self.object, "tapdeck_transmit")?;
        let input = ProgramInput {
            data_in: Some(&self.frame),
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            repeat: count,
            ..ProgramInput::default()
        };
        program.test_run(input).map_err(|e| io_error(&e))?;
        Ok(())
    }
}

/// Drops every packet of an interface in its driver, for as long as this value lives: the least that a
/// receiver can do, against which hooks are measured.
#[derive(Debug)]
pub struct Drain {
    _link: OwnedFd,
}

impl Drain {
    pub fn attach(ifindex: u32) -> io::Result<Self> {
        let object = load(ifindex, 0, 0, 0)?;
        let drop = program(&object, "tapdeck_drop")?;
        kernel::attach(drop.as_fd(), AttachPoint::Xdp { ifindex, generic: false })
            .map(|link| Self { _link: link })
    }
}

/// Tags every frame that leaves by an interface, for as long as this value lives. The tag (802.1ad)
/// stands beside the frame, as a VLAN device above the interface would put it, so that the far end's
/// device hands it on in the same way.
#[derive(Debug)]
pub struct Tag {
    _link: OwnedFd,
}

impl Tag {
    /// # Errors
    /// `EINVAL` on kernels before 6.6.
    pub fn attach(ifindex: u32, tci: u16) -> io::Result<Self> {
        let object = load(0, 0, tci, 0)?;
        let tag = program(&object, "tapdeck_tag")?;
        kernel::attach(tag.as_fd(), AttachPoint::TcxEgress { ifindex })
            .map(|link| Self { _link: link })
    }
}

fn load(ifindex: u32, sequence_at: u32, tag: u16, gap_ns: u32) -> io::Result<Object> {
    quiet_libbpf();
    let mut object = ObjectBuilder::default().open_memory(&TRANSMIT.0).map_err(|e| io_error(&e))?;
    for mut map in object.maps_mut() {
        if map.name().to_str().is_some_and(|n| n.ends_with(".rodata.params")) {
            let mut params = Vec::from(ifindex.to_ne_bytes());
            params.extend(sequence_at.to_ne_bytes());
            params.extend(u32::from(tag).to_ne_bytes());
            params.extend(gap_ns.to_ne_bytes());
            map.set_initial_value(&params).map_err(|e| io_error(&e))?;
        }
    }
    object.load().map_err(|e| io_error(&e))
}

fn program<'o>(object: &'o Object, name: &str) -> io::Result<ProgramMut<'o>> {
    let missing = || io::Error::other(format!("{name} is not loaded"));
    object.progs_mut().find(|p| p.name() == name).ok_or_else(missing)
}
