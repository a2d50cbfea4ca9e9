//! The gateway's configuration: a TOML file that is read and checked before anything is touched.
//!
//! Unknown keys are refused, with the line. [`Config`] holds values that make sense together.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Deserialize;

/// What is wrong with the configuration. The text names the file, and says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

/// All that a gateway is told at its start, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: Vec<Listen>,
    pub sources: Vec<Source>,
}

/// Where the gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Plain HTTP, at an address that only this machine reaches.
    Loopback(SocketAddr),
    /// Plain HTTP at a Unix socket, which the file's permissions guard.
    Unix { path: PathBuf, mode: u32 },
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
    },
    Daemon,
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
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileListen {
    address: Option<SocketAddr>,
    unix: Option<PathBuf>,
    mode: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileStore {
    name: String,
    directory: PathBuf,
    socket: Option<PathBuf>,
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
        let file: File = toml::from_str(&text).map_err(|e| wrong(&e))?;
        Ok(Self::of(file).map_err(|e| wrong(&e))?)
    }

    fn of(file: File) -> Result<Self, String> {
        let listen: Vec<Listen> =
            file.listen.into_iter().map(listen).collect::<Result<_, String>>()?;
        if listen.is_empty() {
            return Err("nowhere to listen: [[listen]] with address = \"127.0.0.1:9670\"".into());
        }
        let stores = file.store.into_iter().map(|FileStore { name, directory, socket }| Source {
            name,
            socket: socket.unwrap_or_else(|| directory.join(".tapdeck.sock")),
            kind: SourceKind::Store { directory },
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
        let mut names = BTreeSet::new();
        for Source { name, .. } in &sources {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || !name.chars().all(is_plain) {
                return Err(format!(
                    "name {name:?}: letters, digits, '-', '_' and '.' make a name"
                ));
            }
            if !names.insert(name.as_str()) {
                return Err(format!("the name {name} is there twice"));
            }
        }
        Ok(Self { listen, sources })
    }
}

fn listen(entry: FileListen) -> Result<Listen, String> {
    match (entry.address, entry.unix) {
        (Some(address), None) => {
            if entry.mode.is_some() {
                return Err(format!("listen {address}: mode is for a Unix socket"));
            }
            if !address.ip().is_loopback() {
                return Err(format!(
                    "listen {address}: plain HTTP is for loopback addresses (127.0.0.1, ::1) and Unix sockets only"
                ));
            }
            Ok(Listen::Loopback(address))
        }
        (None, Some(path)) => {
            let mode = entry.mode.as_deref().unwrap_or("0660");
            let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o777);
            let mode = bits.ok_or_else(|| format!("mode {mode:?}: three octal digits, as 0660"))?;
            Ok(Listen::Unix { path, mode })
        }
        _ => Err("[[listen]] has either an address or unix, the path of a socket".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, File, Listen, Source, SourceKind};

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
        let kind = SourceKind::Store { directory: "/var/tape".into() };
        let edge = Source { name: "edge".into(), kind, socket: "/var/tape/.tapdeck.sock".into() };
        assert_eq!(config.sources[0], edge);
        assert_eq!(config.sources[1].kind, SourceKind::Daemon);
        assert_eq!(config.listen[1], Listen::Unix { path: "/run/g".into(), mode: 0o600 });
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        let listen = "[[listen]]\naddress = '127.0.0.1:0'\n";
        let store = "[[store]]\nname = 'a'\ndirectory = '/a'\n";
        for (text, names) in [
            (store.to_owned(), "nowhere to listen"),
            (listen.to_owned(), "nothing to serve"),
            (format!("{listen}{store}{store}"), "the name a is there twice"),
            (format!("{listen}{store}path = 'x'"), "unknown field `path`"),
            (format!("{store}[[listen]]\naddress = '0.0.0.0:80'"), "plain HTTP is for loopback"),
            (format!("{store}[[listen]]\nunix = 'a'\naddress = '[::1]:80'"), "either an address"),
            (format!("{store}[[listen]]\nunix = 'a'\nmode = '0999'"), "octal"),
            (format!("{listen}[[store]]\nname = 'a b'\ndirectory = '/a'"), "make a name"),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(error.contains(names), "{text}: {error}");
        }
    }
}
