//! What would the gateway do with a configuration? `tapdeck-gateway check` says it, and touches
//! nothing.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tapdeck_evidence::{Error, PinStore};
use tapdeck_packet::printable::{count, counted};
use tapdeck_store::Store;

use crate::access::{Kind, Role};
use crate::config::{Config, Listen, Source, SourceKind, UserPlan};
use crate::tls::Tls;

/// Columns in front of what is said of an entry.
const LABEL: usize = 10;

/// Returns what a file would have the gateway do.
///
/// # Errors
/// What keeps the gateway from starting, or from answering as the file says.
pub fn foresee(path: &Path) -> Result<String> {
    let config = Config::read(path)?;
    let page = Page::of(&config).with_context(|| format!("{}", path.display()))?;
    Ok(format!("{}: usable\n{}", path.display(), page.0))
}

/// What is told, line by line.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    fn of(config: &Config) -> Result<Self> {
        let mut page = Self::default();
        for listen in &config.listen {
            page.line("listen", listening(listen)?);
        }
        for source in &config.sources {
            let (label, text) = held(source)?;
            page.line(label, text);
            if let Some((place, state)) = pins_of(config, source) {
                page.line("pins", told_of_pins(&source.name, &place, state));
            }
        }
        for user in &config.users {
            page.line("user", may(user));
        }
        if config.users.is_empty() {
            page.line("users", "none: packets for nobody, metrics and health for this machine");
        }
        if let Some(audit) = &config.audit {
            let folder = audit.parent().filter(|parent| *parent != Path::new(""));
            let folder = folder.unwrap_or(Path::new("."));
            ensure!(folder.is_dir(), "the audit: {} is not a directory", folder.display());
            page.line("audit", audit.display());
        }
        if let Some(store) = &config.stenographer {
            page.line("query", format_args!("stenographer's clients ask {store}"));
        }
        Ok(page)
    }

    fn line(&mut self, label: &str, text: impl fmt::Display) {
        // Writing into a string does not fail.
        let _ = writeln!(self.0, "  {label:<LABEL$}{text}");
    }
}

/// Says where the gateway listens, and how it is shown there who asks.
fn listening(listen: &Listen) -> Result<String> {
    let plain = |user: &Option<String>| match user {
        Some(name) => format!("who shows no token is {name}"),
        None => "packets for users with a token".into(),
    };
    Ok(match listen {
        Listen::Loopback { address, user } => {
            format!("http://{address}, from this machine; {}", plain(user))
        }
        Listen::Unix { path, mode, user } => {
            format!("{}, mode {mode:04o}; {}", path.display(), plain(user))
        }
        Listen::Tls { address, files } => {
            // Reads the files, as the start does.
            Tls::new(files.clone()).with_context(|| format!("listen {address}"))?;
            let own = files.certificate.display();
            match &files.client_ca {
                Some(authority) => format!(
                    "https://{address} with {own}; users by certificates of {}, and tokens",
                    authority.display()
                ),
                None => format!("https://{address} with {own}; users by tokens"),
            }
        }
    })
}

/// Says what is served of a source, under the name of its table.
fn held(source: &Source) -> Result<(&'static str, String)> {
    let Source { name, kind, socket } = source;
    let socket = socket.display();
    let SourceKind::Store { directory, .. } = kind else {
        return Ok((kind.label(), format!("{name}: control socket {socket}")));
    };
    let shown = directory.display();
    let held = match Store::segments(directory) {
        Ok(segments) => counted(segments.len() as u64, "segment"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "not there yet".into(),
        Err(e) => return Err(e).with_context(|| format!("store {name}: {shown}")),
    };
    Ok((kind.label(), format!("{name}: {shown}, {held}; control socket {socket}")))
}

/// Returns the directory of a store's pins, and whether this process can make some; `None` where
/// nobody may have any made.
fn pins_of(config: &Config, source: &Source) -> Option<(PathBuf, Result<(), Error>)> {
    let SourceKind::Store { directory, pins } = &source.kind else { return None };
    let may_pin = |role: &Role| role.kind == Kind::Pinner && role.may_see(&source.name);
    if !config.users.iter().any(|user| may_pin(&user.role)) {
        return None;
    }
    let place = pins.place(directory);
    let state = PinStore::check(&place);
    Some((place, state))
}

/// Says where a store's pins go, or why none can be made.
fn told_of_pins(store: &str, place: &Path, state: Result<(), Error>) -> String {
    let shown = place.display();
    // Root may write everywhere, and the gateway is another user.
    let is_root = rustix::process::geteuid().is_root();
    match state {
        Ok(()) if place.exists() => format!("{store}: in {shown}"),
        Ok(()) if is_root => {
            format!("{store}: in {shown}, where the gateway's user has to be let make it")
        }
        Ok(()) => format!("{store}: in {shown}, not there yet"),
        Err(Error::NotOurs { uid, .. }) if is_root => {
            format!("{store}: in {shown}, if the gateway is the user with the number {uid}")
        }
        Err(e) => no_pins(store, e),
    }
}

fn no_pins(store: &str, e: Error) -> String {
    let why = anyhow::Error::from(e);
    format!("{store}: no pin can be made: {why:#}; `evidence` names their directory")
}

/// Returns of which stores this process can make no pins though somebody may ask for them, and
/// why.
pub fn pin_faults(config: &Config) -> Vec<String> {
    let fault = |source: &Source| {
        let (_, state) = pins_of(config, source)?;
        Some(no_pins(&source.name, state.err()?))
    };
    config.sources.iter().filter_map(fault).collect()
}

/// Says what a user may have.
fn may(user: &UserPlan) -> String {
    let UserPlan { name, role, certificate, token } = user;
    let Role { kind, stores, filter, history, packets, bytes, questions } = &**role;
    let kind = match kind {
        Kind::Reader => "reader",
        Kind::Pinner => "pinner",
        Kind::Operator => "operator",
    };
    let stores = stores.as_ref().map_or("all stores".into(), |names| names.join(", "));
    let mut parts = vec![format!("{name}: {kind} of {stores}")];
    if !filter.is_empty() {
        parts.push(format!("only packets of {filter}"));
    }
    parts.extend(history.map(|history| format!("the last {}", span(history))));
    for (most, unit) in [(*packets, "packets"), (*bytes, "bytes")] {
        if most < u64::MAX {
            parts.push(format!("at most {} {unit} an answer", count(most)));
        }
    }
    parts.push(format!("{questions} at once"));
    let shown = [
        certificate.as_ref().map(|name| format!("certificate {name}")),
        token.as_ref().map(|_| "a token".to_owned()),
    ];
    let shown: Vec<String> = shown.into_iter().flatten().collect();
    parts.push(match &shown[..] {
        [] => "known by a listener alone".into(),
        ways => format!("known by {}", ways.join(" or ")),
    });
    parts.join("; ")
}

/// Returns a duration in the largest unit of which it is a multiple, as the file has it.
fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")];
    let unit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}
