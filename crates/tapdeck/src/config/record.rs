//! What would a recorder do with a configuration file?

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::{Capture, Config, Deliver};

use super::Page;
use super::days::{Filling, Space};
use super::file::{RecordFile, Words, one_line};
use crate::flags::{Cli, Command};
use crate::record::{Origin, RecordPlan, Target};
use crate::rights::Rights;
use crate::units::{counted, show_bytes, show_count};

/// Returns what is to be recorded where, or all that is wrong.
pub fn check(path: &Path, text: &str) -> Result<Page, Vec<String>> {
    let faults = RecordFile::faults(path, text);
    if !faults.is_empty() {
        return Err(faults);
    }
    let words = ["tapdeck", "record", "--config"].map(OsString::from).into_iter();
    let words = Words::read(words.chain([path.as_os_str().to_owned()]).collect());
    let words = words.map_err(|e| vec![format!("{e:#}")])?;
    let explain = |why: String| vec![words.file.as_ref().map_or(why.clone(), |f| f.explain(&why))];
    let cli = Cli::try_parse_from(&words.all).map_err(|e| explain(one_line(&e)))?;
    let Command::Record(flags) = cli.command else { return Ok(Page::default()) };
    let told = RecordPlan::new(*flags).and_then(|plan| foresee(&plan));
    told.map_err(|e| explain(format!("{e:#}")))
}

/// Tells what a plan would do, having tried what can be tried.
fn foresee(plan: &RecordPlan) -> anyhow::Result<Page> {
    let mut page = Page::default();
    let is_member = match &plan.origin {
        Origin::Interfaces { interfaces, reasons, .. } => {
            let reasons = reasons.iter().map(|reason| reason.map(|why| format!(" (auto: {why})")));
            let mut memory = 0;
            for ((name, config), reason) in interfaces.iter().zip(reasons) {
                memory += Capture::foresee(name, config)?.memory_bytes();
                page.line("hook", hook(name, config, &reason.unwrap_or_default()));
            }
            if let Some((_, config)) = interfaces.first() {
                let found = interfaces.iter().map(|(name, _)| Interface::find(name));
                let found = found.collect::<Result<Vec<_>, _>>()?;
                if let Some(filter) = &config.filter {
                    tapdeck_capture::filter::check_filter(filter, &found)?;
                    page.line("filter", filter);
                }
            }
            if let Some((set, _)) = plan.origin.rules() {
                page.line("rules", show_count(set.entries().len() as u64));
            }
            page.line("memory", format!("{} for rings", show_bytes(memory)));
            false
        }
        Origin::Group { name, options } => {
            page.line("group", format!("{name} of the daemon at {}", options.socket.display()));
            page.line("memory", "as the daemon gives each member");
            true
        }
    };
    target(plan, &mut page)?;
    if let Some(name) = &plan.persist {
        page.line("lasts", format!("hooks and rings stay as {name} when the recorder ends"));
    }
    let rights = Rights::foresee(plan.user.as_deref(), is_member)?;
    if let Target::Store { dir, .. } = &plan.target {
        rights.check_store(dir)?;
    }
    page.line("rights", rights.foreseen(!is_member));
    Ok(page)
}

fn hook(name: &str, config: &Config, reason: &str) -> String {
    let deliver = match config.deliver {
        Deliver::Pass => "packets pass",
        Deliver::Consume => "packets end there",
    };
    format!("{} at {name}{reason}; {deliver}; {} bytes of each", config.hook, config.snaplen)
}

fn target(plan: &RecordPlan, page: &mut Page) -> anyhow::Result<()> {
    let (dir, retention) = match &plan.target {
        Target::Store { dir, retention, .. } => (dir, retention),
        Target::File(path) => {
            page.line("file", path.display());
            return Ok(());
        }
        Target::Stdout => {
            page.line("file", "standard output");
            return Ok(());
        }
        Target::Nothing => {
            page.line("store", "nothing is written");
            return Ok(());
        }
    };
    let cannot = || format!("cannot use {}", dir.display());
    match anyhow::Context::with_context(Filling::of(dir), cannot)? {
        None => page.line("store", format!("{}, which is made", dir.display())),
        Some(filling) => {
            let (bytes, segments) = (show_bytes(filling.bytes), filling.segments as u64);
            let segments = counted(segments, "segment");
            page.line("store", format!("{}, {bytes} in {segments}", dir.display()));
            page.line("keeps", filling.say(retention, space(dir)?));
        }
    }
    Ok(())
}

fn space(dir: &PathBuf) -> anyhow::Result<Space> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(Space { free: stat.f_bavail * stat.f_frsize, total: stat.f_blocks * stat.f_frsize })
}
