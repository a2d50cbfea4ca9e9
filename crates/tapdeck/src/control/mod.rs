//! The control socket: how is a running recorder or daemon asked for something, and told to change?
//!
//! Over a Unix stream socket, because the file system then says who may ask, and because a member
//! of a group is handed the file descriptors of its rings over it. Requests and answers are lines
//! of JSON (`docs/CONTROL.md`), because any program can speak that.
//!
//! A [`Command`] is anything that can be asked for. The [`Server`] does not know what commands
//! mean: it gathers lines from all clients with poll(2), hands commands on, and writes the answers.
//! It has no thread of its own; the loop that owns the hooks turns it. So a command finds
//! everything at hand and nothing locked, and the socket is never on the path of packets.
//!
//! What a client sends is not trusted: its memory has a bound, every fault is answered, and a
//! client that sends or reads slowly makes nobody else wait. [`Book`] keeps the rules that are in
//! force, and compiles new ones on a thread beside the loop.

mod answer;
mod book;
mod command;
mod connection;
mod rates;
mod rules;
mod server;
mod socket;

pub use answer::Answer;
pub use book::{Book, Changes, Counted, Refused};
pub use command::{Command, RulesCommand};
pub use connection::{Connection, Request};
pub use rules::{Loaded, compiler, load, load_again};
pub use server::{Bell, ClientId, Event, Peer, Server};
pub use socket::{Access, IN_STORE, Socket, recorder_path, remove_left};

/// Returns the example in `docs/CONTROL.md` that has this beginning, on one line.
#[cfg(test)]
pub fn documented(begin: &str) -> String {
    let document = include_str!("../../../../docs/CONTROL.md");
    let from = document.find(begin).unwrap_or_else(|| panic!("CONTROL.md has no {begin}"));
    let end = document[from..].find("\n```").expect("an example ends");
    document[from..from + end].lines().map(str::trim_start).collect()
}
