//! What an error of the kernel means for whoever asked for a hook, and what to do about it.

use std::io;

use crate::interface::Interface;
use crate::memory::available_memory;
use crate::sys::kernel;
use crate::{Error, Hook};

/// Says what an error of the kernel means for whoever asked for this hook.
pub(crate) fn explain(interface: &Interface, hook: Hook, source: io::Error) -> Error {
    let name = interface.name.clone();
    let unsupported =
        |why: &str| Error::Unsupported { name: name.clone(), hook, why: why.to_owned() };
    match (source.raw_os_error(), hook) {
        (Some(libc::EPERM | libc::EACCES), Hook::Tpacket | Hook::Recv) => {
            Error::Privilege { hook, needed: "CAP_NET_RAW" }
        }
        // Who has every privilege is refused something else: the program.
        (Some(libc::EACCES), _) if rustix::process::geteuid().is_root() => unsupported(
            "the kernel's verifier refuses the program; with TAPDECK_LIBBPF_LOG=1 in the environment it says why",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            Error::Privilege { hook, needed: "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW" }
        }
        (Some(libc::EBUSY | libc::EEXIST), Hook::Xdp | Hook::XdpGeneric | Hook::AfXdp) => {
            let state = kernel::xdp_state(interface.index).unwrap_or_default();
            Error::XdpBusy { name, id: state.program().unwrap_or(0) }
        }
        (Some(libc::EADDRINUSE), Hook::Tcx) => {
            unsupported("another recorder has its clsact filter there")
        }
        (Some(libc::EOPNOTSUPP), Hook::Xdp | Hook::AfXdp) => {
            unsupported("its driver has no XDP; xdp-generic and tcx work with every driver")
        }
        (Some(libc::ENOMEM), _) => {
            Error::Memory { name, available_mib: available_memory().unwrap_or(0) >> 20 }
        }
        (Some(libc::EINVAL | libc::EOPNOTSUPP), Hook::Netfilter) => {
            unsupported("the kernel has no netfilter BPF links (they came with 6.4)")
        }
        (Some(libc::ENOSYS), _) => unsupported("the kernel has no BPF"),
        _ => Error::Kernel { name, hook, source },
    }
}
