//! Loads the hook programs and maps what they share with user space.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramInput};

use crate::MAX_RINGS;
use crate::filter::ebpf::INSTRUCTION;
use crate::filter::splice::{Filters, splice};
use crate::ring::{Geometry, RingMemory};
use crate::rules::Images;
use crate::sys::mapping::Mapping;
use crate::sys::{kernel, program};
use std::sync::atomic::Ordering::Release;

/// An object file, aligned as an ELF reader wants it.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);
static RECORD: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o")));
static RECORD_RULES: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/record_rules.bpf.o")));

/// `sizeof(struct td_params) / 4`.
pub(crate) const PARAM_WORDS: usize = 16;
/// `sizeof(struct td_control)`, and where its snaplen and its offsets are.
pub(crate) const CONTROL_BYTES: usize = 8 + 256 * 8;
pub(crate) const SNAPLEN: usize = 4;
pub(crate) const UTC_OFFSETS: usize = 8;

/// Size of a value of the map `refused`.
pub(crate) const REFUSED_STRIDE: usize = 64;

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
    pub(crate) fn name(self) -> &'static str {
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
    /// Filters are put in.
    pub filtered: bool,
    /// There may be rules: the programs are those that look for some.
    pub judged: bool,
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
            filtered: false,
            judged: false,
        }
    }

    /// The structure as the programs have it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(crate) fn words(&self) -> [u32; PARAM_WORDS] {
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
            u32::from(self.filtered),
        ]
    }
}

/// Where a hook's programs read the offset to UTC.
pub(crate) struct Control(Arc<Mapping>);

impl Control {
    /// In `CONTROL_BYTES` of a mapping that can be written.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Self {
        Self(mapping)
    }

    /// Stores an epoch's offset, then makes it the epoch of blocks opened from now on.
    pub(crate) fn set(&self, epoch: u32, utc_offset_ns: i64) {
        self.0.i64(UTC_OFFSETS + epoch as usize * 8).store(utc_offset_ns, Release);
        self.0.u32(0).store(epoch, Release);
    }
}

/// Loaded programs and their rings.
pub struct Loaded {
    programs: LoadedObject,
    rings: Vec<Arc<RingMemory>>,
    control: Arc<Mapping>,
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

/// What [`load_filtered`] has loaded.
pub(crate) struct LoadedObject {
    /// The maps, and the programs that are not hook programs.
    pub(crate) object: Object,
    hooks: Vec<(Program, OwnedFd)>,
}

impl LoadedObject {
    /// A hook program's descriptor.
    pub(crate) fn program(&self, program: Program) -> io::Result<OwnedFd> {
        self.hooks
            .iter()
            .find(|(which, _)| *which == program)
            .ok_or_else(|| io::Error::other(format!("{} is not loaded", program.name())))?
            .1
            .try_clone()
    }
}

/// Loads hook programs with filters in them, and whatever else the object has.
///
/// Refuses a program bound to its device, which is `ifindex`, that the kernel moved while it
/// verified it. The kernel then forgets to tell the device, and reads freed memory when that goes
/// away; such a program must be gone before.
///
/// # Errors
/// As bpf(2): `E2BIG` where the verifier gives up for the filters' length.
pub(crate) fn load_filtered(
    mut open: OpenObject,
    programs: &[Program],
    ifindex: u32,
    filters: &Filters,
) -> io::Result<LoadedObject> {
    program::prepare(&mut open)?;
    let mut hooks = Vec::new();
    for which in programs {
        let Some(raw) = open.progs().find(|p| p.name() == which.name()) else { continue };
        let bound = *which == Program::XdpMetadata;
        let mut text = splice(&program::text(&raw)?, filters).map_err(io::Error::other)?;
        if bound {
            text.make_room(filters.growth());
            text.make_room(before_page_end(text.insns.len() * INSTRUCTION));
        }
        let fd = program::load(&open, &raw, &text, if bound { ifindex } else { 0 })?;
        if bound {
            let translated = kernel::translated_bytes(fd.as_fd())?;
            if !stays_in_place(text.insns.len() * INSTRUCTION, translated) {
                return Err(io::Error::other("the program outgrew the pages it was loaded in"));
            }
        }
        hooks.push((*which, fd));
    }
    for mut program in open.progs_mut() {
        if programs.iter().any(|which| program.name() == which.name()) {
            program.set_autoload(false);
        }
    }
    let object = open.load().map_err(|e| io_error(&e))?;
    Ok(LoadedObject { object, hooks })
}

/// Instructions that do nothing, to be put before a program of so many bytes. The verifier writes
/// out loops (`bpf_loop`) before it takes them out again. So that the program does not outgrow its
/// pages in between, whatever size the structure before it has, they push its end away from a
/// page's.
fn before_page_end(loaded: usize) -> usize {
    const PAGE: usize = 4096;
    const LOOPS: usize = 1024;
    // The structure before the program takes from 48 to 128 bytes.
    const FIRST: usize = 88;
    let end = (128 + loaded) % PAGE;
    let missing = if end < FIRST {
        FIRST - end
    } else if end > PAGE - LOOPS {
        PAGE - end + FIRST
    } else {
        0
    };
    missing.div_ceil(INSTRUCTION)
}

/// Whether a program of so many bytes, `struct bpf_prog` before them, still has room in the pages
/// that the kernel took for it when it has grown to `translated`. The structure's size differs
/// between kernels: it is taken as small before and as large after.
fn stays_in_place(loaded: usize, translated: usize) -> bool {
    const PAGE: usize = 4096;
    const SMALLEST: usize = 48;
    const LARGEST: usize = 128;
    LARGEST + translated <= (SMALLEST + loaded).next_multiple_of(PAGE)
}

fn open(programs: &[Program], params: &Params) -> io::Result<OpenObject> {
    let bytes = if params.judged { &RECORD_RULES.0[..] } else { &RECORD.0[..] };
    let mut object = ObjectBuilder::default().open_memory(bytes).map_err(|e| io_error(&e))?;
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
                map.set_initial_value(&params.bytes()).map_err(|e| io_error(&e))?;
                continue;
            }
            Some("sockets" | "refused") => {
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
    /// As bpf(2): `EPERM` without the privilege, `ENOMEM` where the rings do not fit, `EINVAL`
    /// where the kernel lacks what a program needs.
    pub fn new(
        programs: &[Program],
        params: &Params,
        filters: &Filters,
    ) -> io::Result<(Self, Control)> {
        quiet_libbpf();
        let loaded = load_filtered(open(programs, params)?, programs, params.ifindex, filters)?;
        let g = params.geometry;
        let n = g.nrings as usize;
        let map = |name: &str, len: usize, writable: bool| -> io::Result<Arc<Mapping>> {
            let map = loaded
                .object
                .maps()
                .find(|m| m.name().to_str().is_some_and(|n| n.ends_with(name)))
                .ok_or_else(|| io::Error::other(format!("the program has no map {name}")))?;
            Ok(Arc::new(Mapping::of_fd(map.as_fd(), len, writable)?))
        };
        let rings = map("rings", n * g.ring_stride(), false)?;
        let data = map("data", n * g.data_stride(), false)?;
        let release = map("release", n * 64, true)?;
        let control = map(".data.control", CONTROL_BYTES, true)?;
        control.u32(SNAPLEN).store(g.snaplen, Release);
        let rings = (0..g.nrings)
            .map(|i| {
                let memory = RingMemory::new(g, i, rings.clone(), data.clone(), release.clone());
                Arc::new(memory)
            })
            .collect();
        Ok((Self { programs: loaded, rings, control: control.clone() }, Control(control)))
    }

    /// Loads the programs anew over the same rings, for a device that was made anew or with another
    /// filter.
    pub fn reload(
        &mut self,
        programs: &[Program],
        params: &Params,
        filters: &Filters,
    ) -> io::Result<()> {
        let mut open = open(programs, params)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_owned();
            if name.to_str().is_some_and(|n| n.ends_with(".rodata.params")) || !map.autocreate() {
                continue;
            }
            if let Some(old) = self.programs.object.maps().find(|m| m.name() == name) {
                map.reuse_fd(old.as_fd()).map_err(|e| io_error(&e))?;
            }
        }
        self.programs = load_filtered(open, programs, params.ifindex, filters)?;
        Ok(())
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    /// A loaded program's descriptor.
    pub fn program(&self, program: Program) -> io::Result<OwnedFd> {
        self.programs.program(program)
    }

    /// Keeps at most so many bytes of a packet from now on, and never more than the rings were made
    /// for.
    pub fn set_snaplen(&self, bytes: u32) {
        self.control.u32(SNAPLEN).store(bytes, Release);
    }

    /// The descriptor of the map of AF_XDP sockets.
    pub fn sockets(&self) -> io::Result<OwnedFd> {
        self.map("sockets")
    }

    /// What the filter has kept from each AF_XDP socket: a word every [`REFUSED_STRIDE`] bytes.
    pub fn refused(&self) -> io::Result<Arc<Mapping>> {
        let len = MAX_RINGS as usize * REFUSED_STRIDE;
        Ok(Arc::new(Mapping::of_fd(self.map("refused")?.as_fd(), len, false)?))
    }

    fn map(&self, name: &str) -> io::Result<OwnedFd> {
        self.programs
            .object
            .maps()
            .find(|m| m.name() == name)
            .ok_or_else(|| io::Error::other(format!("no map {name}")))?
            .as_fd()
            .try_clone_to_owned()
    }

    /// The places for rule sets; there are some where the parameters say that there may be rules.
    pub fn images(&self) -> io::Result<Images> {
        Images::of(&self.programs.object)
    }

    /// Closes `block` of a ring if it is still open and holds something.
    pub fn flush(&self, ring: u32, block: u32) -> io::Result<()> {
        let program = self
            .programs
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

#[cfg(test)]
mod tests {
    use super::{before_page_end, stays_in_place};

    #[test]
    fn a_program_stays_where_its_pages_have_room() {
        assert!(stays_in_place(4000, 3900));
        assert!(!stays_in_place(4000, 4000), "the structure before it takes room too");
        assert!(stays_in_place(4090, 8000), "two pages from the start");
        assert!(!stays_in_place(3000, 4096));
    }

    #[test]
    fn a_program_ends_where_its_last_page_has_room_for_loops() {
        for loaded in (0..20_000).step_by(8) {
            let all = loaded + before_page_end(loaded) * 8;
            for structure in [48, 56, 64, 128] {
                let end: usize = structure + all;
                assert!(end.next_multiple_of(4096) - end >= 1000, "{loaded} {structure}");
            }
        }
    }
}
