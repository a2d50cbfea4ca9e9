//! One interface at one hook.

use std::io;
use std::sync::Arc;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::InterfaceDescription;

use crate::attach::{CLSACT_PRIORITY, Links, check_memory, wanted_rings};
pub(crate) use crate::attach::{attached_program, explain};
use crate::bpf::{Loaded, Params, Program};
use crate::device::Device;
use crate::filter::{self, splice::Filters};
use crate::interface::{self, Interface, NicCounters};
use crate::ring::{Geometry, GeometryError, RingMemory, RingReader};
use crate::rules::{self, Compiled, Hits, Images};
use crate::socket::SocketHook;
use crate::sys::kernel;
use crate::{Clock, Deliver, Hook, MAX_RINGS, netlink};

/// What to capture, and how.
#[derive(Clone, Debug)]
pub struct Config {
    pub hook: Hook,
    pub deliver: Deliver,
    pub snaplen: u32,
    /// For all rings of an interface together.
    pub ring_bytes: u64,
    pub block_bytes: u64,
    pub promiscuous: bool,
    /// A pcap-filter(7) expression.
    pub filter: Option<String>,
    /// What no rule accepts is not captured.
    pub rules: Option<Arc<Compiled>>,
}

/// Why a capture cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the interface is not there or cannot be asked for
    #[error(transparent)]
    Interface(#[from] interface::Error),
    /// the interface is down
    #[error("{0} is down: set it up first (ip link set {0} up)")]
    Down(String),
    /// frames of a form that is not recorded
    #[error(
        "{name} has link type {arphrd} (ARPHRD), which cannot be recorded: only Ethernet and bare IP can"
    )]
    LinkType { name: String, arphrd: u32 },
    /// sizes that do not fit
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// rings that memory cannot hold
    #[error(
        "the rings of {name} do not fit into memory, of which {available_mib} MiB are free: take a smaller --ring-bytes"
    )]
    Memory { name: String, available_mib: u64 },
    /// no privilege
    #[error(
        "no permission to capture at hook {hook}: run as root, or with the capabilities {needed}"
    )]
    Privilege { hook: Hook, needed: &'static str },
    /// another XDP program has the place
    #[error(
        "{name} has an XDP program already (id {id}): remove it (ip link set {name} xdp off), or take --hook tcx"
    )]
    XdpBusy { name: String, id: u32 },
    /// a hook that kernel, driver or interface do not have
    #[error("{name} has no hook {hook}: {why}; tapdeck probe -i {name} says what it has")]
    Unsupported { name: String, hook: Hook, why: String },
    /// a filter that does not compile
    #[error("bad filter {expression:?}: {why}")]
    Filter { expression: String, why: String },
    /// a hook whose programs stay as they are
    #[error(
        "hook {0} cannot change its filter while it records (the kernel exchanges no netfilter programs): stop, and start with the other filter"
    )]
    FixedFilter(Hook),
    /// a hook that judges nothing
    #[error(
        "hook {0} takes no rules, which are judged by the programs of other hooks: take xdp, xdp-generic, tcx or netfilter"
    )]
    NoRules(Hook),
    /// a hook whose programs stay as they are
    #[error(
        "hook {0} cannot begin with rules while it records (the kernel exchanges no netfilter programs): start with --rules, which can be exchanged then"
    )]
    FixedRules(Hook),
    /// rules that the kernel cannot have
    #[error(transparent)]
    Rules(#[from] rules::Error),
    /// a snaplen that the ring was not made for
    #[error("a snaplen of {asked}: from 1 to {most}, with which the recording began")]
    Snaplen { asked: u32, most: u32 },
    /// a hook that cannot do with packets what is asked
    #[error("hook {hook} {why}")]
    Deliver { hook: Hook, why: &'static str },
    /// anything else the kernel refuses
    #[error("cannot capture on {name} at hook {hook}")]
    Kernel { name: String, hook: Hook, source: io::Error },
}

impl Error {
    /// Whether what was asked for makes no sense, whatever the machine.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Geometry(_)
                | Self::FixedFilter(_)
                | Self::NoRules(_)
                | Self::FixedRules(_)
                | Self::Snaplen { .. }
                | Self::Deliver { .. }
        ) || matches!(self, Self::Rules(e) if e.is_usage())
    }
}

/// Packets that were dropped before the rings' readers could get them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub ring: u64,
    pub contended: u64,
    pub unreadable: u64,
}

impl Losses {
    pub fn total(&self) -> u64 {
        self.ring + self.contended + self.unreadable
    }
}

/// Packets of one interface at one hook.
pub struct Capture {
    config: Config,
    device: Device,
    first_interface: u32,
    rings: Vec<Arc<RingMemory>>,
    source: Source,
    /// For each ring, the part-filled block that [`Capture::flush`] saw last.
    waiting: Vec<Option<u32>>,
    attached: bool,
    paused: bool,
    /// Bytes kept of a packet now; `config` has what the rings were made for.
    snaplen: u32,
}

#[expect(clippy::large_enum_variant, reason = "there is one for each interface")]
enum Source {
    Kernel {
        loaded: Loaded,
        programs: Vec<Program>,
        params: Params,
        filters: Filters,
        /// Where the programs look for rules, once there were some.
        images: Option<Images>,
        links: Links,
    },
    Socket(SocketHook),
}

impl Capture {
    /// Prepares everything; packets flow from [`Capture::start`] on. The rings' packets carry
    /// the pcapng interface ids from `first_interface` on.
    pub fn open(
        name: &str,
        config: &Config,
        first_interface: u32,
        clock: &Arc<Clock>,
    ) -> Result<Self, Error> {
        let device = Device::open(name)?;
        let interface = &device.interface;
        check_deliver(config)?;
        let config = Config { snaplen: snaplen_for(config), ..config.clone() };
        let nrings = wanted_rings(interface, config.hook).min(MAX_RINGS);
        // Each AF_XDP socket has a ring to itself.
        let ring_bytes = match config.hook {
            Hook::AfXdp => {
                let least = u64::from(nrings * Geometry::MIN_BLOCKS) * config.block_bytes;
                config.ring_bytes.max(least)
            }
            _ => config.ring_bytes,
        };
        let geometry = Geometry::new(ring_bytes, config.block_bytes, nrings, config.snaplen)?;
        check_memory(&interface.name, geometry.memory_bytes())?;
        let (rings, source) = if config.hook.is_socket() {
            let hook = SocketHook::open(interface, &config, geometry, first_interface, clock)?;
            (hook.rings().to_vec(), Source::Socket(hook))
        } else {
            let driver = match config.hook {
                Hook::Xdp => netlink::rx_metadata(interface.index),
                _ => netlink::RxMetadata::default(),
            };
            let filters = filters_for(interface, &config)?;
            let params = Params {
                geometry,
                first_interface,
                ifindex: interface.index,
                consume: config.deliver == Deliver::Consume,
                hardware_time: driver.timestamp && kernel::stamps_received(name),
                hardware_vlan: driver.vlan_tag && kernel::strips_vlan(name).unwrap_or(false),
                by_cpu: config.hook == Hook::XdpGeneric,
                link_header: interface.link.is_some_and(LinkType::has_header),
                filtered: !filters.is_empty(),
                judged: config.rules.is_some(),
            };
            let (loaded, control, programs) = load(config.hook, &params, &filters)
                .map_err(|e| explain_load(interface, &config, &filters, e))?;
            clock.share_with(control);
            let rings = loaded.rings().to_vec();
            let images = config.rules.as_ref().map(|rules| images_with(&loaded, rules));
            let images = images.transpose().map_err(|e| explain_rules(interface, &config, e))?;
            let links = Links::default();
            (rings, Source::Kernel { loaded, programs, params, filters, images, links })
        };
        Ok(Self {
            waiting: vec![None; rings.len()],
            snaplen: config.snaplen,
            config,
            device,
            first_interface,
            rings,
            source,
            attached: false,
            paused: false,
        })
    }

    /// Attaches the hook. The device's counters count from here.
    pub fn start(&mut self) -> Result<(), Error> {
        self.device.begin()?;
        self.attach()
    }

    fn attach(&mut self) -> Result<(), Error> {
        let (interface, config) = (&self.device.interface, &self.config);
        match &mut self.source {
            Source::Socket(hook) => hook.start(interface, config)?,
            Source::Kernel { loaded, links, programs, .. } => {
                let program = |which| loaded.program(which);
                let (hook, promiscuous) = (config.hook, config.promiscuous);
                *links = Links::attach(interface, hook, promiscuous, programs[0], &program)
                    .map_err(|e| explain(interface, hook, e))?;
            }
        }
        self.attached = true;
        Ok(())
    }

    /// Detaches the hook and waits until no program or thread of it runs any more. Everything that
    /// was captured is then in the rings, in blocks that are complete or that
    /// [`Capture::flush_all`] closes.
    pub fn stop(&mut self) {
        self.attached = false;
        match &mut self.source {
            Source::Socket(hook) => hook.stop(),
            Source::Kernel { links, .. } => {
                std::mem::take(links).detach();
                kernel::wait_for_running_programs();
            }
        }
    }

    /// Closes every block that has been part-filled since the last call, so that no packet
    /// waits for longer than the time between two calls, twice. Called regularly.
    pub fn flush(&mut self) -> io::Result<()> {
        for ring in 0..self.rings.len() {
            let (block, bytes) = self.rings[ring].open_block();
            let waited = self.waiting[ring] == Some(block);
            self.waiting[ring] = (bytes > 0).then_some(block);
            if waited && bytes > 0 {
                self.close(ring as u32, block)?;
            }
        }
        Ok(())
    }

    /// Closes every part-filled block, and lets empty ones take the current epoch.
    pub fn flush_all(&mut self) -> io::Result<()> {
        for ring in 0..self.rings.len() {
            let (block, _) = self.rings[ring].open_block();
            self.close(ring as u32, block)?;
        }
        Ok(())
    }

    fn close(&self, ring: u32, block: u32) -> io::Result<()> {
        match &self.source {
            Source::Socket(hook) => hook.flush(ring as usize, block),
            Source::Kernel { loaded, .. } => loaded.flush(ring, block)?,
        }
        Ok(())
    }

    /// Looks whether the interface is still there, under whatever name. If it was deleted, waits for one
    /// of its name and captures there. Called regularly.
    pub fn watch(&mut self) -> Result<Option<Event>, Error> {
        if self.paused {
            return Ok(None);
        }
        if self.attached {
            let event = self.device.look()?;
            if event == Some(Event::Gone) {
                self.stop();
            }
            return Ok(event);
        }
        if !self.device.is_back()? {
            return Ok(None);
        }
        self.reload()?;
        self.attach()?;
        Ok(Some(Event::Back))
    }

    /// Loads the programs for the interface as it is now.
    fn reload(&mut self) -> Result<(), Error> {
        let (interface, config) = (&self.device.interface, &self.config);
        if let Source::Kernel { loaded, programs, params, filters, .. } = &mut self.source {
            params.ifindex = interface.index;
            loaded
                .reload(programs, params, filters)
                .map_err(|e| explain_load(interface, config, filters, e))?;
        }
        Ok(())
    }

    /// Takes another filter, or none, while packets flow: each is judged by the old one or by the new one, and
    /// when this returns none is judged by the old one any more.
    ///
    /// # Errors
    /// A filter that does not compile or that the kernel refuses, and a hook that cannot exchange it; the old
    /// one is then still there.
    pub fn set_filter(&mut self, expression: Option<&str>) -> Result<(), Error> {
        let config = Config { filter: expression.map(str::to_owned), ..self.config.clone() };
        check_deliver(&config)?;
        let interface = &self.device.interface;
        match &mut self.source {
            Source::Socket(hook) => {
                let now = Config { snaplen: self.snaplen, ..config.clone() };
                hook.set_filter(interface, &now)?;
            }
            Source::Kernel { .. } if config.hook == Hook::Netfilter && self.attached => {
                return Err(Error::FixedFilter(config.hook));
            }
            Source::Kernel { loaded, programs, params, filters, links, .. } => {
                let new = filters_for(interface, &config)?;
                let changed = Params { filtered: !new.is_empty(), ..*params };
                loaded
                    .reload(programs, &changed, &new)
                    .map_err(|e| explain_load(interface, &config, &new, e))?;
                if let Err(e) = links.exchange(programs[0], &|which| loaded.program(which)) {
                    put_back(loaded, programs, params, filters, links);
                    return Err(explain(interface, config.hook, e));
                }
                kernel::wait_for_running_programs();
                (*filters, *params) = (new, changed);
            }
        }
        self.config = config;
        Ok(())
    }

    /// Takes another set of rules, or none, while packets flow, and gives what the old one counted in the end. Each
    /// packet is judged by one of them as a whole, and when this returns none is judged by the old one any more.
    ///
    /// # Errors
    /// A hook that takes no rules or cannot begin with them now, and a set that the kernel has no memory for; the old one is
    /// then still there.
    pub fn set_rules(&mut self, rules: Option<Arc<Compiled>>) -> Result<Option<Hits>, Error> {
        let config = Config { rules, ..self.config.clone() };
        check_deliver(&config)?;
        let interface = &self.device.interface;
        let mut hits = None;
        if let Source::Kernel { loaded, programs, params, filters, images, links } =
            &mut self.source
        {
            match (images, &config.rules) {
                (Some(images), rules) => hits = images.set(0, rules.as_ref())?,
                (None, None) => {}
                (None, Some(_)) if config.hook == Hook::Netfilter && self.attached => {
                    return Err(Error::FixedRules(config.hook));
                }
                (images, Some(rules)) => {
                    let changed = Params { judged: true, ..*params };
                    loaded
                        .reload(programs, &changed, filters)
                        .map_err(|e| explain_load(interface, &config, filters, e))?;
                    let exchanged = images_with(loaded, rules).and_then(|new| {
                        links
                            .exchange(programs[0], &|which| loaded.program(which))
                            .map_err(RulesFault::Load)?;
                        Ok(new)
                    });
                    let new = match exchanged {
                        Ok(new) => new,
                        Err(e) => {
                            put_back(loaded, programs, params, filters, links);
                            return Err(explain_rules(interface, &config, e));
                        }
                    };
                    kernel::wait_for_running_programs();
                    (*images, *params) = (Some(new), changed);
                }
            }
        }
        self.config = config;
        Ok(hits)
    }

    /// What the present set of rules has counted.
    pub fn rule_hits(&self) -> Option<Hits> {
        match &self.source {
            Source::Kernel { images, .. } => images.as_ref()?.hits(0),
            Source::Socket(_) => None,
        }
    }

    /// Keeps at most so many bytes of each packet from now on.
    ///
    /// # Errors
    /// Where that is 0 or more than the recording began with.
    pub fn set_snaplen(&mut self, bytes: u32) -> Result<(), Error> {
        if !(1..=self.config.snaplen).contains(&bytes) {
            return Err(Error::Snaplen { asked: bytes, most: self.config.snaplen });
        }
        if self.config.hook == Hook::AfXdp {
            return Err(Error::Deliver { hook: Hook::AfXdp, why: "keeps its snaplen" });
        }
        match &mut self.source {
            Source::Kernel { loaded, .. } => loaded.set_snaplen(bytes),
            Source::Socket(hook) => {
                let now = Config { snaplen: bytes, ..self.config.clone() };
                hook.set_filter(&self.device.interface, &now)?;
            }
        }
        self.snaplen = bytes;
        Ok(())
    }

    /// How many bytes of each packet are kept now.
    pub fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// Sees no packets until [`Capture::resume`], and what the device counts meanwhile does not count.
    pub fn pause(&mut self) {
        if !self.paused {
            self.device.refresh();
            self.device.pause();
            self.stop();
            self.paused = true;
        }
    }

    /// Sees packets again. Where the interface is not there, [`Capture::watch`] waits for it.
    ///
    /// # Errors
    /// Where the hook cannot be attached any more; it is still paused then.
    pub fn resume(&mut self) -> Result<(), Error> {
        if !self.paused {
            return Ok(());
        }
        if self.device.is_back()? {
            // It may be another device, since the pause or since a call that failed.
            self.reload()?;
            self.attach()?;
        }
        self.paused = false;
        Ok(())
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Packets that the filter refused. The socket hooks see none of those.
    pub fn filtered(&self) -> u64 {
        self.rings.iter().map(|r| r.filtered()).sum()
    }

    /// What the device has counted since [`Capture::start`]. Where the device is gone, up to when it
    /// was last seen.
    pub fn nic(&self) -> NicCounters {
        self.device.nic()
    }

    /// Reads the device's counters anew, but for a pause, when what it counts does not count.
    pub fn refresh_nic(&mut self) {
        if !self.paused {
            self.device.refresh();
        }
    }

    /// Packets that were dropped, by cause.
    pub fn losses(&self) -> Losses {
        self.rings.iter().map(|r| r.losses()).fold(Losses::default(), |a, b| Losses {
            ring: a.ring + b.ring,
            contended: a.contended + b.contended,
            unreadable: a.unreadable + b.unreadable,
        })
    }

    /// The readers of the rings. Each ring has one, so this is called once.
    pub fn readers(&self) -> Vec<RingReader> {
        (self.first_interface..)
            .zip(&self.rings)
            .map(|(interface, memory)| RingReader::new(memory.clone(), interface))
            .collect()
    }

    /// One pcapng interface description for each ring.
    pub fn descriptions(&self) -> Vec<InterfaceDescription> {
        let unit = match self.config.hook {
            Hook::Xdp | Hook::AfXdp => "receive queue",
            Hook::Tpacket | Hook::Recv => "socket",
            Hook::XdpGeneric | Hook::Tcx | Hook::Netfilter => "CPU",
        };
        let nrings = self.rings.len() as u32;
        let wanted = wanted_rings(&self.device.interface, self.config.hook);
        (0..nrings)
            .map(|ring| InterfaceDescription {
                link: self.device.interface.link.unwrap_or(LinkType::ETHERNET),
                snaplen: self.config.snaplen,
                name: self.device.interface.name.clone(),
                description: if wanted > nrings {
                    format!(
                        "hook {}, every {unit} n with n mod {nrings} = {ring}",
                        self.config.hook
                    )
                } else {
                    format!("hook {}, {unit} {ring}", self.config.hook)
                },
                filter: self.config.filter.clone(),
                hardware: self.device.interface.kind.clone(),
                mac: self.device.interface.mac,
            })
            .collect()
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    pub fn interface(&self) -> &Interface {
        &self.device.interface
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the user should know about this capture that is no error.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let name = &self.device.interface.name;
        let wanted = wanted_rings(&self.device.interface, self.config.hook);
        let has = self.rings.len() as u32;
        if has < wanted {
            warnings.push(format!(
                "{wanted} queues or CPUs share {has} rings; --ring-bytes {} gives each its own",
                u64::from(wanted * Geometry::MIN_BLOCKS) * self.config.block_bytes
            ));
        }
        let hands_on = match &self.source {
            Source::Kernel { programs, params, .. } => {
                params.hardware_vlan && programs[0] == Program::XdpMetadata
            }
            Source::Socket(_) => false,
        };
        if matches!(self.config.hook, Hook::Xdp | Hook::XdpGeneric | Hook::AfXdp)
            && !hands_on
            && kernel::strips_vlan(name).unwrap_or(false)
        {
            warnings.push(format!(
                "{name} takes VLAN tags off before hook {} and does not hand them on: ethtool -K {name} rxvlan off keeps them",
                self.config.hook
            ));
        }
        if let Source::Kernel { links, .. } = &self.source
            && links.by_clsact()
        {
            warnings.push(format!(
                "this kernel has no tcx; clsact filters on {name} do its work and stay if this process is killed, until the next recorder replaces them (tc filter del dev {name} ingress pref {CLSACT_PRIORITY}, and egress)"
            ));
        }
        warnings
    }

    /// All the memory that the rings take, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.rings.first().map_or(0, |r| r.geometry().memory_bytes())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.attached {
            self.stop();
        }
    }
}

/// What happened to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Gone,
    Back,
    LinkDown,
    LinkUp,
}

/// The kernel copies at most 65,535 bytes out of an XDP frame (`bpf_xdp_load_bytes`).
fn snaplen_for(config: &Config) -> u32 {
    match config.hook {
        Hook::Xdp | Hook::XdpGeneric => config.snaplen.min(65_535),
        _ => config.snaplen,
    }
}

fn check_deliver(config: &Config) -> Result<(), Error> {
    let refuse = |why| Err(Error::Deliver { hook: config.hook, why });
    if config.rules.is_some() && config.hook.is_socket() {
        return Err(Error::NoRules(config.hook));
    }
    match (config.hook, config.deliver) {
        (Hook::AfXdp, Deliver::Pass) => {
            refuse("takes packets away from the host: it needs --deliver consume")
        }
        (Hook::Tpacket | Hook::Recv, Deliver::Consume) => {
            refuse("sees copies of packets and cannot consume them: take xdp, tcx or netfilter")
        }
        _ => Ok(()),
    }
}

/// Loads the programs as they were before a change, after some of the links, or none, took the changed ones. A link
/// that took no changed one still has its old one.
fn put_back(
    loaded: &mut Loaded,
    programs: &[Program],
    params: &Params,
    filters: &Filters,
    links: &mut Links,
) {
    // Where the device is gone neither can be done, and Capture::watch loads them anew.
    if loaded.reload(programs, params, filters).is_ok() {
        let _ = links.exchange(programs[0], &|which| loaded.program(which));
        kernel::wait_for_running_programs();
    }
}

/// The places for rules of programs that have just been loaded, with a set in the first.
fn images_with(loaded: &Loaded, rules: &Arc<Compiled>) -> Result<Images, RulesFault> {
    let mut images = loaded.images().map_err(RulesFault::Load)?;
    images.set(0, Some(rules)).map_err(RulesFault::Rules)?;
    Ok(images)
}

enum RulesFault {
    Load(io::Error),
    Rules(rules::Error),
}

fn explain_rules(interface: &Interface, config: &Config, fault: RulesFault) -> Error {
    match fault {
        RulesFault::Load(source) => explain(interface, config.hook, source),
        RulesFault::Rules(error) => error.into(),
    }
}

/// The filter of a hook program, if there is one.
pub(crate) fn filters_for(interface: &Interface, config: &Config) -> Result<Filters, Error> {
    let mut filters = Filters::new();
    if let Some(expression) = &config.filter {
        filters.add(filter::for_hook(interface, config.hook, expression)?);
    }
    Ok(filters)
}

/// Says what an error of the kernel means for whoever wanted programs with this filter.
pub(crate) fn explain_load(
    interface: &Interface,
    config: &Config,
    filters: &Filters,
    source: io::Error,
) -> Error {
    filter::refused(interface, config.hook, config.filter.as_deref(), filters.longest(), source)
}

fn load(
    hook: Hook,
    params: &Params,
    filters: &Filters,
) -> io::Result<(Loaded, crate::bpf::Control, Vec<Program>)> {
    let plain = match hook {
        Hook::Tcx => vec![Program::Ingress, Program::Egress],
        Hook::Netfilter => vec![Program::Netfilter],
        _ => vec![Program::Xdp],
    };
    // Only a program bound to its device may ask the driver, and not every driver can be asked.
    if params.hardware_time || params.hardware_vlan {
        let programs = vec![Program::XdpMetadata];
        if let Ok((loaded, control)) = Loaded::new(&programs, params, filters) {
            return Ok((loaded, control, programs));
        }
    }
    let (loaded, control) = Loaded::new(&plain, params, filters)?;
    Ok((loaded, control, plain))
}
