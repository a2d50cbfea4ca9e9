//! The functions of libpcap that this object defines, and all of its unsafe code.
//!
//! Callers of the functions promise what pcap(3PCAP) asks of them: handles that are open, texts
//! that end with NUL, room for what is written. A handle that is not a group's is passed on to the
//! real function ([`real`]). A panic would be a fault of this object; it becomes the error that the
//! function can return, and does not reach the program.
#![allow(unsafe_code)]

mod real;
mod registry;
mod types;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_short, c_uchar, c_uint, c_void};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut};
use std::time::Duration;

use tapdeck_client::LinkType;

use crate::arguments;
use crate::filter::{Filter, Instruction, Way};
use crate::handle::{Direction, Fault, Handle, MAX_SNAPLEN, PREFIX, Shown};
use types::{
    DIRECTION_BOTH, DIRECTION_IN, DIRECTION_OUT, Dumper, ERROR_BYTES,
    ERROR_TSTAMP_PRECISION_NOTSUP, Handler, Interface, PCAP_ERROR,
    PCAP_IF_CONNECTION_NOT_APPLICABLE, PCAP_IF_RUNNING, PCAP_IF_UP, PacketHeader, Pcap, Program,
    Stat, TSTAMP_HOST, TSTAMP_MICRO, TSTAMP_NANO, WARNING_TSTAMP_TYPE_NOTSUP,
};

/// A handle of libpcap's that has no device. It is closed when it is dropped.
struct Dead(NonNull<Pcap>);

// SAFETY: libpcap's handles may be used by any thread, one at a time, which `Handle`'s lock makes
// sure of.
unsafe impl Send for Dead {}

impl Dead {
    fn open(link: c_int, snaplen: u32, nanoseconds: bool) -> Option<Self> {
        let precision = if nanoseconds { TSTAMP_NANO } else { TSTAMP_MICRO } as c_uint;
        // SAFETY: it takes any numbers.
        let p = unsafe {
            real::pcap_open_dead_with_tstamp_precision(link, snaplen as c_int, precision)
        };
        NonNull::new(p).map(Self)
    }

    fn get(&self) -> *mut Pcap {
        self.0.as_ptr()
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        // SAFETY: it is open, and closed once.
        unsafe { real::pcap_close(self.get()) };
    }
}

/// What stands behind the `pcap_t` of a group: the capture, and the memory whose addresses
/// libpcap's functions return. That memory is written by the one thread that uses the handle, as
/// libpcap's own is.
pub struct PcapHandle {
    inner: Handle<Dead>,
    /// What `pcap_next_ex` returns the address of.
    header: UnsafeCell<PacketHeader>,
    /// What `pcap_geterr` returns the address of.
    error: UnsafeCell<[c_char; ERROR_BYTES]>,
}

/// Returns the name of the group that a device's name stands for.
///
/// # Safety
/// `device` is null or a text that ends with NUL.
unsafe fn group<'a>(device: *const c_char) -> Option<&'a str> {
    if device.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    let device = unsafe { CStr::from_ptr(device) }.to_str().ok()?;
    device.strip_prefix(PREFIX).or_else(|| arguments::name_group(device).then_some(device))
}

/// Writes a text for C, cut to `room` bytes with the NUL at its end.
///
/// # Safety
/// `to` is null or has room for that many bytes.
unsafe fn write_text(to: *mut c_char, room: usize, text: &str) {
    if to.is_null() {
        return;
    }
    let kept = text.len().min(room - 1);
    // SAFETY: by the caller's promise, and `kept` is less than the room.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), kept);
        to.add(kept).write(0);
    }
}

/// Runs a function's work; a panic becomes `failed`.
fn guard<R>(failed: R, work: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(failed)
}

/// Returns 0, or libpcap's number for the fault.
fn code(result: Result<(), Fault>) -> c_int {
    result.map_or_else(|fault| fault as c_int, |()| 0)
}

/// Returns the number, or libpcap's number for the fault.
fn number(result: Result<c_int, Fault>) -> c_int {
    result.unwrap_or_else(|fault| fault as c_int)
}

impl PcapHandle {
    /// Takes over the error of libpcap's handle.
    fn take_error(&self, real: &Dead) {
        // SAFETY: the handle is open; libpcap's text ends and stays while the handle is locked.
        let why = unsafe {
            let why = real::pcap_geterr(real.get());
            if why.is_null() { c"" } else { CStr::from_ptr(why) }
        };
        self.inner.fail(why.to_string_lossy());
    }

    /// Has libpcap do something that needs no device. Before the handle is activated, its link type
    /// is not known, and the result is `failed`.
    fn with_real<R>(
        &self,
        failed: R,
        work: impl FnOnce(*mut Pcap) -> R,
        is_error: impl Fn(&R) -> bool,
    ) -> R {
        if self.inner.active(|_| ()).is_err() {
            return failed;
        }
        let state = self.inner.state();
        let result = work(state.real.get());
        if is_error(&result) {
            self.take_error(&state.real);
        }
        result
    }

    fn activate(&self) -> c_int {
        code(self.inner.activate(Dead::open))
    }

    /// Shows packets to a C function, and returns how many.
    fn dispatch(&self, count: c_int, handler: Handler, user: *mut c_uchar) -> Result<u32, Fault> {
        let Some(handler) = handler else {
            return Err(self.inner.fail("no function is given to show packets to"));
        };
        // Minus one, and zero, mean all there are.
        let limit = u32::try_from(count).ok().filter(|count| *count > 0);
        self.inner.dispatch(limit, &run_filter, |shown| {
            let header = header(&shown);
            // SAFETY: the caller's function, called as libpcap would; the bytes stay until the next
            // packet is asked for.
            unsafe { handler(user, &raw const header, shown.bytes) };
        })
    }

    fn run_loop(&self, count: c_int, handler: Handler, user: *mut c_uchar) -> c_int {
        let mut left = count;
        loop {
            match self.dispatch(left, handler, user) {
                Err(fault) => return fault as c_int,
                Ok(shown) if count > 0 && left <= shown as c_int => return 0,
                Ok(shown) if count > 0 => left -= shown as c_int,
                Ok(_) => {}
            }
        }
    }

    /// Finds one packet. The number is libpcap's result: 1, 0 where no packet came in time, or that
    /// of a fault.
    fn next(&self) -> (c_int, Option<Shown>) {
        let mut found = None;
        match self.inner.dispatch(Some(1), &run_filter, |shown| found = Some(shown)) {
            Ok(shown) => (shown as c_int, found),
            Err(fault) => (fault as c_int, None),
        }
    }

    fn set_filter(&self, program: &Program) -> c_int {
        let len = program.len as usize;
        // SAFETY: a program comes with so many instructions; libpcap checks the same.
        let is_valid = !program.instructions.is_null()
            && unsafe { real::bpf_validate(program.instructions, program.len as c_int) } != 0;
        if !is_valid {
            return self.inner.fail("the filter is no valid program") as c_int;
        }
        // SAFETY: the pointer is not null, and a program comes with so many instructions, which
        // libpcap has found valid.
        let program = unsafe { std::slice::from_raw_parts(program.instructions, len) };
        let Some(filter) = Filter::new(program) else {
            return self.inner.fail(
                "the filter asks for what only the kernel knows of a packet; set it as the group's filter in the daemon's configuration",
            ) as c_int;
        };
        code(self.inner.active(|active| active.set_filter(filter)))
    }

    fn error(&self) -> *mut c_char {
        let at = self.error.get().cast();
        // SAFETY: the buffer has that room, and one thread at a time uses the handle.
        unsafe { write_text(at, ERROR_BYTES, &self.inner.error()) };
        at
    }
}

fn header(shown: &Shown) -> PacketHeader {
    PacketHeader {
        ts: libc::timeval { tv_sec: shown.seconds, tv_usec: shown.fraction },
        caplen: shown.captured,
        len: shown.original,
    }
}

fn run_filter(program: &[Instruction], frame: &[u8], original: u32) -> bool {
    // SAFETY: the program was validated, and stays within so many bytes.
    unsafe {
        real::bpf_filter(program.as_ptr(), frame.as_ptr(), original, frame.len() as c_uint) != 0
    }
}

/// Writes the address of an array of one number, which the program frees with `free`, and returns
/// its length.
///
/// # Safety
/// `to` is valid for a write.
unsafe fn one(to: *mut *mut c_int, value: c_int) -> c_int {
    // SAFETY: `malloc` takes any size.
    let array = unsafe { libc::malloc(size_of::<c_int>()) }.cast::<c_int>();
    if array.is_null() {
        return PCAP_ERROR;
    }
    // SAFETY: the memory is new and large enough; `to` by the caller's promise.
    unsafe {
        array.write(value);
        to.write(array);
    }
    1
}

/// # Safety
/// The arguments are as pcap_create(3PCAP) demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, error: *mut c_char) -> *mut Pcap {
    // SAFETY: by the caller's promise.
    let Some(group) = (unsafe { group(device) }) else {
        // SAFETY: the caller promises arguments as pcap_create(3PCAP) demands, which this is.
        return unsafe { real::pcap_create(device, error) };
    };
    guard(null_mut(), || {
        // The group's link type is not known yet.
        let dead = || Dead::open(LinkType::ETHERNET.dlt(), MAX_SNAPLEN, false);
        let made = dead()
            .zip(dead())
            .ok_or_else(|| "there is no libpcap that tapdeck's could stand in for".to_owned());
        let made = made.and_then(|(key, real)| {
            Ok((key, Handle::new(group, real).map_err(|e| e.to_string())?))
        });
        match made {
            Ok((key, inner)) => {
                let empty =
                    Shown { seconds: 0, fraction: 0, captured: 0, original: 0, bytes: null() };
                let handle = PcapHandle {
                    inner,
                    header: UnsafeCell::new(header(&empty)),
                    error: UnsafeCell::new([0; ERROR_BYTES]),
                };
                let p = key.get();
                // `pcap_close` closes it.
                std::mem::forget(key);
                registry::add(p, Box::new(handle));
                p
            }
            Err(why) => {
                // SAFETY: by the caller's promise.
                unsafe { write_text(error, ERROR_BYTES, &why) };
                null_mut()
            }
        }
    })
}

/// # Safety
/// As pcap_open_live(3PCAP).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snaplen: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    error: *mut c_char,
) -> *mut Pcap {
    // SAFETY: by the caller's promise, here and below; a handle that was just made is open.
    unsafe {
        if group(device).is_none() {
            return real::pcap_open_live(device, snaplen, promiscuous, timeout_ms, error);
        }
        let p = pcap_create(device, error);
        if p.is_null() {
            return p;
        }
        pcap_set_snaplen(p, snaplen);
        pcap_set_timeout(p, timeout_ms);
        if pcap_activate(p) >= 0 {
            return p;
        }
        let why = CStr::from_ptr(pcap_geterr(p)).to_string_lossy().into_owned();
        write_text(error, ERROR_BYTES, &why);
        pcap_close(p);
        null_mut()
    }
}

/// # Safety
/// The arguments are as pcap_lookupnet(3PCAP) demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupnet(
    device: *const c_char,
    net: *mut c_uint,
    mask: *mut c_uint,
    error: *mut c_char,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        if group(device).is_none() {
            return real::pcap_lookupnet(device, net, mask, error);
        }
        // A group has no address; libpcap says the same of the device `any`.
        net.write(0);
        mask.write(0);
        0
    }
}

/// # Safety
/// The arguments are as pcap_findalldevs(3PCAP) demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_findalldevs(
    devices: *mut *mut Interface,
    error: *mut c_char,
) -> c_int {
    // SAFETY: by the caller's promise.
    let result = unsafe { real::pcap_findalldevs(devices, error) };
    if result == 0 {
        guard((), || {
            let socket = tapdeck_client::default_socket();
            // Without a daemon there are no groups.
            for found in tapdeck_client::groups(&socket).unwrap_or_default() {
                let name = format!("{PREFIX}{}", found.name);
                let on = found.interfaces.join(", ");
                // SAFETY: the list is libpcap's, or empty.
                unsafe { append(devices, &name, &format!("tapdeck group on {on}")) };
            }
        });
    }
    result
}

/// ioctl(2), for one question alone: argus asks the kernel whether an interface is up before it
/// reads a packet of it, and closes the capture where the kernel knows no interface of that name. A
/// group is always up. The kernel is asked first, so every other call is as it was.
///
/// The argument is one of a variable list in C. On the machines that Linux runs on with glibc or
/// musl it is passed as any third argument is.
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: libc::Ioctl, argument: *mut c_void) -> c_int {
    // SAFETY: by the caller's promise.
    let result = unsafe { real::ioctl(fd, request, argument) };
    let has_no_such = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENODEV);
    if result == 0 || request != libc::SIOCGIFFLAGS || !has_no_such() {
        return result;
    }
    // SAFETY: the kernel has read the request there, or it would have said EFAULT.
    let asked = unsafe { &mut *argument.cast::<libc::ifreq>() };
    // The name of a long group is cut and need not end with NUL.
    if !asked.ifr_name.iter().zip(PREFIX.bytes()).all(|(c, prefix)| *c as u8 == prefix) {
        return result;
    }
    asked.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as c_short;
    0
}

/// Appends a device to libpcap's list, in memory that `pcap_freealldevs` frees.
///
/// # Safety
/// `devices` points to a list of libpcap's.
unsafe fn append(devices: *mut *mut Interface, name: &str, description: &str) {
    // SAFETY: every element of the list is valid; new memory is filled before it is linked, or
    // freed.
    unsafe {
        let text = |text: &str| {
            let at = libc::malloc(text.len() + 1).cast::<c_char>();
            write_text(at, text.len() + 1, text);
            at
        };
        let device = libc::malloc(size_of::<Interface>()).cast::<Interface>();
        let (name, description) = (text(name), text(description));
        if device.is_null() || name.is_null() || description.is_null() {
            libc::free(device.cast());
            libc::free(name.cast());
            libc::free(description.cast());
            return;
        }
        device.write(Interface {
            next: null_mut(),
            name,
            description,
            addresses: null_mut(),
            flags: PCAP_IF_UP | PCAP_IF_RUNNING | PCAP_IF_CONNECTION_NOT_APPLICABLE,
        });
        let mut last = devices;
        while !(*last).is_null() {
            last = &raw mut (**last).next;
        }
        last.write(device);
    }
}

/// # Safety
/// The arguments are as pcap_close(3PCAP) demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(p: *mut Pcap) {
    // SAFETY: by the caller's promise nobody uses the handle any more.
    if let Some(handle) = unsafe { registry::remove(p) } {
        guard((), || drop(handle));
    }
    // SAFETY: by the caller's promise; the outer handle of a group is libpcap's too.
    unsafe { real::pcap_close(p) };
}

/// Defines functions of libpcap that take a handle: what the function does if the handle is a
/// group's, and what it returns if that panics.
macro_rules! of_handle {
    ($(fn $name:ident($p:ident $(, $arg:ident: $type:ty)*) $(-> $result:ty)? = $failed:expr, |$handle:ident| $work:expr;)*) => {$(
        /// # Safety
        /// The arguments are as libpcap demands of this function.
        #[unsafe(no_mangle)]
        #[allow(unused_variables)]
        pub unsafe extern "C" fn $name($p: *mut Pcap $(, $arg: $type)*) $(-> $result)? {
            // SAFETY: by the caller's promise the handle is open, and what comes with it is as
            // libpcap wants it.
            match unsafe { registry::find($p) } {
                Some($handle) => guard($failed, || $work),
                // SAFETY: the caller promises that the handle, which libpcap made, is open, and
                // that what comes with it is as libpcap wants it.
                None => unsafe { real::$name($p $(, $arg)*) },
            }
        }
    )*};
}

of_handle! {
    fn pcap_activate(p) -> c_int = PCAP_ERROR, |handle| handle.activate();
    fn pcap_set_snaplen(p, snaplen: c_int) -> c_int = PCAP_ERROR, |handle| {
        let wanted = u32::try_from(snaplen).ok().filter(|s| (1..=MAX_SNAPLEN).contains(s));
        code(handle.inner.set(|settings| settings.snaplen = wanted.unwrap_or(MAX_SNAPLEN)))
    };
    fn pcap_set_promisc(p, on: c_int) -> c_int = PCAP_ERROR, |handle| code(handle.inner.set(|_| ()));
    fn pcap_set_rfmon(p, on: c_int) -> c_int = PCAP_ERROR, |handle| {
        code(handle.inner.set(|settings| settings.monitor_mode = on != 0))
    };
    fn pcap_can_set_rfmon(p) -> c_int = PCAP_ERROR, |handle| code(handle.inner.set(|_| ()));
    fn pcap_set_timeout(p, timeout_ms: c_int) -> c_int = PCAP_ERROR, |handle| {
        let timeout = u64::try_from(timeout_ms).ok().filter(|timeout| *timeout > 0);
        code(handle.inner.set(|settings| settings.timeout = timeout.map(Duration::from_millis)))
    };
    fn pcap_set_tstamp_type(p, kind: c_int) -> c_int = PCAP_ERROR, |handle| {
        match code(handle.inner.set(|_| ())) {
            0 if kind != TSTAMP_HOST => WARNING_TSTAMP_TYPE_NOTSUP,
            result => result,
        }
    };
    fn pcap_set_immediate_mode(p, on: c_int) -> c_int = PCAP_ERROR, |handle| code(handle.inner.set(|_| ()));
    fn pcap_set_buffer_size(p, bytes: c_int) -> c_int = PCAP_ERROR, |handle| code(handle.inner.set(|_| ()));
    fn pcap_set_protocol_linux(p, protocol: c_int) -> c_int = PCAP_ERROR, |handle| code(handle.inner.set(|_| ()));
    fn pcap_set_tstamp_precision(p, precision: c_int) -> c_int = PCAP_ERROR, |handle| match precision {
        TSTAMP_MICRO | TSTAMP_NANO => {
            code(handle.inner.set(|settings| settings.nanoseconds = precision == TSTAMP_NANO))
        }
        _ => ERROR_TSTAMP_PRECISION_NOTSUP,
    };
    fn pcap_get_tstamp_precision(p) -> c_int = PCAP_ERROR, |handle| {
        c_int::from(handle.inner.state().settings.nanoseconds)
    };
    fn pcap_list_tstamp_types(p, kinds: *mut *mut c_int) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: by the caller's promise.
        unsafe { one(kinds, TSTAMP_HOST) }
    };
    fn pcap_loop(p, count: c_int, show: Handler, user: *mut c_uchar) -> c_int = PCAP_ERROR, |handle| {
        handle.run_loop(count, show, user)
    };
    fn pcap_dispatch(p, count: c_int, show: Handler, user: *mut c_uchar) -> c_int = PCAP_ERROR, |handle| {
        number(handle.dispatch(count, show, user).map(|shown| shown as c_int))
    };
    fn pcap_next(p, to: *mut PacketHeader) -> *const c_uchar = null(), |handle| match handle.next().1 {
        Some(shown) => {
            // SAFETY: by the caller's promise.
            unsafe { to.write(header(&shown)) };
            shown.bytes
        }
        None => null(),
    };
    fn pcap_next_ex(p, to: *mut *mut PacketHeader, data: *mut *const c_uchar) -> c_int = PCAP_ERROR, |handle| {
        let (result, shown) = handle.next();
        // SAFETY: by the caller's promise; one thread at a time uses the handle and its header.
        unsafe {
            if let Some(shown) = &shown {
                handle.header.get().write(header(shown));
            }
            to.write(shown.as_ref().map_or(null_mut(), |_| handle.header.get()));
            data.write(shown.map_or(null(), |shown| shown.bytes));
        }
        result
    };
    fn pcap_breakloop(p) = (), |handle| handle.inner.break_loop();
    fn pcap_stats(p, to: *mut Stat) -> c_int = PCAP_ERROR, |handle| match handle.inner.counts() {
        Ok(counts) => {
            let stat = Stat { received: counts.received, dropped: counts.dropped, dropped_by_interface: 0 };
            // SAFETY: by the caller's promise.
            unsafe { to.write(stat) };
            0
        }
        Err(fault) => fault as c_int,
    };
    fn pcap_setfilter(p, program: *mut Program) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: by the caller's promise, or null.
        match unsafe { program.as_ref() } {
            Some(program) => handle.set_filter(program),
            None => handle.inner.fail("no filter was given") as c_int,
        }
    };
    fn pcap_setdirection(p, direction: c_int) -> c_int = PCAP_ERROR, |handle| {
        let wanted = match direction {
            DIRECTION_BOTH => Direction::Both,
            DIRECTION_IN => Direction::Only(Way::In),
            DIRECTION_OUT => Direction::Only(Way::Out),
            _ => return handle.inner.fail("there is no such direction") as c_int,
        };
        code(handle.inner.active(|active| active.set_direction(wanted)))
    };
    fn pcap_getnonblock(p, error: *mut c_char) -> c_int = PCAP_ERROR, |handle| {
        c_int::from(handle.inner.state().nonblocking)
    };
    fn pcap_setnonblock(p, on: c_int, error: *mut c_char) -> c_int = PCAP_ERROR, |handle| {
        handle.inner.state().nonblocking = on != 0;
        0
    };
    fn pcap_inject(p, data: *const c_void, len: usize) -> c_int = PCAP_ERROR, |handle| {
        handle.inner.fail("packets cannot be sent to a group") as c_int
    };
    fn pcap_sendpacket(p, data: *const c_uchar, len: c_int) -> c_int = PCAP_ERROR, |handle| {
        handle.inner.fail("packets cannot be sent to a group") as c_int
    };
    fn pcap_geterr(p) -> *mut c_char = null_mut(), |handle| handle.error();
    fn pcap_perror(p, prefix: *const c_char) = (), |handle| {
        // SAFETY: by the caller's promise.
        let prefix = unsafe { CStr::from_ptr(prefix) }.to_string_lossy();
        // Where it cannot be written nobody could be told so.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            format!("{prefix}: {}\n", handle.inner.error()).as_bytes(),
        );
    };
    fn pcap_compile(p, program: *mut Program, text: *const c_char, optimize: c_int, mask: c_uint) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: by the caller's promise.
        let compile = |real| unsafe { real::pcap_compile(real, program, text, optimize, mask) };
        handle.with_real(PCAP_ERROR, compile, |result| *result < 0)
    };
    fn pcap_datalink(p) -> c_int = PCAP_ERROR, |handle| number(handle.inner.active(|active| active.datalink));
    fn pcap_datalink_ext(p) -> c_int = PCAP_ERROR, |handle| number(handle.inner.active(|active| active.datalink));
    fn pcap_list_datalinks(p, links: *mut *mut c_int) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: by the caller's promise.
        number(handle.inner.active(|active| unsafe { one(links, active.datalink) }))
    };
    fn pcap_set_datalink(p, link: c_int) -> c_int = PCAP_ERROR, |handle| {
        match handle.inner.active(|active| active.datalink == link) {
            Ok(true) => 0,
            Ok(false) => handle.inner.fail(format_args!("the group has no link type {link}")) as c_int,
            Err(fault) => fault as c_int,
        }
    };
    fn pcap_snapshot(p) -> c_int = PCAP_ERROR, |handle| number(handle.inner.active(|active| active.snaplen as c_int));
    fn pcap_is_swapped(p) -> c_int = PCAP_ERROR, |handle| code(handle.inner.active(|_| ()));
    fn pcap_major_version(p) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: the inner handle is open.
        handle.with_real(PCAP_ERROR, |real| unsafe { real::pcap_major_version(real) }, |_| false)
    };
    fn pcap_minor_version(p) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: the inner handle is open.
        handle.with_real(PCAP_ERROR, |real| unsafe { real::pcap_minor_version(real) }, |_| false)
    };
    fn pcap_bufsize(p) -> c_int = PCAP_ERROR, |handle| {
        // SAFETY: the inner handle is open.
        handle.with_real(PCAP_ERROR, |real| unsafe { real::pcap_bufsize(real) }, |_| false)
    };
    fn pcap_file(p) -> *mut libc::FILE = null_mut(), |handle| null_mut();
    fn pcap_fileno(p) -> c_int = PCAP_ERROR, |handle| number(handle.inner.active(|active| active.fd().as_raw_fd()));
    fn pcap_get_selectable_fd(p) -> c_int = PCAP_ERROR, |handle| {
        // Whatever is wrong, it says that there is none.
        handle.inner.active(|active| active.fd().as_raw_fd()).unwrap_or(-1)
    };
    fn pcap_get_required_select_timeout(p) -> *const libc::timeval = null(), |handle| null();
    fn pcap_dump_open(p, path: *const c_char) -> *mut Dumper = null_mut(), |handle| {
        // SAFETY: by the caller's promise.
        let open = |real| unsafe { real::pcap_dump_open(real, path) };
        handle.with_real(null_mut(), open, |dumper| dumper.is_null())
    };
    fn pcap_dump_open_append(p, path: *const c_char) -> *mut Dumper = null_mut(), |handle| {
        // SAFETY: by the caller's promise.
        let open = |real| unsafe { real::pcap_dump_open_append(real, path) };
        handle.with_real(null_mut(), open, |dumper| dumper.is_null())
    };
    fn pcap_dump_fopen(p, file: *mut libc::FILE) -> *mut Dumper = null_mut(), |handle| {
        // SAFETY: by the caller's promise.
        let open = |real| unsafe { real::pcap_dump_fopen(real, file) };
        handle.with_real(null_mut(), open, |dumper| dumper.is_null())
    };
}
