//! The configuration of `serve`: a TOML file that is read and checked before anything is touched.
//!
//! [`ServePlan::read`] is the way from file and flags to values that make sense together. It looks
//! at interfaces and reads rule files, and changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::Deserialize;
use tapdeck_capture::groups::{GroupConfig, GroupsConfig, MAX_MEMBERS, Steering};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::persist::LastingGroups;
use tapdeck_capture::{Deliver, Hook, Stamps, probe};
use tapdeck_packet::config_fault::fault;
use tapdeck_packet::rules::image::Options;

use super::allow::{self, Allowed};
use super::coming::Quota;
use super::reload::{Keys, all_keys};
use crate::control::{Access, Loaded, load, load_again};
use crate::flags;
use crate::rights::directory_of;
use crate::units;
use crate::usage::Usage;
use crate::way_out;

/// All that a daemon is told at its start, checked.
#[derive(Debug)]
pub struct ServePlan {
    pub socket: PathBuf,
    pub access: Access,
    pub groups: GroupsConfig,
    /// The users that may be members of each group, in the order of the groups.
    pub allowed: Vec<Arc<Allowed>>,
    /// What one user may have, operators aside.
    pub quota: Quota,
    /// The rules that each group begins with, in the order of the groups.
    pub rules: Vec<Option<Loaded>>,
    /// How rules become what the kernel takes.
    pub rules_options: Options,
    /// All keys of the file.
    pub keys: Keys,
    /// The directories that are read when the configuration is read again.
    pub read_again: Vec<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    serve: Serve,
    #[serde(default)]
    group: Vec<Group>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Serve {
    socket: Option<PathBuf>,
    socket_mode: Option<Checked<Mode>>,
    socket_group: Option<String>,
    ring_bytes: Option<Checked<Size>>,
    block_bytes: Option<Checked<Size>>,
    device_bound: Option<bool>,
    clock: Option<Checked<ClockName>>,
    max_members: Option<u32>,
    memory: Option<Checked<Size>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Group {
    name: Checked<Name>,
    interfaces: Vec<String>,
    #[serde(default)]
    hook: HookName,
    #[serde(default)]
    deliver: DeliverName,
    filter: Option<String>,
    rules: Option<PathBuf>,
    snaplen: Option<u32>,
    steering: Option<Checked<Steer>>,
    promiscuous: Option<bool>,
    /// Whether packets may be taken from the interface of the default route.
    yes_this_interface: Option<bool>,
    allow: Option<Vec<Checked<Allow>>>,
    max_members: Option<u32>,
    memory: Option<Checked<Size>>,
}

/// A hook that groups can share, or none: the interfaces decide.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct HookName(Option<Hook>);

impl TryFrom<String> for HookName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == "auto" {
            return Ok(Self(None));
        }
        let hook = Hook::named(&name).filter(|hook| hook.takes_groups());
        hook.map(|hook| Self(Some(hook))).ok_or_else(|| {
            let hooks = Hook::list(Hook::takes_groups, "or");
            format!("{name:?} is no hook of groups: take auto, {hooks}")
        })
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DeliverName {
    #[default]
    Pass,
    Consume,
}

/// A value whose form is checked as it is read, so that a fault is told with its line.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Written", bound = "T: Form")]
struct Checked<T: Form>(T::Value);

/// A value as TOML writes it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

trait Form {
    type Value;

    fn check(text: &str) -> Result<Self::Value, String>;

    fn check_number(n: u64) -> Result<Self::Value, String> {
        Self::check(&n.to_string())
    }
}

impl<T: Form> TryFrom<Written> for Checked<T> {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let checked = match &written {
            Written::Number(n) => T::check_number(*n).map_err(|why| format!("{n} {why}")),
            Written::Text(text) => T::check(text).map_err(|why| format!("{text:?} {why}")),
        };
        checked.map(Self)
    }
}

#[derive(Debug)]
struct Size;
#[derive(Debug)]
struct Mode;
#[derive(Debug)]
struct Name;
#[derive(Debug)]
struct Steer;
#[derive(Debug)]
struct ClockName;
#[derive(Debug)]
struct Allow;

impl Form for Size {
    type Value = u64;

    fn check(text: &str) -> Result<u64, String> {
        units::size(text)
    }
}

impl Form for Mode {
    type Value = u32;

    fn check(text: &str) -> Result<u32, String> {
        units::mode(text)
    }

    /// Refuses a mode written as a number: 660 and 0o660 are two numbers.
    fn check_number(_: u64) -> Result<u32, String> {
        Err("is a number; write the mode as text, as \"0660\"".into())
    }
}

impl Form for Name {
    type Value = String;

    /// Checks a group's name, which is also part of a device's (`deck:NAME`) and a word of a rule.
    fn check(text: &str) -> Result<String, String> {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(good) {
            return Err(
                "is no group's name: take up to 64 letters, digits, '.', '_' and '-'".into()
            );
        }
        Ok(text.to_owned())
    }
}

impl Form for Steer {
    type Value = Steering;

    fn check(text: &str) -> Result<Steering, String> {
        text.parse().map_err(|_| {
            let names: Vec<&str> = Steering::ALL.iter().map(|s| s.name()).collect();
            format!("is no steering; there are {}", names.join(" "))
        })
    }
}

impl Form for ClockName {
    type Value = Stamps;

    fn check(text: &str) -> Result<Stamps, String> {
        Stamps::ALL.into_iter().find(|stamps| stamps.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Stamps::ALL.iter().map(|stamps| stamps.name()).collect();
            format!("is no clock; there are {}", names.join(" "))
        })
    }
}

impl Form for Allow {
    type Value = allow::Name;

    fn check(text: &str) -> Result<allow::Name, String> {
        text.parse()
    }
}

const DEFAULT_SNAPLEN: u32 = 65_535;
const DEFAULT_BLOCK_BYTES: u64 = 256 << 10;
const DEFAULT_MODE: u32 = 0o660;
/// The most members that one user may have, if nothing is said.
const DEFAULT_USER_MEMBERS: u32 = 128;
/// The most members of a group whose members get a copy of each packet, if nothing is said: a copy
/// more costs every packet of the interface.
const DEFAULT_COPIES: u32 = 16;

impl ServePlan {
    ///
    /// Groups that outlive their daemon have the numbers that `lasting` says.
    pub fn read(flags: &flags::Serve, lasting: Option<&LastingGroups>) -> Result<Self> {
        let path = &flags.config;
        let text = crate::config::text::read(path)?;
        let file = parse(path, &text)?;
        let serve = file.serve;
        let socket = flags.socket.clone().or(serve.socket);
        let mode = flags.socket_mode.or(serve.socket_mode.map(|mode| mode.0));
        let beside = path.parent().unwrap_or(Path::new(""));
        let (mut groups, mut files, mut allowed) = (Vec::new(), Vec::new(), Vec::new());
        for group in file.group {
            allowed.push(Arc::new(group.allowed()?));
            group.keep_way_out()?;
            // It is named relative to the configuration.
            files.push(group.rules.as_ref().map(|path| beside.join(path)));
            groups.push(group.resolve(lasting)?);
        }
        let keys = groups.iter().map(|g| (g.name.as_str(), g.hook, &g.interfaces[..]));
        let numbers: Vec<u32> = match lasting {
            Some(lasting) => lasting.numbers(&keys.collect::<Vec<_>>())?,
            None => (0..groups.len() as u32).collect(),
        };
        let numbers = groups.iter().map(|group| group.name.clone()).zip(numbers).collect();
        let again = std::iter::once(path).chain(files.iter().flatten());
        let read_again = again.map(|path| directory_of(path).to_owned()).collect();
        let rules_options = Options { groups: numbers, ..Options::default() };
        let mut rules = Vec::new();
        for (group, path) in groups.iter_mut().zip(files) {
            let loaded = path.map(|path| load(&path, &rules_options)).transpose();
            let loaded = loaded.with_context(|| format!("group {}", group.name))?;
            group.rules = loaded.as_ref().map(|(_, compiled)| compiled.clone());
            rules.push(loaded);
        }
        Ok(Self {
            socket: socket.unwrap_or_else(tapdeck_client::default_socket),
            access: Access {
                mode: mode.unwrap_or(DEFAULT_MODE),
                group: flags.socket_group.clone().or(serve.socket_group),
            },
            groups: GroupsConfig {
                groups,
                ring_bytes: serve.ring_bytes.map(|size| size.0),
                block_bytes: serve.block_bytes.map_or(DEFAULT_BLOCK_BYTES, |size| size.0),
                device_bound: serve.device_bound.unwrap_or(true),
                stamps: serve.clock.map_or(Stamps::Auto, |clock| clock.0),
            },
            allowed,
            quota: Quota {
                members: serve.max_members.unwrap_or(DEFAULT_USER_MEMBERS),
                memory: serve.memory.map_or_else(default_memory, |size| size.0),
            },
            rules,
            rules_options,
            keys: all_keys(&text),
            read_again,
        })
    }
}

/// What of a group changes while members read.
#[derive(Debug)]
pub struct GroupAgain {
    pub name: String,
    pub filter: Option<String>,
    pub snaplen: u32,
    pub rules: Option<Loaded>,
    pub allowed: Arc<Allowed>,
}

impl File {
    /// Returns what of the groups changes while members read; rules are compiled for the groups
    /// that there are.
    pub fn again(self, path: &Path, options: &Options) -> Result<Vec<GroupAgain>> {
        let beside = path.parent().unwrap_or(Path::new(""));
        let again = |group: Group| {
            let allowed = Arc::new(group.allowed()?);
            let name = group.name.0;
            let rules = group.rules.map(|path| load_again(&beside.join(path), options)).transpose();
            Ok(GroupAgain {
                rules: rules.with_context(|| format!("group {name}"))?,
                filter: group.filter,
                snaplen: group.snaplen.unwrap_or(DEFAULT_SNAPLEN),
                allowed,
                name,
            })
        };
        self.group.into_iter().map(again).collect()
    }
}

/// Returns what the rings of one user may take, if nothing is said: a quarter of the memory.
fn default_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into()) / 4
}

/// Reads a file's text. The error of a fault is one line, with the line of the file.
pub(crate) fn parse(path: &Path, text: &str) -> Result<File> {
    let explain = |e: toml::de::Error| Usage(fault(path, text, e.span(), e.message()));
    Ok(toml::from_str(text).map_err(explain)?)
}

impl Group {
    /// Finds who may be a member of the group.
    fn allowed(&self) -> Result<Allowed> {
        let names = self.allow.as_ref();
        let names = names.map(|names| names.iter().map(|name| name.0.clone()).collect::<Vec<_>>());
        Allowed::find(names.as_deref()).with_context(|| format!("group {}", self.name.0))
    }

    /// Refuses to take packets away from the interface of the default route, unless that is meant.
    fn keep_way_out(&self) -> Result<()> {
        let takes_away = matches!(self.deliver, DeliverName::Consume);
        if !takes_away || self.yes_this_interface.unwrap_or(false) {
            return Ok(());
        }
        self.interfaces.iter().try_for_each(|name| {
            let harm = "deliver = \"consume\" would cut this machine off";
            way_out::keep(&Interface::find(name)?, harm, "yes-this-interface = true")
                .with_context(|| format!("group {}", self.name.0))
        })
    }

    /// Returns the group with its hook. Where none is named it is the one that a daemon before has
    /// left, or chosen by the interfaces.
    fn resolve(self, lasting: Option<&LastingGroups>) -> Result<GroupConfig> {
        let name = self.name.0;
        let left = lasting.and_then(|lasting| lasting.hook_left(&name, &self.interfaces));
        let hook = match self.hook.0.or(left) {
            Some(hook) => hook,
            None => auto(&self.interfaces).with_context(|| format!("group {name}"))?,
        };
        let steering = self.steering.map_or(Steering::Flow, |steering| steering.0);
        let most = if steering == Steering::Copy { DEFAULT_COPIES } else { MAX_MEMBERS as u32 };
        Ok(GroupConfig {
            name,
            interfaces: self.interfaces,
            hook,
            deliver: match self.deliver {
                DeliverName::Pass => Deliver::Pass,
                DeliverName::Consume => Deliver::Consume,
            },
            filter: self.filter,
            rules: None,
            snaplen: self.snaplen.unwrap_or(DEFAULT_SNAPLEN),
            steering,
            promiscuous: self.promiscuous.unwrap_or(true),
            max_members: self.max_members.unwrap_or(most),
            max_memory: self.memory.map(|size| size.0),
        })
    }
}

/// Returns the best hook that all interfaces of a group have.
fn auto(interfaces: &[String]) -> Result<Hook> {
    for name in interfaces {
        let (hook, _) = probe::auto(&Interface::find(name)?)?;
        if hook != Hook::Xdp {
            return Ok(hook);
        }
    }
    Ok(Hook::Xdp)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tapdeck_capture::groups::Steering;

    use super::{Allowed, File, parse};

    fn read(text: &str) -> anyhow::Result<File> {
        parse(Path::new("groups.toml"), text)
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let file =
            read("[[group]]\nname = \"ids\"\ninterfaces = [\"eth1\"]\nhook = \"tcx\"").unwrap();
        let group = file.group.into_iter().next().unwrap().resolve(None).unwrap();
        assert_eq!((group.name.as_str(), group.snaplen), ("ids", 65_535));
        assert_eq!(group.steering, Steering::Flow);
        assert!(group.promiscuous && group.filter.is_none());
    }

    #[test]
    fn all_keys_are_read() {
        let file = read(
            r#"
            [serve]
            socket = "/run/tapdeck/serve.sock"
            socket-mode = "0640"
            socket-group = "netops"
            ring-bytes = "8MiB"
            block-bytes = 65536
            max-members = 8
            memory = "1GiB"
            [[group]]
            name = "ids"
            interfaces = ["eth1", "eth2"]
            hook = "xdp-generic"
            deliver = "consume"
            filter = "not port 22"
            rules = "ids.rules"
            snaplen = 128
            steering = "both-ends"
            promiscuous = false
            yes-this-interface = true
            allow = ["user:root", "group:daemon"]
            max-members = 4
            memory = "64MiB"
            "#,
        )
        .unwrap();
        let serve = file.serve;
        assert_eq!(serve.socket_mode.unwrap().0, 0o640);
        assert_eq!((serve.ring_bytes.unwrap().0, serve.block_bytes.unwrap().0), (8 << 20, 65536));
        assert_eq!((serve.max_members, serve.memory.unwrap().0), (Some(8), 1 << 30));
        let group = file.group.into_iter().next().unwrap();
        assert_ne!(group.allowed().unwrap(), Allowed::All);
        let group = group.resolve(None).unwrap();
        assert_eq!((group.snaplen, group.promiscuous), (128, false));
        assert_eq!((group.max_members, group.max_memory), (4, Some(64 << 20)));
        assert_eq!(group.steering, Steering::BothEnds);
    }

    #[test]
    fn faults_are_told_with_their_line() {
        let group = "[[group]]\nname = \"ids\"\ninterfaces = [\"eth1\"]\n";
        for (text, line, part) in [
            (format!("{group}colour = 7"), "line 4", "there is no key colour; the nearest is "),
            ("[server]\n".into(), "line 1", "there is no key server; the nearest is serve"),
            (
                "\n[serve]\nsocket-mod = 1".into(),
                "line 3",
                "no key socket-mod; the nearest is socket-mode",
            ),
            ("[serve]\nsocket-mode = \"0999\"".into(), "line 2", "mode"),
            ("[serve]\nsocket-mode = 660".into(), "line 2", "as text"),
            ("[serve]\nring-bytes = \"lots\"".into(), "line 2", "size"),
            (format!("{group}hook = \"tpacket\""), "line 4", "tpacket"),
            (format!("{group}steering = \"left\""), "line 4", "no steering"),
            (format!("{group}snaplen = -1"), "line 4", "invalid"),
            (format!("{group}snaplen = \"many\""), "line 4", "invalid"),
            (format!("{group}deliver = \"maybe\""), "line 4", "maybe"),
            (format!("{group}allow = [\"root\"]"), "line 4", "user:NAME"),
            (format!("{group}max-members = -1"), "line 4", "invalid"),
            (format!("{group}memory = \"lots\""), "line 4", "size"),
            ("[serve]\nmax-members = \"few\"".into(), "line 2", "invalid"),
            ("[[group]]\ninterfaces = [\"eth1\"]".into(), "line 1", "missing field `name`"),
            ("[[group]]\nname = \"ids\"".into(), "line 1", "missing field `interfaces`"),
            ("[[group]]\nname = \"a b\"\ninterfaces = []".into(), "line 2", "no group's name"),
            ("group = 7".into(), "line 1", "invalid type"),
            ("name = ".into(), "line 1", ""),
            ("[[group]\n".into(), "line 1", ""),
        ] {
            let why = read(&text).expect_err(&text).to_string();
            assert!(why.starts_with(&format!("groups.toml, {line}: ")), "{text}: {why}");
            assert!(why.contains(part) && !why.contains('\n'), "{text}: {why}");
        }
    }
}
