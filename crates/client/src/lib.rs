//! Reads the packets of a group of a running `tapdeck serve`.
//!
//! The daemon owns the hooks. A program attaches to a group over a Unix socket and becomes a member
//! of it: it gets rings of its own, which the kernel fills, and needs no privilege but the socket's
//! permission. [`Member::open`] attaches. Then there are three ways to read:
//!
//! - [`Member::next_batch`] gives a complete block of packets, in place; the next call gives it
//!   back to the kernel. Packets of one batch are in order, those of different rings are not.
//! - [`Member::next_packet`] gives packet after packet, in place, in the order of their times over
//!   all rings.
//! - [`Member::into_rings`] gives the rings themselves (`tapdeck_packet::ring::Ring`), for whoever
//!   takes whole blocks elsewhere.
//!
//! [`Member`] is a file descriptor to wait for besides others. When the daemon ends, what is in the
//! rings can still be read to the last packet, and then comes the end. Closing is dropping, and the
//! kernel is told even if the program is killed.
//!
//! C programs have the same as `include/tapdeck.h` and `libtapdeck_client.so`; `docs/CLIENT.md` is
//! the manual of both, and of the object that stands in for libpcap (`tapdeck-pcap`).

mod address;
mod member;
mod memory;
mod session;
mod sys;

use std::io;
use std::path::{Path, PathBuf};

pub use address::Address;
pub use member::{Attachment, Batch, Counts, Member, Next, Options, Packet, Packets};
pub use memory::Geometry;
pub use session::{DEFAULT_SOCKET, Group, SOCKET_VARIABLE, Stats, default_socket};
pub use tapdeck_packet::link::LinkType;
pub use tapdeck_packet::pcapng::InterfaceDescription;

/// Why packets cannot be had. Each says what to do about it where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// nobody listens at the socket, or not to this user
    #[error("cannot reach a tapdeck daemon at {}: {why}{}", socket.display(), advice(why))]
    NoDaemon { socket: PathBuf, why: io::Error },
    /// the daemon said no, and why
    #[error("{0}")]
    Refused(String),
    /// the daemon speaks another version of the protocol
    #[error(
        "the daemon speaks version {theirs} of the protocol, this program {ours}: take both from the same release"
    )]
    Version { ours: u32, theirs: u32 },
    /// the daemon's answer makes no sense
    #[error("the daemon's answer cannot be understood: {0}")]
    Answer(String),
    /// the daemon does not answer
    #[error("the daemon did not answer within ten seconds")]
    Silent,
    /// the connection to the daemon failed
    #[error("the connection to the daemon failed: {0}")]
    Connection(io::Error),
    /// the rings cannot be mapped
    #[error("cannot map the rings that the daemon gave: {0}")]
    Map(io::Error),
    /// waiting failed
    #[error("cannot wait for packets: {0}")]
    Wait(io::Error),
    /// a block of a ring is no run of packets; the rest of the block is passed over
    #[error("a block of the ring is damaged: {0}")]
    Damaged(#[from] tapdeck_packet::pcapng::Error),
}

/// What to do where the daemon cannot be reached.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            ": the socket's permission must let this user read and write it (`tapdeck serve --socket-mode`)"
        }
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ": start `tapdeck serve`, or name its socket in TAPDECK_SOCKET"
        }
        _ => "",
    }
}

/// The groups of the daemon that listens at `socket`.
pub fn groups(socket: &Path) -> Result<Vec<Group>, Error> {
    session::Session::connect(socket)?.groups()
}
