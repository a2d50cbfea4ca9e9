//! `tapdeck probe`: what can this machine do? The answer is text for a person.

use std::io::{BufWriter, Write, stdout};

use anyhow::Result;
use tapdeck_capture::Hook;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::probe::{InterfaceState, hooks};

use crate::flags;

pub fn run(flags: &flags::Probe) -> Result<()> {
    let interfaces = match &flags.interface {
        Some(name) => vec![Interface::find(name)?],
        None => Interface::all()?,
    };
    let out = &mut BufWriter::new(stdout());
    let uname = rustix::system::uname();
    writeln!(
        out,
        "Linux {} on {}",
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy()
    )?;
    writeln!(out, "\nhooks")?;
    for state in hooks() {
        match state.works {
            Ok(how) => writeln!(out, "  {:<12} yes: {how}", state.hook.name())?,
            Err(why) => writeln!(out, "  {:<12} no: {why}", state.hook.name())?,
        }
    }
    for interface in interfaces {
        writeln!(out)?;
        show(out, &InterfaceState::of(interface)?)?;
    }
    out.flush()?;
    Ok(())
}

fn show(out: &mut impl Write, s: &InterfaceState) -> std::io::Result<()> {
    let i = &s.interface;
    let kind = i.kind.as_deref().map(|k| format!(" ({k})")).unwrap_or_default();
    let up = match (i.up, i.running) {
        (false, _) => "down",
        (true, false) => "up, no link",
        (true, true) => "up",
    };
    let queues = if i.rx_queues == 1 { "queue" } else { "queues" };
    writeln!(out, "{}{kind}: {up}, MTU {}, {} receive {queues}", i.name, i.mtu, i.rx_queues)?;
    if i.link.is_none() {
        writeln!(out, "  cannot be recorded: link type {} (ARPHRD)", i.arphrd)?;
        return Ok(());
    }
    let xdp = match (s.driver_xdp, s.zero_copy, s.multi_buffer) {
        (None, ..) => "unknown, this kernel does not tell".to_owned(),
        (Some(false), ..) => "no".to_owned(),
        (Some(true), zero_copy, multi_buffer) => format!(
            "yes, AF_XDP {}, jumbo frames {}",
            if zero_copy { "zero-copy" } else { "by copying" },
            if multi_buffer { "yes" } else { "no" }
        ),
    };
    writeln!(out, "  XDP in the driver: {xdp}")?;
    if let Some(program) = &s.programs.xdp {
        let taken = Hook::list(Hook::needs_driver_xdp, "and");
        writeln!(out, "  XDP has {program}: hooks {taken} are taken")?;
    }
    for (way, programs) in [("in", &s.programs.inbound), ("out", &s.programs.outbound)] {
        let names: Vec<String> = programs.iter().map(ToString::to_string).collect();
        if !names.is_empty() {
            writeln!(out, "  tcx has, on the way {way}: {}", names.join(", "))?;
        }
    }
    writeln!(
        out,
        "  VLAN tags are taken off by the device: {}",
        if s.strips_vlan { "yes" } else { "no" }
    )?;
    let is_unsure = s.auto.needs_driver_xdp() && s.driver_xdp.is_none();
    let unless = if is_unsure { " (tcx if the driver turns out to have none)" } else { "" };
    writeln!(out, "  --hook auto takes {}{unless}: {}", s.auto, s.reason)?;
    if let Some((stamps, why)) = s.stamps {
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        writeln!(out, "  --clock auto takes {stamps} there{why}")?;
    }
    Ok(())
}
