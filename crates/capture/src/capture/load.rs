//! Can a hook do what is asked? And how do rules get into the programs that were loaded for it?

use std::io;
use std::sync::Arc;

use crate::bpf::loaded::Loaded;
use crate::explain::explain;
use crate::helper::wire::Fault;
use crate::interface::Interface;
use crate::rules::{self, Compiled, Images};
use crate::{Config, Deliver, Error};

/// Refuses what the hook cannot do with packets.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let hook = config.hook;
    if config.rules.is_some() && !hook.takes_rules() {
        return Err(Error::NoRules(hook));
    }
    if hook.can(config.deliver) {
        return Ok(());
    }
    let why = match config.deliver {
        Deliver::Pass => "takes packets away from the host: it needs --deliver consume",
        Deliver::Consume => {
            "sees copies of packets and cannot consume them: take xdp, tcx or netfilter"
        }
    };
    Err(Error::Deliver { hook, why })
}

/// Returns the places for rules of programs that have just been loaded, with this set in the first.
pub(super) fn images_with(loaded: &Loaded, rules: &Arc<Compiled>) -> Result<Images, RulesFault> {
    let mut images = loaded.images().map_err(RulesFault::Load)?;
    images.set(0, Some(rules)).map_err(RulesFault::Rules)?;
    Ok(images)
}

pub(super) enum RulesFault {
    Load(io::Error),
    Rules(rules::Error),
}

impl From<Fault> for RulesFault {
    fn from(fault: Fault) -> Self {
        Self::Load(fault.into_error())
    }
}

pub(super) fn explain_rules(interface: &Interface, config: &Config, fault: RulesFault) -> Error {
    match fault {
        RulesFault::Load(source) => explain(interface, config.hook, source),
        RulesFault::Rules(error) => error.into(),
    }
}
