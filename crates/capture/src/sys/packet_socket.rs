//! Packet sockets, packet(7): one call for each packet, or a memory-mapped `TPACKET_V3` ring.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

use libc::{sock_filter, tpacket_auxdata, tpacket3_hdr};
use tapdeck_packet::numbers::ether_type;

use super::mapping::Mapping;

/// Puts an interface into promiscuous mode for as long as the returned socket is open, as
/// libpcap does (`PACKET_MR_PROMISC`). The socket receives nothing.
pub fn promiscuous(ifindex: u32) -> io::Result<OwnedFd> {
    let socket = PacketSocket::new()?;
    socket.join_promiscuous(ifindex)?;
    Ok(socket.0)
}

/// Frames that one call sends at most.
pub const SEND_BATCH: usize = 64;

/// A packet as the kernel hands it to a packet socket.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub frame: &'a [u8],
    /// `CLOCK_REALTIME` nanoseconds.
    pub time_ns: u64,
    /// The VLAN tag that the kernel keeps beside the packet.
    pub tag: Option<[u8; 4]>,
    /// Length on the wire, without `tag`.
    pub original_len: u32,
    pub outgoing: bool,
    /// Packets that this socket had dropped when it took this one, modulo 2³²; 0 where there
    /// were none or where the kernel does not say.
    pub dropped_before: u32,
}

/// `PACKET_STATISTICS`: what happened since it was last read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Packets that the filter accepted, those that were dropped among them.
    pub packets: u32,
    pub dropped: u32,
}

/// A packet socket that takes whole frames of all protocols.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// A socket that receives nothing before it is bound.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor, and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes a socket that another process has made.
    pub fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Returns another descriptor of the same socket.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Lets packets of an interface in.
    pub fn bind(&self, ifindex: u32) -> io::Result<()> {
        self.bind_protocol(ifindex, libc::ETH_P_ALL as u16)
    }

    /// Has the socket send by an interface, and still receive nothing.
    pub fn bind_to_send(&self, ifindex: u32) -> io::Result<()> {
        self.bind_protocol(ifindex, 0)
    }

    fn bind_protocol(&self, ifindex: u32, protocol: u16) -> io::Result<()> {
        // SAFETY: a structure of integers, for which all zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = ifindex as i32;
        // SAFETY: the kernel reads an address of the size that is stated.
        let rc = unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends past the interface's queueing discipline.
    pub fn bypass_qdisc(&self) -> io::Result<()> {
        set_option(&self.0, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
    }

    /// Sends the first [`SEND_BATCH`] of `frames`. Returns how many of them the driver or the
    /// queueing discipline took, which are always the first. Does not wait.
    ///
    /// # Errors
    /// What hinders the first frame: `ENOBUFS` where the driver or the queueing discipline has no
    /// room, `EAGAIN` where too much of this socket is under way, `EMSGSIZE` where it is longer
    /// than the MTU allows, `ENETDOWN` where the interface is down, `ENXIO` where it is gone.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        // SAFETY: structures of integers and pointers, for which all zeros are valid.
        let (mut messages, mut pieces): ([libc::mmsghdr; SEND_BATCH], [libc::iovec; SEND_BATCH]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut count = 0;
        for (frame, (message, piece)) in frames.zip(messages.iter_mut().zip(&mut pieces)) {
            // The kernel does not write to it, though the type says so.
            piece.iov_base = frame.as_ptr().cast_mut().cast();
            piece.iov_len = frame.len();
            message.msg_hdr.msg_iov = std::ptr::from_mut(piece);
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` messages point each to a piece, and that to a frame, of the
        // sizes they state; all outlive the call, which only reads the frames.
        let sent = unsafe {
            libc::sendmmsg(self.0.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    pub fn join_promiscuous(&self, ifindex: u32) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(&self.0, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Replaces the filter. Packets that were being filtered when this returns may still be judged
    /// by the one before.
    pub fn set_filter(&self, program: &[sock_filter]) -> io::Result<()> {
        let len = u16::try_from(program.len())
            .map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        // The kernel does not write to it, though the type says so.
        let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
        set_option(&self.0, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Replaces the filter by a loaded program.
    pub fn set_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        set_option(&self.0, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program.as_raw_fd())
    }

    /// Leaves packets out that go out by the interface (since Linux 4.20).
    pub fn ignore_outgoing(&self) -> io::Result<()> {
        set_option(&self.0, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)
    }

    /// Has [`PacketSocket::receive`] told time, VLAN tag and drops of each packet.
    pub fn describe_packets(&self) -> io::Result<()> {
        set_option(&self.0, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
        set_option(&self.0, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        set_option(&self.0, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1i32)
    }

    /// Receives one packet into `buffer`; a longer packet is cut. With `wait`, waits as long as the
    /// socket's timeout. The error is `WouldBlock` where no packet has come.
    pub fn receive<'a>(&self, buffer: &'a mut [u8], wait: bool) -> io::Result<Received<'a>> {
        /// Room for the three control messages, aligned for their headers.
        #[repr(align(8))]
        struct Control([u8; 256]);
        let mut control = Control([0; 256]);
        // SAFETY: structures of integers and pointers, for which all zeros are valid.
        let (mut from, mut header): (libc::sockaddr_ll, libc::msghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut io = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        header.msg_name = (&raw mut from).cast();
        header.msg_namelen = size_of_val(&from) as libc::socklen_t;
        header.msg_iov = &raw mut io;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: `header` points to buffers of the sizes it states; all outlive the call, and
        // nothing else refers to them during it.
        let len = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, flags) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut packet = Received {
            frame: &buffer[..len as usize],
            time_ns: 0,
            tag: None,
            original_len: len as u32,
            outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
            dropped_before: 0,
        };
        // SAFETY: `header` describes the control buffer as the kernel has filled it.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        while !at.is_null() {
            // SAFETY: `at` points to a control message in that buffer, aligned and complete.
            // Each is as large as its kind says, and read without a claim on its alignment.
            unsafe {
                let data = libc::CMSG_DATA(at);
                match ((*at).cmsg_level, (*at).cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let t: libc::timespec = data.cast::<libc::timespec>().read_unaligned();
                        packet.time_ns = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
                    }
                    (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                        let aux = data.cast::<tpacket_auxdata>().read_unaligned();
                        packet.original_len = aux.tp_len;
                        packet.tag = tag(aux.tp_status, aux.tp_vlan_tci, aux.tp_vlan_tpid);
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        packet.dropped_before = data.cast::<u32>().read_unaligned();
                    }
                    _ => {}
                }
                at = libc::CMSG_NXTHDR(&raw const header, at);
            }
        }
        Ok(packet)
    }

    /// Reads the counters and sets them to 0.
    pub fn take_statistics(&self) -> io::Result<Statistics> {
        let mut value = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut len = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes at `value`, which is that large.
        let rc = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Statistics { packets: value.tp_packets, dropped: value.tp_drops })
    }

    /// Makes the kernel write packets into a ring of `blocks` blocks. A block is handed over when
    /// it is full or `retire_ms` after its first packet, or up to twice that.
    pub fn make_ring(&self, blocks: u32, retire_ms: u32) -> io::Result<()> {
        const FRAME: u32 = 2048;
        let version = libc::tpacket_versions::TPACKET_V3 as i32;
        set_option(&self.0, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req3 {
            tp_block_size: RxRing::BLOCK as u32,
            tp_block_nr: blocks,
            // Blocks are filled densely; the kernel only wants these two to agree.
            tp_frame_size: FRAME,
            tp_frame_nr: blocks * (RxRing::BLOCK as u32 / FRAME),
            tp_retire_blk_tov: retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_option(&self.0, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    }

    /// Maps the ring, which was made with so many blocks.
    pub fn map_ring(&self, blocks: u32) -> io::Result<RxRing> {
        let memory = Mapping::of_fd(self.0.as_fd(), blocks as usize * RxRing::BLOCK, true)?;
        Ok(RxRing { memory, blocks, next: 0 })
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A mapped `TPACKET_V3` ring and the place in it of its one reader.
pub struct RxRing {
    memory: Mapping,
    blocks: u32,
    next: u32,
}

impl RxRing {
    const BLOCK: usize = 1 << 20;
    /// `block_status` in `struct tpacket_block_desc`.
    const STATUS: usize =
        offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status);

    pub fn block_bytes() -> u64 {
        Self::BLOCK as u64
    }

    /// Returns the oldest block, if the kernel has handed it over.
    pub fn block(&self) -> Option<RxBlock<'_>> {
        let at = self.next as usize * Self::BLOCK;
        let status = self.memory.u32(at + Self::STATUS).load(Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the kernel does not write to a block that it has handed over before
        // `release` gives it back, and that takes `&mut self`, so the slice is gone by then.
        let bytes = unsafe { self.memory.bytes(at, Self::BLOCK) };
        Some(RxBlock { bytes, losing: status & libc::TP_STATUS_LOSING != 0 })
    }

    /// Hands the oldest block back to the kernel.
    pub fn release(&mut self) {
        let at = self.next as usize * Self::BLOCK;
        self.memory.u32(at + Self::STATUS).store(libc::TP_STATUS_KERNEL, Release);
        self.next = (self.next + 1) % self.blocks;
    }
}

/// A block of a mapped ring.
pub struct RxBlock<'a> {
    bytes: &'a [u8],
    /// Packets had been dropped, and not been asked for, when this block was handed over.
    pub losing: bool,
}

impl<'a> RxBlock<'a> {
    /// Returns the packets of the block, oldest first.
    pub fn packets(&self) -> impl Iterator<Item = Received<'a>> + use<'a> {
        const HEADER: usize = offset_of!(libc::tpacket_block_desc, hdr);
        let bytes = self.bytes;
        let packets = u32_at(bytes, HEADER + offset_of!(libc::tpacket_hdr_v1, num_pkts));
        let first = HEADER + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt);
        let mut at = u32_at(bytes, first) as usize;
        (0..packets).map(move |_| {
            let header = &bytes[at..];
            at += u32_at(header, offset_of!(tpacket3_hdr, tp_next_offset)) as usize;
            received(header)
        })
    }
}

/// The packet that a `struct tpacket3_hdr` describes; the header is where `bytes` begins.
fn received(bytes: &[u8]) -> Received<'_> {
    /// `TPACKET_ALIGN(sizeof(struct tpacket3_hdr))`: where the address stands.
    const ADDRESS: usize = size_of::<tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
    const VLAN: usize = offset_of!(tpacket3_hdr, hv1);
    let u32_at = |at| u32_at(bytes, at);
    let u16_at = |at| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let frame_at = usize::from(u16_at(offset_of!(tpacket3_hdr, tp_mac)));
    let kept = u32_at(offset_of!(tpacket3_hdr, tp_snaplen)) as usize;
    let seconds = u64::from(u32_at(offset_of!(tpacket3_hdr, tp_sec)));
    let nanoseconds = u64::from(u32_at(offset_of!(tpacket3_hdr, tp_nsec)));
    let tci = u32_at(VLAN + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci)) as u16;
    let tpid = u16_at(VLAN + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid));
    Received {
        frame: &bytes[frame_at..frame_at + kept],
        time_ns: seconds * 1_000_000_000 + nanoseconds,
        tag: tag(u32_at(offset_of!(tpacket3_hdr, tp_status)), tci, tpid),
        original_len: u32_at(offset_of!(tpacket3_hdr, tp_len)),
        outgoing: bytes[ADDRESS + offset_of!(libc::sockaddr_ll, sll_pkttype)]
            == libc::PACKET_OUTGOING,
        dropped_before: 0,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A tag as it stood in the frame, from what `tp_status` says of the two fields.
fn tag(status: u32, tci: u16, tpid: u16) -> Option<[u8; 4]> {
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let tpid = if known { tpid } else { ether_type::VLAN };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

/// setsockopt(2) with a plain structure.
fn set_option<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes at `value`, which is that large.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
