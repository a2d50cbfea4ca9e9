//! The table of flows by which hook programs know whether a flow has had its bytes: how large is
//! it, and how does it get to its place?
//!
//! `bpf/cutoff.h` says what stands in it. The table takes [`TABLE_BYTES`], so it is made when
//! somebody first asks for flows to be cut off, and then stays: programs that are exchanged or
//! loaded anew go on with it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, Object};

use crate::sys::libbpf::{self, io_error};

/// The map whose one element is the table.
pub(crate) const MAP: &str = "flows";
/// Sets of the table (`TD_FLOW_SETS`), each a cache line.
pub(crate) const SETS: u32 = 1 << 17;
const SET_BYTES: u32 = 64;
/// Flows of which a full table knows (`TD_FLOW_WAYS` in each set).
pub const MOST_FLOWS: u32 = 6 * SETS;
/// The kernel memory that the table takes, bytes.
pub const TABLE_BYTES: u64 = SETS as u64 * SET_BYTES as u64;
/// The most bytes after which a flow can be cut off: the count has 32 bits, with room for a packet.
pub const MAX_CUTOFF: u32 = tapdeck_packet::rules::MAX_CUTOFF;

/// Makes the table of an object whose programs include `bpf/cutoff.h`, where there is none yet.
///
/// # Errors
/// As bpf(2): `ENOMEM` where it does not fit; `NotFound` where the object has no place for it.
pub(crate) fn make_of(object: &Object) -> io::Result<()> {
    make(&place_of(object)?)
}

/// Finds the place of the table in an object.
pub(crate) fn place_of(object: &Object) -> io::Result<MapHandle> {
    MapHandle::try_from(&libbpf::map(object, MAP)?).map_err(|e| io_error(&e))
}

/// Makes the table, where its place is free.
///
/// # Errors
/// As [`make_of`].
pub(crate) fn make(place: &MapHandle) -> io::Result<()> {
    let only = 0u32.to_ne_bytes();
    if let Ok(Some(_)) = place.lookup(&only, MapFlags::ANY) {
        return Ok(());
    }
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let table = MapHandle::create(MapType::Array, Some(MAP), 4, SET_BYTES, SETS, &options)
        .map_err(|e| io_error(&e))?;
    let fd = table.as_fd().as_raw_fd().to_ne_bytes();
    place.update(&only, &fd, MapFlags::ANY).map_err(|e| io_error(&e))
}
