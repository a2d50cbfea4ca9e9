//! One interface at one hook.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tapdeck_packet::pcapng::InterfaceDescription;

use crate::bpf::{Loaded, Params, Program};
use crate::interface::{self, Interface, NicCounters};
use crate::ring::{Geometry, GeometryError, RingMemory, RingReader};
use crate::socket::SocketHook;
use crate::sys::kernel::{self, AttachPoint};
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
    /// a hook that takes no filter
    #[error("hook {0} takes no filter: tpacket and recv do")]
    NoFilter(Hook),
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
        matches!(self, Self::Geometry(_) | Self::NoFilter(_) | Self::Deliver { .. })
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
    interface: Interface,
    first_interface: u32,
    rings: Vec<Arc<RingMemory>>,
    source: Source,
    /// The device's counters: those of devices that are gone, and the present one's at its start.
    nic_gone: NicCounters,
    nic_start: NicCounters,
    /// For each ring, the part-filled block that [`Capture::flush`] saw last.
    waiting: Vec<Option<u32>>,
    attached: bool,
}

enum Source {
    Kernel { loaded: Loaded, programs: Vec<Program>, params: Params, links: Links },
    Socket(SocketHook),
}

#[derive(Default)]
struct Links {
    fds: Vec<OwnedFd>,
    /// Filters on kernels without tcx; these stay when the process dies.
    clsact: Vec<libbpf_rs::TcHook>,
    /// Held while they are attached, so that a second recorder does not replace them.
    clsact_lock: Option<OwnedFd>,
    /// Holds the interface in promiscuous mode as long as it is open.
    promiscuous: Option<OwnedFd>,
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
        let interface = Interface::find(name)?;
        if !interface.up {
            return Err(Error::Down(interface.name));
        }
        let Some(link) = interface.link else {
            return Err(Error::LinkType { name: interface.name, arphrd: interface.arphrd });
        };
        check_deliver(config)?;
        let config = Config { snaplen: snaplen_for(config), ..config.clone() };
        let nrings = wanted_rings(&interface, config.hook).min(MAX_RINGS);
        // Each AF_XDP socket has a ring to itself.
        let ring_bytes = match config.hook {
            Hook::AfXdp => {
                let least = u64::from(nrings * Geometry::MIN_BLOCKS) * config.block_bytes;
                config.ring_bytes.max(least)
            }
            _ => config.ring_bytes,
        };
        let geometry = Geometry::new(ring_bytes, config.block_bytes, nrings, config.snaplen)?;
        check_memory(&interface, &geometry)?;
        let failed = |source| explain(&interface, config.hook, source);
        let (rings, source) = if config.hook.is_socket() {
            let hook = SocketHook::open(&interface, &config, geometry, first_interface, clock)?;
            (hook.rings().to_vec(), Source::Socket(hook))
        } else {
            let driver = match config.hook {
                Hook::Xdp => netlink::rx_metadata(interface.index),
                _ => netlink::RxMetadata::default(),
            };
            let params = Params {
                geometry,
                first_interface,
                ifindex: interface.index,
                consume: config.deliver == Deliver::Consume,
                hardware_time: driver.timestamp && kernel::stamps_received(name),
                hardware_vlan: driver.vlan_tag && kernel::strips_vlan(name).unwrap_or(false),
                by_cpu: config.hook == Hook::XdpGeneric,
                link_header: link.has_header(),
            };
            let (loaded, control, programs) = load(config.hook, params).map_err(failed)?;
            clock.share_with(control);
            let rings = loaded.rings().to_vec();
            (rings, Source::Kernel { loaded, programs, params, links: Links::default() })
        };
        Ok(Self {
            nic_start: interface.counters,
            nic_gone: NicCounters::default(),
            waiting: vec![None; rings.len()],
            config,
            interface,
            first_interface,
            rings,
            source,
            attached: false,
        })
    }

    /// Attaches the hook. The device's counters count from here.
    pub fn start(&mut self) -> Result<(), Error> {
        let interface = Interface::find(&self.interface.name)?;
        self.nic_start = interface.counters;
        // So that the first look tells if there is no link.
        self.interface.running = true;
        self.attach()
    }

    fn attach(&mut self) -> Result<(), Error> {
        let (interface, config) = (&self.interface, &self.config);
        match &mut self.source {
            Source::Socket(hook) => hook.start(interface, config)?,
            Source::Kernel { loaded, links, programs, .. } => {
                *links = attach(loaded, programs, interface, config)
                    .map_err(|e| explain(interface, config.hook, e))?;
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
                detach(std::mem::take(links));
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
        if self.attached {
            let Some(now) = Interface::by_index(self.interface.index)? else {
                self.nic_gone = self.nic();
                self.nic_start = self.interface.counters;
                self.stop();
                return Ok(Some(Event::Gone));
            };
            let before = std::mem::replace(&mut self.interface, now);
            return Ok(match (before.running, self.interface.running) {
                (true, false) => Some(Event::LinkDown),
                (false, true) => Some(Event::LinkUp),
                _ => None,
            });
        }
        let Some(now) = Interface::by_name(&self.interface.name)? else { return Ok(None) };
        if !now.up {
            return Ok(None);
        }
        if now.link != self.interface.link {
            return Err(Error::LinkType { name: now.name, arphrd: now.arphrd });
        }
        self.nic_start = now.counters;
        self.interface = now;
        if let Source::Kernel { loaded, programs, params, .. } = &mut self.source {
            params.ifindex = self.interface.index;
            loaded
                .reload(programs, params)
                .map_err(|e| explain(&self.interface, self.config.hook, e))?;
        }
        self.attach()?;
        Ok(Some(Event::Back))
    }

    /// What the device has counted since [`Capture::start`]. Where the device is gone, up to when it
    /// was last seen.
    pub fn nic(&self) -> NicCounters {
        self.nic_gone + self.interface.counters.since(self.nic_start)
    }

    /// Reads the device's counters anew.
    pub fn refresh_nic(&mut self) {
        if let Ok(Some(now)) = Interface::by_index(self.interface.index) {
            self.interface.counters = now.counters;
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
        let wanted = wanted_rings(&self.interface, self.config.hook);
        (0..nrings)
            .map(|ring| InterfaceDescription {
                link: self.interface.link.unwrap_or(tapdeck_packet::link::LinkType::ETHERNET),
                snaplen: self.config.snaplen,
                name: self.interface.name.clone(),
                description: if wanted > nrings {
                    format!(
                        "hook {}, every {unit} n with n mod {nrings} = {ring}",
                        self.config.hook
                    )
                } else {
                    format!("hook {}, {unit} {ring}", self.config.hook)
                },
                filter: self.config.filter.clone(),
                hardware: self.interface.kind.clone(),
                mac: self.interface.mac,
            })
            .collect()
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the user should know about this capture that is no error.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let name = &self.interface.name;
        let wanted = wanted_rings(&self.interface, self.config.hook);
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
            && !links.clsact.is_empty()
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
    if config.filter.is_some() && !config.hook.takes_filter() {
        return Err(Error::NoFilter(config.hook));
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

fn check_memory(interface: &Interface, geometry: &Geometry) -> Result<(), Error> {
    let needed = geometry.memory_bytes();
    let available = available_memory();
    if available.is_some_and(|a| needed > a / 10 * 9) {
        return Err(Error::Memory {
            name: interface.name.clone(),
            available_mib: available.unwrap_or(0) >> 20,
        });
    }
    Ok(())
}

fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

/// One ring for each receive queue, CPU or socket.
fn wanted_rings(interface: &Interface, hook: Hook) -> u32 {
    match hook {
        Hook::Tpacket | Hook::Recv => 1,
        Hook::Xdp | Hook::AfXdp => interface.rx_queues,
        // One that is switched on later shares a ring.
        Hook::XdpGeneric | Hook::Tcx | Hook::Netfilter => online_cpus(),
    }
}

fn online_cpus() -> u32 {
    // Not available_parallelism(3): packets come to CPUs that this process may not use.
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).count();
    (cpus as u32).max(1)
}

fn load(hook: Hook, params: Params) -> io::Result<(Loaded, crate::bpf::Control, Vec<Program>)> {
    let plain = match hook {
        Hook::Tcx => vec![Program::Ingress, Program::Egress],
        Hook::Netfilter => vec![Program::Netfilter],
        _ => vec![Program::Xdp],
    };
    // Only a program bound to its device may ask the driver, and not every driver can be asked.
    if params.hardware_time || params.hardware_vlan {
        let programs = vec![Program::XdpMetadata];
        if let Ok((loaded, control)) = Loaded::new(&programs, &params) {
            return Ok((loaded, control, programs));
        }
    }
    let (loaded, control) = Loaded::new(&plain, &params)?;
    Ok((loaded, control, plain))
}

fn attach(
    loaded: &Loaded,
    programs: &[Program],
    interface: &Interface,
    config: &Config,
) -> io::Result<Links> {
    let ifindex = interface.index;
    let mut links = Links::default();
    if config.promiscuous && interface.link.is_some_and(tapdeck_packet::link::LinkType::has_header)
    {
        links.promiscuous = Some(crate::sys::packet_socket::promiscuous(ifindex)?);
    }
    let mut link = |program: Program, point| -> io::Result<()> {
        links.fds.push(kernel::attach(loaded.program(program)?.as_fd(), point)?);
        Ok(())
    };
    match config.hook {
        Hook::Tcx => {
            let ways = tcx_ways(interface);
            let attached = ways.iter().try_for_each(|(program, point, _)| link(*program, *point));
            match attached {
                // Kernels before 6.6 do not know the attach type.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    attach_clsact(loaded, interface, &mut links)?;
                }
                other => other?,
            }
        }
        Hook::Netfilter => {
            for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
                link(
                    Program::Netfilter,
                    AttachPoint::NetfilterPrerouting { family: family as u32 },
                )?;
            }
        }
        hook => link(programs[0], AttachPoint::Xdp { ifindex, generic: hook == Hook::XdpGeneric })?,
    }
    Ok(links)
}

/// Which programs go where at the tcx hook, and where clsact has the same place.
type TcxWay = (Program, AttachPoint, libbpf_rs::TcAttachPoint);

/// Both ways; on the loopback interface inbound only, for what leaves it comes back.
fn tcx_ways(interface: &Interface) -> Vec<TcxWay> {
    const ARPHRD_LOOPBACK: u32 = 772;
    let ifindex = interface.index;
    let mut ways =
        vec![(Program::Ingress, AttachPoint::TcxIngress { ifindex }, libbpf_rs::TC_INGRESS)];
    if interface.arphrd != ARPHRD_LOOPBACK {
        ways.push((Program::Egress, AttachPoint::TcxEgress { ifindex }, libbpf_rs::TC_EGRESS));
    }
    ways
}

/// Our own place in the clsact queueing discipline, so that a filter left by a recorder that was
/// killed is replaced, and nobody else's is.
const CLSACT_PRIORITY: u32 = 0x7ad;

fn attach_clsact(loaded: &Loaded, interface: &Interface, links: &mut Links) -> io::Result<()> {
    let ifindex = interface.index;
    links.clsact_lock = Some(kernel::lock_name(&format!("tapdeck-clsact-{ifindex}"))?);
    for (program, _, point) in tcx_ways(interface) {
        let fd = loaded.program(program)?;
        let mut hook = libbpf_rs::TcHook::new(fd.as_fd());
        hook.ifindex(ifindex as i32)
            .attach_point(point)
            .handle(1)
            .priority(CLSACT_PRIORITY)
            .replace(true);
        if let Err(e) = hook.create().and_then(|mut h| h.attach()) {
            detach(std::mem::take(links));
            return Err(crate::bpf::io_error(&e));
        }
        links.clsact.push(hook);
    }
    Ok(())
}

fn detach(links: Links) {
    for mut hook in links.clsact {
        // Fails where the interface is gone, and the filter with it.
        let _ = hook.detach();
    }
}

/// Says what an error of the kernel means for whoever asked for this hook.
pub(crate) fn explain(interface: &Interface, hook: Hook, source: io::Error) -> Error {
    let name = interface.name.clone();
    let unsupported =
        |why: &str| Error::Unsupported { name: name.clone(), hook, why: why.to_owned() };
    match (source.raw_os_error(), hook) {
        (Some(libc::EPERM | libc::EACCES), Hook::Tpacket | Hook::Recv) => {
            Error::Privilege { hook, needed: "CAP_NET_RAW" }
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            Error::Privilege { hook, needed: "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW" }
        }
        (Some(libc::EBUSY | libc::EEXIST), Hook::Xdp | Hook::XdpGeneric | Hook::AfXdp) => {
            let state = kernel::xdp_state(interface.index).unwrap_or_default();
            Error::XdpBusy { name, id: attached_program(&state).unwrap_or(0) }
        }
        (Some(libc::EADDRINUSE), Hook::Tcx) => {
            unsupported("another recorder has its clsact filter there")
        }
        (Some(libc::EOPNOTSUPP), Hook::Xdp | Hook::AfXdp) => {
            unsupported("its driver has no XDP; xdp-generic and tcx work with every driver")
        }
        (Some(libc::ENOMEM), _) => {
            Error::Memory { name, available_mib: available_memory().unwrap_or(0) >> 20 }
        }
        (Some(libc::EINVAL | libc::EOPNOTSUPP), Hook::Netfilter) => {
            unsupported("the kernel has no netfilter BPF links (they came with 6.4)")
        }
        (Some(libc::ENOSYS), _) => unsupported("the kernel has no BPF"),
        _ => Error::Kernel { name, hook, source },
    }
}

/// The XDP program that has an interface already.
pub(crate) fn attached_program(state: &kernel::XdpState) -> Option<u32> {
    let ids = [state.driver_program, state.generic_program, state.hardware_program];
    ids.into_iter().find(|id| *id != 0)
}
