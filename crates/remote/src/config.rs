//! Which sensors are asked, and what is shown to each of them? Flags say it, or `remote.toml`,
//! which may hold secrets and so may be read by its owner alone.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use anyhow::{Context as _, Result};
use reqwest::Url;
use serde::Deserialize;
use tapdeck_remote::{Shown, is_loopback};

use crate::flags::{Query, Relay};

/// Sensors that can be asked at once. Each takes some memory ([`crate::ask`]).
const SENSORS: usize = 64;
/// How long a sensor may send nothing, if nothing else is said. A gateway lets questions wait for
/// their turn for a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a server of a store may send nothing, if nothing else is said.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// Wrong usage: the command as it was called cannot work.
#[derive(Debug)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

fn wrong<T>(text: impl Into<String>) -> Result<T> {
    Err(Wrong(text.into()).into())
}

/// What a sensor is asked by, and what is shown to it.
#[derive(Debug, Clone)]
pub struct Sensor {
    /// What its packets and messages are told by.
    pub name: String,
    /// Where its gateway is, with no path.
    pub url: Url,
    /// The store that is asked for; without, the only one.
    pub store: Option<String>,
    pub shown: Shown,
    pub patience: Duration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    /// What is shown where a sensor has nothing of its own.
    #[serde(default)]
    all: Shown,
    patience_s: Option<u64>,
    #[serde(default)]
    sensor: Vec<Named>,
}

/// A sensor that has a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    url: String,
    /// What is shown to this sensor.
    #[serde(default)]
    show: Shown,
}

/// Returns what is to be asked.
///
/// # Errors
/// Where a sensor, or the file, makes no sense.
pub fn resolve(query: &Query) -> Result<Vec<Sensor>> {
    let config = configured(query.config.as_deref())?;
    let flags = Shown::from(&query.shown);
    let patience = config.patience_s.map_or(PATIENCE, Duration::from_secs);
    let mut sensors: Vec<Sensor> = Vec::new();
    for asked in &query.remote {
        let named = config.sensor.iter().find(|named| named.name == *asked);
        let (name, url, own) = match named {
            Some(Named { name, url, show }) => (Some(name.clone()), url, show.clone()),
            None => (None, asked, Shown::default()),
        };
        let (url, store) = parse(url, asked)?;
        let name = name.unwrap_or_else(|| label(&url, store.as_deref()));
        if sensors
            .iter()
            .any(|other| other.name == name || (other.url == url && other.store == store))
        {
            return wrong(format!(
                "--remote: {asked} is there twice, and would give each packet twice"
            ));
        }
        let shown = flags.or(&own).or(&config.all);
        sensors.push(Sensor { name, url, store, shown, patience });
    }
    if sensors.len() > SENSORS {
        return wrong(format!("--remote: at most {SENSORS} sensors can be asked at once"));
    }
    Ok(sensors)
}

/// Returns what is shown to the server of a store, and how long it may be silent. Tokens are those
/// of gateways, and no other server is shown them.
///
/// # Errors
/// Where the file makes no sense.
pub fn of_store(relay: &Relay) -> Result<(Shown, Duration)> {
    let config = configured(relay.config.as_deref())?;
    let shown = Shown::from(&relay.shown).or(&config.all);
    let patience = config.patience_s.map_or(STORE_PATIENCE, Duration::from_secs);
    Ok((Shown { token: None, ..shown }, patience))
}

/// Returns what a file says, or the usual one if that is there.
fn configured(file: Option<&Path>) -> Result<Config> {
    let path = file.map(Path::to_owned).or_else(|| usual().filter(|path| path.exists()));
    Ok(path.map(|path| read(&path)).transpose()?.unwrap_or_default())
}

/// Returns the place of a gateway, and the store.
fn parse(url: &str, asked: &str) -> Result<(Url, Option<String>)> {
    let known = || {
        wrong(format!(
            "--remote {asked}: write https://HOST[:PORT][/STORE], or a name of remote.toml"
        ))
    };
    let Ok(mut url) = url.parse::<Url>() else { return known() };
    if url.host_str().is_none() {
        return known();
    }
    match url.scheme() {
        "https" => {}
        // Nothing of it leaves this machine.
        "http" if is_loopback(&url) => {}
        "http" => {
            return wrong(format!("--remote {asked}: without TLS only this machine is asked"));
        }
        _ => return known(),
    }
    let store = url.path().trim_matches('/').to_owned();
    let is_plain = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if !is_plain || store.contains('/') {
        return known();
    }
    url.set_path("");
    let store = (!store.is_empty()).then_some(store);
    Ok((url, store))
}

/// Returns what a sensor is called that has no name.
fn label(url: &Url, store: Option<&str>) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let store = store.map(|store| format!("/{store}")).unwrap_or_default();
    format!("{host}{port}{store}")
}

/// Returns where the file is, if nothing else is said.
fn usual() -> Option<PathBuf> {
    let dir = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = dir("XDG_CONFIG_HOME").or_else(|| Some(dir("HOME")?.join(".config")));
    config.map(|config| config.join("tapdeck/remote.toml"))
}

fn read(path: &Path) -> Result<Config> {
    let shown = path.display();
    let text = read_own(path).with_context(|| format!("cannot read {shown}"))?;
    let Some(text) = text else {
        return wrong(format!(
            "{shown} may be read by others than you, and tokens may be in it: chmod 600 {shown}"
        ));
    };
    let mut config: Config = match toml::from_str(&text) {
        Ok(config) => config,
        Err(e) => return wrong(format!("{shown}: {e}")),
    };
    let dir = path.parent().unwrap_or(Path::new("."));
    config.all.lies_in(dir);
    config.sensor.iter_mut().for_each(|named| named.show.lies_in(dir));
    Ok(config)
}

/// Reads a file; `None` where others may read it.
fn read_own(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if meta.mode() & 0o077 != 0 || ![own, 0].contains(&meta.uid()) {
        return Ok(None);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Some(text))
}
