//! What may a recorder or a daemon do once it is at work? As little as that takes.
//!
//! [`Rights::give_up`] leaves this process no capability and no way to one, another user where
//! there is one, and of the file system its store. [`keep_for_hooks`] leaves its helper
//! (`tapdeck_capture::Helper`) the capabilities that hooks take. Both must come before there is
//! another thread: most of these rights are a thread's, and those it starts have no more than it.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope, path_beneath_rules,
};
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, setfsgid, setfsuid, setgroups, setresgid, setresuid};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use tapdeck_store::{Error as StoreError, Store};

use crate::usage::usage;

/// The user that a recorder or daemon becomes where nobody named one.
const USER: &str = "tapdeck";

/// What hooks take: to load programs, to attach them, and to open sockets.
const FOR_HOOKS: [Capability; 4] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
];

/// Files that hold no secret and that a recorder reads while it records: tables of names, for a
/// filter that a client asks for, and what the kernel says of the machine.
const READ: [&str; 11] = [
    "/etc/ethers",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel/random/boot_id",
    "/sys/devices/system/cpu",
];

/// Files that say who is a user, and of which groups: a daemon asks for that of whoever attaches.
const USERS: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// Returns a user or a group, if there is one: a machine without the file that would name it has
/// none (getpwnam(3)).
pub fn found<T>(asked: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match asked {
        Err(Errno::ENOENT) => Ok(None),
        answer => answer,
    }
}

/// What of the file system a process still needs.
pub enum Place<'a> {
    /// A store, whose directory is made where there is none, and who may read it.
    Store(&'a Path, &'a FileAccess),
    /// A file that is open. It is removed where nothing is written to it.
    File(&'a Path),
    /// What tells of users.
    Users,
    Nothing,
}

/// Permission and group of the files of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileAccess {
    /// The permission bits of files; `None` where they are as the umask lets them be.
    pub mode: Option<u32>,
    /// The group that files get, if one was named.
    pub group: Option<String>,
}

impl FileAccess {
    /// Returns the group that a store's directory gets.
    fn find_group(&self, is_new: bool) -> Result<Option<Group>> {
        let find = |name: &str| found(Group::from_name(name)).context("cannot ask for groups");
        match &self.group {
            Some(name) => match find(name)? {
                None => usage(format!("--file-group {name}: there is no such group here")),
                group => Ok(group),
            },
            // A store that is there stays as somebody has made it.
            None if is_new && Uid::effective().is_root() => find(USER),
            None => Ok(None),
        }
    }
}

/// What a store's directory is to be like.
struct Wanted {
    /// The owner, where another one is to get it.
    owner: Option<Uid>,
    /// The group, where it is to get another.
    group: Option<Gid>,
    /// Permission bits that it has at least.
    bits: u32,
}

impl Wanted {
    /// Changes a directory where it is not so yet. A name that is a symbolic link is refused.
    fn put(&self, dir: &Path) -> io::Result<()> {
        // Who has no right to look into somebody else's directory can still refer to it.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(dir, flags, Mode::empty())?;
        let there = rustix::fs::fstat(&place)?;
        let mode = there.st_mode & 0o7777;
        if mode | self.bits != mode {
            as_owner(&there, || {
                let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
                let own = rustix::fs::openat(&place, ".", flags, Mode::empty())?;
                rustix::fs::fchmod(&own, Mode::from_raw_mode(mode | self.bits))
            })?;
        }
        // The owner goes last, for with it goes the right to change the rest.
        let owner = self.owner.map(Uid::as_raw).filter(|uid| *uid != there.st_uid);
        let group = self.group.map(Gid::as_raw).filter(|gid| *gid != there.st_gid);
        if owner.is_some() || group.is_some() {
            let owner = owner.map(rustix::fs::Uid::from_raw);
            let group = group.map(rustix::fs::Gid::from_raw);
            rustix::fs::chownat(&place, "", owner, group, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }
}

/// Does something with files as who owns one, as far as this process may: to change a directory
/// and to have its group handed on takes to be its owner, and in its group, where root lacks
/// CAP_FOWNER and CAP_FSETID.
fn as_owner<T>(file: &Stat, act: impl FnOnce() -> T) -> T {
    let (uid, gid) = (Uid::from_raw(file.st_uid), Gid::from_raw(file.st_gid));
    setfsgid(gid);
    setfsuid(uid);
    let done = act();
    setfsuid(Uid::effective());
    setfsgid(Gid::effective());
    done
}

/// The rights that a recorder or daemon goes on with.
pub struct Rights {
    /// The user that it becomes; `None` where it stays who it is.
    user: Option<User>,
}

impl Rights {
    /// Finds the user that is named, or else the one that is meant for recorders, if there is such
    /// a one and root may become it. A member of a daemon's group (`is_member`) stays who it is
    /// unless another is named: the daemon asks who it is.
    pub fn find(named: Option<&str>, is_member: bool) -> Result<Self> {
        let may_change = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETUID)?;
        if named.is_none() && !(may_change && Uid::effective().is_root()) {
            return Ok(Self { user: None });
        }
        let Self { user } = Self::foresee(named, is_member)?;
        match user.filter(|user| user.uid != Uid::effective()) {
            Some(User { name, .. }) if !may_change => {
                usage(format!("--user {name}: only root can become another user"))
            }
            user => Ok(Self { user }),
        }
    }

    /// Finds the user that a recorder or daemon becomes which root starts, whoever asks.
    pub fn foresee(named: Option<&str>, is_member: bool) -> Result<Self> {
        let find = |name: &str| found(User::from_name(name)).context("cannot ask for users");
        let user = match named {
            Some(name) => match find(name)? {
                None => return usage(format!("--user {name}: there is no such user here")),
                user => user,
            },
            None if is_member => None,
            None => find(USER)?,
        };
        Ok(Self { user })
    }

    /// Says what a recorder or daemon goes on with, and whether a helper keeps what hooks take.
    pub fn foreseen(&self, has_hooks: bool) -> String {
        let who = match &self.user {
            Some(user) => format!("started by root it becomes user {}", user.name),
            None => "it stays who starts it".to_owned(),
        };
        let helper = if has_hooks { "; its helper keeps those that hooks take" } else { "" };
        format!("{who}, without capabilities{helper}")
    }

    /// Refuses a store that is there and in which the user may not write.
    pub fn check_store(&self, dir: &Path) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let (Some(user), Ok(meta)) = (&self.user, dir.metadata()) else { return Ok(()) };
        let mode = meta.mode();
        let may = if meta.uid() == user.uid.as_raw() {
            mode >> 6
        } else if meta.gid() == user.gid.as_raw() {
            mode >> 3
        } else {
            mode
        };
        // To make files in it takes writing and passing.
        if may & 3 == 3 {
            return Ok(());
        }
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        Err(self.explain(denied.into(), dir))
    }

    /// Gives up all that is not needed from now on; what is in the directories `read_again` may
    /// still be read, as far as the user may. Returns what the user should know of it.
    ///
    /// # Errors
    /// Where a right stays that could be given up: nothing is recorded or served then.
    pub fn give_up(&self, place: &Place<'_>, read_again: &[PathBuf]) -> Result<Vec<String>> {
        if let Place::Store(dir, access) = place {
            self.make_store(dir, access)?;
        }
        self.give_up_all(place, read_again).context("cannot give up the rights that are not needed")
    }

    fn give_up_all(&self, place: &Place<'_>, read_again: &[PathBuf]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        drop_bounding()?;
        if let Some(user) = &self.user {
            setgroups(&[user.gid])?;
            setresgid(user.gid, user.gid, user.gid)?;
            setresuid(user.uid, user.uid, user.uid)?;
        }
        for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
            caps::clear(None, set)?;
        }
        rustix::thread::set_no_new_privs(true)?;
        let is_confined = confine(place, read_again)?;
        let kept = caps::read(None, CapSet::Permitted)?;
        ensure!(kept.is_empty(), "{kept:?} stay");
        if self.user.is_none() && Uid::effective().is_root() {
            notes.push(format!(
                "goes on as root, without capabilities: --user NAME, or a user {USER} on this machine, takes root's files from it"
            ));
        }
        if !is_confined {
            notes.push(
                "this kernel has no landlock: this process may reach what its user may".to_owned(),
            );
        }
        Ok(notes)
    }

    /// Makes a store that is not there, for the user who is to write in it. Its group, which all
    /// files made in it get, too, and its permission become those that go with its files.
    fn make_store(&self, dir: &Path, access: &FileAccess) -> Result<()> {
        let is_new = Store::make(dir)?;
        let user = self.user.as_ref().filter(|_| is_new);
        let group = access.find_group(is_new)?.map(|group| group.gid);
        let group = group.or(user.map(|user| user.gid));
        // A store may be a symbolic link, as long as nothing about it is to be changed.
        if group.is_none() && access.mode.is_none() {
            return Ok(());
        }
        let own_group = self.user.as_ref().map_or_else(Gid::effective, |user| user.gid);
        // Files of the recorder have its own group anyway.
        let inherits = if group.is_some_and(|group| group != own_group) { 0o2000 } else { 0 };
        // Who may read the files may look for them; whoever could do so before still can.
        let reads = access.mode.unwrap_or(0) & 0o044;
        let bits = inherits | reads | (reads >> 2);
        let wanted = Wanted { owner: user.map(|user| user.uid), group, bits };
        wanted.put(dir).with_context(|| {
            if dir.is_symlink() {
                return format!(
                    "{} is a symbolic link, and what it leads to stays as it is: name that",
                    dir.display()
                );
            }
            match user {
                Some(user) => format!("cannot give {} to user {}", dir.display(), user.name),
                None => format!("cannot say who may read {}", dir.display()),
            }
        })
    }

    /// Says of an error that a store could not be written what would help, where it is that the
    /// recorder may no longer write everywhere.
    pub fn explain(&self, e: anyhow::Error, dir: &Path) -> anyhow::Error {
        let is_refused = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref(), Some(StoreError::Permission(_)))
                || cause
                    .downcast_ref::<io::Error>()
                    .is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
        };
        if !e.chain().any(is_refused) {
            return e;
        }
        let dir = dir.display();
        match &self.user {
            Some(User { name, .. }) => e.context(format!(
                "the recorder goes on as user {name}, whose the store must be: chown -R {name}: {dir}, or --user root"
            )),
            None if Uid::effective().is_root() => e.context(format!(
                "the recorder goes on as root without capabilities, and the store is somebody else's: chown -R root: {dir}, or --user with its owner"
            )),
            None => e,
        }
    }
}

/// Leaves this process, a helper, the capabilities that hooks take, and no way to others. AF_XDP
/// sockets have locked memory (`locks_memory`).
pub fn keep_for_hooks(locks_memory: bool) -> io::Result<()> {
    let keep = || -> Result<()> {
        drop_bounding()?;
        caps::clear(None, CapSet::Ambient)?;
        caps::clear(None, CapSet::Inheritable)?;
        let had = caps::read(None, CapSet::Permitted)?;
        let to_lock = locks_memory.then_some(Capability::CAP_IPC_LOCK);
        let wanted = FOR_HOOKS.into_iter().chain(to_lock);
        let kept: CapsHashSet = wanted.filter(|cap| had.contains(cap)).collect();
        caps::set(None, CapSet::Effective, &kept)?;
        caps::set(None, CapSet::Permitted, &kept)?;
        Ok(rustix::thread::set_no_new_privs(true)?)
    };
    keep().map_err(io::Error::other)
}

/// Puts all capabilities out of reach of what this process may execute. Who may not do that has no
/// way to them either, once there are no new privileges.
fn drop_bounding() -> Result<()> {
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for cap in caps::runtime::thread_all_supported() {
            caps::drop(None, CapSet::Bounding, cap)?;
        }
    }
    Ok(())
}

/// Returns the directory that a file has its name in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Takes the file system from this thread but for a place, and all networks. Returns whether the
/// kernel can do that.
fn confine(place: &Place<'_>, read_again: &[PathBuf]) -> Result<bool> {
    use AccessFs::{MakeReg, ReadDir, ReadFile, RemoveFile, Truncate, WriteFile};
    // Of what is newer than the kernel, it refuses what it knows.
    let abi = ABI::V6;
    let (dir, may): (Option<PathBuf>, BitFlags<AccessFs>) = match place {
        Place::Store(dir, _) => (
            Some(dir.to_path_buf()),
            ReadFile | WriteFile | ReadDir | MakeReg | AccessFs::MakeSock | RemoveFile | Truncate,
        ),
        Place::File(path) => {
            // Its name is made durable by the directory, which is opened for that.
            (Some(directory_of(path).to_owned()), RemoveFile | ReadDir)
        }
        Place::Users | Place::Nothing => (None, RemoveFile.into()),
    };
    let users = if matches!(place, Place::Users) { &USERS[..] } else { &[] };
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(dir, may))?
        .add_rules(path_beneath_rules(READ, ReadFile | ReadDir))?
        .add_rules(path_beneath_rules(users, ReadFile))?
        .add_rules(path_beneath_rules(read_again, ReadFile | ReadDir))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Ok(false);
    }
    if !status.no_new_privs {
        bail!("the kernel may still give new privileges");
    }
    Ok(true)
}
