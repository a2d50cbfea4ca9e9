//! The configuration of `serve`: a TOML file that is read and checked before anything is touched.
//!
//! [`Plan::read`] is the way from file and flags to values that make sense together. It looks at
//! interfaces and reads rule files, and changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::Deserialize;
use tapdeck_capture::groups::{GroupConfig, GroupsConfig, Steering};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::rules::Compiled;
use tapdeck_capture::{Deliver, Hook, probe};
use tapdeck_packet::rules::image::Options;

use crate::control::{Access, Loaded, load};
use crate::flags;
use crate::units;
use crate::usage::Usage;

/// All that a daemon is told at its start, checked.
#[derive(Debug)]
pub struct Plan {
    pub socket: PathBuf,
    pub access: Access,
    pub groups: GroupsConfig,
    /// The rules that each group begins with, in the order of the groups.
    pub rules: Vec<Option<Loaded>>,
    /// How rules become what the kernel takes.
    pub rules_options: Options,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
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

const DEFAULT_SNAPLEN: u32 = 65_535;
const DEFAULT_RING_BYTES: u64 = 16 << 20;
const DEFAULT_BLOCK_BYTES: u64 = 256 << 10;
const DEFAULT_MODE: u32 = 0o660;

impl Plan {
    pub fn read(flags: &flags::Serve) -> Result<Self> {
        let path = &flags.config;
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let file = parse(path, &text)?;
        let serve = file.serve;
        let socket = flags.socket.clone().or(serve.socket);
        let mode = flags.socket_mode.or(serve.socket_mode.map(|mode| mode.0));
        let numbers = file.group.iter().map(|group| group.name.0.clone()).zip(0..).collect();
        let rules_options = Options { groups: numbers, ..Options::default() };
        let beside = path.parent().unwrap_or(Path::new(""));
        let (mut groups, mut rules) = (Vec::new(), Vec::new());
        for group in file.group {
            let loaded = group.load(beside, &rules_options)?;
            let compiled = loaded.as_ref().map(|(_, compiled)| compiled.clone());
            groups.push(group.resolve(compiled)?);
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
                ring_bytes: serve.ring_bytes.map_or(DEFAULT_RING_BYTES, |size| size.0),
                block_bytes: serve.block_bytes.map_or(DEFAULT_BLOCK_BYTES, |size| size.0),
            },
            rules,
            rules_options,
        })
    }
}

/// Reads a file's text. The error of a fault is one line, with the line of the file.
fn parse(path: &Path, text: &str) -> Result<File> {
    let explain = |e: toml::de::Error| {
        let line = e.span().map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            format!(", line {}", before.matches('\n').count() + 1)
        });
        let why = e.message().lines().collect::<Vec<_>>().join(" ");
        Usage(format!("{}{}: {why}", path.display(), line.unwrap_or_default()))
    };
    Ok(toml::from_str(text).map_err(explain)?)
}

impl Group {
    /// Reads the group's rules, whose file is named relative to the configuration.
    fn load(&self, beside: &Path, options: &Options) -> Result<Option<Loaded>> {
        let path = self.rules.as_ref().map(|path| beside.join(path));
        let loaded = path.map(|path| load(&path, options)).transpose();
        loaded.with_context(|| format!("group {}", self.name.0))
    }

    /// Returns the group with its hook, which is chosen by the interfaces where none is named.
    fn resolve(self, rules: Option<Arc<Compiled>>) -> Result<GroupConfig> {
        let name = self.name.0;
        let hook = match self.hook.0 {
            Some(hook) => hook,
            None => auto(&self.interfaces).with_context(|| format!("group {name}"))?,
        };
        Ok(GroupConfig {
            name,
            interfaces: self.interfaces,
            hook,
            deliver: match self.deliver {
                DeliverName::Pass => Deliver::Pass,
                DeliverName::Consume => Deliver::Consume,
            },
            filter: self.filter,
            rules,
            snaplen: self.snaplen.unwrap_or(DEFAULT_SNAPLEN),
            steering: self.steering.map_or(Steering::Flow, |steering| steering.0),
            promiscuous: self.promiscuous.unwrap_or(true),
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

    use super::{File, parse};

    fn read(text: &str) -> anyhow::Result<File> {
        parse(Path::new("deck.toml"), text)
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
            socket = "/run/deck.sock"
            socket-mode = "0640"
            socket-group = "netops"
            ring-bytes = "8MiB"
            block-bytes = 65536
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
            "#,
        )
        .unwrap();
        let serve = file.serve;
        assert_eq!(serve.socket_mode.unwrap().0, 0o640);
        assert_eq!((serve.ring_bytes.unwrap().0, serve.block_bytes.unwrap().0), (8 << 20, 65536));
        let group = file.group.into_iter().next().unwrap().resolve(None).unwrap();
        assert_eq!((group.snaplen, group.promiscuous), (128, false));
        assert_eq!(group.steering, Steering::BothEnds);
    }

    #[test]
    fn faults_are_told_with_their_line() {
        let group = "[[group]]\nname = \"ids\"\ninterfaces = [\"eth1\"]\n";
        for (text, line, part) in [
            (format!("{group}colour = 7"), "line 4", "unknown field `colour`"),
            ("[server]\n".into(), "line 1", "unknown field `server`"),
            ("\n[serve]\nsocket-mod = 1".into(), "line 3", "unknown field `socket-mod`"),
            ("[serve]\nsocket-mode = \"0999\"".into(), "line 2", "mode"),
            ("[serve]\nsocket-mode = 660".into(), "line 2", "as text"),
            ("[serve]\nring-bytes = \"lots\"".into(), "line 2", "size"),
            (format!("{group}hook = \"tpacket\""), "line 4", "tpacket"),
            (format!("{group}steering = \"left\""), "line 4", "no steering"),
            (format!("{group}snaplen = -1"), "line 4", "invalid"),
            (format!("{group}snaplen = \"many\""), "line 4", "invalid"),
            (format!("{group}deliver = \"maybe\""), "line 4", "maybe"),
            ("[[group]]\ninterfaces = [\"eth1\"]".into(), "line 1", "missing field `name`"),
            ("[[group]]\nname = \"ids\"".into(), "line 1", "missing field `interfaces`"),
            ("[[group]]\nname = \"a b\"\ninterfaces = []".into(), "line 2", "no group's name"),
            ("group = 7".into(), "line 1", "invalid type"),
            ("name = ".into(), "line 1", ""),
            ("[[group]\n".into(), "line 1", ""),
        ] {
            let why = read(&text).expect_err(&text).to_string();
            assert!(why.starts_with(&format!("deck.toml, {line}: ")), "{text}: {why}");
            assert!(why.contains(part) && !why.contains('\n'), "{text}: {why}");
        }
    }
}
