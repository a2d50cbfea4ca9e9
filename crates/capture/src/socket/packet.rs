//! What the `tpacket` and `recv` hooks do with privileges: they open a packet socket, give it its
//! filter, and bind it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::entrance::Entrance;
use super::{is_loopback, recv, tpacket, wants_promiscuous};
use crate::Config;
use crate::bpf::params::Params;
use crate::bpf::socket::SocketFilter;
use crate::filter::splice::Filters;
use crate::filter::{REFUSE_ALL, keep_all, kept};
use crate::helper::wire::{Answer, Fault};
use crate::hook::Reading;
use crate::interface::Interface;
use crate::ring::Geometry;
use crate::sys::kernel::wait_for_running_programs;
use crate::sys::packet_socket::PacketSocket;
use tapdeck_packet::link::LinkType;

/// A packet socket, and what judges its packets.
pub(super) struct PacketEntrance {
    reading: Reading,
    ring_bytes: u64,
    promiscuous: bool,
    filters: Filters,
    snaplen: u32,
    socket: Option<PacketSocket>,
    /// The program that judges, where there is a filter or was one.
    filter: Option<SocketFilter>,
}

impl PacketEntrance {
    /// Prepares a socket. A bad filter and a missing privilege show here already.
    pub(super) fn open(
        reading: Reading,
        interface: &Interface,
        config: &Config,
        filters: Filters,
    ) -> Result<Self, Fault> {
        PacketSocket::new().map_err(Fault::Place)?;
        let entrance = Self {
            reading,
            ring_bytes: config.ring_bytes,
            promiscuous: wants_promiscuous(interface, config),
            filters,
            snaplen: config.snaplen,
            socket: None,
            filter: None,
        };
        entrance.load(interface, &entrance.filters, entrance.snaplen).map_err(Fault::Load)?;
        Ok(entrance)
    }

    /// Loads the program, if there is a filter, to take the place of the one before.
    fn load(
        &self,
        interface: &Interface,
        filters: &Filters,
        snaplen: u32,
    ) -> io::Result<Option<SocketFilter>> {
        if filters.is_empty() {
            return Ok(None);
        }
        let unread = Params::unread(interface.index);
        let params = Params {
            geometry: Geometry { snaplen: kept(snaplen), ..unread.geometry },
            link_header: interface.link.is_some_and(LinkType::has_header),
            filtered: true,
            ..unread
        };
        SocketFilter::load(&params, filters, self.filter.as_ref()).map(Some)
    }

    /// Puts a filter to the socket, in the place of what judged there before.
    fn put(&mut self, interface: &Interface, filters: &Filters, snaplen: u32) -> Result<(), Fault> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let Some(loaded) = self.load(interface, filters, snaplen).map_err(Fault::Load)? else {
            return socket.set_filter(&keep_all(snaplen)).map_err(Fault::Load);
        };
        let program = loaded.program().map_err(Fault::Load)?;
        socket.set_program(program.as_fd()).map_err(Fault::Load)?;
        self.filter = Some(loaded);
        Ok(())
    }
}

impl Entrance for PacketEntrance {
    fn open_socket(&mut self, number: u32) -> Result<Answer, Fault> {
        if number != 0 || self.socket.is_some() {
            return Err(Fault::Place(io::ErrorKind::InvalidInput.into()));
        }
        let open = || {
            let socket = PacketSocket::new()?;
            let value = match self.reading {
                Reading::Calls => recv::prepare(&socket, self.ring_bytes).map(|()| 0)?,
                Reading::Mapped => tpacket::prepare(&socket, self.ring_bytes)?,
            };
            let fds = vec![socket.share()?];
            Ok((socket, Answer { value, fds }))
        };
        let (socket, answer) = open().map_err(Fault::Place)?;
        self.socket = Some(socket);
        Ok(answer)
    }

    fn attach(&mut self, interface: &Interface) -> Result<u32, Fault> {
        self.put(interface, &self.filters.clone(), self.snaplen)?;
        let Some(socket) = &self.socket else {
            return Err(Fault::Place(io::ErrorKind::InvalidInput.into()));
        };
        if is_loopback(interface) {
            // Kernels before 4.20 cannot; the sink refuses those packets anyhow.
            let _ = socket.ignore_outgoing();
        }
        if self.promiscuous {
            socket.join_promiscuous(interface.index).map_err(Fault::Place)?;
        }
        // All is set before the socket is bound, so that every packet meets it as it shall be.
        socket.bind(interface.index).map_err(Fault::Place)?;
        Ok(1)
    }

    fn detach(&mut self) {
        if let Some(socket) = self.socket.take() {
            // It fails for want of memory alone; then the thread ends when it finds its socket
            // empty.
            let _ = socket.set_filter(&REFUSE_ALL);
            wait_for_running_programs();
        }
        self.filter = None;
    }

    fn restore(&mut self, _: &Interface) -> io::Result<bool> {
        // Nobody but who has a packet socket can detach it.
        Ok(false)
    }

    fn take_queues(&mut self, _: &Interface) -> Result<u32, Fault> {
        Ok(u32::from(self.socket.is_some()))
    }

    fn set_filter(
        &mut self,
        interface: &Interface,
        filters: Filters,
        snaplen: u32,
    ) -> Result<(), Fault> {
        self.put(interface, &filters, snaplen)?;
        wait_for_running_programs();
        (self.filters, self.snaplen) = (filters, snaplen);
        Ok(())
    }

    fn refused(&self) -> io::Result<Option<OwnedFd>> {
        self.filter.as_ref().map(SocketFilter::refused).transpose()
    }
}
