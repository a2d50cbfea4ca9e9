//! `tapdeck evidence`: keys, and bundles of packets that somebody else can believe.
//!
//! What a bundle is, and how it is checked, is `tapdeck_evidence`'s. This module says what is
//! asked, and tells what came of it.

use std::io::{Write as _, stdout};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use tapdeck_evidence::{
    Account, Bundle, Checked, Manifest, PinStore, PrivateKey, PublicKey, Question, Time, check,
};
use tapdeck_packet::printable;
use tapdeck_store::io::{Directory, Storage};

use crate::flags::{self, EvidenceKeyVerb, EvidenceVerb};
use crate::interrupt::Interrupt;
use crate::progress_line::say;
use crate::query::{time, yield_to_recorder};
use crate::units::counted;

pub fn run(flags: &flags::Evidence) -> Result<()> {
    match &flags.verb {
        EvidenceVerb::Key(key) => match &key.verb {
            EvidenceKeyVerb::New { out } => new_key(out),
        },
        EvidenceVerb::Export(flags) => export(flags),
        EvidenceVerb::Check(flags) => check_bundle(flags),
    }
}

fn new_key(path: &Path) -> Result<()> {
    let key = PrivateKey::generate()?;
    key.write(path)?;
    let mut public = path.as_os_str().to_owned();
    public.push(".pub");
    key.public().write(Path::new(&public))?;
    writeln!(stdout(), "{}", key.public().fingerprint())?;
    Ok(())
}

fn export(flags: &flags::EvidenceExport) -> Result<()> {
    time::span(flags.after, flags.before)?;
    let interrupt = Interrupt::listen()?;
    let key = PrivateKey::read(&flags.key)?;
    yield_to_recorder();
    let store = flags.dir.canonicalize().unwrap_or_else(|_| flags.dir.clone());
    let bundle = Bundle::begin(&flags.out)?;
    let manifest = if let Some(number) = flags.pin {
        let dir = flags.evidence.clone().unwrap_or_else(|| PinStore::beside(&store));
        let pins = PinStore::open(&dir)?;
        bundle.add_pin(&pins, &pins.pin(number)?)?
    } else {
        let question = Question {
            filter: flags.expression.join(" "),
            community_id: flags.community_id,
            inner: flags.inner,
            ceiling: String::new(),
            after: flags.after.map(Time),
            before: Some(flags.before.map_or_else(Time::now, Time)),
        };
        let store: Arc<dyn Storage> = Arc::new(Directory::new(&store));
        bundle.add_packets(&store, &question, || !interrupt.asked())?
    };
    let manifest = bundle.finish(manifest, &key)?;
    tell_account(&manifest.account);
    let (packets, out) = (counted(manifest.packets, "packet"), flags.out.display());
    say(&format!("{out}: {packets}, signed by the key {}", manifest.key));
    let faults = &manifest.account.faults;
    ensure!(faults.is_empty(), "the bundle does not have all that was recorded, as said above");
    Ok(())
}

/// Tells on standard error what a recording lacks.
pub fn tell_account(account: &Account) {
    for line in account.lines() {
        say(&printable::name(&line));
    }
}

fn check_bundle(flags: &flags::EvidenceCheck) -> Result<()> {
    let key = PublicKey::read(&flags.key)?;
    let Checked { manifest, faults } = check(&flags.bundle, &key)?;
    for fault in &faults {
        say(&printable::name(fault));
    }
    ensure!(faults.is_empty(), "{} is not what was signed", flags.bundle.display());
    if let Some(manifest) = &manifest {
        write!(stdout(), "{}", page(manifest))?;
    }
    Ok(())
}

/// Returns what a sound manifest says, for a person.
fn page(manifest: &Manifest) -> String {
    let Manifest { question, account, clock, .. } = manifest;
    let at = |time: Option<Time>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
    let kept = match clock.kept_at_utc {
        Some(true) => "kept at UTC",
        Some(false) => "not kept at UTC all the time",
        None => "unknown whether kept at UTC",
    };
    let mut rows = vec![
        ("signed by", manifest.key.clone()),
        ("made", format!("{} on {} by {}", manifest.made, manifest.machine, manifest.made_by)),
        ("store", manifest.store.clone()),
    ];
    rows.extend(manifest.reason.clone().map(|reason| ("reason", reason)));
    rows.push(("filter", question.filter.clone()));
    rows.extend((!question.ceiling.is_empty()).then(|| ("within", question.ceiling.clone())));
    rows.extend(question.community_id.map(|id| ("community id", id.to_string())));
    rows.push(("span", format!("{} to {}", at(question.after), at(question.before))));
    rows.push(("packets", manifest.packets.to_string()));
    rows.push(("first, last", format!("{}, {}", at(manifest.first), at(manifest.last))));
    rows.push(("clock", format!("{kept}, {} steps", clock.steps.len())));
    rows.push((
        "recording",
        if account.complete { "complete in the span" } else { "lacks something in the span:" }
            .into(),
    ));
    rows.extend(account.lines().into_iter().map(|line| ("", line)));
    rows.push(("bundle", "sound: nothing was changed, taken away or added".to_owned()));
    let line = |(name, value): &(&str, String)| format!("{name:<13} {}\n", printable::name(value));
    rows.iter().map(line).collect()
}
