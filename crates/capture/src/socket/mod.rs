//! The socket hooks.

use std::sync::Arc;

use crate::interface::Interface;
use crate::ring::{Geometry, RingMemory};
use crate::{Clock, Config, Error};

/// A capture by sockets: one thread for each, which formats packets into a ring.
pub struct SocketHook {
    rings: Vec<Arc<RingMemory>>,
}

impl SocketHook {
    pub fn open(
        _interface: &Interface,
        _config: &Config,
        geometry: Geometry,
        _first_interface: u32,
        _clock: &Arc<Clock>,
    ) -> Result<Self, Error> {
        Ok(Self { rings: crate::ring::socket_ring(geometry).unwrap() })
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    pub fn start(&mut self, _interface: &Interface, _config: &Config) -> Result<(), Error> {
        Ok(())
    }

    pub fn stop(&mut self) {}

    pub fn flush(&self, _ring: usize, _block: u32) {}
}
