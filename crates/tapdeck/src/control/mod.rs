//! The control socket: how a running recorder or daemon is asked and told.
//!
//! A Unix stream socket, because the file system then says who may ask, and because a member of a
//! group is handed its rings' file descriptors over it. On it go lines of JSON, one request and one
//! answer (`docs/CONTROL.md`), because anybody can speak that.
//!
//! [`Command`] is all that can be asked. The [`Server`] knows nothing of what the commands mean: it
//! gathers lines from all clients with poll(2), hands on what was asked, and writes the answers. It
//! has no thread of its own but is turned by the loop that owns the hooks. So a command finds
//! everything at hand and nothing locked; nothing of it is on the path of packets.
//!
//! What a client sends is not trusted: it has a bound in memory, every fault is answered, and one
//! that sends or reads slowly waits alone. [`Book`] is the rules that are in force, and what takes
//! long about them, on a thread beside.

mod answer;
mod book;
mod command;
mod connection;
mod rules;
mod server;
mod socket;

pub use answer::Answer;
pub use book::{Book, Changes, Counted, Refused};
pub use command::{Command, RulesCommand};
pub use connection::{Connection, Request};
pub use rules::{Loaded, compiler, load};
pub use server::{ClientId, Event, Peer, Server};
pub use socket::{Access, Socket, recorder_path};

/// Returns the example in `docs/CONTROL.md` that begins so, on one line.
#[cfg(test)]
pub fn documented(begin: &str) -> String {
    let document = include_str!("../../../../docs/CONTROL.md");
    let from = document.find(begin).unwrap_or_else(|| panic!("CONTROL.md has no {begin}"));
    let end = document[from..].find("\n```").expect("an example ends");
    document[from..from + end].lines().map(str::trim_start).collect()
}
