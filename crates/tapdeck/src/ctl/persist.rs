//! `tapdeck ctl persist`: lasting recordings and groups, which need no owner to be asked about.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tapdeck_capture::persist::{Dropped, DroppedLasting, Status, StatusOf, drop_lasting, list};

use crate::flags::CtlPersist;
use crate::units::{counted, show_bytes};

/// A line of `list --json`.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    owned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    status: Option<ListedStatus<'a>>,
}

#[derive(Serialize)]
struct ListedStatus<'a> {
    interfaces: Vec<ListedInterface<'a>>,
    version: &'a str,
    takeovers: u64,
    last_beat_ms: u64,
    fill_bytes: u64,
    ring_bytes: u64,
    #[serde(flatten)]
    of: ListedOf<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ListedOf<'a> {
    Recorder { waiting_packets: u64, store: String },
    Daemon { groups: &'a [String], members: usize },
}

#[derive(Serialize)]
struct ListedInterface<'a> {
    name: &'a str,
    hook: &'a str,
}

/// Does what is asked, and returns what is printed.
pub fn run(verb: &CtlPersist, json: bool) -> Result<String> {
    match verb {
        CtlPersist::List => listed(json),
        CtlPersist::Drop { name } => dropped(name),
    }
}

fn dropped(name: &str) -> Result<String> {
    let DroppedLasting { lost, still_promiscuous } = drop_lasting(name)?;
    let mut text = match lost {
        Dropped::Packets(waiting) => format!(
            "{name} is removed, and with it {} that waited in its rings\n",
            counted(waiting, "packet")
        ),
        Dropped::Members(members) => format!(
            "{name} is removed; no more packets for {}, and what is in their rings stays\n",
            counted(members as u64, "member")
        ),
        Dropped::Unknown => {
            format!("{name} is removed; what waited in its rings cannot be read\n")
        }
    };
    for interface in still_promiscuous {
        writeln!(
            text,
            "{interface} of another network namespace stays promiscuous: run there `ip link set {interface} promisc off`"
        )?;
    }
    Ok(text)
}

fn listed(json: bool) -> Result<String> {
    let mut text = String::new();
    for one in list().context("cannot list what is pinned")? {
        let (name, owned) = (one.name.as_str(), one.is_owned);
        if json {
            let (status, error) = match &one.status {
                Ok(status) => (Some(of(status)), None),
                Err(e) => (None, Some(e.to_string())),
            };
            let line = serde_json::to_string(&Listed { name, owned, error, status })?;
            writeln!(text, "{line}")?;
            continue;
        }
        match &one.status {
            Ok(status) => writeln!(text, "{name}: {}", shown(status, owned))?,
            Err(e) => writeln!(text, "{name}: {e}")?,
        }
    }
    Ok(text)
}

fn of(status: &Status) -> ListedStatus<'_> {
    let interfaces = status.interfaces.iter().map(|(name, hook)| ListedInterface { name, hook });
    ListedStatus {
        interfaces: interfaces.collect(),
        version: &status.version,
        takeovers: status.takeovers,
        last_beat_ms: u64::try_from(status.last_beat.as_millis()).unwrap_or(u64::MAX),
        fill_bytes: status.fill_bytes,
        ring_bytes: status.ring_bytes,
        of: match &status.of {
            StatusOf::Recorder { waiting_packets, store } => ListedOf::Recorder {
                waiting_packets: *waiting_packets,
                store: store.display().to_string(),
            },
            StatusOf::Daemon { groups, members } => ListedOf::Daemon { groups, members: *members },
        },
    }
}

fn shown(status: &Status, owned: bool) -> String {
    let each = status.interfaces.iter().map(|(name, hook)| format!("{name} at {hook}"));
    let interfaces = each.collect::<Vec<_>>().join(", ");
    let beat = Duration::from_secs(status.last_beat.as_secs());
    let process = match status.of {
        StatusOf::Recorder { .. } => "recorder",
        StatusOf::Daemon { .. } => "daemon",
    };
    let owner = if owned { format!("a {process} runs") } else { format!("no {process}") };
    let head = format!(
        "{interfaces}; {owner}, heard of {} ago, tapdeck {}",
        humantime::format_duration(beat),
        status.version
    );
    let (fill, all) = (show_bytes(status.fill_bytes), show_bytes(status.ring_bytes));
    match &status.of {
        StatusOf::Recorder { waiting_packets, store } => format!(
            "{head}; {} waiting, {fill} of {all}; {}",
            counted(*waiting_packets, "packet"),
            store.display()
        ),
        StatusOf::Daemon { groups, members } => format!(
            "{head}; {} of {}, with {fill} of {all} in their rings",
            counted(*members as u64, "member"),
            groups.join(", ")
        ),
    }
}
