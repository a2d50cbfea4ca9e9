//! From flags to values that make sense together.
//!
//! A [`RecordPlan`] that exists is a recording that can be tried: wrong usage has been refused.
//! Making one looks at interfaces and reads the rule file, and changes nothing.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::FileType;
use rustix::thread::{CpuSet, sched_getaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::persist::hooks_left;
use tapdeck_capture::{Config, Deliver, Hook, Overload, Stamps};
use tapdeck_client::Options as Attach;
use tapdeck_packet::rules::image::{Engine, Options};
use tapdeck_store::Retention;

use super::newcomers::{Pattern, expand, patterns};
use crate::control::{Loaded, load, load_again, recorder_path, remove_left};
use crate::flags::{
    self, ClockChoice, DeliverChoice, DirectChoice, EngineChoice, HookChoice, OverloadChoice,
};
use crate::rights::{FileAccess, Place, directory_of};
use crate::units::show_bytes;
use crate::usage::usage;
use crate::way_out;

const DEFAULT_SEGMENT: u64 = 1 << 30;
/// Bytes that are kept of a packet while payload is shed: Ethernet with a tag or two, IPv6, and TCP
/// with its usual options.
const DEFAULT_SHED_TO: u32 = 96;
const SMALLEST_SEGMENT: u64 = 8 << 20;
/// Rings whose packets one thread looks at for the index, where the user leaves it open.
const RINGS_OF_A_THREAD: usize = 4;

/// Where packets go.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    Store {
        dir: PathBuf,
        segment_bytes: u64,
        segment_time: Duration,
        retention: Retention,
        index: Option<Index>,
    },
    File(PathBuf),
    Stdout,
    Nothing,
}

/// Where packets come from.
#[derive(Clone, Debug)]
pub enum Origin {
    Interfaces {
        interfaces: Vec<(String, Config)>,
        /// Why each interface got its hook, where the user left it open.
        reasons: Vec<Option<&'static str>>,
        /// The rules that all interfaces begin with.
        rules: Option<Loaded>,
    },
    Group {
        name: String,
        options: Attach,
    },
}

impl Origin {
    pub fn rules(&self) -> Option<&Loaded> {
        match self {
            Self::Interfaces { rules, .. } => rules.as_ref(),
            Self::Group { .. } => None,
        }
    }

    pub fn reasons(&self) -> &[Option<&'static str>] {
        match self {
            Self::Interfaces { reasons, .. } => reasons,
            Self::Group { .. } => &[],
        }
    }
}

/// Where a recorder listens for clients that want to control it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketPlace {
    /// A path in the recorder's store. Where none can be there, the recorder records without a
    /// socket.
    InStore(PathBuf),
    At(PathBuf),
    Nowhere,
}

/// How a store is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// How many threads look at packets; `None` where the rings decide.
    threads: Option<u32>,
    /// The CPU that the index's threads are bound to, if they are.
    pub cpu: Option<u32>,
}

impl Index {
    /// Returns how many threads look at the packets of so many rings.
    pub fn threads(&self, rings: usize) -> NonZeroUsize {
        let threads = self.threads.map_or(rings.div_ceil(RINGS_OF_A_THREAD), |n| n as usize);
        NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
    }
}

/// All that a recording is told at its start, checked.
#[derive(Clone, Debug)]
pub struct RecordPlan {
    pub origin: Origin,
    /// Which interfaces are recorded that come later, and how.
    pub later: Option<Pattern>,
    pub target: Target,
    /// How rules are compiled for the kernel.
    pub rules_options: Options,
    /// Where the control socket is.
    pub socket: SocketPlace,
    pub flush: Duration,
    /// The name under which hooks and rings outlive the process.
    pub persist: Option<String>,
    /// For how long hook programs record when the recorder does not run.
    pub abandon: Duration,
    pub direct: DirectChoice,
    /// What was written so long ago is durable, if anything is before the end.
    pub sync_interval: Option<Duration>,
    pub count: Option<u64>,
    pub duration: Option<Duration>,
    pub stats_json: Option<PathBuf>,
    /// The user that the recorder becomes, if one was named.
    pub user: Option<String>,
    /// The directories of the configuration and the rules, where they are to be read again.
    pub read_again: Vec<PathBuf>,
    /// Permission and group of the files of the store.
    pub files: FileAccess,
}

/// What a recorder is told that can change while packets come, checked as far as that goes without
/// looking at interfaces.
#[derive(Clone, Debug)]
pub struct Changeable {
    pub filter: Option<String>,
    pub snaplen: u32,
    pub cutoff: Option<NonZeroU32>,
    pub rules: Option<Loaded>,
    pub retention: Retention,
}

impl Changeable {
    pub fn new(f: &flags::Record, rules_options: &Options) -> Result<Self> {
        target(f)?;
        Ok(Self {
            filter: f.filter(),
            snaplen: f.snaplen,
            cutoff: f.cutoff.unwrap_or_default().0,
            rules: f.rules.as_deref().map(|path| load_again(path, rules_options)).transpose()?,
            retention: retention(f),
        })
    }
}

impl RecordPlan {
    pub fn new(mut f: flags::Record) -> Result<Self> {
        let (patterns, names) = patterns(&f.interfaces);
        let left = f.persist.as_deref().map(hooks_left).unwrap_or_default();
        if f.group.is_none() {
            let left: Vec<String> = left.iter().map(|(name, _)| name.clone()).collect();
            f.interfaces = expand(&f.interfaces, &left)?;
        }
        let target = target(&f)?;
        let read_again = read_again(&f);
        if target == Target::Stdout && f.stats_json.as_ref().is_some_and(|p| p.as_os_str() == "-") {
            return usage(
                "-w - and --stats-json - both want standard output: name a file for one of them",
            );
        }
        let engine = match f.rules_engine {
            EngineChoice::Candidates => Engine::Candidates,
            EngineChoice::Walk => Engine::Walk,
        };
        let rules_options = Options { engine, ..Options::default() };
        let origin = match &f.group {
            Some(name) => {
                let mut options = Attach { weight: f.weight, ..Attach::default() };
                if let Some(socket) = &f.socket {
                    options.socket.clone_from(socket);
                }
                Origin::Group { name: name.clone(), options }
            }
            None => from_interfaces(&f, &rules_options, &left)?,
        };
        let later = if patterns.is_empty() {
            None
        } else {
            Some(Pattern { patterns, names, how: How::of(&f)? })
        };
        let socket = match (&f.group, f.socket, &target) {
            (None, Some(path), _) => SocketPlace::At(path),
            (_, _, Target::Store { dir, .. }) => SocketPlace::InStore(recorder_path(dir)),
            _ => SocketPlace::Nowhere,
        };
        Ok(Self {
            origin,
            later,
            target,
            rules_options,
            socket,
            flush: f.flush,
            persist: f.persist,
            abandon: f.abandon,
            direct: f.direct,
            sync_interval: f.sync_interval.unwrap_or_default().0,
            count: f.count,
            duration: f.duration,
            stats_json: f.stats_json,
            user: f.user,
            read_again,
            files: FileAccess { mode: f.file_mode, group: f.file_group },
        })
    }
}

impl RecordPlan {
    /// Returns what of the file system the recorder needs while it records.
    pub fn place(&self) -> Place<'_> {
        match &self.target {
            Target::Store { dir, .. } => Place::Store(dir, &self.files),
            Target::File(path) => Place::File(path),
            Target::Stdout | Target::Nothing => Place::Nothing,
        }
    }

    /// Returns how many bytes of a packet the rings are made for.
    pub fn most_snaplen(&self) -> u32 {
        match &self.origin {
            Origin::Interfaces { interfaces, .. } => {
                interfaces.iter().map(|(_, config)| config.snaplen).max().unwrap_or(0)
            }
            Origin::Group { .. } => u32::MAX,
        }
    }

    /// Removes the socket that a recorder has left outside of its store, where it may remove
    /// nothing.
    pub fn remove_socket(&self) {
        if let SocketPlace::At(path) = &self.socket {
            remove_left(path);
        }
    }
}

fn from_interfaces(
    f: &flags::Record,
    rules_options: &Options,
    left: &[(String, Hook)],
) -> Result<Origin> {
    let rules = f.rules.as_deref().map(|path| load(path, rules_options)).transpose()?;
    let how = How::of(f)?;
    let mut interfaces: Vec<(String, Config)> = Vec::new();
    let mut reasons = Vec::new();
    for name in &f.interfaces {
        let is_left = left.iter().any(|(its, _)| its == name);
        // Of those left one may have been renamed, and its name another one's by then.
        if !is_left && interfaces.iter().any(|(n, _)| n == name) {
            return usage(format!("{name} is named twice"));
        }
        let (hook, reason) = choose_hook(f.hook, name, left)?;
        // Of one that has gone since nothing can be taken away.
        if !is_left || Interface::by_name(name)?.is_some() {
            how.check_deliver(hook, name)?;
        }
        let rules = rules.as_ref().map(|(_, compiled)| compiled.clone());
        let config = Config { rules, ..how.config(hook) };
        check_lasting(f, name, hook)?;
        interfaces.push((name.clone(), config));
        reasons.push(reason);
    }
    Ok(Origin::Interfaces { interfaces, reasons, rules })
}

/// How interfaces are recorded: what the flags say of all of them.
#[derive(Clone, Debug)]
pub struct How {
    hook: HookChoice,
    deliver: Option<Deliver>,
    /// Whether the interface of the default route may be cut off.
    may_cut_off: bool,
    /// Whether hooks outlive their process.
    lasts: bool,
    /// For whatever hook, and without rules.
    config: Config,
}

impl How {
    fn of(f: &flags::Record) -> Result<Self> {
        let config = Config {
            hook: Hook::Tcx,
            deliver: Deliver::Pass,
            snaplen: f.snaplen,
            ring_bytes: f.ring_bytes,
            block_bytes: f.block_bytes,
            promiscuous: !f.no_promiscuous,
            device_bound: !f.no_device_bound,
            stamps: match f.clock {
                ClockChoice::Auto => Stamps::Auto,
                ClockChoice::Packet => Stamps::Packet,
                ClockChoice::Batch => Stamps::Batch,
                ClockChoice::Hardware => Stamps::Hardware,
            },
            overload: choose_overload(f)?,
            filter: f.filter(),
            rules: None,
            cutoff: f.cutoff.unwrap_or_default().0,
        };
        let deliver = f.deliver.map(|choice| match choice {
            DeliverChoice::Pass => Deliver::Pass,
            DeliverChoice::Consume => Deliver::Consume,
        });
        let (may_cut_off, lasts) = (f.yes_this_interface, f.persist.is_some());
        Ok(Self { hook: f.hook, deliver, may_cut_off, lasts, config })
    }

    /// Returns how an interface is recorded at a hook, without rules.
    pub fn config(&self, hook: Hook) -> Config {
        Config { hook, deliver: self.deliver(hook), ..self.config.clone() }
    }

    /// Returns how an interface is recorded at the hook that is best for it, without rules.
    pub fn best(&self, interface: &Interface) -> Result<Config> {
        let (hook, _) = choose_hook(self.hook, &interface.name, &[])?;
        if self.lasts {
            check_outlives(hook, &interface.name)?;
        }
        self.check_deliver(hook, &interface.name)?;
        Ok(self.config(hook))
    }

    fn deliver(&self, hook: Hook) -> Deliver {
        let unasked = if hook.can(Deliver::Pass) { Deliver::Pass } else { Deliver::Consume };
        self.deliver.unwrap_or(unasked)
    }

    /// Refuses to take packets away where nobody may have meant that.
    fn check_deliver(&self, hook: Hook, name: &str) -> Result<()> {
        if self.deliver(hook) == Deliver::Pass {
            return Ok(());
        }
        // A hook that always takes packets away must not cut anybody off unasked.
        if self.deliver.is_none() && Interface::find(name)?.has_address()? {
            return usage(format!(
                "hook {hook} takes packets away from the host, and {name} carries an IP address: say --deliver consume if that is meant"
            ));
        }
        if self.may_cut_off {
            return Ok(());
        }
        way_out::keep(
            &Interface::find(name)?,
            "--deliver consume would cut this machine off",
            "--yes-this-interface",
        )
    }
}

/// Returns what goes first when packets come faster than they can be written.
fn choose_overload(f: &flags::Record) -> Result<Overload> {
    match (f.on_overload.unwrap_or(OverloadChoice::Drop), f.shed_to) {
        (OverloadChoice::Drop, None) => Ok(Overload::Drop),
        (OverloadChoice::Drop, Some(_)) => {
            usage("--shed-to: payload is shed only with --on-overload shed")
        }
        (OverloadChoice::Shed, to) => Ok(Overload::Shed { to: to.unwrap_or(DEFAULT_SHED_TO) }),
    }
}

/// Refuses hooks that end with their process, and what could not be changed afterwards.
fn check_lasting(f: &flags::Record, name: &str, hook: Hook) -> Result<()> {
    if f.persist.is_none() {
        return Ok(());
    }
    check_outlives(hook, name)?;
    if f.rules.is_some() && !hook.can_exchange_filter() {
        return usage(format!(
            "--persist: the programs of hook {hook} cannot be exchanged, and so not their rules: leave out --rules"
        ));
    }
    Ok(())
}

fn check_outlives(hook: Hook, name: &str) -> Result<()> {
    if hook.can_outlive() {
        return Ok(());
    }
    usage(format!(
        "--persist: hook {hook} on {name} ends with its process; take {}",
        Hook::list(Hook::can_outlive, "or")
    ))
}

fn target(f: &flags::Record) -> Result<Target> {
    let chosen = [f.dir.is_some(), f.write.is_some(), f.no_store];
    match chosen.iter().filter(|c| **c).count() {
        0 => return usage("where to? --dir DIR records into a store, -w FILE into one file"),
        1 => {}
        _ => return usage("--dir, -w and --no-store exclude each other: take one"),
    }
    let retention = retention(f);
    if f.dir.is_none() && (retention.deletes() || f.segment_size.is_some()) {
        return usage("segments and retention belong to a store: give --dir");
    }
    if f.dir.is_none() && (f.file_mode.is_some() || f.file_group.is_some()) {
        return usage("--file-mode and --file-group are of a store's files: give --dir");
    }
    if f.dir.is_none()
        && let Some(flag) = index_flag(f)
    {
        return usage(format!("{flag}: only a store has an index: give --dir"));
    }
    if f.sync_interval.is_some() && !can_be_durable(f) {
        return usage(
            "--sync-interval: only a file can be made durable: give --dir, or -w with a file",
        );
    }
    if f.no_store {
        return Ok(Target::Nothing);
    }
    if let Some(file) = &f.write {
        return Ok(if file.as_os_str() == "-" {
            Target::Stdout
        } else {
            Target::File(file.clone())
        });
    }
    let dir = f.dir.clone().unwrap_or_default();
    let index = index(f)?;
    let segment_bytes = segment_bytes(f)?;
    Ok(Target::Store { dir, segment_bytes, segment_time: f.segment_time, retention, index })
}

/// Returns the directories that are read when a configuration is read again.
fn read_again(f: &flags::Record) -> Vec<PathBuf> {
    let Some(config) = &f.config else { return Vec::new() };
    let files = std::iter::once(config).chain(&f.rules);
    files.map(|path| directory_of(path).to_owned()).collect()
}

fn retention(f: &flags::Record) -> Retention {
    Retention {
        bytes: f.keep_bytes,
        age: f.keep_time,
        segments: f.keep_segments,
        min_free: f.min_free,
    }
}

/// Returns whether packets go where a disk keeps them.
fn can_be_durable(f: &flags::Record) -> bool {
    match &f.write {
        Some(path) if path.as_os_str() == "-" => {
            let stat = rustix::fs::fstat(std::io::stdout());
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
        }
        // A file that is not there will be one.
        Some(path) => path.symlink_metadata().map_or(true, |meta| meta.is_file()),
        None => !f.no_store,
    }
}

/// Returns a flag that says how the index is made, if one is given.
fn index_flag(f: &flags::Record) -> Option<&'static str> {
    let cpu = f.index_cpu.map(|_| "--index-cpu");
    cpu.or(f.index_threads.map(|_| "--index-threads"))
}

fn index(f: &flags::Record) -> Result<Option<Index>> {
    if f.no_index
        && let Some(flag) = index_flag(f)
    {
        return usage(format!("--no-index and {flag} exclude each other: take one"));
    }
    if let Some(cpu) = f.index_cpu {
        let allowed = sched_getaffinity(None).context("cannot ask for the CPUs")?;
        if cpu as usize >= CpuSet::MAX_CPU || !allowed.is_set(cpu as usize) {
            return usage(format!(
                "--index-cpu {cpu}: this process may not run there, or there is no such CPU"
            ));
        }
    }
    Ok((!f.no_index).then_some(Index { threads: f.index_threads, cpu: f.index_cpu }))
}

/// Returns how large a segment becomes. The segment being written and the one set aside behind it
/// count towards what is kept, and so do indexes, so that the disk never holds more than
/// `--keep-bytes`.
fn segment_bytes(f: &flags::Record) -> Result<u64> {
    let smallest = SMALLEST_SEGMENT.max(4 * f.block_bytes);
    if let Some(asked) = f.segment_size {
        if asked < smallest {
            return usage(format!(
                "--segment-size {}: at least {}",
                show_bytes(asked),
                show_bytes(smallest)
            ));
        }
        let (indexes, and) =
            if f.no_index { (0, "") } else { (asked / 4, " and a quarter more for indexes") };
        if f.keep_bytes.is_some_and(|keep| keep < 3 * asked + indexes) {
            return usage(format!(
                "--keep-bytes must be at least three times --segment-size ({}){and}: one closed, one written, one set aside",
                show_bytes(asked)
            ));
        }
        return Ok(asked / 4096 * 4096);
    }
    match f.keep_bytes {
        Some(keep) if keep < 4 * smallest => usage(format!(
            "--keep-bytes {}: at least {}",
            show_bytes(keep),
            show_bytes(4 * smallest)
        )),
        Some(keep) => Ok((keep / 8).clamp(smallest, DEFAULT_SEGMENT) / 4096 * 4096),
        None => Ok(DEFAULT_SEGMENT),
    }
}

/// Returns the hook for an interface, and why it is that one if nobody said. What a recorder before
/// has `left` stays: its own program at the interface would tell against it.
fn choose_hook(
    choice: HookChoice,
    name: &str,
    left: &[(String, Hook)],
) -> Result<(Hook, Option<&'static str>)> {
    if let Some(hook) = choice.0 {
        return Ok((hook, None));
    }
    if let Some((_, hook)) = left.iter().find(|(interface, _)| interface == name) {
        return Ok((*hook, Some("the recorder before has left it there")));
    }
    let (hook, reason) = tapdeck_capture::probe::auto(&Interface::find(name)?)?;
    Ok((hook, Some(reason)))
}
