//! From what is asked for to programs in the kernel.

use std::io;
use std::sync::Arc;

use crate::bpf::control::Control;
use crate::bpf::loaded::Loaded;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::interface::Interface;
use crate::rules::{self, Compiled, Images};
use crate::{Config, Deliver, Error, Hook};

/// The kernel copies at most 65,535 bytes out of an XDP frame (`bpf_xdp_load_bytes`).
pub(super) fn snaplen_for(config: &Config) -> u32 {
    match config.hook {
        Hook::Xdp | Hook::XdpGeneric => config.snaplen.min(65_535),
        _ => config.snaplen,
    }
}

pub(super) fn check_deliver(config: &Config) -> Result<(), Error> {
    let refuse = |why| Err(Error::Deliver { hook: config.hook, why });
    if config.rules.is_some() && config.hook.is_socket() {
        return Err(Error::NoRules(config.hook));
    }
    match (config.hook, config.deliver) {
        (Hook::AfXdp, Deliver::Pass) => {
            refuse("takes packets away from the host: it needs --deliver consume")
        }
        (Hook::Tpacket | Hook::Recv, Deliver::Consume) => {
            refuse("sees copies of packets and cannot consume them: take xdp, tcx or netfilter")
        }
        _ => Ok(()),
    }
}

/// The places for rules of programs that have just been loaded, with a set in the first.
pub(super) fn images_with(loaded: &Loaded, rules: &Arc<Compiled>) -> Result<Images, RulesFault> {
    let mut images = loaded.images().map_err(RulesFault::Load)?;
    images.set(0, Some(rules)).map_err(RulesFault::Rules)?;
    Ok(images)
}

pub(super) enum RulesFault {
    Load(io::Error),
    Rules(rules::Error),
}

pub(super) fn explain_rules(interface: &Interface, config: &Config, fault: RulesFault) -> Error {
    match fault {
        RulesFault::Load(source) => explain(interface, config.hook, source),
        RulesFault::Rules(error) => error.into(),
    }
}

pub(super) fn load(
    hook: Hook,
    params: &Params,
    filters: &Filters,
) -> io::Result<(Loaded, Control, Vec<Program>)> {
    let plain = match hook {
        Hook::Tcx => vec![Program::Ingress, Program::Egress],
        Hook::Netfilter => vec![Program::Netfilter],
        _ => vec![Program::Xdp],
    };
    // Only a program bound to its device may ask the driver, and not every driver can be asked.
    if params.hardware_time || params.hardware_vlan {
        let programs = vec![Program::XdpMetadata];
        if let Ok((loaded, control)) = Loaded::new(&programs, params, filters) {
            return Ok((loaded, control, programs));
        }
    }
    let (loaded, control) = Loaded::new(&plain, params, filters)?;
    Ok((loaded, control, plain))
}
