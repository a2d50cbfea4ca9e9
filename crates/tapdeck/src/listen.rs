//! Packets over TCP, to whoever connects: "pcap over IP", as Wireshark (`-i TCP@ADDR:PORT`), Arkime
//! (`pcap-over-ip-client`) and others read it.
//!
//! The form is that of a pcap file of microseconds, which all of them take. Nothing is encrypted,
//! and nobody is asked who they are: so it is for this machine alone, unless an address says more.
//! There is one reader at a time, and who comes meanwhile is turned away.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::interrupt::Interrupt;
use crate::progress_line::say;

/// How often whoever waits for a reader looks whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// How long who comes while another reads is kept before being turned away.
const GRACE: Duration = Duration::from_millis(500);

/// Reads where to listen: `ADDR:PORT`, or a port of this machine alone.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    if let Ok(port) = port.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| {
        "is no address; write a port, as 57012, or ADDR:PORT, as 192.0.2.1:57012 or [::1]:57012"
            .into()
    })
}

/// A reader that has connected. Others can connect when it is dropped.
pub struct Reader {
    pub stream: File,
    pub name: String,
    is_taken: Arc<AtomicBool>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_taken.store(false, SeqCst);
    }
}

/// Readers as they connect, one at a time.
pub struct Readers {
    next: Receiver<Reader>,
}

impl Readers {
    /// Listens, and says so.
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let what = || format!("cannot listen at {address}");
        let listener = TcpListener::bind(address).with_context(what)?;
        let address = listener.local_addr().with_context(what)?;
        let who = match address.ip() {
            ip if ip.is_loopback() => "programs of this machine",
            _ => "whoever reaches this address",
        };
        say(&format!(
            "listening at {address}, for one reader at a time: {who}, without encryption (wireshark -k -i TCP@{address})"
        ));
        let (send, next) = sync_channel(1);
        let accept = move || accept(&listener, &send);
        thread::Builder::new().name("tapdeck-listen".into()).spawn(accept).with_context(what)?;
        Ok(Self { next })
    }

    /// Waits for the next reader; `None` where somebody asks for the end.
    pub fn next(&self, interrupt: &Interrupt) -> Result<Option<Reader>> {
        while !interrupt.asked() {
            match self.next.recv_timeout(LOOK) {
                Ok(reader) => return Ok(Some(reader)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("nobody can connect any more"),
            }
        }
        Ok(None)
    }
}

/// Takes connections until nobody wants them.
fn accept(listener: &TcpListener, to: &SyncSender<Reader>) {
    let is_taken = Arc::new(AtomicBool::new(false));
    loop {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            // The one that came has gone, or there are too many files open.
            Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
            Err(e) => {
                say(&format!("cannot take a reader: {e}"));
                thread::sleep(LOOK);
                continue;
            }
        };
        // The one before may be just about to go.
        let begun = Instant::now();
        let mut is_other = is_taken.swap(true, SeqCst);
        while is_other && begun.elapsed() < GRACE {
            thread::sleep(GRACE / 50);
            is_other = is_taken.swap(true, SeqCst);
        }
        if is_other {
            say(&format!("{from} was turned away: there is one reader at a time"));
            continue;
        }
        let _ = stream.set_nodelay(true);
        let name = from.to_string();
        let stream = File::from(OwnedFd::from(stream));
        if to.send(Reader { stream, name, is_taken: is_taken.clone() }).is_err() {
            return;
        }
    }
}

/// Waits for some time, but not longer than there is somebody who reads what is written to a pipe
/// or a socket. Returns whether somebody does, as far as can be known.
pub fn wait(output: impl AsFd, time: Duration) -> bool {
    let mut ends = [PollFd::new(&output, PollFlags::RDHUP)];
    // A signal ends the wait.
    let _ = rustix::event::poll(&mut ends, Timespec::try_from(time).ok().as_ref());
    !ends[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::RDHUP)
}

/// Returns an error of writing as that of a pipe that nobody reads, if it means the same.
pub fn as_of_pipe(e: io::Error) -> io::Error {
    match e.kind() {
        ErrorKind::ConnectionReset => ErrorKind::BrokenPipe.into(),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_port_alone_is_of_this_machine_alone() {
        for text in ["57012", "localhost:57012", "127.0.0.1:57012"] {
            let address = address(text).expect(text);
            assert!(address.ip().is_loopback() && address.port() == 57012, "{text}");
        }
        assert_eq!(address("192.0.2.1:1").map(|a| a.to_string()), Ok("192.0.2.1:1".into()));
        assert!(address("[::]:57012").is_ok());
        for bad in ["", "eth0", "192.0.2.1", "70000", ":57012", "host.example:1"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
