//! What this kernel and its interfaces can do.

use crate::Hook;
use crate::interface::{Error, Interface};

/// The hook for an interface when nobody chose one, and why: XDP stands before everything that
/// the host's own traffic passes, so an interface that carries an address gets the hook that
/// sees both directions, and one that only listens gets the fastest.
pub fn auto(interface: &Interface) -> Result<(Hook, &'static str), Error> {
    Ok(if interface.has_address()? {
        (Hook::Tcx, "the interface carries an IP address, and tcx sees both directions")
    } else {
        (Hook::Xdp, "the interface carries no IP address, and xdp is the fastest")
    })
}
