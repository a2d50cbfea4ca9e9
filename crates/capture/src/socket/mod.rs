//! The socket hooks: packets come to user space by a socket, and a thread formats them into the
//! ring that the hook programs would fill.
//!
//! The socket hooks are the methods that tapdeck is compared with, and the way to capture where no
//! hook program can be loaded. Each module has the thread of one method. All of them end in the
//! same way: first nothing new is let in, then the thread empties its socket, asks the kernel one
//! last time what it dropped, and returns. So every packet that came before the end is captured or
//! counted.

mod afxdp;
mod entrance;
mod packet;
mod recv;
mod redirect;
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

use crate::bpf::loaded::REFUSED_STRIDE;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{self, explain_load, filters_for};
use crate::helper::Seat;
use crate::helper::wire::{Answer, Fault, Request};
use crate::hook::{Reading, Sockets};
use crate::interface::Interface;
use crate::ring::{Geometry, Packet, Producer, RingMemory, socket_ring};
use crate::sys::afxdp::{XdpDescriptors, XdpSocket};
use crate::sys::kernel::{active_rx_queues, wait_for_running_programs};
use crate::sys::mapping::Mapping;
use crate::sys::packet_socket::{PacketSocket, Received};
use crate::{Clock, Config, Error, MAX_RINGS};
use entrance::{Entrance, perform};
use packet::PacketEntrance;
use redirect::Redirect;

/// How long a thread waits for packets before it looks whether it shall end, and what was lost.
const IDLE: Duration = Duration::from_millis(50);

/// A capture by sockets: one thread for each, which formats packets into a ring.
pub struct SocketHook {
    rings: Vec<Arc<RingMemory>>,
    clock: Arc<Clock>,
    first_interface: u32,
    sockets: Sockets,
    filters: Filters,
    door: Door,
    running: Option<Running>,
}

/// Where that is done which takes privileges.
enum Door {
    Here(Box<dyn Entrance>),
    /// The helper's side, where the recorder has one.
    Helped(Seat),
}

impl Door {
    /// Does what takes privileges, for an interface as it is now.
    fn ask(&mut self, interface: &Interface, request: &Request) -> Result<Answer, Fault> {
        match self {
            Self::Here(entrance) => perform(&mut **entrance, interface, request),
            Self::Helped(seat) => seat.ask(request),
        }
    }

    /// Returns when no packet comes in any more. Fails where the helper has ended.
    fn close(&mut self) -> Result<(), Fault> {
        match self {
            Self::Here(entrance) => {
                entrance.detach();
                Ok(())
            }
            Self::Helped(seat) => seat.ask(&Request::Detach).map(drop),
        }
    }

    /// Asks for the counters of refused packets, if there are such by now.
    fn refused(&mut self, interface: &Interface, bytes: usize) -> Result<Option<Mapping>, Fault> {
        let map = self.ask(interface, &Request::TakeRefused)?.fds.pop();
        let mapped = map.map(|map| Mapping::of_fd(map.as_fd(), bytes, false));
        mapped.transpose().map_err(Fault::Place)
    }
}

/// Threads at work.
struct Running {
    by: By,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads take packets from.
enum By {
    Packet { socket: Arc<PacketSocket>, refused: Refused },
    Xdp { refused: Arc<Mapping> },
}

impl SocketHook {
    /// Prepares the rings, whose packets carry interface ids from the first one on. A missing
    /// privilege shows here already.
    pub fn open(
        interface: &Interface,
        config: &Config,
        sockets: Sockets,
        geometry: Geometry,
        filters: Filters,
        to: (u32, &Arc<Clock>),
    ) -> Result<Self, Error> {
        let most = geometry.nrings as usize;
        let entrance = match sockets {
            Sockets::Packet(reading) => {
                PacketEntrance::open(reading, interface, config, filters.clone())
                    .map(|entrance| Box::new(entrance) as Box<dyn Entrance>)
            }
            Sockets::Xdp(_) => Redirect::load(interface, config, filters.clone(), most)
                .map(|entrance| Box::new(entrance) as Box<dyn Entrance>),
        };
        let entrance = entrance.map_err(|fault| why(interface, config, &filters, fault))?;
        Self::behind(Door::Here(entrance), sockets, geometry, filters, to)
            .map_err(|e| explain(interface, config.hook, e))
    }

    /// Prepares the rings where a helper has opened the hook with these filters.
    pub fn helped(
        seat: Seat,
        sockets: Sockets,
        geometry: Geometry,
        filters: Filters,
        to: (u32, &Arc<Clock>),
    ) -> io::Result<Self> {
        Self::behind(Door::Helped(seat), sockets, geometry, filters, to)
    }

    fn behind(
        door: Door,
        sockets: Sockets,
        geometry: Geometry,
        filters: Filters,
        (first_interface, clock): (u32, &Arc<Clock>),
    ) -> io::Result<Self> {
        Ok(Self {
            rings: socket_ring(geometry)?,
            clock: clock.clone(),
            first_interface,
            sockets,
            filters,
            door,
            running: None,
        })
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    pub fn filters(&self) -> &Filters {
        &self.filters
    }

    /// Leaves to a helper what takes privileges.
    pub fn is_helped(&mut self, seat: Seat) {
        self.door = Door::Helped(seat);
    }

    /// Lets go of the memory of the rings, in a helper.
    pub fn forget_rings(&mut self) {
        self.rings.clear();
    }

    /// Takes the programs and sockets away, in a helper.
    pub fn detach_here(&mut self) {
        let _ = self.door.close();
    }

    /// Does what a recorder asks its helper for.
    pub fn perform(&mut self, interface: &Interface, request: &Request) -> Result<Answer, Fault> {
        self.door.ask(interface, request)
    }

    /// Opens the sockets and starts their threads. Packets are received when this returns.
    pub fn start(&mut self, interface: &Interface, config: &Config) -> Result<(), Error> {
        self.stop();
        let started = match self.sockets {
            Sockets::Packet(reading) => self.start_packet(reading, interface, config),
            Sockets::Xdp(_) => {
                redirect::check_queues(interface)?;
                self.start_xdp(interface, config)
            }
        };
        let running = started.map_err(|fault| {
            let _ = self.door.close();
            why(interface, config, &self.filters, fault)
        })?;
        self.running = Some(running);
        Ok(())
    }

    /// Lets nothing new in, and returns when everything that had come is in the rings or counted.
    pub fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        if let (Err(_), By::Packet { socket, .. }) = (self.door.close(), &running.by) {
            // The helper has ended, and this socket has not.
            let _ = socket.set_filter(&filter::REFUSE_ALL);
            wait_for_running_programs();
        }
        running.end();
    }

    /// Asks the kernel whether the sockets are still given packets, and sees that they are. Returns
    /// whether they were not.
    pub fn restore(&mut self, interface: &Interface) -> io::Result<bool> {
        match self.running {
            Some(Running { by: By::Xdp { .. }, .. }) => {
                let restored = self.door.ask(interface, &Request::Restore);
                restored.map(|answer| answer.value != 0).map_err(Fault::into_error)
            }
            _ => Ok(false),
        }
    }

    /// Gives sockets to the queues that were switched on after the hook was attached.
    pub fn take_new_queues(&mut self, interface: &Interface, config: &Config) -> Result<(), Error> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let taken = self.give_sockets(&mut running, interface, config);
        self.running = Some(running);
        taken.map_err(|fault| why(interface, config, &self.filters, fault))
    }

    fn give_sockets(
        &mut self,
        running: &mut Running,
        interface: &Interface,
        config: &Config,
    ) -> Result<(), Fault> {
        let By::Xdp { refused } = &running.by else { return Ok(()) };
        let has = running.threads.len();
        let active = active_rx_queues(&interface.name).map_err(Fault::Place)? as usize;
        let sockets = self.open_sockets(interface, has..active.min(self.rings.len()))?;
        let bound = self.door.ask(interface, &Request::TakeQueues)?.value as usize;
        for (queue, socket) in (has..bound).zip(sockets) {
            let thread = self.receive(queue, socket, refused, config, &running.stop);
            running.threads.push(thread.map_err(Fault::Place)?);
        }
        Ok(())
    }

    /// Opens AF_XDP sockets, which are not bound yet.
    fn open_sockets(
        &mut self,
        interface: &Interface,
        numbers: std::ops::Range<usize>,
    ) -> Result<Vec<XdpSocket>, Fault> {
        let open = |number: usize| {
            let number = number as u32;
            let Answer { value: chunks, fds } =
                self.door.ask(interface, &Request::OpenSocket { number })?;
            let [socket, memory] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| nothing_came())?;
            XdpSocket::open(XdpDescriptors { socket, memory, chunks }).map_err(Fault::Place)
        };
        numbers.map(open).collect()
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
        let filters = filters_for(interface, config)?;
        let (program, snaplen) = (filters.first().cloned(), config.snaplen);
        let request = Request::SetFilter { program, snaplen };
        let set = self.door.ask(interface, &request).map(drop);
        set.and_then(|()| self.follow_refused(interface))
            .map_err(|fault| why(interface, config, &filters, fault))?;
        self.filters = filters;
        Ok(())
    }

    /// Counts what a first filter of a packet socket refuses.
    fn follow_refused(&mut self, interface: &Interface) -> Result<(), Fault> {
        let Some(Running { by: By::Packet { refused, .. }, .. }) = &self.running else {
            return Ok(());
        };
        refused.follow(|| self.door.refused(interface, size_of::<u64>()))
    }

    pub fn flush(&self, ring: usize, block: u32) {
        crate::ring::flush(&*self.rings[ring], block, self.clock.epoch());
    }

    fn producer(&self, ring: usize) -> Producer {
        let interface = self.first_interface + ring as u32;
        Producer::new(self.rings[ring].clone(), self.clock.clone(), interface)
    }

    fn start_packet(
        &mut self,
        reading: Reading,
        interface: &Interface,
        config: &Config,
    ) -> Result<Running, Fault> {
        let mut opened = self.door.ask(interface, &Request::OpenSocket { number: 0 })?;
        let socket = opened.fds.pop().ok_or_else(nothing_came)?;
        let socket = Arc::new(PacketSocket::of(socket));
        let refused = Refused::default();
        let pusher = PacketPusher {
            producer: self.producer(0),
            skip_outgoing: is_loopback(interface),
            refused: refused.clone(),
            filtered: Cell::new(0),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let run: Box<dyn FnOnce() -> io::Result<JoinHandle<()>>> = match reading {
            Reading::Calls => {
                let receiver = recv::Receiver::new(socket.clone(), pusher, config);
                let stop = stop.clone();
                Box::new(|| spawn("tapdeck-recv", stop, move |stop| receiver.run(stop)))
            }
            Reading::Mapped => {
                let receiver = tpacket::Receiver::new(socket.clone(), opened.value, pusher);
                let receiver = receiver.map_err(Fault::Place)?;
                let stop = stop.clone();
                Box::new(|| spawn("tapdeck-tpacket", stop, move |stop| receiver.run(stop)))
            }
        };
        self.door.ask(interface, &Request::Attach { ifindex: interface.index })?;
        refused.follow(|| self.door.refused(interface, size_of::<u64>()))?;
        let threads = vec![run().map_err(Fault::Place)?];
        Ok(Running { by: By::Packet { socket, refused }, stop, threads })
    }

    fn start_xdp(&mut self, interface: &Interface, config: &Config) -> Result<Running, Fault> {
        let sockets = self.open_sockets(interface, 0..self.rings.len())?;
        let attach = Request::Attach { ifindex: interface.index };
        let bound = self.door.ask(interface, &attach)?.value as usize;
        let refused = self.door.refused(interface, MAX_RINGS as usize * REFUSED_STRIDE)?;
        let refused = Arc::new(refused.ok_or_else(nothing_came)?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut running =
            Running { by: By::Xdp { refused: refused.clone() }, stop, threads: Vec::new() };
        for (queue, socket) in sockets.into_iter().take(bound).enumerate() {
            match self.receive(queue, socket, &refused, config, &running.stop) {
                Ok(thread) => running.threads.push(thread),
                Err(e) => {
                    running.end();
                    return Err(Fault::Place(e));
                }
            }
        }
        Ok(running)
    }
}

impl Drop for SocketHook {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Running {
    /// Waits until the threads have emptied their sockets, which nothing new comes to.
    fn end(self) {
        self.stop.store(true, Release);
        for thread in self.threads {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// What is missing of an answer.
fn nothing_came() -> Fault {
    Fault::Place(io::ErrorKind::InvalidData.into())
}

/// Says what failed.
fn why(interface: &Interface, config: &Config, filters: &Filters, fault: Fault) -> Error {
    match fault {
        Fault::Load(e) => explain_load(interface, config, filters, e),
        Fault::Queue(queue, e) => redirect::refused(interface, queue, e),
        Fault::Place(e) => explain(interface, config.hook, e),
    }
}

fn spawn(
    name: &str,
    stop: Arc<AtomicBool>,
    run: impl FnOnce(&AtomicBool) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || run(&stop))
}

/// The counter of packets that the filter of a packet socket has refused, if it ever had one.
#[derive(Clone, Default)]
struct Refused(Arc<OnceLock<Mapping>>);

impl Refused {
    /// Follows the counter of a first filter, which those after it go on with.
    fn follow(&self, ask: impl FnOnce() -> Result<Option<Mapping>, Fault>) -> Result<(), Fault> {
        if self.0.get().is_none()
            && let Some(counter) = ask()?
        {
            // Nobody else follows a first filter.
            let _ = self.0.set(counter);
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
