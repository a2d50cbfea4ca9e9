//! Where a socket is, however long its path.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A socket's address, which holds 107 bytes: a longer path is reached through its directory.
#[derive(Debug)]
pub struct Address {
    socket: SocketAddrUnix,
    _dir: Option<OwnedFd>,
}

impl Address {
    /// # Errors
    /// Where the path has no directory that is there, or its last part alone is too long.
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

    /// A stream to whoever listens there.
    ///
    /// # Errors
    /// As connect(2).
    pub fn connect(&self) -> io::Result<UnixStream> {
        let socket = stream(SocketFlags::CLOEXEC)?;
        rustix::net::connect(&socket, &self.socket)?;
        Ok(socket.into())
    }

    /// As [`Address::connect`], but waits for nobody: `EAGAIN` where the listener does not take
    /// those who wait already.
    ///
    /// # Errors
    /// As connect(2).
    pub fn connect_now(&self) -> io::Result<UnixStream> {
        let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &self.socket)?;
        Ok(socket.into())
    }

    /// A socket of this address that does not listen yet, and will not wait for those who connect.
    ///
    /// # Errors
    /// As bind(2).
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
        // Bound where its path is short, then moved.
        let short = dir.path().join("s");
        let _listener = UnixListener::bind(&short).unwrap();
        let path = deep.join("serve.sock");
        std::fs::rename(&short, &path).unwrap();
        Address::of(&path).unwrap().connect().unwrap();
        assert!(Address::of(&deep.join("none.sock")).unwrap().connect().is_err());
    }
}
