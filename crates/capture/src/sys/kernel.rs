//! System calls that attach programs and wait for the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys as bpf;

/// Where [`attach`] attaches a program.
#[derive(Clone, Copy, Debug)]
pub enum AttachPoint {
    /// In the driver (`generic` false), or in the core behind it.
    Xdp {
        ifindex: u32,
        generic: bool,
    },
    TcxIngress {
        ifindex: u32,
    },
    TcxEgress {
        ifindex: u32,
    },
    /// Prerouting of one protocol family of this network namespace, before
    /// everything else that is registered there.
    NetfilterPrerouting {
        family: u32,
        /// How many places behind the first.
        behind: u32,
    },
}

/// Runs an XDP program on copies of a frame and does with each what the program says
/// (`BPF_F_TEST_XDP_LIVE_FRAMES`), `repeat` times or until a signal comes; in batches after which
/// redirected frames leave.
///
/// # Errors
/// As bpf(2), `BPF_PROG_TEST_RUN`: `EINTR` after a signal, `EINVAL` where the frame is too long or
/// the kernel is before 5.18.
pub fn run_live(program: BorrowedFd<'_>, frame: &[u8], repeat: u32, batch: u32) -> io::Result<()> {
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut opts: bpf::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    opts.data_in = frame.as_ptr().cast();
    opts.data_size_in = frame.len() as u32;
    opts.repeat = repeat as i32;
    opts.flags = bpf::BPF_F_TEST_XDP_LIVE_FRAMES;
    opts.batch_size = batch;
    // SAFETY: the descriptor is open; `opts` has the size it states, and the frame, which the
    // kernel only reads, outlives the call.
    let rc = unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
}

/// Attaches a loaded program by a link. The program stays attached until the last
/// descriptor of the link is closed, so also when this process is killed.
///
/// # Errors
/// As bpf(2), `BPF_LINK_CREATE`: `EBUSY` where another program has the place,
/// `EOPNOTSUPP` where the driver has no such hook, `EINVAL` where the kernel has none.
pub fn attach(program: BorrowedFd<'_>, point: AttachPoint) -> io::Result<OwnedFd> {
    const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
    const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut opts: bpf::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    let (target, kind) = match point {
        AttachPoint::Xdp { ifindex, generic } => {
            opts.flags = if generic { XDP_FLAGS_SKB_MODE } else { XDP_FLAGS_DRV_MODE };
            (ifindex, bpf::BPF_XDP)
        }
        AttachPoint::TcxIngress { ifindex } => (ifindex, bpf::BPF_TCX_INGRESS),
        AttachPoint::TcxEgress { ifindex } => (ifindex, bpf::BPF_TCX_EGRESS),
        AttachPoint::NetfilterPrerouting { family, behind } => {
            opts.__bindgen_anon_1.netfilter =
                bpf::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_5 {
                    pf: family,
                    hooknum: 0,
                    // The kernel keeps the lowest value to itself.
                    priority: i32::MIN + 1 + behind as i32,
                    flags: 0,
                };
            (0, bpf::BPF_NETFILTER)
        }
    };
    // SAFETY: the descriptors are open, and `opts` is a valid structure of the size it states.
    let fd =
        unsafe { bpf::bpf_link_create(program.as_raw_fd(), target as i32, kind, &raw const opts) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call has just made this descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts another program in the place of the one that a link holds attached.
///
/// # Errors
/// As bpf(2), `BPF_LINK_UPDATE`: `EOPNOTSUPP` or `EINVAL` where links of this kind cannot do that.
pub fn exchange(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open; no options are given.
    let rc =
        unsafe { bpf::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
}

/// Returns the bytes of a loaded program's instructions, as the verifier has left them.
pub fn translated_bytes(program: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut info: bpf::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open, and `info` has the size that `len` states; its pointers are
    // null with lengths of zero, so that the kernel writes nowhere else.
    let rc =
        unsafe { bpf::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(info.xlated_prog_len as usize) }
}

/// Takes a name that one process at a time can hold, in this network namespace: an abstract Unix
/// socket, which is gone with its process however that ends.
///
/// # Errors
/// `EADDRINUSE` where somebody holds it.
pub fn lock_name(name: &str) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Waits until every program run that had begun on any CPU has ended.
pub fn wait_for_running_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call reads its integer arguments and no memory. It waits for an RCU grace
    // period, during which BPF programs that were running must end.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if rc != 0 {
        // Kernels with tickless CPUs (nohz_full) refuse the call. A program runs for microseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// What the kernel says about XDP on an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct XdpState {
    /// `NETDEV_XDP_ACT_*` flags of the driver (since 6.3), 0 where unknown.
    pub features: u64,
    /// Ids of the programs attached in the driver, in the core and in the NIC.
    pub driver_program: u32,
    pub generic_program: u32,
    pub hardware_program: u32,
}

impl XdpState {
    /// Returns the id of the program that has the interface, wherever it is attached.
    pub fn program(&self) -> Option<u32> {
        let ids = [self.driver_program, self.generic_program, self.hardware_program];
        ids.into_iter().find(|id| *id != 0)
    }
}

/// Asks what XDP can do on an interface and what is attached there.
pub fn xdp_state(ifindex: u32) -> io::Result<XdpState> {
    // SAFETY: a structure of integers, for which all zeros are valid.
    let mut opts: bpf::bpf_xdp_query_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    // SAFETY: `opts` is a valid structure of the size it states.
    let rc = unsafe { bpf::bpf_xdp_query(ifindex as i32, 0, &raw mut opts) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    Ok(XdpState {
        features: opts.feature_flags,
        driver_program: opts.drv_prog_id,
        generic_program: opts.skb_prog_id,
        hardware_program: opts.hw_prog_id,
    })
}

/// Calls ioctl(2) for an interface by name, with `data` to read and write.
fn interface_ioctl<T>(name: &str, command: libc::c_ulong, data: &mut T) -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(data).cast();
    // SAFETY: `request` names an interface and points to a structure that the callers below
    // make as large as their command reads and writes; both outlive the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut request) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns whether the driver takes VLAN tags off received frames (ethtool's `rx-vlan-offload`).
pub fn strips_vlan(name: &str) -> io::Result<bool> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GFLAGS: u32 = 0x25;
    const ETH_FLAG_RXVLAN: u32 = 1 << 8;
    // struct ethtool_value
    let mut value = [ETHTOOL_GFLAGS, 0];
    interface_ioctl(name, SIOCETHTOOL, &mut value)?;
    Ok(value[1] & ETH_FLAG_RXVLAN != 0)
}

/// Returns whether hardware timestamping of received frames is switched on.
pub fn stamps_received(name: &str) -> bool {
    const SIOCGHWTSTAMP: libc::c_ulong = 0x89b1;
    // struct hwtstamp_config: flags, tx_type, rx_filter
    let mut config = [0u32; 3];
    interface_ioctl(name, SIOCGHWTSTAMP, &mut config).is_ok() && config[2] != 0
}
