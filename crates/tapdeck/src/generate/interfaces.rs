//! The interfaces to send by: are they there, can they send what is asked, and may they?

use anyhow::Result;
use tapdeck_capture::interface::Interface;
use tapdeck_traffic::sizes::Bounds;
use tapdeck_traffic::workload::Workload;

use crate::flags::Gen;
use crate::usage::usage;
use crate::way_out;

/// Bytes of an Ethernet header without tags.
pub const ETHERNET: u32 = 14;

/// Looks up the interfaces that the flags name, and refuses those that may not be sent by.
pub fn find(f: &Gen) -> Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for name in &f.interfaces {
        let interface = Interface::find(name).map_err(tapdeck_capture::Error::from)?;
        if found.iter().any(|i| i.index == interface.index) {
            return usage(format!("{name} is named twice; --threads makes several senders"));
        }
        if !interface.link.is_some_and(tapdeck_packet::link::LinkType::has_header) {
            return usage(format!("{name} does not carry Ethernet frames"));
        }
        if !interface.up {
            anyhow::bail!("{name} is down; bring it up: ip link set {name} up");
        }
        if !interface.running {
            anyhow::bail!("{name} has no link; its far end is down or unplugged");
        }
        if !f.yes_this_interface {
            way_out::keep(&interface, "this would flood your own network", "--yes-this-interface")?;
        }
        found.push(interface);
    }
    Ok(found)
}

/// Returns how long the interfaces allow frames to be, and the workload needs them to be.
pub fn bounds(workload: &Workload, interfaces: &[Interface]) -> Bounds {
    const TAG: u32 = 4;
    let mtu = interfaces.iter().map(|i| i.mtu).min().unwrap_or(0);
    let tags = workload.vlans.len() as u32;
    // An MTU does not count one tag (802.1Q). The kernel knows nothing of an 802.1ad tag.
    let most = mtu + ETHERNET + if tags == 1 { TAG } else { 0 };
    let mut link_bytes = ETHERNET + TAG * tags;
    if workload.outer.is_some() {
        link_bytes = workload.headers().ip_at as u32;
    }
    Bounds {
        least: workload.shortest(),
        link_bytes: link_bytes as u16,
        // The most that an IP header can say, less room for other headers.
        most: most.min(65_000) as u16,
        mtu,
    }
}

/// Refuses a rate of which the link of one interface cannot take its share. The 10 Gbit/s that a
/// veth pair says it has do not count: they hold nothing back.
pub fn fits_link(
    interface: &Interface,
    pps: Option<f64>,
    mean: f64,
    interfaces: usize,
) -> Result<()> {
    if interface.is_veth() {
        return Ok(());
    }
    let speed = interface.speed_mbit().unwrap_or(None);
    let (Some(pps), Some(speed)) = (pps, speed) else { return Ok(()) };
    let wire = tapdeck_traffic::pacing::WIRE_BYTES as f64;
    let asked = pps / interfaces as f64 * 8.0 * (mean + wire) / 1e6;
    if asked > f64::from(speed) {
        return usage(format!(
            "--rate: that is {asked:.0} Mbit/s on the wire, and {} is a link of {speed} Mbit/s; ask for less, or for max",
            interface.name
        ));
    }
    Ok(())
}
