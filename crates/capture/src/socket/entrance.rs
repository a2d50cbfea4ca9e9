//! What lets packets in to sockets? All that the socket hooks do with privileges is behind one
//! trait, so that a recorder's helper can do it in the recorder's place.

use std::io;
use std::os::fd::OwnedFd;

use crate::filter::splice::Filters;
use crate::helper::wire::{Answer, Fault, Request};
use crate::interface::Interface;

/// Opens sockets, and lets packets of an interface in to them.
pub(super) trait Entrance: Send {
    /// Opens the next socket, which this is the number of. No packet comes to it yet.
    fn open_socket(&mut self, number: u32) -> Result<Answer, Fault>;

    /// Lets packets in to the sockets that were opened. Returns how many sockets have some.
    fn attach(&mut self, interface: &Interface) -> Result<u32, Fault>;

    /// Returns when no packet comes in any more, and lets go of the sockets.
    fn detach(&mut self);

    /// Sees that packets come in. Returns whether they did not.
    fn restore(&mut self, interface: &Interface) -> io::Result<bool>;

    /// Lets packets of queues that were switched on in to the sockets that were opened since.
    /// Returns how many sockets have some.
    fn take_queues(&mut self, interface: &Interface) -> Result<u32, Fault>;

    /// Exchanges the filter, and how much is kept of a packet. Returns when no packet is judged by
    /// the old filter any more.
    fn set_filter(
        &mut self,
        interface: &Interface,
        filters: Filters,
        snaplen: u32,
    ) -> Result<(), Fault>;

    /// Returns the map that counts what the filter refuses, if there is one.
    fn refused(&self) -> io::Result<Option<OwnedFd>>;
}

/// Does what takes privileges, in this process.
pub(super) fn perform(
    entrance: &mut dyn Entrance,
    interface: &Interface,
    request: &Request,
) -> Result<Answer, Fault> {
    match request {
        Request::OpenSocket { number } => entrance.open_socket(*number),
        Request::Attach { .. } => entrance.attach(interface).map(Answer::from),
        Request::Detach | Request::GiveUp => {
            entrance.detach();
            Ok(Answer::default())
        }
        Request::Restore => entrance.restore(interface).map(Answer::from).map_err(Fault::Place),
        Request::TakeQueues => entrance.take_queues(interface).map(Answer::from),
        Request::SetFilter { program, snaplen } => {
            entrance.set_filter(interface, Filters::of(program.as_ref()), *snaplen)?;
            Ok(Answer::default())
        }
        Request::TakeRefused => {
            let fd = entrance.refused().map_err(Fault::Place)?;
            Ok(Answer { value: 0, fds: fd.into_iter().collect() })
        }
        Request::Load { .. }
        | Request::SetCutoff { .. }
        | Request::BeginRules
        | Request::Exchange
        | Request::PutBack
        | Request::MakeRules { .. }
        | Request::PutRules { .. }
        | Request::MakeFlows
        | Request::PutFilter { .. }
        | Request::Prepare
        | Request::Keep
        | Request::MakeMember
        | Request::Open { .. }
        | Request::Settle { .. } => Err(Fault::Place(io::ErrorKind::InvalidInput.into())),
    }
}
