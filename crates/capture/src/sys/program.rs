//! How does a program get between libbpf and the kernel? It is taken out when libbpf has relocated
//! it, and loaded when filters have been put in.

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{AsRawLibbpf, OpenMap, OpenObject, OpenProgram};
use libbpf_sys as bpf;

use crate::filter::ebpf::Insn;
use crate::filter::splice::{Function, Text};
use crate::sys::process::without_signals;

const LICENSE: &CStr = c"Dual MIT/GPL";
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// Makes an object's maps and relocates its programs, and loads none of them yet.
///
/// # Errors
/// Those of libbpf: `EPERM` without the privilege, `ENOMEM` where a map does not fit.
pub fn prepare(object: &mut OpenObject) -> io::Result<()> {
    let raw = object.as_libbpf_object().as_ptr();
    // libbpf tries small programs to see what the kernel can do.
    // SAFETY: the pointer is that of an object that is open and borrowed for this call alone.
    let rc = without_signals(|| unsafe { bpf::bpf_object__prepare(raw) });
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
}

/// Returns a program's instructions and functions, after [`prepare`].
///
/// # Errors
/// Where the object has no BTF.
pub fn text(program: &OpenProgram<'_>) -> io::Result<Text> {
    let raw = program.as_libbpf_object().as_ptr();
    // SAFETY: the pointer is that of a program whose object is open and borrowed.
    let (info, count) =
        unsafe { (bpf::bpf_program__func_info(raw), bpf::bpf_program__func_info_cnt(raw)) };
    if info.is_null() || count == 0 {
        return Err(io::Error::other("the program does not tell where its functions begin"));
    }
    // SAFETY: libbpf keeps so many of them there as long as the object is open.
    let functions = unsafe { std::slice::from_raw_parts(info, count as usize) };
    Ok(Text {
        insns: program.insns().iter().map(|i| Insn::from(*i)).collect(),
        functions: functions
            .iter()
            .map(|f| Function { start: f.insn_off as usize, type_id: f.type_id })
            .collect(),
    })
}

/// Returns the maps of an object, by their descriptors, that its programs only read and nobody
/// writes, with what is in them, after [`prepare`].
pub fn constants(object: &OpenObject) -> Vec<(i32, Vec<u8>)> {
    let of = |map: OpenMap<'_>| {
        let raw = map.as_libbpf_object().as_ptr();
        // SAFETY: the pointer is that of a map whose object is open and borrowed.
        let (fd, flags) = unsafe { (bpf::bpf_map__fd(raw), bpf::bpf_map__map_flags(raw)) };
        let bytes = map.initial_value()?.to_vec();
        (flags & bpf::BPF_F_RDONLY_PROG != 0).then_some((fd, bytes))
    };
    object.maps().filter_map(of).collect()
}

/// Loads a program with other instructions than libbpf would, bound to the device `ifindex` if that
/// is not 0.
///
/// # Errors
/// As bpf(2), `BPF_PROG_LOAD`: `E2BIG` where the verifier gives up.
pub fn load(
    object: &OpenObject,
    program: &OpenProgram<'_>,
    text: &Text,
    ifindex: u32,
) -> io::Result<OwnedFd> {
    let raw = program.as_libbpf_object().as_ptr();
    let functions: Vec<bpf::bpf_func_info> = text
        .functions
        .iter()
        .map(|f| bpf::bpf_func_info { insn_off: f.start as u32, type_id: f.type_id })
        .collect();
    let mut opts = bpf::bpf_prog_load_opts::default();
    opts.sz = size_of_val(&opts) as _;
    // SAFETY: the pointers are those of an open object and of its program; these calls only read.
    let kind = unsafe {
        opts.prog_btf_fd = bpf::bpf_object__btf_fd(object.as_libbpf_object().as_ptr()) as u32;
        opts.expected_attach_type = bpf::bpf_program__expected_attach_type(raw);
        opts.prog_flags = bpf::bpf_program__flags(raw);
        bpf::bpf_program__type(raw)
    };
    if kind == bpf::BPF_PROG_TYPE_XDP {
        opts.prog_flags |= BPF_F_XDP_HAS_FRAGS;
    }
    opts.prog_ifindex = ifindex;
    opts.func_info = functions.as_ptr().cast();
    opts.func_info_cnt = functions.len() as u32;
    opts.func_info_rec_size = size_of::<bpf::bpf_func_info>() as u32;
    let mut log = Vec::new();
    if std::env::var_os("TAPDECK_LIBBPF_LOG").is_some() {
        log.resize(16 << 20, 0u8);
        opts.log_level = 1;
        opts.log_buf = log.as_mut_ptr().cast::<c_char>();
        opts.log_size = log.len() as u32;
    }
    // As for all programs (`libbpf::load`).
    let fd = without_signals(|| {
        // SAFETY: the instructions have the kernel's layout, and there are as many as is said;
        // `opts` has the size it states and points to buffers of the sizes it states. All outlive
        // the call.
        unsafe {
            bpf::bpf_prog_load(
                kind,
                bpf::bpf_program__name(raw),
                LICENSE.as_ptr(),
                text.insns.as_ptr().cast(),
                text.insns.len() as _,
                &raw mut opts,
            )
        }
    });
    if let Ok(said) = CStr::from_bytes_until_nul(&log)
        && !said.is_empty()
    {
        eprint!("{}", said.to_string_lossy());
    }
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call has just made this descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns what libpcap's own interpreter says of a whole frame.
#[cfg(test)]
pub fn decide(code: &[libc::sock_filter], frame: &[u8]) -> bool {
    unsafe extern "C" {
        fn bpf_filter(
            code: *const libc::sock_filter,
            frame: *const u8,
            wire_len: u32,
            len: u32,
        ) -> u32;
    }
    let len = frame.len() as u32;
    // SAFETY: the caller's program is valid, so it ends; it reads within `len` bytes of the frame.
    unsafe { bpf_filter(code.as_ptr(), frame.as_ptr(), len, len) != 0 }
}

/// Runs a program of the kind that a system call runs once, on a context.
///
/// # Errors
/// As bpf(2), `BPF_PROG_TEST_RUN`.
pub fn run_on(program: BorrowedFd<'_>, context: &[u8]) -> io::Result<()> {
    // The kernel writes back what the program has left there.
    let mut context = context.to_vec();
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut opts: bpf::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    opts.ctx_in = context.as_mut_ptr().cast();
    opts.ctx_size_in = context.len() as u32;
    // SAFETY: the descriptor is open; `opts` has the size it states, and the context, which nobody
    // else has, outlives the call.
    let rc = unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
}

/// Runs a program on a frame so many times, with a context if that is not empty. Returns what the
/// program returned, and the mean time of a run in nanoseconds.
///
/// # Errors
/// As bpf(2), `BPF_PROG_TEST_RUN`: `EINVAL` for a frame that is too short or too long for the kind
/// of program, `EINTR` where a signal came.
pub fn run(
    program: BorrowedFd<'_>,
    context: &[u8],
    frame: &[u8],
    repeat: u32,
) -> io::Result<(u32, u32)> {
    // SAFETY: a structure of integers and pointers, for which all zeros are valid.
    let mut opts: bpf::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as _;
    opts.data_in = frame.as_ptr().cast();
    opts.data_size_in = frame.len() as u32;
    opts.repeat = repeat as _;
    if !context.is_empty() {
        opts.ctx_in = context.as_ptr().cast();
        opts.ctx_size_in = context.len() as u32;
    }
    // SAFETY: the descriptor is open; `opts` has the size it states, and frame and context, which
    // the kernel only reads, outlive the call.
    let rc = unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    Ok((opts.retval, opts.duration))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use tapdeck_testkit::kernel::need_root;

    use crate::Hook;
    use crate::trial::{Duties, Trial};

    #[test]
    fn programs_load_while_signals_come() {
        extern "C" fn nothing(_: libc::c_int) {}
        need_root();
        // SAFETY: the handler does nothing, and nobody else has one for this signal.
        unsafe { libc::signal(libc::SIGUSR2, nothing as *const () as libc::sighandler_t) };
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            let loading = scope.spawn(move || {
                // SAFETY: it only returns the thread's handle.
                sender.send(unsafe { libc::pthread_self() }).unwrap();
                let duties = Duties::default();
                Trial::of_recorder(Hook::Tcx, 1 << 20, 1 << 16, &duties).map(drop)
            });
            let thread = receiver.recv().unwrap();
            while !loading.is_finished() {
                // SAFETY: the thread has not been joined.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                thread::sleep(Duration::from_micros(100));
            }
            loading.join().unwrap().expect("the program loads");
        });
    }
}
