//! System calls that attach programs and wait for the kernel.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys as bpf;

/// Where [`attach`] attaches a program.
#[derive(Clone, Copy, Debug)]
pub enum AttachPoint {
    /// XDP in the driver (`generic` false), or in the core behind it.
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
        // A program before this one could keep packets from it: so this one is the first that
        // meets what comes in, and the last that meets what goes out.
        AttachPoint::TcxIngress { ifindex } => {
            opts.flags = bpf::BPF_F_BEFORE;
            (ifindex, bpf::BPF_TCX_INGRESS)
        }
        AttachPoint::TcxEgress { ifindex } => {
            opts.flags = bpf::BPF_F_AFTER;
            (ifindex, bpf::BPF_TCX_EGRESS)
        }
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

/// Asks what the kernel knows of a loaded program.
fn program_info(program: BorrowedFd<'_>) -> io::Result<bpf::bpf_prog_info> {
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut info: bpf::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open, and `info` has the size that `len` states; its pointers are
    // null with lengths of zero, so that the kernel writes nowhere else.
    let rc =
        unsafe { bpf::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(info) }
}

/// Returns the bytes of a loaded program's instructions, as the verifier has left them.
pub fn translated_bytes(program: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(program_info(program)?.xlated_prog_len as usize)
}

/// Returns the number by which the kernel knows a loaded program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(program_info(program)?.id)
}

/// Returns whether a link that [`attach`] made still holds this program at its interface.
/// `None` where links of this kind do not tell: those of netfilter.
///
/// # Errors
/// As bpf(2), `BPF_OBJ_GET_INFO_BY_FD`.
pub fn holds(
    link: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    point: AttachPoint,
) -> io::Result<Option<bool>> {
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut info: bpf::bpf_link_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open, and `info` has the size that `len` states; its pointers are
    // null with lengths of zero, so that the kernel writes nowhere else.
    let rc = unsafe { bpf::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    // The kernel names no interface where somebody has detached the link.
    let (wanted, there) = match point {
        // SAFETY: the kernel fills this field in for links of XDP, which this one is; all zeros,
        // which it had before, are a value too.
        AttachPoint::Xdp { ifindex, .. } => (ifindex, unsafe { info.__bindgen_anon_1.xdp.ifindex }),
        AttachPoint::TcxIngress { ifindex } | AttachPoint::TcxEgress { ifindex } => {
            // SAFETY: the kernel fills this field in for links of tcx, which this one is; all
            // zeros, which it had before, are a value too.
            (ifindex, unsafe { info.__bindgen_anon_1.tcx.ifindex })
        }
        AttachPoint::NetfilterPrerouting { .. } => return Ok(None),
    };
    Ok(Some(there == wanted && info.prog_id == program_id(program)?))
}

/// A program at an interface, whoever attached it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherProgram {
    pub id: u32,
    /// The program's name; empty where it has none, or where it may not be asked for.
    pub name: String,
}

impl OtherProgram {
    /// Returns what is known of a program by its number.
    pub(crate) fn of(id: u32) -> Self {
        Self { id, name: program_name(id).unwrap_or_default() }
    }
}

impl fmt::Display for OtherProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "program {}", self.id),
            name => write!(f, "{name} (program {})", self.id),
        }
    }
}

/// Returns the programs at a place of tcx, in the order in which packets meet them.
///
/// # Errors
/// As bpf(2), `BPF_PROG_QUERY`: `EINVAL` where the kernel has no tcx.
pub fn tcx_programs(ifindex: u32, egress: bool) -> io::Result<Vec<OtherProgram>> {
    const MOST: usize = 64;
    let mut ids = [0u32; MOST];
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut opts: bpf::bpf_prog_query_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    opts.prog_ids = ids.as_mut_ptr();
    opts.__bindgen_anon_1.count = MOST as u32;
    let kind = if egress { bpf::BPF_TCX_EGRESS } else { bpf::BPF_TCX_INGRESS };
    // SAFETY: `opts` has the size it states, and points to as many numbers as it says; both outlive
    // the call.
    let rc = unsafe { bpf::bpf_prog_query_opts(ifindex as i32, kind, &raw mut opts) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    // SAFETY: both fields of the union are the same number.
    let count = unsafe { opts.__bindgen_anon_1.count } as usize;
    Ok(ids[..count.min(MOST)].iter().copied().map(OtherProgram::of).collect())
}

/// Returns the name of a program of whatever process.
///
/// # Errors
/// `ENOENT` where there is none, `EPERM` without the privilege to ask for it.
fn program_name(id: u32) -> io::Result<String> {
    // SAFETY: no memory is involved.
    let fd = unsafe { bpf::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call has just made this descriptor, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = program_info(fd.as_fd())?.name;
    let bytes: Vec<u8> = name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until every program run that had begun on any CPU has ended.
pub fn wait_for_running_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call reads its integer arguments and no memory. It waits for an RCU grace
    // period, during which BPF programs that were running must end.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    // Kernels with tickless CPUs (nohz_full) refuse the call.
    if rc != 0 && wait_by_map().is_err() {
        // Without memory for a map there is nothing left to wait by. A program runs for
        // microseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Waits as [`wait_for_running_programs`] does, by a change of a map of maps: the kernel returns
/// from that when no program works with the map that was there before, and does not ask which
/// programs those could be.
fn wait_by_map() -> io::Result<()> {
    let make = |kind, inner: Option<BorrowedFd<'_>>| {
        // SAFETY: a structure of integers, for which all zeros are valid.
        let mut opts: bpf::bpf_map_create_opts = unsafe { std::mem::zeroed() };
        opts.sz = size_of_val(&opts) as _;
        opts.inner_map_fd = inner.map_or(0, |inner| inner.as_raw_fd() as u32);
        // SAFETY: no name is given, and `opts` is a valid structure of the size it states.
        let fd = unsafe { bpf::bpf_map_create(kind, std::ptr::null(), 4, 4, 1, &raw const opts) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the call has just made this descriptor, and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let inner = make(bpf::BPF_MAP_TYPE_ARRAY, None)?;
    let outer = make(bpf::BPF_MAP_TYPE_ARRAY_OF_MAPS, Some(inner.as_fd()))?;
    let (key, value) = (0u32, inner.as_raw_fd() as u32);
    // SAFETY: the map's keys and values are of 4 bytes each, which the kernel reads here.
    let rc = unsafe {
        bpf::bpf_map_update_elem(
            outer.as_raw_fd(),
            (&raw const key).cast(),
            (&raw const value).cast(),
            0,
        )
    };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
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

/// Makes a socket for a call of ioctl(2) for an interface, and its request with the name filled in.
pub(super) fn interface_request(name: &str) -> io::Result<(OwnedFd, libc::ifreq)> {
    // Any socket takes these calls; this kind is left to services that may have no others.
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    Ok((socket, request))
}

/// Calls ioctl(2) for an interface by name, with `data` to read and write.
fn interface_ioctl<T>(name: &str, command: libc::c_ulong, data: &mut T) -> io::Result<()> {
    let (socket, mut request) = interface_request(name)?;
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

/// Returns how many receive queues an interface has switched on; fewer than it was made for,
/// perhaps.
///
/// # Errors
/// `EOPNOTSUPP` where the driver does not tell.
pub fn active_rx_queues(name: &str) -> io::Result<u32> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // struct ethtool_channels: the command, four maxima, and four numbers (rx, tx, other, combined)
    let mut channels = [0u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    interface_ioctl(name, SIOCETHTOOL, &mut channels)?;
    Ok(channels[5] + channels[8])
}

#[cfg(test)]
mod tests {
    /// That the call waits is the kernel's part. That there is such a call is seen here.
    #[test]
    fn programs_can_be_waited_for_without_membarrier() {
        tapdeck_testkit::kernel::need_root();
        super::wait_by_map().expect("maps of maps");
    }
}
