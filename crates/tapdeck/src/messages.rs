//! In which form does the user hear what the program has to say? As lines for people, as objects of
//! JSON for machines, or, where a service manager runs it, in the journal with fields.
//!
//! [`crate::progress_line`] says when and above which live line something is told, and lines are
//! its business alone. The other two forms go through `tracing`. A message is one sentence, with
//! how bad it is; the fields are the same for all messages of a process: its command, and what that
//! is about.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use tapdeck_packet::printable;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::flags::{Command, LogChoice};

/// How bad it is what a message tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// All is as it should be.
    Info = 0,
    /// Something is lost, or will be.
    Warning = 1,
    /// The program ends because of it.
    Error = 2,
}

/// The form of all messages of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Lines,
    Events,
}

static FORM: OnceLock<Form> = OnceLock::new();
static ABOUT: OnceLock<About> = OnceLock::new();

/// What all messages of this process are about.
#[derive(Debug, Default)]
struct About {
    command: &'static str,
    interface: Option<String>,
    store: Option<String>,
}

impl About {
    fn of(command: &Command) -> Self {
        let only = |command| Self { command, ..Self::default() };
        let of_store = |command, store: &Path| Self {
            store: Some(store.display().to_string()),
            ..only(command)
        };
        match command {
            Command::Record(flags) => Self {
                interface: (!flags.interfaces.is_empty()).then(|| flags.interfaces.join(",")),
                store: flags.dir.as_ref().map(|dir| dir.display().to_string()),
                ..only("record")
            },
            Command::Serve(_) => only("serve"),
            Command::Attach(_) => only("attach"),
            Command::Probe(_) => only("probe"),
            Command::Ctl(_) => only("ctl"),
            Command::Query(flags) => match &flags.dir[..] {
                [store] => of_store("query", store),
                _ => only("query"),
            },
            Command::Extcap(_) => only("extcap"),
            Command::Config(_) => only("config"),
            Command::Flows(flags) => of_store("flows", &flags.dir),
            Command::Fetch(_) => only("fetch"),
            Command::Pin(flags) => of_store("pin", &flags.place.dir),
            Command::Pins(flags) => of_store("pins", &flags.place.dir),
            Command::Unpin(flags) => of_store("unpin", &flags.place.dir),
            Command::WatchAlerts(flags) => of_store("watch-alerts", &flags.place.dir),
            Command::Evidence(_) => only("evidence"),
            Command::Dist(_) => only("dist"),
            Command::Gen(_) => only("gen"),
            Command::CheckTraffic(_) => only("check-traffic"),
            Command::Recover(flags) => of_store("recover", &flags.dir),
            Command::Rules(_) => only("rules"),
            Command::Stat(flags) => of_store("stat", &flags.dir),
            Command::Top(_) => only("top"),
            Command::Verify(flags) => of_store("verify", &flags.dir),
        }
    }
}

/// Sets the form of messages, and what they are about. Before, they are lines.
pub fn begin(choice: LogChoice, command: &Command) -> Result<()> {
    let _ = ABOUT.set(About::of(command));
    let form = match choice {
        LogChoice::Json => {
            // Each message is one line, in one call.
            tracing_subscriber::fmt()
                .json()
                .flatten_event(true)
                .with_target(false)
                .with_writer(io::stderr)
                .init();
            Form::Events
        }
        LogChoice::Auto if is_journal(&io::stderr(), std::env::var("JOURNAL_STREAM").ok()) => {
            // Where it cannot be reached, lines arrive there, too.
            match tracing_journald::layer() {
                Ok(layer) => {
                    let layer = layer.with_syslog_identifier("tapdeck".into());
                    let layer = layer.with_field_prefix(Some("TAPDECK".into()));
                    tracing_subscriber::registry().with(layer).try_init().context("the journal")?;
                    Form::Events
                }
                Err(_) => Form::Lines,
            }
        }
        LogChoice::Auto | LogChoice::Lines => Form::Lines,
    };
    let _ = FORM.set(form);
    Ok(())
}

/// Returns whether messages are lines.
pub fn are_lines() -> bool {
    FORM.get().is_none_or(|form| *form == Form::Lines)
}

/// Returns whether an output goes to the journal: `told` has the numbers of the file that does, as
/// systemd.exec(5) says of JOURNAL_STREAM.
fn is_journal(output: &impl AsFd, told: Option<String>) -> bool {
    let Ok(stat) = rustix::fs::fstat(output) else { return false };
    told.is_some_and(|told| told == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Tells a message where messages are no lines.
pub fn tell(level: Level, text: &str) {
    let about = ABOUT.get();
    let command = about.map(|about| about.command);
    let interface = about.and_then(|about| about.interface.as_deref());
    let store = about.and_then(|about| about.store.as_deref());
    let text = Printable(text);
    match level {
        Level::Info => tracing::info!(command, interface, store, "{text}"),
        Level::Warning => tracing::warn!(command, interface, store, "{text}"),
        Level::Error => tracing::error!(command, interface, store, "{text}"),
    }
}

struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable::lines(self.0))
    }
}

/// Returns a message as bytes for a [`Teller`].
pub fn packed(level: Level, text: &str) -> Vec<u8> {
    let mut bytes = vec![level as u8];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Tells each message that is written to it whole, as [`packed`] has made it.
pub struct Teller;

impl Write for Teller {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some((level, text)) = bytes.split_first() {
            let level = match level {
                0 => Level::Info,
                1 => Level::Warning,
                _ => Level::Error,
            };
            tell(level, &String::from_utf8_lossy(text));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt as _;

    use super::is_journal;

    #[test]
    fn an_output_is_the_journal_where_its_numbers_say_so() {
        let file = File::open("/dev/null").expect("it is there");
        let meta = file.metadata().expect("it is open");
        let told = |dev: u64| Some(format!("{dev}:{}", meta.ino()));
        assert!(is_journal(&file, told(meta.dev())));
        assert!(!is_journal(&file, told(meta.dev() + 1)));
        assert!(!is_journal(&file, Some("nonsense".into())));
        assert!(!is_journal(&file, None));
    }
}
