//! How is a socket reached whose path is longer than a socket's address can be?
//!
//! An address has room for a path of 107 bytes. A socket with a longer path is reached through a
//! descriptor of its directory, as `/proc/self/fd/N/NAME`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The address of a Unix stream socket, by a path of any length.
#[derive(Debug)]
pub struct Address {
    socket: SocketAddrUnix,
    /// Keeps the descriptor open that the address goes through.
    _dir: Option<OwnedFd>,
}

impl Address {
    /// Makes the address of the socket at `path`, which need not exist.
    ///
    /// # Errors
    /// Where the path is too long for an address and its directory cannot be opened, or its last
    /// part alone is too long.
    pub fn of(path: &Path) -> io::Result<Self> {
        if let Ok(socket) = SocketAddrUnix::new(path) {
            return Ok(Self { socket, _dir: None });
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(rustix::io::Errno::NAMETOOLONG.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        let through = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let socket = SocketAddrUnix::new(Path::new(&through).join(name))?;
        Ok(Self { socket, _dir: Some(dir) })
    }

    /// Connects to the socket, and waits until its listener has room for the connection.
    ///
    /// # Errors
    /// Those of socket(2) and connect(2).
    pub fn connect(&self) -> io::Result<UnixStream> {
        let socket = stream(SocketFlags::CLOEXEC)?;
        rustix::net::connect(&socket, &self.socket)?;
        Ok(socket.into())
    }

    /// Connects to the socket without waiting. The stream does not wait either
    /// (`O_NONBLOCK`).
    ///
    /// # Errors
    /// Those of socket(2) and connect(2), `EAGAIN` among them where the listener's queue of
    /// connections is full.
    pub fn connect_now(&self) -> io::Result<UnixStream> {
        let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &self.socket)?;
        Ok(socket.into())
    }

    /// Makes a socket and binds it to this address. The socket does not listen yet, and does not
    /// wait (`O_NONBLOCK`).
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn bind(&self) -> io::Result<OwnedFd> {
        let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::bind(&socket, &self.socket)?;
        Ok(socket)
    }
}

fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::Address;

    #[test]
    fn a_path_may_be_long() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        // The standard library binds to short paths only, so the socket is moved afterwards.
        let short = dir.path().join("s");
        let _listener = UnixListener::bind(&short).unwrap();
        let path = deep.join("serve.sock");
        std::fs::rename(&short, &path).unwrap();
        Address::of(&path).unwrap().connect().unwrap();
        assert!(Address::of(&deep.join("none.sock")).unwrap().connect().is_err());
    }
}
