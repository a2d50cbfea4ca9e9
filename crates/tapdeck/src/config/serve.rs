//! What would a daemon do with a configuration file?

use std::path::Path;

use anyhow::Result;
use clap::Parser;
use tapdeck_capture::Deliver;
use tapdeck_capture::groups::Groups;
use tapdeck_packet::config_fault::fault;
use toml::de::DeTable;

use super::Page;
use crate::flags::{Cli, Command};
use crate::rights::Rights;
use crate::serve::config::ServePlan;
use crate::units::{counted, show_bytes};
use crate::usage::Usage;

/// Returns what is to be served.
///
/// # Errors
/// What is wrong, with the line and, where it is known, the key or the group.
pub fn check(path: &Path, text: &str) -> Result<Page> {
    foresee(path).map_err(|e| {
        let why = format!("{e:#}");
        if why.starts_with(&path.display().to_string()) {
            return e;
        }
        Usage(fault(path, text, place(text, &why), &why)).into()
    })
}

/// Returns where the group stands that a fault names.
fn place(text: &str, why: &str) -> Option<std::ops::Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let groups = table.get_ref().get("group")?.get_ref().as_array()?.iter();
    let names = groups.filter_map(|group| group.get_ref().as_table()?.get("name"));
    let named = |name: &str| {
        why.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)))
            .any(|word| word == name)
    };
    let mut named = names.filter(|name| name.get_ref().as_str().is_some_and(named));
    named.next().map(toml::Spanned::span)
}

fn foresee(path: &Path) -> Result<Page> {
    let words = ["tapdeck".as_ref(), "serve".as_ref(), "--config".as_ref(), path.as_os_str()];
    let Command::Serve(flags) = Cli::try_parse_from(words)?.command else {
        return Ok(Page::default());
    };
    let plan = ServePlan::read(&flags, None)?;
    let geometry = Groups::foresee(&plan.groups)?;
    let mut page = Page::default();
    let owner = plan.access.group.as_ref().map(|name| format!(", group {name}"));
    let (socket, mode) = (plan.socket.display(), plan.access.mode);
    page.line("socket", format!("{socket}, mode {mode:04o}{}", owner.unwrap_or_default()));
    for (group, rules) in plan.groups.groups.iter().zip(&plan.rules) {
        let deliver = match group.deliver {
            Deliver::Pass => "packets pass",
            Deliver::Consume => "packets end there",
        };
        let rules = rules
            .as_ref()
            .map(|(set, _)| format!("; {}", counted(set.entries().len() as u64, "rule")));
        let filter = group.filter.as_ref().map(|filter| format!("; filter {filter}"));
        page.line(
            "group",
            format!(
                "{}: hook {} at {}; {deliver}; {} bytes of each, by {}{}{}",
                group.name,
                group.hook,
                group.interfaces.join(", "),
                group.snaplen,
                group.steering.name(),
                filter.unwrap_or_default(),
                rules.unwrap_or_default(),
            ),
        );
    }
    let most = show_bytes(plan.quota.memory);
    let each = show_bytes(geometry.memory_bytes());
    page.line("memory", format!("{each} for each member; of a user's members {most} at most"));
    page.line("rights", Rights::foresee(flags.user.as_deref(), false)?.foreseen(true));
    Ok(page)
}
