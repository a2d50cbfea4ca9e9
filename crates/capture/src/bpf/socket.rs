//! The filter of a packet socket: `bpf/socket.bpf.c` in the kernel, and what it has refused.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder};

use super::object::{Aligned, LoadedObject, choose, load_filtered, reuse_maps};
use super::params::Params;
use super::program::Program;
use crate::filter::splice::Filters;
use crate::sys::libbpf::{io_error, map, program, quiet_libbpf};

static SOCKET: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/socket.bpf.o")));

/// The program that a socket has, which calls the one that judges.
const ENTRY: &str = "tapdeck_socket";

/// A filter that a packet socket can have. It judges as long as this is there.
pub(crate) struct SocketFilter {
    loaded: LoadedObject,
}

impl SocketFilter {
    /// Loads the program. Where there was one `before`, all sockets that have that are judged by
    /// this one from now on, each packet by one of the two, and it counts on.
    ///
    /// # Errors
    /// As bpf(2): `EPERM` without the privilege, `E2BIG` where the verifier gives up.
    pub(crate) fn load(
        params: &Params,
        filters: &Filters,
        before: Option<&Self>,
    ) -> io::Result<Self> {
        quiet_libbpf();
        let mut object =
            ObjectBuilder::default().open_memory(&SOCKET.0).map_err(|e| io_error(&e))?;
        let programs = [Program::SocketJudge];
        choose(&mut object, &programs, 0, &[ENTRY]);
        for mut map in object.maps_mut() {
            if map.name().to_str().is_some_and(|name| name.ends_with(".rodata.params")) {
                map.set_initial_value(&params.bytes()).map_err(|e| io_error(&e))?;
            }
        }
        if let Some(before) = before {
            reuse_maps(&mut object, &before.loaded.object)?;
        }
        let loaded = load_filtered(object, &programs, 0, filters)?;
        let judge = loaded.program(Program::SocketJudge)?;
        let fd = judge.as_raw_fd().cast_unsigned();
        map(&loaded.object, "judges")?
            .update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| io_error(&e))?;
        Ok(Self { loaded })
    }

    /// Returns the descriptor of the program that a socket has.
    pub(crate) fn program(&self) -> io::Result<OwnedFd> {
        program(&self.loaded.object, ENTRY)?.as_fd().try_clone_to_owned()
    }

    /// Returns the map of the counter of the packets that were refused, one word.
    pub(crate) fn refused(&self) -> io::Result<OwnedFd> {
        map(&self.loaded.object, "refused")?.as_fd().try_clone_to_owned()
    }
}
