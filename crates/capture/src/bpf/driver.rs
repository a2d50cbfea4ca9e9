//! What can a network driver tell of a received frame, and which programs ask it?
//!
//! Only a program bound to its device may ask the driver for a frame's hardware time and for a VLAN
//! tag that the device took off, and not every driver can be asked. So the bound programs of a hook
//! are tried where the driver has something to tell, and its plain programs where that fails.

use std::io;

use super::params::Params;
use super::program::Program;
use crate::hook::ProgramSet;
use crate::interface::Interface;
use crate::netlink;
use crate::sys::kernel;

/// What the programs of a hook shall ask a driver for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Questions {
    pub(crate) time: bool,
    pub(crate) vlan_tag: bool,
}

impl Questions {
    /// Returns the questions that the driver answers, and whose answer is not in the frame already.
    /// Nothing is asked where no program may be bound to the device.
    pub(crate) fn to(interface: &Interface, set: &ProgramSet, device_bound: bool) -> Self {
        if set.bound.is_none() || !device_bound {
            return Self::default();
        }
        let driver = netlink::rx_metadata(interface.index);
        Self {
            time: driver.timestamp && kernel::stamps_received(&interface.name),
            vlan_tag: driver.vlan_tag && kernel::strips_vlan(&interface.name).unwrap_or(false),
        }
    }
}

/// Loads the programs of a hook by `load`: those that ask the driver if the parameters say that
/// there is something to ask, or else the plain ones. Returns which they were.
///
/// # Errors
/// The error of `load` for the plain programs.
pub(crate) fn load_best<T>(
    set: &ProgramSet,
    params: &Params,
    load: impl Fn(&[Program]) -> io::Result<T>,
) -> io::Result<(T, &'static [Program])> {
    if let Some(bound) = set.bound
        && (params.hardware_time || params.hardware_vlan)
        && let Ok(loaded) = load(bound)
    {
        return Ok((loaded, bound));
    }
    Ok((load(set.plain)?, set.plain))
}
