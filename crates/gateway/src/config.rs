//! The gateway's configuration: a TOML file that is read and checked before anything is touched.
//!
//! Keys that are none are refused, with the line and the nearest. [`Config`] holds values that make
//! sense together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use serde::Deserialize;
use tapdeck_evidence::PinStore;
use tapdeck_packet::config_fault::fault;
use tapdeck_packet::filter::asks_for_names;

use crate::access::{Kind, Role, is_hash, new_token};
use crate::check::NO_NAMES;
use crate::time;
use crate::tls::Files;

/// What is wrong with the configuration. The text names the file, and says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

/// All that a gateway is told at its start, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: Vec<Listen>,
    pub sources: Vec<Source>,
    pub users: Vec<UserPlan>,
    /// The file of audit lines; there is one wherever there are users.
    pub audit: Option<PathBuf>,
    /// The store that stenographer's clients ask; the only one if none is named.
    pub stenographer: Option<String>,
    /// Whether everybody has to show a token at plain listeners, also for metrics and health.
    pub wants_token: bool,
}

/// Somebody who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPlan {
    pub name: String,
    pub role: Arc<Role>,
    /// The common name of the user's certificate.
    pub certificate: Option<String>,
    /// The hash of the user's token.
    pub token: Option<String>,
}

/// Where the gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Plain HTTP, at an address that only this machine reaches. Who shows nothing else is `user`.
    Loopback {
        address: SocketAddr,
        user: Option<String>,
    },
    /// Plain HTTP at a Unix socket, which the file's permissions guard.
    Unix {
        path: PathBuf,
        mode: u32,
        user: Option<String>,
    },
    Tls {
        address: SocketAddr,
        files: Files,
    },
}

/// A recorder with its store, or a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub name: String,
    pub kind: SourceKind,
    /// The control socket.
    pub socket: PathBuf,
}

/// What a source is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The store in a directory, and whoever records into it.
    Store {
        directory: PathBuf,
        pins: Pins,
    },
    Daemon,
}

/// Where the pins of a store are, and how much they may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// The directory of pins; beside the store if none is named.
    pub evidence: Option<PathBuf>,
    /// Bytes of all of them; what was said before if none are named, and then [`BUDGET`].
    ///
    /// [`BUDGET`]: tapdeck_evidence::BUDGET
    pub bytes: Option<u64>,
}

impl Pins {
    /// Returns the directory of a store's pins.
    pub fn place(&self, store: &Path) -> PathBuf {
        self.evidence.clone().unwrap_or_else(|| PinStore::beside(store))
    }
}

impl SourceKind {
    /// Returns the key under which metrics and answers name the source.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Store { .. } => "store",
            Self::Daemon => "daemon",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    listen: Vec<FileListen>,
    #[serde(default)]
    store: Vec<FileStore>,
    #[serde(default)]
    daemon: Vec<FileDaemon>,
    #[serde(default)]
    role: Vec<FileRole>,
    #[serde(default)]
    user: Vec<FileUser>,
    audit: Option<PathBuf>,
    stenographer: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRole {
    name: String,
    kind: Kind,
    stores: Option<Vec<String>>,
    #[serde(default)]
    filter: String,
    history: Option<String>,
    packets: Option<u64>,
    bytes: Option<u64>,
    questions: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileUser {
    name: String,
    role: String,
    certificate: Option<String>,
    token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileListen {
    address: Option<SocketAddr>,
    unix: Option<PathBuf>,
    mode: Option<String>,
    user: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileStore {
    name: String,
    directory: PathBuf,
    socket: Option<PathBuf>,
    evidence: Option<PathBuf>,
    pin_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDaemon {
    name: String,
    socket: PathBuf,
}

impl Config {
    /// Reads a file. The error is a [`Wrong`] where another file is needed.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |e: &dyn std::fmt::Display| Wrong(format!("{}: {e}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        let parsed = toml::from_str(&text);
        let file = parsed.map_err(|e| Wrong(fault(path, &text, e.span(), e.message())))?;
        Ok(Self::of(file).map_err(|e| wrong(&e))?)
    }

    /// Returns the configuration for one store, at a free port of loopback, and the token of who
    /// started the gateway. The token alone is believed there: others on this machine may not be
    /// allowed to read the store. What such a gateway is asked is written down nowhere.
    pub fn of_store(directory: &Path) -> Result<(Self, String), String> {
        let (token, hash) = new_token("you")?;
        let role = Role {
            kind: Kind::Reader,
            stores: None,
            filter: String::new(),
            history: None,
            packets: u64::MAX,
            bytes: u64::MAX,
            questions: QUESTIONS,
        };
        let user = UserPlan {
            name: "you".into(),
            role: Arc::new(role),
            certificate: None,
            token: Some(hash),
        };
        let directory = std::path::absolute(directory).map_err(|e| e.to_string())?;
        let store = Source {
            name: "store".into(),
            socket: directory.join(".tapdeck.sock"),
            kind: SourceKind::Store { directory, pins: Pins::default() },
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Self {
            listen: vec![Listen::Loopback { address, user: None }],
            sources: vec![store],
            users: vec![user],
            audit: Some("/dev/null".into()),
            stenographer: None,
            wants_token: true,
        };
        Ok((config, token))
    }

    fn of(file: File) -> Result<Self, String> {
        let listen: Vec<Listen> =
            file.listen.into_iter().map(listen).collect::<Result<_, String>>()?;
        if listen.is_empty() {
            return Err("nowhere to listen: [[listen]] with address = \"127.0.0.1:9670\"".into());
        }
        directories_differ(&file.store)?;
        let stores = file.store.into_iter().map(|entry| Source {
            name: entry.name,
            socket: entry.socket.unwrap_or_else(|| entry.directory.join(".tapdeck.sock")),
            kind: SourceKind::Store {
                directory: entry.directory,
                pins: Pins { evidence: entry.evidence, bytes: entry.pin_bytes },
            },
        });
        let daemons = file.daemon.into_iter().map(|FileDaemon { name, socket }| Source {
            name,
            socket,
            kind: SourceKind::Daemon,
        });
        let sources: Vec<Source> = stores.chain(daemons).collect();
        if sources.is_empty() {
            return Err("nothing to serve: [[store]] with name and directory".into());
        }
        names_differ(sources.iter().map(|source| &*source.name))?;
        let is_store = |name: &String| {
            let is_it = |source: &Source| source.name == *name && source.kind != SourceKind::Daemon;
            sources.iter().any(is_it)
        };
        let known = |name: &String| {
            if is_store(name) { Ok(()) } else { Err(format!("there is no [[store]] {name}")) }
        };
        names_differ(file.role.iter().map(|role| &*role.name))?;
        file.role.iter().flat_map(|role| &role.stores).flatten().try_for_each(known)?;
        file.stenographer.iter().try_for_each(known)?;
        let roles: BTreeMap<String, Arc<Role>> = file
            .role
            .into_iter()
            .map(|entry| Ok((entry.name.clone(), Arc::new(role(entry)?))))
            .collect::<Result<_, String>>()?;
        names_differ(file.user.iter().map(|user| &*user.name))?;
        let users = file.user.into_iter().map(|entry| user(entry, &roles));
        let users: Vec<UserPlan> = users.collect::<Result<_, String>>()?;
        let mut shown = BTreeSet::new();
        for certificate in users.iter().filter_map(|user| user.certificate.as_ref()) {
            if !shown.insert(certificate) {
                return Err(format!("the certificate {certificate:?} is two users'"));
            }
        }
        if file.audit.is_none() && !users.is_empty() {
            return Err("users' questions are written down: audit = \"FILE\"".into());
        }
        for place in &listen {
            let (Listen::Loopback { user, .. } | Listen::Unix { user, .. }) = place else {
                continue;
            };
            if let Some(name) = user
                && !users.iter().any(|user| user.name == *name)
            {
                return Err(format!("there is no [[user]] {name}"));
            }
        }
        let (audit, stenographer) = (file.audit, file.stenographer);
        Ok(Self { listen, sources, users, audit, stenographer, wants_token: false })
    }
}

/// Refuses names that come twice, or that are no names.
fn names_differ<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for name in names {
        // A token is the user's name, a dot, and the secret.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(format!("name {name:?}: letters, digits, '-' and '_' make a name"));
        }
        if !known.insert(name) {
            return Err(format!("the name {name} is there twice"));
        }
    }
    Ok(())
}

/// Refuses directories that are two stores', and directories of pins that are two stores' or in
/// which retention deletes: also where links lead there, and where a directory of pins is not
/// named.
fn directories_differ(stores: &[FileStore]) -> Result<(), String> {
    let mut places: Vec<(PathBuf, PathBuf)> = Vec::new();
    for FileStore { name, directory, evidence, .. } in stores {
        if let Some(evidence) = evidence
            && (!evidence.is_absolute() || evidence.components().any(|c| c == Component::ParentDir))
        {
            let shown = evidence.display();
            return Err(format!("store {name}: evidence {shown}: the whole path, without .."));
        }
        let store = resolved(directory);
        let place = evidence.as_deref().map_or_else(|| PinStore::beside(&store), resolved);
        let same = places.iter().position(|(known, _)| *known == store);
        if let Some(other) = same.map(|at| &stores[at].name) {
            let shown = store.display();
            return Err(format!("{shown} is the directory of two stores, {other} and {name}"));
        }
        places.push((store, place));
    }
    for (at, (_, place)) in places.iter().enumerate() {
        let (name, shown) = (&stores[at].name, place.display());
        if let Some((store, _)) = places.iter().find(|(store, _)| place.starts_with(store)) {
            let store = store.display();
            return Err(format!("store {name}: evidence {shown}: outside of the store {store}"));
        }
        let mut others = places.iter().enumerate().filter(|(other, _)| *other != at);
        if others.any(|(_, (_, other))| place.starts_with(other)) {
            return Err(format!("evidence {shown} is two stores': each has its own"));
        }
    }
    Ok(())
}

/// Returns a path as it is without links, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    match there.and_then(|(part, there)| Some(there.join(path.strip_prefix(part).ok()?))) {
        // Joining nothing adds a slash, which components do not have.
        Some(resolved) => resolved.components().collect(),
        None => path,
    }
}

/// Questions of a user that are answered at once, where the role says nothing.
const QUESTIONS: usize = 2;

fn role(entry: FileRole) -> Result<Role, String> {
    let FileRole { name, kind, stores, filter, history, packets, bytes, questions } = entry;
    let history = history.as_deref().map(time::duration).transpose();
    let history = history.map_err(|e| format!("role {name}: history: {e}"))?;
    let questions = questions.unwrap_or(QUESTIONS);
    if questions == 0 {
        return Err(format!("role {name}: questions: at least 1"));
    }
    if asks_for_names(&filter) {
        return Err(format!("role {name}: filter: {NO_NAMES}"));
    }
    tapdeck_store::filter::Filter::new(&filter, &[], false)
        .map_err(|e| format!("role {name}: {e}"))?;
    let most = |n: Option<u64>| n.unwrap_or(u64::MAX);
    let (packets, bytes) = (most(packets), most(bytes));
    Ok(Role { kind, stores, filter, history, packets, bytes, questions })
}

fn user(entry: FileUser, roles: &BTreeMap<String, Arc<Role>>) -> Result<UserPlan, String> {
    let FileUser { name, role, certificate, token } = entry;
    let found = roles.get(&role).cloned();
    let role = found.ok_or_else(|| format!("user {name}: no [[role]] {role}"))?;
    if token.as_deref().is_some_and(|hash| !is_hash(hash)) {
        return Err(format!(
            "user {name}: token is the hash that `tapdeck-gateway token new {name}` prints"
        ));
    }
    if certificate.as_deref() == Some("") {
        return Err(format!("user {name}: certificate is a common name, and this is empty"));
    }
    Ok(UserPlan { name, role, certificate, token })
}

fn listen(entry: FileListen) -> Result<Listen, String> {
    let FileListen { address, unix, mode, user, certificate, key, client_ca } = entry;
    match (address, unix, certificate, key) {
        (Some(address), None, Some(certificate), Some(key)) => {
            if user.is_some() || mode.is_some() {
                return Err(format!("listen {address}: user and mode are for plain HTTP"));
            }
            if [Some(&certificate), Some(&key), client_ca.as_ref()].contains(&Some(&PathBuf::new())) {
                return Err(format!(
                    "listen {address}: certificate and key are files, and so is client-ca; one is empty"
                ));
            }
            Ok(Listen::Tls { address, files: Files { certificate, key, client_ca } })
        }
        (Some(address), None, None, None) => {
            if mode.is_some() || client_ca.is_some() {
                return Err(format!(
                    "listen {address}: mode is for a Unix socket, client-ca for a certificate and key"
                ));
            }
            if !address.ip().is_loopback() {
                return Err(format!(
                    "listen {address}: plain HTTP is for loopback addresses (127.0.0.1, ::1) and Unix sockets only; others need certificate and key"
                ));
            }
            Ok(Listen::Loopback { address, user })
        }
        (None, Some(path), None, None) => {
            if client_ca.is_some() {
                let shown = path.display();
                return Err(format!("listen {shown}: client-ca is for a certificate and key"));
            }
            let mode = mode.as_deref().unwrap_or("0660");
            let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o777);
            let mode = bits.ok_or_else(|| format!("mode {mode:?}: three octal digits, as 0660"))?;
            Ok(Listen::Unix { path, mode, user })
        }
        _ => Err("[[listen]] has an address, with certificate and key or without, or unix, the path of a socket".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, File, Listen, Pins, Source, SourceKind};

    fn read(text: &str) -> Result<Config, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
        Config::of(file)
    }

    #[test]
    fn a_store_has_its_control_socket_in_its_directory() {
        let config = read(
            "[[listen]]\naddress = '127.0.0.1:0'\n[[listen]]\nunix = '/run/g'\nmode = '0600'\n\
             [[store]]\nname = 'edge'\ndirectory = '/var/tape'\n\
             [[daemon]]\nname = 'ids'\nsocket = '/run/tapdeck/serve.sock'",
        )
        .expect("it is right");
        let kind = SourceKind::Store { directory: "/var/tape".into(), pins: Pins::default() };
        let edge = Source { name: "edge".into(), kind, socket: "/var/tape/.tapdeck.sock".into() };
        assert_eq!(config.sources[0], edge);
        assert_eq!(config.sources[1].kind, SourceKind::Daemon);
        assert_eq!(
            config.listen[1],
            Listen::Unix { path: "/run/g".into(), mode: 0o600, user: None }
        );
        assert!(config.users.is_empty());
    }

    #[test]
    fn the_example_is_taken_as_it_stands_and_with_all_that_it_proposes() {
        let example = include_str!("../../../packaging/etc/gateway.toml");
        let plain = read(example).expect("it is right");
        assert!(plain.users.is_empty() && plain.audit.is_none());
        // What is proposed begins with "# " and a key or a table; `audit` stands before all tables.
        let is_proposed = |line: &&str| line.starts_with("# [[") || line.contains(" = ");
        let proposed = example.lines().filter(is_proposed).map(|l| l.trim_start_matches("# "));
        let (audit, tables): (Vec<&str>, Vec<&str>) =
            proposed.partition(|line| line.starts_with("audit"));
        let text = [audit, tables].concat().join("\n");
        let text = text.replace("address = \"127", "[[listen]]\naddress = \"127");
        let text = text.replace("name = \"example\"", "[[store]]\nname = \"example\"");
        let whole = read(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
        assert_eq!((whole.users.len(), whole.listen.len(), whole.sources.len()), (1, 2, 2));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        let listen = "[[listen]]\naddress = '127.0.0.1:0'\n";
        let store = "[[store]]\nname = 'a'\ndirectory = '/a'\n";
        let other = "[[store]]\nname = 'b'\ndirectory = '/b'\n";
        let role = "[[role]]\nname = 'r'\nkind = 'reader'\n";
        for (text, names) in [
            (store.to_owned(), "nowhere to listen"),
            (listen.to_owned(), "nothing to serve"),
            (
                format!("{listen}{store}[[store]]\nname = 'a'\ndirectory = '/b'"),
                "the name a is there twice",
            ),
            (format!("{listen}{store}path = 'x'"), "unknown field `path`"),
            (format!("{listen}{store}evidence = 'pins'"), "the whole path"),
            (format!("{listen}{store}evidence = '/a/pins'"), "outside of the store /a"),
            (format!("{listen}{store}evidence = '/p/../a.evidence'"), "without .."),
            (format!("{listen}{store}evidence = '/p'\n{other}evidence = '/p'"), "two stores'"),
            (format!("{listen}{store}{other}evidence = '/a.evidence'"), "two stores'"),
            (
                format!("{listen}{store}evidence = '/p/pin-00000001'\n{other}evidence = '/p'"),
                "two stores'",
            ),
            (
                format!("{listen}{store}[[store]]\nname = 'b'\ndirectory = '/tmp/../a/'"),
                "two stores, a and b",
            ),
            (
                format!("{listen}{store}[[store]]\nname = 'b'\ndirectory = '/a.evidence'"),
                "outside of the store",
            ),
            (format!("{store}[[listen]]\naddress = '0.0.0.0:80'"), "plain HTTP is for loopback"),
            (format!("{store}[[listen]]\nunix = 'a'\naddress = '[::1]:80'"), "has an address"),
            (format!("{store}[[listen]]\naddress = '[::]:443'\nkey = 'a'"), "has an address"),
            (format!("{listen}{store}[[user]]\nname = 'a'\nrole = 'r'"), "no [[role]] r"),
            (format!("{listen}{store}[[role]]\nname = 'r'\nkind = 'king'"), "unknown variant"),
            (format!("{listen}{store}{role}stores = ['b']"), "no [[store]] b"),
            (format!("{listen}{store}{role}filter = 'prot 80'"), "role r: "),
            (format!("{listen}{store}{role}filter = 'host gate'"), "in place of names"),
            (
                format!(
                    "{listen}{store}[[listen]]\naddress = '[::]:443'\nkey = ''\ncertificate = ''"
                ),
                "certificate and key are files",
            ),
            (format!("{listen}{store}{role}history = '1 week'"), "history: "),
            (format!("{listen}{store}{role}[[user]]\nname = 'a'\nrole = 'r'"), "audit = "),
            (
                format!("{listen}{store}{role}[[user]]\nname = 'a'\nrole = 'r'\ntoken = 'x'"),
                "token new a",
            ),
            (
                format!("{listen}{store}{role}[[user]]\nname = 'a'\nrole = 'r'\ncertificate = ''"),
                "common name, and this is empty",
            ),
            (
                format!("{store}[[listen]]\nunix = 'a'\nclient-ca = 'b'"),
                "client-ca is for a certificate and key",
            ),
            (format!("{listen}user = 'u'\n{store}"), "no [[user]] u"),
            (format!("stenographer = 'b'\n{listen}{store}"), "no [[store]] b"),
            (format!("{store}[[listen]]\nunix = 'a'\nmode = '0999'"), "octal"),
            (format!("{listen}[[store]]\nname = 'a b'\ndirectory = '/a'"), "make a name"),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(error.contains(names), "{text}: {error}");
        }
    }

    #[test]
    fn links_make_no_two_directories_of_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::create_dir(path("tape")).expect("a directory");
        std::os::unix::fs::symlink(path("tape"), path("link")).expect("a link");
        let store = |name: &str, directory: &str, more: &str| {
            let directory = path(directory);
            format!("[[store]]\nname = '{name}'\ndirectory = '{directory}'\n{more}\n")
        };
        let of = |first: String, second: String| {
            read(&format!("[[listen]]\naddress = '127.0.0.1:0'\n{first}{second}"))
        };
        let pins = format!("evidence = '{}'", path("link/pins"));
        for (other, names) in [
            (store("b", "link", ""), "two stores, a and b"),
            (store("b", "other", &pins), "outside of the store"),
        ] {
            let error = of(store("a", "tape", ""), other).expect_err(names);
            assert!(error.contains(names), "{error}");
        }
        of(store("a", "tape", ""), store("b", "other", "")).expect("each has its own");
    }
}
