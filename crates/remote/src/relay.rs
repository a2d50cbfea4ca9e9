//! Reads a store elsewhere for the program that started this one.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result};
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

/// Tells what the user has to write in another way from what fails.
fn as_usage(e: Error) -> anyhow::Error {
    match e {
        Error::Url(_) | Error::Plain(_) | Error::S3(_) => Wrong(e.to_string()).into(),
        e => e.into(),
    }
}
