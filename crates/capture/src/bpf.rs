//! Loads the hook programs and maps what they share with user space.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramInput};

use crate::ring::{Geometry, RingMemory};
use crate::sys::mapping::Mapping;
use std::sync::atomic::Ordering::Release;

/// An object file, aligned as an ELF reader wants it.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);
static RECORD: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o")));

/// `sizeof(struct td_params) / 4`.
pub(crate) const PARAM_WORDS: usize = 15;
/// `sizeof(struct td_control)`, and where its offsets begin.
pub(crate) const CONTROL_BYTES: usize = 8 + 256 * 8;
pub(crate) const UTC_OFFSETS: usize = 8;

const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// Which of the programs to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Xdp,
    /// Bound to its device: asks the driver for time and VLAN tag.
    XdpMetadata,
    Ingress,
    Egress,
    Netfilter,
    Redirect,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Xdp => "tapdeck_xdp",
            Self::XdpMetadata => "tapdeck_xdp_metadata",
            Self::Ingress => "tapdeck_ingress",
            Self::Egress => "tapdeck_egress",
            Self::Netfilter => "tapdeck_netfilter",
            Self::Redirect => "tapdeck_redirect",
        }
    }
}

/// `struct td_params`, but for what follows from the geometry.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub geometry: Geometry,
    pub first_interface: u32,
    pub ifindex: u32,
    pub consume: bool,
    pub hardware_time: bool,
    pub hardware_vlan: bool,
    /// At the XDP hooks: a ring for each CPU, and not for each receive queue.
    pub by_cpu: bool,
    pub link_header: bool,
}

impl Params {
    /// For programs that let packets pass, with the smallest rings, which nobody reads.
    pub fn unread(ifindex: u32) -> Self {
        Self {
            geometry: Geometry { nrings: 1, nblocks: 4, block_shift: 16, snaplen: 1024 },
            first_interface: 0,
            ifindex,
            consume: false,
            hardware_time: false,
            hardware_vlan: false,
            by_cpu: false,
            link_header: true,
        }
    }

    fn words(&self) -> [u32; PARAM_WORDS] {
        let g = &self.geometry;
        [
            g.nrings,
            g.block_shift,
            g.block_bytes(),
            g.nblocks - 1,
            g.ring_bytes() - 1,
            g.snaplen,
            g.len_mask(),
            (g.len_mask() << 1 | 1) & !3,
            self.first_interface,
            self.ifindex,
            u32::from(self.consume),
            u32::from(self.hardware_time),
            u32::from(self.hardware_vlan),
            u32::from(self.by_cpu),
            u32::from(self.link_header),
        ]
    }
}

/// Where a hook's programs read the offset to UTC.
pub(crate) struct Control(Mapping);

impl Control {
    /// Stores an epoch's offset, then makes it the epoch of blocks opened from now on.
    pub(crate) fn set(&self, epoch: u32, utc_offset_ns: i64) {
        self.0.i64(UTC_OFFSETS + epoch as usize * 8).store(utc_offset_ns, Release);
        self.0.u32(0).store(epoch, Release);
    }
}

/// Loaded programs and their rings.
pub struct Loaded {
    object: Object,
    rings: Vec<Arc<RingMemory>>,
}

/// The error number behind an error of libbpf-rs, which shows it in its text only.
pub(crate) fn io_error(e: &libbpf_rs::Error) -> io::Error {
    let text = format!("{e:#}");
    let number =
        text.rsplit_once("(os error ").and_then(|(_, n)| n.split(')').next()?.parse().ok());
    number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
}

/// What libbpf says goes to nobody, but for a person who asks for it.
pub(crate) fn quiet_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("TAPDECK_LIBBPF_LOG").is_none() {
            libbpf_rs::set_print(None);
        } else {
            libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| eprint!("{text}"))));
        }
    });
}

fn open(programs: &[Program], params: &Params) -> io::Result<OpenObject> {
    let mut object = ObjectBuilder::default().open_memory(&RECORD.0).map_err(|e| io_error(&e))?;
    let g = params.geometry;
    for mut program in object.progs_mut() {
        let wanted = programs.iter().find(|p| program.name() == p.name());
        program.set_autoload(wanted.is_some() || program.name() == "tapdeck_flush");
        if wanted == Some(&Program::XdpMetadata) {
            program.set_ifindex(params.ifindex);
            program.set_flags(BPF_F_XDP_DEV_BOUND_ONLY);
        }
    }
    for mut map in object.maps_mut() {
        let (value, entries) = match map.name().to_str() {
            Some("rings") => (g.ring_stride(), g.nrings),
            Some("data") => (g.data_stride(), g.nrings),
            Some("release") => (64, g.nrings),
            Some(name) if name.ends_with(".rodata.params") => {
                let bytes: Vec<u8> = params.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
                map.set_initial_value(&bytes).map_err(|e| io_error(&e))?;
                continue;
            }
            Some("sockets") => {
                map.set_autocreate(programs.contains(&Program::Redirect))
                    .map_err(|e| io_error(&e))?;
                continue;
            }
            _ => continue,
        };
        map.set_value_size(value as u32).map_err(|e| io_error(&e))?;
        map.set_max_entries(entries).map_err(|e| io_error(&e))?;
    }
    Ok(object)
}

impl Loaded {
    /// Loads programs with rings of their own.
    ///
    /// # Errors
    /// As bpf(2): `EPERM` without the privilege, `ENOMEM` where the rings do not fit, `EINVAL` where
    /// the kernel lacks what a program needs.
    pub fn new(programs: &[Program], params: &Params) -> io::Result<(Self, Control)> {
        quiet_libbpf();
        let object = open(programs, params)?.load().map_err(|e| io_error(&e))?;
        let g = params.geometry;
        let n = g.nrings as usize;
        let map = |name: &str, len: usize, writable: bool| -> io::Result<Arc<Mapping>> {
            let map = object
                .maps()
                .find(|m| m.name().to_str().is_some_and(|n| n.ends_with(name)))
                .ok_or_else(|| io::Error::other(format!("the program has no map {name}")))?;
            Ok(Arc::new(Mapping::of_fd(map.as_fd(), len, writable)?))
        };
        let rings = map("rings", n * g.ring_stride(), false)?;
        let data = map("data", n * g.data_stride(), false)?;
        let release = map("release", n * 64, true)?;
        let control = map(".data.control", CONTROL_BYTES, true)?;
        let control = Control(Arc::into_inner(control).expect("just made, not yet shared"));
        let rings = (0..g.nrings)
            .map(|i| {
                let memory = RingMemory::new(g, i, rings.clone(), data.clone(), release.clone());
                Arc::new(memory)
            })
            .collect();
        Ok((Self { object, rings }, control))
    }

    /// Loads the programs anew over the same rings, for a device that was made anew.
    pub fn reload(&mut self, programs: &[Program], params: &Params) -> io::Result<()> {
        let mut open = open(programs, params)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_owned();
            if name.to_str().is_some_and(|n| n.ends_with(".rodata.params")) || !map.autocreate() {
                continue;
            }
            if let Some(old) = self.object.maps().find(|m| m.name() == name) {
                map.reuse_fd(old.as_fd()).map_err(|e| io_error(&e))?;
            }
        }
        self.object = open.load().map_err(|e| io_error(&e))?;
        Ok(())
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    /// A loaded program's descriptor.
    pub fn program(&self, program: Program) -> io::Result<OwnedFd> {
        self.object
            .progs()
            .find(|p| p.name() == program.name())
            .ok_or_else(|| io::Error::other(format!("{} is not loaded", program.name())))?
            .as_fd()
            .try_clone_to_owned()
    }

    /// The descriptor of the map of AF_XDP sockets.
    pub fn sockets(&self) -> io::Result<OwnedFd> {
        self.object
            .maps()
            .find(|m| m.name() == "sockets")
            .ok_or_else(|| io::Error::other("no map of sockets"))?
            .as_fd()
            .try_clone_to_owned()
    }

    /// Closes `block` of a ring if it is still open and holds something.
    pub fn flush(&self, ring: u32, block: u32) -> io::Result<()> {
        let program = self
            .object
            .progs_mut()
            .find(|p| p.name() == "tapdeck_flush")
            .ok_or_else(|| io::Error::other("tapdeck_flush is not loaded"))?;
        let mut args = Vec::from(ring.to_ne_bytes());
        args.extend(block.to_ne_bytes());
        let input = ProgramInput { context_in: Some(&mut args), ..ProgramInput::default() };
        program.test_run(input).map_err(|e| io_error(&e))?;
        Ok(())
    }
}
