//! Would a command cut this machine off? One that takes packets from the interface of the default
//! route, or floods it, is refused unless the user says that it is meant.

use anyhow::{Context, Result};
use tapdeck_capture::interface::Interface;

use crate::usage::usage;

/// Refuses what would `harm` over the interface of the default route; `meant` is what the user says
/// to have it all the same.
pub fn keep(interface: &Interface, harm: &str, meant: &str) -> Result<()> {
    let name = &interface.name;
    let route = interface.carries_default_route();
    let route =
        route.with_context(|| format!("cannot ask whether {name} has the default route"))?;
    match route {
        Some(route) => usage(format!(
            "{name} carries the default route ({route}): {harm}; {meant} if that is meant"
        )),
        None => Ok(()),
    }
}
