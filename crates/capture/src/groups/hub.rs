//! What do all ports of a daemon have in common? The maps that their programs work on, pinned or
//! not, and the programs that are attached to no interface.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::{MapCore as _, Object, ObjectBuilder, OpenObject};

use super::maps::Part;
use super::port::List;
use crate::bpf::object::{Aligned, FLUSH, LoadedObject, POLL, choose, load_filtered, reuse_maps};
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::filter::splice::Filters;
use crate::persist::pin_anew;
use crate::ring::Geometry;
use crate::stamps::NOBODY_TELLS;
use crate::sys::libbpf::{io_error, quiet_libbpf};
use crate::sys::params::TdFlushMember;
use crate::sys::{libbpf, pins};

static SERVE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/serve.bpf.o")));

/// How large the maps are that all ports share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub groups: u32,
    pub counts: u32,
}

/// What the programs are told before they are verified.
pub(super) struct Constants {
    pub params: Params,
    pub list: Vec<u8>,
    pub filters: Filters,
    /// The expression of the longest filter.
    pub longest: Option<String>,
}

/// Opens the object for these hook programs, and for `others` of its programs by name.
fn open(programs: &[Program], others: &[&str], constants: &Constants) -> io::Result<OpenObject> {
    quiet_libbpf();
    let mut object = ObjectBuilder::default().open_memory(&SERVE.0).map_err(|e| io_error(&e))?;
    choose(&mut object, programs, constants.params.ifindex, others);
    for mut map in object.maps_mut() {
        let value = match map.name().to_str() {
            Some(name) if name.ends_with(".rodata.params") => constants.params.bytes(),
            Some(name) if name.ends_with(".rodata.port") => constants.list.clone(),
            _ => continue,
        };
        map.set_initial_value(&value).map_err(|e| io_error(&e))?;
    }
    Ok(object)
}

/// The directory where the maps of lasting groups are pinned.
pub(super) struct PinnedMaps {
    pub dir: PathBuf,
    /// Whether a daemon before has left them there.
    pub left: bool,
}

impl PinnedMaps {
    /// Returns where a map is pinned; the constants, of which each object has its own, are not.
    fn path(&self, name: &str) -> Option<PathBuf> {
        // libbpf puts the object's name before that of a section, and a pin's name has no dot.
        let name = if name.ends_with(CONTROL) { "control" } else { name };
        (!name.contains('.')).then(|| self.dir.join(name))
    }

    fn reuse(&self, open: &mut OpenObject) -> io::Result<()> {
        for mut map in open.maps_mut() {
            if let Some(path) = self.path(&map.name().to_string_lossy()) {
                map.reuse_fd(pins::open(&path)?.as_fd()).map_err(|e| io_error(&e))?;
            }
        }
        Ok(())
    }

    fn pin(&self, object: &Object) -> io::Result<()> {
        for map in object.maps() {
            if let Some(path) = self.path(&map.name().to_string_lossy()) {
                pin_anew(map.as_fd(), &path)?;
            }
        }
        Ok(())
    }
}

/// The section that is the map of what programs are told while they run.
pub(super) const CONTROL: &str = ".data.control";

/// What all ports have in common: the maps, and the program that closes blocks.
pub(super) struct Hub {
    loaded: LoadedObject,
    /// What keeps the program at the end of polls, or why there is none.
    pub polls: Result<OwnedFd, &'static str>,
}

impl Hub {
    /// Makes the maps, or takes those that a daemon before has left pinned.
    pub(super) fn new(
        geometry: Geometry,
        sizes: Sizes,
        pinned: Option<&PinnedMaps>,
    ) -> io::Result<Self> {
        let constants = Constants {
            params: Params { geometry, ..Params::unread(0) },
            list: List::default().bytes(&[]),
            filters: Filters::new(),
            longest: None,
        };
        let mut open = open(&[], &[FLUSH, POLL], &constants)?;
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("groups" | "slots") => sizes.groups,
                Some("counts") => sizes.counts,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(|e| io_error(&e))?;
        }
        // The kernel takes from these what the maps of members are like.
        let mut patterns = Vec::new();
        for part in Part::ALL {
            patterns.push((part, part.create(&geometry)?));
        }
        for (part, pattern) in &patterns {
            for mut map in open.maps_mut().filter(|map| map.name() == part.name()) {
                map.set_inner_map_fd(pattern.as_fd()).map_err(|e| io_error(&e))?;
            }
        }
        if let Some(pinned) = pinned.filter(|pinned| pinned.left) {
            pinned.reuse(&mut open)?;
        }
        let mut loaded = load_filtered(open, &[], 0, &constants.filters)?;
        if let Some(pinned) = pinned.filter(|pinned| !pinned.left) {
            pinned.pin(&loaded.object)?;
        }
        let polls = match pinned {
            Some(_) => Err(NOBODY_TELLS),
            None => loaded.hear_of_polls().map_err(|_| "the kernel does not tell of polls"),
        };
        Ok(Self { loaded, polls })
    }

    pub(super) fn object(&self) -> &Object {
        &self.loaded.object
    }

    /// Loads programs over the maps.
    pub(super) fn load(
        &self,
        programs: &[Program],
        constants: &Constants,
    ) -> io::Result<LoadedObject> {
        let mut open = open(programs, &[], constants)?;
        reuse_maps(&mut open, &self.loaded.object)?;
        load_filtered(open, programs, constants.params.ifindex, &constants.filters)
    }

    /// Returns a descriptor of some program.
    pub(super) fn any_program(&self) -> io::Result<OwnedFd> {
        libbpf::program(&self.loaded.object, FLUSH)?.as_fd().try_clone_to_owned()
    }

    /// Closes `block` of a member's ring if it is still open and holds something.
    pub(super) fn flush(&self, member: u32, ring: u32, block: u32) -> io::Result<()> {
        self.loaded.flush(TdFlushMember { member, ring, block }.bytes())
    }
}
