//! The functions of libpcap itself: of the one that the program would have without this object. And
//! the C library's ioctl(2).

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use super::types::{Dumper, Handler, Interface, PCAP_ERROR, PacketHeader, Pcap, Program, Stat};
use crate::filter::Instruction;

/// A function of libpcap, which is looked up when it is first called.
struct Symbol {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(null_mut()) }
    }

    fn get(&self) -> Option<*mut c_void> {
        let mut at = self.at.load(Acquire);
        if at.is_null() {
            at = look_up(self.name);
            self.at.store(at, Release);
        }
        (!at.is_null()).then_some(at)
    }
}

/// Finds a function in the objects behind this one, or else in a libpcap that is loaded now:
/// modules of a program may have one that the first look does not find.
fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: `dlsym` with a valid name; the pseudo-handle is meant for objects that stand in for
    // others.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !at.is_null() {
        return at;
    }
    let load = |library: &CStr| {
        // SAFETY: libpcap has no constructors that would mind; it is never unloaded.
        let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return null_mut();
        }
        // SAFETY: `dlsym` with a valid name, and with a handle that `dlopen` gave.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    };
    let names = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];
    names.into_iter().map(load).find(|at| !at.is_null()).unwrap_or(null_mut())
}

/// Defines functions of libpcap, with what they return where there is no libpcap.
macro_rules! real {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $missing:expr;)*) => {$(
        /// # Safety
        /// The arguments are as libpcap demands of the function.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($arg: $type),*) $(-> $result)? {
            static SYMBOL: Symbol = Symbol::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            );
            match SYMBOL.get() {
                Some(at) => {
                    // SAFETY: libpcap's function of that name has this form (pcap/pcap.h,
                    // pcap/bpf.h), and its caller promises what it asks for.
                    unsafe {
                        let function: unsafe extern "C" fn($($type),*) $(-> $result)? =
                            std::mem::transmute(at);
                        function($($arg),*)
                    }
                }
                None => $missing,
            }
        }
    )*};
}

real! {
    fn pcap_create(device: *const c_char, error: *mut c_char) -> *mut Pcap = null_mut();
    fn pcap_open_live(device: *const c_char, snaplen: c_int, promiscuous: c_int, timeout_ms: c_int, error: *mut c_char) -> *mut Pcap = null_mut();
    fn pcap_open_dead_with_tstamp_precision(link: c_int, snaplen: c_int, precision: c_uint) -> *mut Pcap = null_mut();
    fn pcap_findalldevs(devices: *mut *mut Interface, error: *mut c_char) -> c_int = PCAP_ERROR;
    fn pcap_lookupnet(device: *const c_char, net: *mut c_uint, mask: *mut c_uint, error: *mut c_char) -> c_int = PCAP_ERROR;
    fn pcap_activate(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_close(p: *mut Pcap) = ();
    fn pcap_set_snaplen(p: *mut Pcap, snaplen: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_promisc(p: *mut Pcap, on: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_rfmon(p: *mut Pcap, on: c_int) -> c_int = PCAP_ERROR;
    fn pcap_can_set_rfmon(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_set_timeout(p: *mut Pcap, timeout_ms: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_tstamp_type(p: *mut Pcap, kind: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_immediate_mode(p: *mut Pcap, on: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_buffer_size(p: *mut Pcap, bytes: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_tstamp_precision(p: *mut Pcap, precision: c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_protocol_linux(p: *mut Pcap, protocol: c_int) -> c_int = PCAP_ERROR;
    fn pcap_get_tstamp_precision(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_list_tstamp_types(p: *mut Pcap, kinds: *mut *mut c_int) -> c_int = PCAP_ERROR;
    fn pcap_loop(p: *mut Pcap, count: c_int, handler: Handler, user: *mut c_uchar) -> c_int = PCAP_ERROR;
    fn pcap_dispatch(p: *mut Pcap, count: c_int, handler: Handler, user: *mut c_uchar) -> c_int = PCAP_ERROR;
    fn pcap_next(p: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar = std::ptr::null();
    fn pcap_next_ex(p: *mut Pcap, header: *mut *mut PacketHeader, data: *mut *const c_uchar) -> c_int = PCAP_ERROR;
    fn pcap_breakloop(p: *mut Pcap) = ();
    fn pcap_stats(p: *mut Pcap, stats: *mut Stat) -> c_int = PCAP_ERROR;
    fn pcap_setfilter(p: *mut Pcap, program: *mut Program) -> c_int = PCAP_ERROR;
    fn pcap_setdirection(p: *mut Pcap, direction: c_int) -> c_int = PCAP_ERROR;
    fn pcap_getnonblock(p: *mut Pcap, error: *mut c_char) -> c_int = PCAP_ERROR;
    fn pcap_setnonblock(p: *mut Pcap, on: c_int, error: *mut c_char) -> c_int = PCAP_ERROR;
    fn pcap_inject(p: *mut Pcap, data: *const c_void, len: usize) -> c_int = PCAP_ERROR;
    fn pcap_sendpacket(p: *mut Pcap, data: *const c_uchar, len: c_int) -> c_int = PCAP_ERROR;
    fn pcap_geterr(p: *mut Pcap) -> *mut c_char = null_mut();
    fn pcap_perror(p: *mut Pcap, prefix: *const c_char) = ();
    fn pcap_compile(p: *mut Pcap, program: *mut Program, text: *const c_char, optimize: c_int, mask: c_uint) -> c_int = PCAP_ERROR;
    fn pcap_datalink(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_datalink_ext(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_list_datalinks(p: *mut Pcap, links: *mut *mut c_int) -> c_int = PCAP_ERROR;
    fn pcap_set_datalink(p: *mut Pcap, link: c_int) -> c_int = PCAP_ERROR;
    fn pcap_snapshot(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_is_swapped(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_major_version(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_minor_version(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_bufsize(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_file(p: *mut Pcap) -> *mut libc::FILE = null_mut();
    fn pcap_fileno(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_get_selectable_fd(p: *mut Pcap) -> c_int = PCAP_ERROR;
    fn pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval = std::ptr::null();
    fn pcap_dump_open(p: *mut Pcap, path: *const c_char) -> *mut Dumper = null_mut();
    fn pcap_dump_open_append(p: *mut Pcap, path: *const c_char) -> *mut Dumper = null_mut();
    fn pcap_dump_fopen(p: *mut Pcap, file: *mut libc::FILE) -> *mut Dumper = null_mut();
    fn ioctl(fd: c_int, request: libc::Ioctl, argument: *mut c_void) -> c_int = -1;
    fn bpf_validate(program: *const Instruction, len: c_int) -> c_int = 0;
    fn bpf_filter(program: *const Instruction, frame: *const c_uchar, original: c_uint, captured: c_uint) -> c_uint = 0;
}
