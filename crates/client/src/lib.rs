//! How does a program read the packets of a group of a running `tapdeck serve`?
//!
//! The daemon owns the hooks on the interfaces and shares their packets out to **groups**. A
//! program attaches to a group over the daemon's Unix socket and becomes a **member**: the kernel
//! fills rings that are the member's own, and the member reads packets where they lie. It needs no
//! privilege but read and write permission on the socket.
//!
//! ```no_run
//! use tapdeck_client::{Member, Next, Options};
//!
//! let mut member = Member::open("ids", &Options::default())?;
//! while let Next::Got(batch) = member.next_batch(None)? {
//!     for packet in batch.packets() {
//!         let packet = packet?;
//!         println!("{} ns: {} bytes", packet.timestamp_ns, packet.bytes.len());
//!     }
//! }
//! # Ok::<(), tapdeck_client::Error>(())
//! ```
//!
//! [`Member::open`] attaches. Then there are three ways to read:
//!
//! - [`Member::next_batch`] returns a complete block of packets. Packets of one batch are in the
//!   order in which they came; batches of different rings overlap in time.
//! - [`Member::next_packet`] returns packet after packet, in the order of their times over all
//!   rings.
//! - [`Member::into_rings`] returns the rings themselves (`tapdeck_packet::ring::Ring`), for
//!   programs that take whole blocks elsewhere, to a disk for example.
//!
//! A batch or packet is borrowed from the member and valid until the next call that reads. That
//! call returns the memory to the kernel. [`Member`] is also a file descriptor (`AsFd`) that
//! poll(2) and its kind can wait for.
//!
//! When the daemon ends, all packets that are in the rings can still be read, and then reading says
//! [`Next::End`]. Where its groups outlive the daemon (`serve --persist`), packets go on coming,
//! and reading goes on over to the next one. A member leaves its group when it is dropped; if the
//! program is killed, the kernel closes the connection for it.
//!
//! This crate does not start a daemon, change a group's configuration or send packets. C programs
//! have the same functions in `include/tapdeck.h` and `libtapdeck_client.so`. `docs/CLIENT.md` is
//! the manual of both, and of the object that stands in for libpcap (the crate `tapdeck-pcap`).
#![warn(missing_docs, clippy::missing_errors_doc)]

mod address;
mod attachment;
#[doc(hidden)]
pub mod fuzzing;
mod member;
mod memory;
mod session;
mod sys;

use std::io;
use std::path::{Path, PathBuf};

pub use address::Address;
pub use attachment::Attachment;
pub use member::{Batch, Counts, Member, Next, Options, Packet, Packets};
pub use memory::Geometry;
pub use session::{DEFAULT_SOCKET, Group, SOCKET_VARIABLE, Stats, default_socket};
pub use tapdeck_packet::link::LinkType;
pub use tapdeck_packet::pcapng::InterfaceDescription;

/// Why a call failed.
///
/// The text of each error names the cause, and what to do about it where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No daemon listens at the socket, or the socket may not be opened by this user.
    #[error("cannot reach a tapdeck daemon at {}: {why}{}", socket.display(), advice(why))]
    NoDaemon {
        /// The path of the socket.
        socket: PathBuf,
        /// What connect(2) said.
        why: io::Error,
    },
    /// The daemon refused a request; the text is the daemon's reason.
    #[error("{0}")]
    Refused(String),
    /// The daemon speaks another version of the protocol.
    #[error(
        "the daemon speaks version {theirs} of the protocol, this program {ours}: take both from the same release"
    )]
    Version {
        /// The version that this crate speaks.
        ours: u32,
        /// The version that the daemon speaks.
        theirs: u32,
    },
    /// The daemon's answer is not one that the protocol allows; the text says what is wrong.
    #[error("the daemon's answer cannot be understood: {0}")]
    Answer(String),
    /// The daemon did not answer within ten seconds. Later requests on the same connection fail
    /// alike, because a late answer could be taken for theirs.
    #[error("the daemon did not answer within ten seconds")]
    Silent,
    /// The connection to the daemon failed.
    #[error("the connection to the daemon failed: {0}")]
    Connection(io::Error),
    /// The memory of the rings cannot be mapped.
    #[error("cannot map the rings that the daemon gave: {0}")]
    Map(io::Error),
    /// Waiting for packets failed.
    #[error("cannot wait for packets: {0}")]
    Wait(io::Error),
    /// A block of a ring is no run of packets. The next call passes over the rest of the block.
    #[error("a block of the ring is damaged: {0}")]
    Damaged(#[from] tapdeck_packet::pcapng::Error),
}

/// Returns what to do where the daemon cannot be reached.
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

/// Asks the daemon that listens at `socket` for its groups.
///
/// # Errors
/// [`Error::NoDaemon`] where the daemon cannot be reached; otherwise [`Error::Connection`],
/// [`Error::Silent`], [`Error::Refused`] or [`Error::Answer`], as asking went.
pub fn groups(socket: &Path) -> Result<Vec<Group>, Error> {
    session::Session::connect(socket)?.groups()
}
