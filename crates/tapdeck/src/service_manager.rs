//! What does the service manager hear of a recorder or daemon that it has started? systemd, or
//! whoever speaks its protocol (sd_notify(3)): that packets come and can be kept, how fast, and
//! that all threads get on.
//!
//! The socket is connected before rights are given up, since no other can be reached afterwards.
//! What the manager does not read is kept back, as far as it still matters: nothing waits for it.

use std::collections::VecDeque;
use std::env;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tapdeck_packet::watch::Watcher;

/// For how many seconds a thread stands still before that is told, where nobody watches.
const UNWATCHED: u32 = 10;
/// The most messages that are kept back.
const MOST_UNSENT: usize = 16;

/// The manager that has started this process, if one did and listens.
#[derive(Debug)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    unsent: VecDeque<String>,
    is_watchdog: bool,
    /// How many seconds a thread, or the output, may stand still.
    patience: u32,
    watcher: Watcher,
    /// For how many seconds nothing could be written.
    stalled: u32,
    is_ready: bool,
}

impl ServiceManager {
    /// Connects to the manager, if the environment names one (`NOTIFY_SOCKET`). Adds to the notes
    /// for the user if it cannot be reached.
    pub fn connect(notes: &mut Vec<String>) -> Self {
        let named = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = named.and_then(|name| match connect(name.as_bytes()) {
            Ok(socket) => Some(socket),
            Err(e) => {
                let name = name.display();
                notes.push(format!("cannot reach the service manager at {name}: {e}"));
                None
            }
        });
        let watchdog = socket.as_ref().and_then(|_| watchdog());
        // So a thread that stands still is told well before the manager acts on it.
        let patience = watchdog.map_or(UNWATCHED, |time| (time.as_secs() / 3).max(1) as u32);
        Self {
            socket,
            unsent: VecDeque::new(),
            is_watchdog: watchdog.is_some(),
            patience,
            watcher: Watcher::default(),
            stalled: 0,
            is_ready: false,
        }
    }

    /// Whether it waits to hear that the service is ready.
    pub fn waits(&self) -> bool {
        self.socket.is_some() && !self.is_ready
    }

    /// Tells that the hooks are attached and that what they take can be kept.
    pub fn ready(&mut self) {
        self.is_ready = true;
        self.tell("READY=1".into());
    }

    /// Tells that the configuration is read again, where the service has been ready;
    /// [`ServiceManager::reloaded`] says that this is over.
    pub fn reloading(&mut self) {
        if !self.is_ready {
            return;
        }
        let now = clock_gettime(ClockId::Monotonic);
        let us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.tell(format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// Tells that the configuration has been read again, which makes no service ready that was not.
    pub fn reloaded(&mut self) {
        if self.is_ready {
            self.ready();
        }
    }

    /// Tells that this process ends.
    pub fn stopping(&mut self) {
        self.tell("STOPPING=1".into());
    }

    /// Tells the rates, and that all threads get on, if they do. Called once a second. `cannot` is
    /// why nothing can be written at present: a full disk is told, and any other reason is a hang
    /// when it lasts.
    pub fn second(&mut self, rates: &str, cannot: Option<io::Error>) {
        if self.socket.is_none() {
            return;
        }
        let standing = self.watcher.look_for_progress(self.patience);
        // On a full disk packets wait in rings, then are dropped and counted, and all goes on: that
        // is no hang.
        let is_full =
            |e: &io::Error| matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        let (full, cannot) = match cannot {
            Some(e) if is_full(&e) => (Some(e), None),
            other => (None, other),
        };
        self.stalled = if cannot.is_some() { self.stalled.saturating_add(1) } else { 0 };
        let trouble = match (standing.first(), cannot) {
            (Some(thread), _) => {
                Some(format!("{thread} has stood still for {} s or more", self.patience))
            }
            (None, Some(e)) if self.stalled >= self.patience => {
                Some(format!("nothing can be written for {} s: {e}", self.stalled))
            }
            _ => None,
        };
        let lives = if self.is_watchdog { "\nWATCHDOG=1" } else { "" };
        match (trouble, full) {
            (Some(trouble), _) => self.tell(format!("STATUS={trouble}; {rates}")),
            (None, Some(e)) => {
                self.tell(format!("STATUS=nothing can be written: {e}; {rates}{lives}"));
            }
            (None, None) => self.tell(format!("STATUS={rates}{lives}")),
        }
    }

    fn tell(&mut self, message: String) {
        let Some(socket) = &self.socket else { return };
        // Of two states the later one holds.
        self.unsent.retain(|message| !message.starts_with("STATUS="));
        self.unsent.push_back(message);
        while let Some(first) = self.unsent.front() {
            match socket.send(first.as_bytes()) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // It was sent, or the manager is gone.
                _ => drop(self.unsent.pop_front()),
            }
        }
        self.unsent.truncate(MOST_UNSENT);
    }
}

/// Connects to a socket that has a path, or an abstract name behind `@`.
fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        _ => return Err(ErrorKind::Unsupported.into()),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns how long this process may be silent, if it is watched (sd_watchdog_enabled(3)).
fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let is_other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
    let us = number("WATCHDOG_USEC").filter(|us| *us > 0 && !is_other)?;
    Some(Duration::from_micros(us))
}
