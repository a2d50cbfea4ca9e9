//! Loading an object: filters are put into its hook programs before the kernel gets them.
//!
//! All objects with hook programs (`record`, `record_rules`, `serve`) are loaded here. What their
//! parameters and maps are is the caller's to say beforehand.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, Object, OpenObject, ProgramInput};

use super::fold::{Constants, fold};
use super::pages::{GROWTH, before_page_end, stays_in_place};
use super::program::Program;
use super::stack;
use crate::filter::ebpf::INSTRUCTION;
use crate::filter::splice::{Filters, splice};
use crate::sys::libbpf::{self, io_error};
use crate::sys::{kernel, program};

/// The bytes of an object file, aligned as an ELF reader wants them.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// The program that closes part-filled blocks.
pub(crate) const FLUSH: &str = "tapdeck_flush";
/// The program that is told when a NAPI poll has ended.
pub(crate) const POLL: &str = "tapdeck_poll";
/// The kernel's tracepoint at the end of a poll.
const POLL_ENDS: &str = "napi_poll";

/// Programs that are bound to a device (`linux/bpf.h`).
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// Marks of an object's programs those to be loaded: the hook programs `wanted`, of which some are
/// bound to the device `ifindex`, and none else but those that `others` names.
pub(crate) fn choose(object: &mut OpenObject, wanted: &[Program], ifindex: u32, others: &[&str]) {
    for mut program in object.progs_mut() {
        let which = wanted.iter().find(|which| program.name() == which.name());
        let is_other = others.iter().any(|name| program.name() == *name);
        program.set_autoload(which.is_some() || is_other);
        if which.is_some_and(|which| which.is_bound()) {
            program.set_ifindex(ifindex);
            program.set_flags(BPF_F_XDP_DEV_BOUND_ONLY);
        }
    }
}

/// A map that holds nothing between packets, and of which each object has as much as it needs.
const SCRATCH: &str = "scratch";

/// Has the programs of an object that is loaded next work on the maps of one that is loaded, but
/// for the constants and the scratch memory, of which each object has its own.
///
/// # Errors
/// Where libbpf does not take a map for another.
pub(crate) fn reuse_maps(open: &mut OpenObject, loaded: &Object) -> io::Result<()> {
    for mut map in open.maps_mut() {
        let name = map.name().to_owned();
        let is_constant = name.to_str().is_some_and(|name| name.contains(".rodata"));
        if is_constant || name == SCRATCH || !map.autocreate() {
            continue;
        }
        if let Some(shared) = loaded.maps().find(|shared| shared.name() == name) {
            map.reuse_fd(shared.as_fd()).map_err(|e| io_error(&e))?;
        }
    }
    Ok(())
}

/// What [`load_filtered`] has loaded.
pub(crate) struct LoadedObject {
    /// The maps, and programs other than hook programs.
    pub(crate) object: Object,
    hooks: Vec<(Program, OwnedFd)>,
}

impl LoadedObject {
    /// Has the program that is told of polls run until the descriptor is closed.
    ///
    /// # Errors
    /// Where the program was not loaded, or the kernel has no such tracepoint.
    pub(crate) fn hear_of_polls(&mut self) -> io::Result<OwnedFd> {
        let program = self.object.progs_mut().find(|program| program.name() == POLL);
        let program = program.ok_or_else(|| io::Error::other(format!("{POLL} is not loaded")))?;
        let link = program.attach_raw_tracepoint(POLL_ENDS).map_err(|e| io_error(&e))?;
        link.as_fd().try_clone_to_owned()
    }

    /// Runs the program that closes part-filled blocks, with its arguments.
    ///
    /// # Errors
    /// Where it was not loaded, and as bpf(2), `BPF_PROG_TEST_RUN`.
    pub(crate) fn flush(&self, args: &[u8]) -> io::Result<()> {
        let mut args = args.to_vec();
        let input = ProgramInput { context_in: Some(&mut args), ..ProgramInput::default() };
        libbpf::program(&self.object, FLUSH)?.test_run(input).map_err(|e| io_error(&e))?;
        Ok(())
    }

    /// Returns a hook program's descriptor.
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
    let constants: Vec<_> = program::constants(&open)
        .into_iter()
        .map(|(map, bytes)| Constants { map, bytes })
        .collect();
    for which in programs {
        let Some(raw) = open.progs().find(|p| p.name() == which.name()) else { continue };
        let bound = which.is_bound();
        let text = splice(&program::text(&raw)?, filters).map_err(io::Error::other)?;
        let mut text = constants.iter().fold(text, |text, constants| fold(&text, constants));
        if bound {
            text.make_room(GROWTH + filters.growth());
            text.make_room(before_page_end(text.insns.len() * INSTRUCTION));
        }
        debug_assert!(
            stack::deepest(&text) <= stack::MOST,
            "{} needs {} bytes of stack, which kernels before 6.9 do not have",
            which.name(),
            stack::deepest(&text)
        );
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
    let object = libbpf::load(open)?;
    Ok(LoadedObject { object, hooks })
}
