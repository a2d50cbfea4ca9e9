//! Pins: maps and links that the BPF file system holds, so that they outlive their process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libbpf_sys as bpf;

use super::kernel::interface_request;

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call has just made this descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins a map or a link.
///
/// # Errors
/// As bpf(2), `BPF_OBJ_PIN`: `EEXIST` where the name is taken.
pub fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the descriptor is open, and the path ends in a zero byte and outlives the call.
    let rc = unsafe { bpf::bpf_obj_pin(fd.as_raw_fd(), path.as_ptr()) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
}

/// Opens what is pinned.
///
/// # Errors
/// As bpf(2), `BPF_OBJ_GET`: `ENOENT` where nothing is.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path ends in a zero byte and outlives the call.
    owned(unsafe { bpf::bpf_obj_get(path.as_ptr()) })
}

/// Makes a map of one value that can be mapped, for user space alone.
///
/// # Errors
/// As bpf(2), `BPF_MAP_CREATE`.
pub fn memory(bytes: usize) -> io::Result<OwnedFd> {
    // SAFETY: a structure of integers, for which all zeros are valid.
    let mut opts: bpf::bpf_map_create_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    opts.map_flags = bpf::BPF_F_MMAPABLE;
    let (kind, bytes) = (bpf::BPF_MAP_TYPE_ARRAY, bytes as u32);
    // SAFETY: no name is given, and `opts` is a valid structure of the size it states.
    owned(unsafe { bpf::bpf_map_create(kind, std::ptr::null(), 4, bytes, 1, &raw const opts) })
}

/// Returns at which priority a link of netfilter stands.
///
/// # Errors
/// As bpf(2), `BPF_OBJ_GET_INFO_BY_FD`.
pub fn netfilter_priority(link: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut info: bpf::bpf_link_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open, and `info` has the size that `len` states; its pointers are
    // null with lengths of zero, so that the kernel writes nowhere else.
    let rc = unsafe { bpf::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    // SAFETY: the kernel fills this field in for links of netfilter, which this one is; all zeros,
    // which it had before, are a value too.
    Ok(unsafe { info.__bindgen_anon_1.netfilter.priority })
}

const PROMISCUOUS: libc::c_short = libc::IFF_PROMISC as libc::c_short;

/// Returns whether an interface's flag `IFF_PROMISC` is set.
///
/// # Errors
/// As netdevice(7): `ENODEV` where there is no such interface.
pub fn is_promiscuous(name: &str) -> io::Result<bool> {
    let (_, request) = interface_flags(name)?;
    // SAFETY: the call has filled in the flags.
    Ok(unsafe { request.ifr_ifru.ifru_flags } & PROMISCUOUS != 0)
}

/// Sets an interface's flag `IFF_PROMISC`, which stays when this process ends, or takes it away.
///
/// # Errors
/// As netdevice(7): `EPERM` without the privilege, `ENODEV` where there is no such interface.
pub fn set_promiscuous(name: &str, on: bool) -> io::Result<()> {
    let (socket, mut request) = interface_flags(name)?;
    // SAFETY: the call has filled in the flags.
    let before = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = if on { before | PROMISCUOUS } else { before & !PROMISCUOUS };
    // SAFETY: `request` names an interface, and the kernel reads its flags there.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns a request with an interface's flags, and the socket to send it by.
fn interface_flags(name: &str) -> io::Result<(OwnedFd, libc::ifreq)> {
    let (socket, mut request) = interface_request(name)?;
    // SAFETY: `request` names an interface, and the kernel writes its flags there.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((socket, request))
}
