//! How does one recorder keep another from its place, without anybody else being able to?
//!
//! By a lock on a file (flock(2)) in a directory that is root's alone. It ends with its process,
//! however that ends. Where there is no such directory, as for a recorder that is not root, there
//! is no lock: nothing that others make may keep a recorder from its work.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, mkdir, openat, stat};
use rustix::io::Errno;

/// Where the files are.
const DIR: &str = "/run/tapdeck-locks";

/// Returns the number of the network namespace where this thread is.
pub(crate) fn namespace() -> io::Result<u64> {
    Ok(stat("/proc/thread-self/ns/net")?.st_ino)
}

/// Takes the lock of a name. Returns none where there can be no locks.
///
/// # Errors
/// `EADDRINUSE` where another process has it.
pub(crate) fn hold(name: &str) -> io::Result<Option<OwnedFd>> {
    hold_in(Path::new(DIR), name)
}

fn hold_in(dir: &Path, name: &str) -> io::Result<Option<OwnedFd>> {
    match file_in(dir, name) {
        Ok(Some(file)) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Err(Errno::ADDRINUSE.into()),
            Err(_) => Ok(None),
        },
        Ok(None) | Err(_) => Ok(None),
    }
}

/// Opens a file of a directory that nobody else can write in or open files of.
fn file_in(dir: &Path, name: &str) -> rustix::io::Result<Option<OwnedFd>> {
    match mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, dir, flags | OFlags::RDONLY, Mode::empty())?;
    let found = fstat(&dir)?;
    let is_ours = found.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours || found.st_mode & 0o077 != 0 {
        return Ok(None);
    }
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&dir, name, flags, Mode::RUSR | Mode::WUSR).map(Some)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::path::PathBuf;

    use super::hold_in;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = format!("tapdeck-lock-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(dir))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_at_a_time_has_a_lock() {
        let dir = Scratch::new("one");
        let first = hold_in(&dir.0, "clsact-1-2").unwrap().expect("a lock");
        let second = hold_in(&dir.0, "clsact-1-2").unwrap_err();
        assert_eq!(second.raw_os_error(), Some(libc::EADDRINUSE));
        assert!(hold_in(&dir.0, "clsact-1-3").unwrap().is_some(), "another interface");
        drop(first);
        assert!(hold_in(&dir.0, "clsact-1-2").unwrap().is_some());
    }

    /// Any user can bind an abstract socket of any name, or make a file where users may.
    #[test]
    fn nothing_that_others_make_keeps_the_lock() {
        let dir = Scratch::new("others");
        let name = SocketAddr::from_abstract_name("tapdeck-clsact-2").unwrap();
        let _socket = UnixDatagram::bind_addr(&name);
        assert!(hold_in(&dir.0, "clsact-1-2").unwrap().is_some());
        for mode in [0o777, 0o770, 0o755] {
            let dir = Scratch::new(&format!("{mode:o}"));
            fs::create_dir(&dir.0).unwrap();
            fs::set_permissions(&dir.0, fs::Permissions::from_mode(mode)).unwrap();
            assert!(hold_in(&dir.0, "clsact-1-2").unwrap().is_none(), "{mode:o}");
        }
        let file = Scratch::new("file");
        fs::write(&file.0, "").unwrap();
        assert!(hold_in(&file.0, "clsact-1-2").unwrap().is_none());
        fs::remove_file(&file.0).unwrap();
        let link = dir.0.join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(hold_in(&link, "clsact-1-2").unwrap().is_none());
        std::os::unix::fs::symlink("/etc/passwd", dir.0.join("clsact-1-9")).unwrap();
        assert!(hold_in(&dir.0, "clsact-1-9").unwrap().is_none());
    }
}
