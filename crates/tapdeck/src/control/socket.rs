//! The control socket's file: where it is, who may connect, and when an old one may be replaced.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags};
use rustix::io::Errno;
use tapdeck_client::Address;

use crate::rights::found;

/// The socket's name in a store, beside the store's lock. The dot keeps it out of listings; readers
/// of the store look at segments' names alone.
pub const IN_STORE: &str = ".tapdeck.sock";

/// How long another process may take for its turn.
const TURN: Duration = Duration::from_secs(1);

/// Returns the path of the socket of a recorder into a store.
pub fn recorder_path(dir: &Path) -> PathBuf {
    dir.join(IN_STORE)
}

/// The permission to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    pub group: Option<String>,
}

impl Default for Access {
    /// Lets the owner connect and nobody else.
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

impl Access {
    /// Lets the group that the socket's file gets by itself connect as well.
    pub fn of_group() -> Self {
        Self { mode: 0o660, group: None }
    }
}

/// A socket that listens. Dropping it removes its file.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file, so that no other file is removed.
    file: (u64, u64),
}

impl Socket {
    /// Listens at `path`. A socket that a dead process left there is replaced.
    pub fn bind(path: &Path, access: &Access) -> Result<Self> {
        let what = || format!("cannot listen at {}", path.display());
        if path == Path::new(tapdeck_client::DEFAULT_SOCKET)
            && let Some(dir) = path.parent()
        {
            fs::create_dir_all(dir).with_context(what)?;
        }
        refuse_shared(path)?;
        let group = access.group.as_deref().map(find_group).transpose().with_context(what)?;
        let _turn = take_turn(path).with_context(what)?;
        remove_dead(path)?;
        let address = Address::of(path).with_context(what)?;
        let socket = with_mode(access.mode, || address.bind()).with_context(what)?;
        let meta = fs::symlink_metadata(path).with_context(what)?;
        let file = (meta.dev(), meta.ino());
        // The value is made before the rest, so that the file goes if the rest fails.
        let socket = Self { listener: socket.into(), path: path.to_owned(), file };
        // Nobody can connect before listen(2), so nobody connects without the group's permission.
        if group.is_some() {
            rustix::fs::chownat(rustix::fs::CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW)
                .with_context(what)?;
        }
        rustix::net::listen(&socket.listener, 128).with_context(what)?;
        Ok(socket)
    }
}

/// Removes a socket that a process left which died, as far as this one may.
pub fn remove_left(path: &Path) {
    if let Ok(_turn) = take_turn(path) {
        let _ = remove_dead(path);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Refuses a directory in which everybody could put another file in the socket's place.
fn refuse_shared(path: &Path) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let meta = fs::metadata(dir).with_context(|| format!("cannot listen at {}", path.display()))?;
    if meta.mode() & 0o002 != 0 {
        bail!(
            "cannot listen at {}: everybody may write in {}; name another --socket, or `chmod o-w` the directory",
            path.display(),
            dir.display()
        );
    }
    Ok(())
}

/// Makes a file that has a mode from the beginning: one that gets it afterwards, by its name, may
/// be another one by then. The process has one mask for all threads, so one at a time has it.
fn with_mode<T>(mode: u32, make: impl FnOnce() -> T) -> T {
    static MASK: Mutex<()> = Mutex::new(());
    let _turn = MASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
    let made = make();
    rustix::process::umask(before);
    made
}

/// Connects to a socket.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    Address::of(path)?.connect()
}

/// Waits for this process's turn to look whether a socket is dead and to make its own. The turn
/// ends when what is returned is dropped.
fn take_turn(path: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    // A file system without locks has no turns.
    let until = Instant::now() + TURN;
    loop {
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(dir)),
            // Any process that can read the directory can hold its lock, and must not keep this one
            // from starting.
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(_) => return Ok(None),
        }
    }
}

/// Makes room for a socket, unless somebody needs what is there.
fn remove_dead(path: &Path) -> Result<()> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).with_context(|| format!("cannot listen at {shown}")),
        Ok(meta) if !meta.file_type().is_socket() => {
            bail!("cannot listen at {shown}: there is a file already; name another --socket");
        }
        Ok(_) => {}
    }
    // A socket that accepts nobody now may have a full queue: it has a listener nevertheless.
    match Address::of(path).and_then(|address| address.connect_now()) {
        Err(e)
            if e.kind() != io::ErrorKind::WouldBlock
                && e.kind() != io::ErrorKind::ConnectionRefused =>
        {
            Err(e).with_context(|| format!("cannot tell who listens at {shown}"))
        }
        Ok(_) => bail!(
            "another tapdeck listens at {shown}: stop it (tapdeck ctl --socket {shown} stop), or name another --socket"
        ),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).with_context(|| format!("cannot remove the dead socket {shown}"))
        }
        Err(_) => bail!(
            "another tapdeck listens at {shown} and takes nobody: end it, or name another --socket"
        ),
    }
}

fn find_group(name: &str) -> Result<Gid> {
    let group = found(nix::unistd::Group::from_name(name)).context("cannot ask for groups")?;
    let group = group.with_context(|| format!("there is no group {name} on this machine"))?;
    Ok(Gid::from_raw(group.gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::{Access, Socket, connect};

    #[test]
    fn a_dead_socket_is_replaced_a_live_one_is_not_and_its_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "what a process that died leaves");

        let access = Access { mode: 0o640, group: None };
        let live = Socket::bind(&path, &access).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        connect(&path).unwrap();
        let refused = Socket::bind(&path, &access).unwrap_err();
        assert!(format!("{refused:#}").contains("another tapdeck listens at"), "{refused:#}");
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn the_lock_of_another_keeps_nobody_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let held = std::fs::File::open(dir.path()).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        Socket::bind(&dir.path().join("control.sock"), &Access::default()).unwrap();
    }

    #[test]
    fn one_that_listens_and_takes_nobody_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let socket = Socket::bind(&path, &Access::default()).unwrap();
        let address = super::Address::of(&path).unwrap();
        let clients: Vec<_> =
            std::iter::from_fn(|| address.connect_now().ok()).take(1000).collect();
        assert!(clients.len() < 1000, "its queue is full");
        let refused = Socket::bind(&path, &Access::default()).unwrap_err();
        assert!(format!("{refused:#}").contains("another tapdeck listens at"), "{refused:#}");
        drop(socket);
    }

    #[test]
    fn files_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("letter");
        std::fs::write(&path, "dear").unwrap();
        assert!(Socket::bind(&path, &Access::default()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"dear");

        let path = dir.path().join("taken-over.sock");
        let socket = Socket::bind(&path, &Access::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "dear").unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[test]
    fn where_everybody_may_write_nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        for mode in [0o777, 0o1777] {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
            let refused = Socket::bind(&path, &Access::default()).unwrap_err();
            assert!(format!("{refused:#}").contains("everybody may write"), "{refused:#}");
            assert!(!path.exists());
        }
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Socket::bind(&path, &Access::default()).unwrap();
    }

    #[test]
    fn a_path_may_be_long() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let path = deep.join("control.sock");
        let _socket = Socket::bind(&path, &Access::default()).unwrap();
        connect(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_is_said() {
        let nowhere = std::path::Path::new("/nonexistent/x.sock");
        assert!(Socket::bind(nowhere, &Access::default()).is_err());
        let dir = tempfile::tempdir().unwrap();
        let access = Access { mode: 0o660, group: Some("no-such-group-here".into()) };
        let path = dir.path().join("control.sock");
        let why = format!("{:#}", Socket::bind(&path, &access).unwrap_err());
        assert!(why.contains("no-such-group-here"), "{why}");
        assert!(!path.exists());
    }
}
