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

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use libc::sock_filter;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{FLAG_INBOUND, FLAG_OUTBOUND};

use crate::explain::explain;
use crate::filter;
use crate::hook::{Reading, Sockets};
use crate::interface::Interface;
use crate::ring::{Geometry, Packet, Producer, RingMemory, socket_ring};
use crate::sys::kernel::wait_for_running_programs;
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
    Packet(Arc<PacketSocket>),
    Xdp {
        link: OwnedFd,
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
            Self::Packet(socket) => drop(socket.set_filter(&filter::REFUSE_ALL)),
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
                filter::compile(interface, config)?;
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

    /// Exchanges the filter, and how much is kept of a packet, for those of `config`. Returns when
    /// no packet is judged by the old filter any more.
    pub fn set_filter(&mut self, interface: &Interface, config: &Config) -> Result<(), Error> {
        // A bad one is refused also while nothing runs.
        let program = filter::compile(interface, config)?;
        let Some(running) = &self.running else { return Ok(()) };
        match (&running.entrance, &mut self.means) {
            (Entrance::Packet(socket), _) => set_filter(socket, &program, interface, config)?,
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
        let program = filter::compile(interface, config)?;
        let failed = |e| explain(interface, config.hook, e);
        let socket = Arc::new(PacketSocket::new().map_err(failed)?);
        set_filter(&socket, &program, interface, config)?;
        let start = || -> io::Result<Running> {
            if is_loopback(interface) {
                // Kernels before 4.20 cannot; the sink refuses those packets anyhow.
                let _ = socket.ignore_outgoing();
            }
            if wants_promiscuous(interface, config) {
                socket.join_promiscuous(interface.index)?;
            }
            let sink = Sink { producer: self.producer(0), skip_outgoing: is_loopback(interface) };
            let stop = Arc::new(AtomicBool::new(false));
            // All is set before the socket is bound, so that every packet meets it as it shall be.
            let thread = match reading {
                Reading::Calls => {
                    let receiver = recv::Receiver::new(socket.clone(), sink, config)?;
                    socket.bind(interface.index)?;
                    spawn("td-recv", stop.clone(), move |stop| receiver.run(stop))?
                }
                Reading::Mapped => {
                    let receiver = tpacket::Receiver::new(socket.clone(), sink, config)?;
                    socket.bind(interface.index)?;
                    spawn("td-tpacket", stop.clone(), move |stop| receiver.run(stop))?
                }
            };
            Ok(Running { entrance: Entrance::Packet(socket), stop, threads: vec![thread] })
        };
        start().map_err(failed)
    }

    fn start_xdp(
        &self,
        redirect: &afxdp::Redirect,
        interface: &Interface,
        config: &Config,
    ) -> Result<Running, Error> {
        let sockets = afxdp::bind(interface, config, self.rings.len())?;
        let start = || -> io::Result<Running> {
            let promiscuous = wants_promiscuous(interface, config)
                .then(|| promiscuous(interface.index))
                .transpose()?;
            // A socket whose thread does not start is closed, and with it the thread's peers.
            let link = redirect.attach(interface.index, &sockets)?;
            let refused = redirect.refused()?;
            let mut running = Running {
                entrance: Entrance::Xdp { link, _promiscuous: promiscuous },
                stop: Arc::new(AtomicBool::new(false)),
                threads: Vec::new(),
            };
            for (queue, socket) in sockets.into_iter().enumerate() {
                let (producer, refused) = (self.producer(queue), refused.clone());
                let receiver = afxdp::Receiver::new(socket, queue, producer, refused, config);
                let name = format!("td-afxdp-{queue}");
                match spawn(&name, running.stop.clone(), move |stop| receiver.run(stop)) {
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

fn set_filter(
    socket: &PacketSocket,
    program: &[sock_filter],
    interface: &Interface,
    config: &Config,
) -> Result<(), Error> {
    let expression = config.filter.as_deref();
    let set = socket.set_filter(program);
    set.map_err(|e| filter::refused(interface, config.hook, expression, program.len(), e))
}

fn wants_promiscuous(interface: &Interface, config: &Config) -> bool {
    config.promiscuous && interface.link.is_some_and(LinkType::has_header)
}

fn is_loopback(interface: &Interface) -> bool {
    interface.arphrd == u32::from(libc::ARPHRD_LOOPBACK)
}

/// What is done with the packets of a packet socket.
struct Sink {
    producer: Producer,
    /// Whether packets that leave are left out: on the loopback interface a packet goes out and
    /// comes in, and is taken once, as it comes in (as libpcap does).
    skip_outgoing: bool,
}

impl Sink {
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
}

fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Acquire)
}
