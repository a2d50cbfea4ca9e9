//! Reads a store elsewhere for the program that started this one.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::thread;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tapdeck_remote::Error;
use tapdeck_store::io::serve;

use crate::config::{Wrong, of_store};
use crate::flags::Relay;

/// Answers what is asked over the socket at standard input, until the other end closes.
pub fn run(flags: &Relay) -> Result<()> {
    let stream = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let stream = stream.context("cannot use standard input")?;
    if stream.peer_addr().is_err() {
        let text = "relay is for programs that read a store elsewhere: `tapdeck query --dir URL`";
        return Err(Wrong(text.to_owned()).into());
    }
    end_with(&stream).context("cannot start threads")?;
    let storage = of_store(flags).and_then(|(shown, patience)| {
        tapdeck_remote::open(&flags.url, &shown, patience).map_err(as_usage)
    });
    // The other end says it, as it says all that is wrong with a store.
    let storage = storage.map_err(|e| {
        let kind = if e.is::<Wrong>() { ErrorKind::InvalidInput } else { ErrorKind::Other };
        io::Error::new(kind, format!("{e:#}"))
    });
    serve(storage, stream).context("cannot answer")
}

/// Ends this program when the other end of a socket closes, whatever a server is waited for.
fn end_with(stream: &UnixStream) -> io::Result<()> {
    let stream = stream.try_clone()?;
    let wait = move || {
        // Nothing is asked for: that the other end has closed is told all the same.
        while poll(&mut [PollFd::new(&stream, PollFlags::empty())], None) == Err(Errno::INTR) {}
        exit(0)
    };
    thread::Builder::new().name("tapdeck-hangup".into()).spawn(wait).map(drop)
}

/// Tells what the user has to write in another way from what fails.
fn as_usage(e: Error) -> anyhow::Error {
    match e {
        Error::Url(_) | Error::Plain(_) | Error::S3(_) => Wrong(e.to_string()).into(),
        e => e.into(),
    }
}
