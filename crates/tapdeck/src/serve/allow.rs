//! Who may be a member of a group?
//!
//! The socket's permission says who may connect, for all groups alike. A group may be narrower: its
//! `allow` names users and groups of the system. Operators may always.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};

use crate::control::Peer;

/// A user or a group of the system, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    User(String),
    Group(String),
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("user", name)) if !name.is_empty() => Ok(Self::User(name.to_owned())),
            Some(("group", name)) if !name.is_empty() => Ok(Self::Group(name.to_owned())),
            _ => Err("names nobody: write \"user:NAME\" or \"group:NAME\"".to_owned()),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
        }
    }
}

/// A user or a group of the system, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    User(Uid),
    Group(Gid),
}

/// Those who may be members of a group beside the operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Everybody who may connect.
    All,
    These(Vec<Who>),
}

impl Allowed {
    /// Finds the numbers of users and groups. Without names, everybody is allowed.
    pub fn find(names: Option<&[Name]>) -> Result<Self> {
        let Some(names) = names else { return Ok(Self::All) };
        let find = |name: &Name| {
            let who = match name {
                Name::User(user) => User::from_name(user)?.map(|user| Who::User(user.uid)),
                Name::Group(group) => Group::from_name(group)?.map(|group| Who::Group(group.gid)),
            };
            who.with_context(|| format!("allow: there is no {name} on this machine"))
        };
        names.iter().map(find).collect::<Result<_>>().map(Self::These)
    }

    /// Whether a process's user may be a member. The answer may take a while, where the system asks
    /// a directory in the network for the user's groups.
    pub fn permits(&self, peer: Peer) -> bool {
        let Self::These(these) = self else { return true };
        let (uid, gid) = (Uid::from_raw(peer.uid), Gid::from_raw(peer.gid));
        if peer.is_operator() || these.contains(&Who::User(uid)) {
            return true;
        }
        let mut wanted = these.iter().filter_map(|who| match who {
            Who::Group(gid) => Some(*gid),
            Who::User(_) => None,
        });
        let all = || {
            let user = User::from_uid(uid).ok()??;
            getgrouplist(&std::ffi::CString::new(user.name).ok()?, gid).ok()
        };
        let mut groups: Option<Vec<Gid>> = None;
        wanted.any(|wanted| {
            let groups = groups.get_or_insert_with(|| all().unwrap_or_default());
            wanted == gid || groups.contains(&wanted)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Allowed, Name};
    use crate::control::Peer;

    #[test]
    fn users_and_groups_are_told_apart_and_others_refused() {
        let names = ["user:nobody", "group:daemon"].map(|name| name.parse::<Name>().unwrap());
        let allowed = Allowed::find(Some(&names)).unwrap();
        let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap().uid.as_raw();
        let daemon = nix::unistd::Group::from_name("daemon").unwrap().unwrap().gid.as_raw();
        let peer = |uid, gid| Peer { pid: 1, uid, gid };
        for (peer, may) in [
            (peer(0, 0), true),
            (peer(nobody, 77_777), true),
            (peer(77_777, daemon), true),
            (peer(77_777, 77_777), false),
            (peer(daemon + 77_777, nobody), false),
        ] {
            assert_eq!(allowed.permits(peer), may, "{peer:?}");
            assert!(Allowed::All.permits(peer));
        }
        assert!(!Allowed::find(Some(&[])).unwrap().permits(peer(nobody, nobody)));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        for text in ["", "nobody", "user:", "group:", "uid:7", "users:x"] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
        let nowhere = Allowed::find(Some(&[Name::Group("no-such-group-here".into())]));
        assert!(format!("{:#}", nowhere.unwrap_err()).contains("group:no-such-group-here"));
    }
}
