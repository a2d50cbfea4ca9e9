//! What does an error of the kernel mean for whoever asked for a hook, and what can be done?
//!
//! The number alone says little: `EBUSY` at an XDP hook is another program, `EINVAL` at netfilter
//! an old kernel. What is known of the hook and of the interface tells more. Errors that are about
//! a filter are explained in `filter`, before this is asked.

use std::io;

use crate::interface::Interface;
use crate::memory::available_memory;
use crate::route::above;
use crate::sys::kernel;
use crate::{Error, Hook};

/// Says what an error of the kernel means for whoever asked for this hook.
pub(crate) fn explain(interface: &Interface, hook: Hook, source: io::Error) -> Error {
    let name = interface.name.clone();
    let facts = hook.facts();
    let unsupported =
        |why: &str| Error::Unsupported { name: name.clone(), hook, why: why.to_owned() };
    match source.raw_os_error() {
        Some(number @ (libc::EPERM | libc::EACCES)) => forbidden(interface, hook, number),
        Some(libc::EBUSY | libc::EEXIST) if hook.needs_xdp_place() => {
            let id = kernel::xdp_state(interface.index).unwrap_or_default().program();
            match xdp_above(interface).filter(|_| id.is_none()) {
                Some((upper, id)) => Error::XdpAbove { name, upper, id },
                // One that has gone meanwhile has no number any more.
                None => Error::XdpBusy { name, id },
            }
        }
        Some(libc::EADDRINUSE) if facts.stand_in.is_some() => {
            unsupported("another recorder has its clsact filter there")
        }
        Some(libc::EOPNOTSUPP) if hook.needs_driver_xdp() => {
            unsupported("its driver has no XDP; xdp-generic and tcx work with every driver")
        }
        Some(libc::ENOMEM) => {
            Error::Memory { name, available_mib: available_memory().unwrap_or(0) >> 20 }
        }
        Some(libc::EINVAL | libc::EOPNOTSUPP) if facts.came_with.is_some() => {
            unsupported(&lacks(hook).unwrap_or_default())
        }
        Some(libc::ENOSYS) => unsupported("the kernel has no BPF"),
        _ => Error::Kernel { name, hook, source },
    }
}

/// Returns an interface that sits on this one and has an XDP program, with the program's id.
pub(crate) fn xdp_above(interface: &Interface) -> Option<(String, u32)> {
    let uppers = above(interface).ok()?;
    uppers.into_iter().find_map(|(name, index)| {
        let id = kernel::xdp_state(index).ok()?.program()?;
        Some((name, id))
    })
}

/// Says what kernels lack that are too old for a hook; `None` for a hook that all kernels have.
pub(crate) fn lacks(hook: Hook) -> Option<String> {
    let facts = hook.facts();
    facts
        .came_with
        .map(|what| format!("this kernel has no {what} (they came with {})", facts.least_linux))
}

fn forbidden(interface: &Interface, hook: Hook, number: i32) -> Error {
    if hook.is_packet_socket() {
        return Error::Privilege { hook, needed: "CAP_NET_RAW" };
    }
    // Who has every privilege is refused something else: the program.
    if number == libc::EACCES && rustix::process::geteuid().is_root() {
        return Error::Unsupported {
            name: interface.name.clone(),
            hook,
            why: "the kernel's verifier refuses the program; with TAPDECK_LIBBPF_LOG=1 in the environment it says why".to_owned(),
        };
    }
    Error::Privilege { hook, needed: "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW" }
}
