//! The socket hooks: packets come to user space by a socket, and a thread formats them into the
//! ring that the hook programs would fill.
//!
//! The socket hooks are the methods that tapdeck is compared with, and the way to capture where no
//! hook program can be loaded. Each module has the thread of one method. All of them end in the
//! same way: first nothing new is let in, then the thread empties its socket, asks the kernel one
//! last time what it dropped, and returns. So every packet that came before the end is captured or
//! counted.

mod afxdp;
mod recv;
mod tpacket;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::arphrd;
use tapdeck_packet::pcapng::{FLAG_INBOUND, FLAG_OUTBOUND};

use crate::bpf::params::Params;
use crate::bpf::socket::SocketFilter;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{self, explain_load, filters_for};
use crate::hook::{Reading, Sockets};
use crate::interface::Interface;
use crate::ring::{Geometry, Packet, Producer, RingMemory, socket_ring};
use crate::sys::afxdp::XdpSocket;
use crate::sys::kernel::{active_rx_queues, wait_for_running_programs};
use crate::sys::mapping::Mapping;
use crate::sys::packet_socket::{PacketSocket, Received, promiscuous};
use crate::{Clock, Config, Error};

/// How long a thread waits for packets before it looks whether it shall end, and what was lost.
const IDLE: Duration = Duration::from_millis(50);

/// A capture by sockets: one thread for each, which formats packets into a ring.
pub struct SocketHook {
    rings: Vec<Arc<RingMemory>>,
    clock: Arc<Clock>,
    first_interface: u32,
    means: Means,
    running: Option<Running>,
}

/// The sockets that packets come by.
enum Means {
    Packet(Reading),
    /// AF_XDP sockets, and what sends packets to them.
    Xdp(afxdp::Redirect),
}

/// Threads at work, and what lets packets in to them.
struct Running {
    entrance: Entrance,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

enum Entrance {
    Packet {
        socket: Arc<PacketSocket>,
        /// The program that judges, where there is a filter or was one.
        filter: Option<SocketFilter>,
        refused: Refused,
    },
    Xdp {
        link: OwnedFd,
        making: afxdp::Making,
        /// A socket that holds the interface in promiscuous mode as long as it is open.
        _promiscuous: Option<OwnedFd>,
    },
}

impl Entrance {
    /// Returns when no packet comes in any more.
    fn close(self) {
        match self {
            // Setting the filter fails for want of memory alone; then the thread ends when it finds
            // its socket empty.
            Self::Packet { socket, .. } => drop(socket.set_filter(&filter::REFUSE_ALL)),
            Self::Xdp { link, .. } => drop(link),
        }
        wait_for_running_programs();
    }
}

impl SocketHook {
    /// Prepares the rings. A bad filter and a missing privilege show here already.
    pub fn open(
        interface: &Interface,
        config: &Config,
        sockets: Sockets,
        geometry: Geometry,
        first_interface: u32,
        clock: &Arc<Clock>,
    ) -> Result<Self, Error> {
        let failed = |e: io::Error| explain(interface, config.hook, e);
        let means = match sockets {
            Sockets::Packet(reading) => {
                PacketSocket::new().map_err(failed)?;
                Judge::new(interface, config)?.load(None)?;
                Means::Packet(reading)
            }
            Sockets::Xdp(_) => Means::Xdp(afxdp::Redirect::load(interface, config)?),
        };
        Ok(Self {
            rings: socket_ring(geometry).map_err(failed)?,
            clock: clock.clone(),
            first_interface,
            means,
            running: None,
        })
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    /// Opens the sockets and starts their threads. Packets are received when this returns.
    pub fn start(&mut self, interface: &Interface, config: &Config) -> Result<(), Error> {
        self.stop();
        let running = match self.means {
            Means::Packet(reading) => self.start_packet(reading, interface, config)?,
            Means::Xdp(_) => {
                // The interface may be another than when this was opened.
                let redirect = afxdp::Redirect::load(interface, config)?;
                let running = self.start_xdp(&redirect, interface, config)?;
                self.means = Means::Xdp(redirect);
                running
            }
        };
        self.running = Some(running);
        Ok(())
    }

    /// Lets nothing new in, and returns when everything that had come is in the rings or counted.
    pub fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.entrance.close();
        running.stop.store(true, Release);
        for thread in running.threads {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Asks the kernel whether the sockets are still given packets, and sees that they are. Returns
    /// whether they were not. Nobody but this process can detach a packet socket.
    pub fn restore(&mut self, interface: &Interface) -> io::Result<bool> {
        match (&mut self.running, &self.means) {
            (Some(Running { entrance: Entrance::Xdp { link, .. }, .. }), Means::Xdp(redirect)) => {
                redirect.restore(interface.index, link)
            }
            _ => Ok(false),
        }
    }

    /// Gives sockets to the queues that were switched on after the hook was attached.
    pub fn take_new_queues(&mut self, interface: &Interface, config: &Config) -> Result<(), Error> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let taken = self.give_sockets(&mut running, interface, config);
        self.running = Some(running);
        taken.map_err(|e| explain(interface, config.hook, e))?;
        // Drivers may run the program on the queues alone that there were when it was attached.
        self.set_filter(interface, config)
    }

    fn give_sockets(
        &self,
        running: &mut Running,
        interface: &Interface,
        config: &Config,
    ) -> io::Result<()> {
        let (Entrance::Xdp { making, .. }, Means::Xdp(redirect)) = (&running.entrance, &self.means)
        else {
            return Ok(());
        };
        let refused = redirect.refused()?;
        let active = active_rx_queues(&interface.name)? as usize;
        for queue in running.threads.len()..active.min(self.rings.len()) {
            let socket = making.bind_later(interface.index, queue as u32)?;
            redirect.enter(queue as u32, &socket)?;
            let thread = self.receive(queue, socket, &refused, config, &running.stop)?;
            running.threads.push(thread);
        }
        Ok(())
    }

    /// Starts the thread that takes the packets of a queue.
    fn receive(
        &self,
        queue: usize,
        socket: XdpSocket,
        refused: &Arc<Mapping>,
        config: &Config,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<JoinHandle<()>> {
        let producer = self.producer(queue);
        let receiver = afxdp::Receiver::new(socket, queue, producer, refused.clone(), config);
        spawn(&format!("tapdeck-afxdp{queue}"), stop.clone(), move |stop| receiver.run(stop))
    }

    /// Exchanges the filter, and how much is kept of a packet, for those of `config`. Returns when
    /// no packet is judged by the old filter any more.
    pub fn set_filter(&mut self, interface: &Interface, config: &Config) -> Result<(), Error> {
        let Some(running) = &mut self.running else {
            // A bad one is refused also while nothing runs.
            return filters_for(interface, config).map(drop);
        };
        match (&mut running.entrance, &mut self.means) {
            (Entrance::Packet { socket, filter, refused }, _) => {
                Judge::new(interface, config)?.put(socket, filter, refused)?;
            }
            (Entrance::Xdp { link, .. }, Means::Xdp(redirect)) => {
                redirect.set_filter(interface, config, link.as_fd())?;
            }
            (Entrance::Xdp { .. }, Means::Packet(_)) => return Ok(()),
        }
        wait_for_running_programs();
        Ok(())
    }

    pub fn flush(&self, ring: usize, block: u32) {
        crate::ring::flush(&*self.rings[ring], block, self.clock.epoch());
    }

    fn producer(&self, ring: usize) -> Producer {
        let interface = self.first_interface + ring as u32;
        Producer::new(self.rings[ring].clone(), self.clock.clone(), interface)
    }

    fn start_packet(
        &self,
        reading: Reading,
        interface: &Interface,
        config: &Config,
    ) -> Result<Running, Error> {
        let failed = |e| explain(interface, config.hook, e);
        let socket = Arc::new(PacketSocket::new().map_err(failed)?);
        let (mut filter, refused) = (None, Refused::default());
        Judge::new(interface, config)?.put(&socket, &mut filter, &refused)?;
        let start = || -> io::Result<Running> {
            if is_loopback(interface) {
                // Kernels before 4.20 cannot; the sink refuses those packets anyhow.
                let _ = socket.ignore_outgoing();
            }
            if wants_promiscuous(interface, config) {
                socket.join_promiscuous(interface.index)?;
            }
            let pusher = PacketPusher {
                producer: self.producer(0),
                skip_outgoing: is_loopback(interface),
                refused: refused.clone(),
                filtered: Cell::new(0),
            };
            let stop = Arc::new(AtomicBool::new(false));
            // All is set before the socket is bound, so that every packet meets it as it shall be.
            let thread = match reading {
                Reading::Calls => {
                    let receiver = recv::Receiver::new(socket.clone(), pusher, config)?;
                    socket.bind(interface.index)?;
                    spawn("tapdeck-recv", stop.clone(), move |stop| receiver.run(stop))?
                }
                Reading::Mapped => {
                    let receiver = tpacket::Receiver::new(socket.clone(), pusher, config)?;
                    socket.bind(interface.index)?;
                    spawn("tapdeck-tpacket", stop.clone(), move |stop| receiver.run(stop))?
                }
            };
            let entrance = Entrance::Packet { socket, filter, refused };
            Ok(Running { entrance, stop, threads: vec![thread] })
        };
        start().map_err(failed)
    }

    fn start_xdp(
        &self,
        redirect: &afxdp::Redirect,
        interface: &Interface,
        config: &Config,
    ) -> Result<Running, Error> {
        let (sockets, making) = afxdp::bind(interface, config, self.rings.len())?;
        let start = || -> io::Result<Running> {
            let promiscuous = wants_promiscuous(interface, config)
                .then(|| promiscuous(interface.index))
                .transpose()?;
            // A socket whose thread does not start is closed, and with it the thread's peers.
            let link = redirect.attach(interface.index, &sockets)?;
            let refused = redirect.refused()?;
            let mut running = Running {
                entrance: Entrance::Xdp { link, making, _promiscuous: promiscuous },
                stop: Arc::new(AtomicBool::new(false)),
                threads: Vec::new(),
            };
            for (queue, socket) in sockets.into_iter().enumerate() {
                match self.receive(queue, socket, &refused, config, &running.stop) {
                    Ok(thread) => running.threads.push(thread),
                    Err(e) => {
                        running.stop.store(true, Release);
                        return Err(e);
                    }
                }
            }
            Ok(running)
        };
        start().map_err(|e| explain(interface, config.hook, e))
    }
}

impl Drop for SocketHook {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(
    name: &str,
    stop: Arc<AtomicBool>,
    run: impl FnOnce(&AtomicBool) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || run(&stop))
}

/// What shall judge the packets of a packet socket, and how much of them is kept.
struct Judge<'a> {
    interface: &'a Interface,
    config: &'a Config,
    filters: Filters,
}

impl<'a> Judge<'a> {
    fn new(interface: &'a Interface, config: &'a Config) -> Result<Self, Error> {
        Ok(Self { interface, config, filters: filters_for(interface, config)? })
    }

    /// Loads the program, if there is a filter, to take the place of one before.
    fn load(&self, before: Option<&SocketFilter>) -> Result<Option<SocketFilter>, Error> {
        if self.filters.is_empty() {
            return Ok(None);
        }
        let unread = Params::unread(self.interface.index);
        let snaplen = filter::kept(self.config.snaplen);
        let params = Params {
            geometry: Geometry { snaplen, ..unread.geometry },
            link_header: self.interface.link.is_some_and(LinkType::has_header),
            filtered: true,
            ..unread
        };
        let loaded = SocketFilter::load(&params, &self.filters, before);
        loaded.map(Some).map_err(|e| self.explain(e))
    }

    /// Puts it to a socket, in the place of what judged there before.
    fn put(
        &self,
        socket: &PacketSocket,
        filter: &mut Option<SocketFilter>,
        refused: &Refused,
    ) -> Result<(), Error> {
        let Some(loaded) = self.load(filter.as_ref())? else {
            return socket
                .set_filter(&filter::keep_all(self.config.snaplen))
                .map_err(|e| self.explain(e));
        };
        let attach = || {
            refused.follow(&loaded)?;
            socket.set_program(loaded.program()?.as_fd())
        };
        attach().map_err(|e| self.explain(e))?;
        *filter = Some(loaded);
        Ok(())
    }

    fn explain(&self, e: io::Error) -> Error {
        explain_load(self.interface, self.config, &self.filters, e)
    }
}

/// The counter of packets that the filter of a packet socket has refused, if it ever had one.
#[derive(Clone, Default)]
struct Refused(Arc<OnceLock<Arc<Mapping>>>);

impl Refused {
    /// Follows the counter of a filter, which those after it go on with.
    fn follow(&self, filter: &SocketFilter) -> io::Result<()> {
        if self.0.get().is_none() {
            // Nobody else follows a first filter.
            let _ = self.0.set(filter.refused()?);
        }
        Ok(())
    }

    fn packets(&self) -> u64 {
        self.0.get().map_or(0, |counter| counter.u64(0).load(Relaxed))
    }
}

fn wants_promiscuous(interface: &Interface, config: &Config) -> bool {
    config.promiscuous && interface.link.is_some_and(LinkType::has_header)
}

fn is_loopback(interface: &Interface) -> bool {
    interface.arphrd == arphrd::LOOPBACK
}

/// What is done with the packets of a packet socket.
struct PacketPusher {
    producer: Producer,
    /// Whether packets that leave are left out: on the loopback interface a packet goes out and
    /// comes in, and is taken once, as it comes in (as libpcap does).
    skip_outgoing: bool,
    refused: Refused,
    /// Refused packets that the ring has been told of.
    filtered: Cell<u64>,
}

impl PacketPusher {
    fn push(&self, p: &Received<'_>) {
        if self.skip_outgoing && p.outgoing {
            return;
        }
        self.producer.push(&Packet {
            time_ns: p.time_ns,
            frame: p.frame,
            tag: p.tag,
            original_len: p.original_len,
            flags: if p.outgoing { FLAG_OUTBOUND } else { FLAG_INBOUND },
        });
    }

    fn count_lost(&self, packets: u32) {
        self.producer.count_lost(u64::from(packets));
    }

    fn count_filtered(&self) {
        let refused = self.refused.packets();
        self.producer.count_filtered(refused - self.filtered.replace(refused));
    }
}

fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Acquire)
}
