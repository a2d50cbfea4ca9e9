//! What can change while packets flow: filter, rules, snaplen, and whether they do.

use std::sync::Arc;

use super::load::{RulesFault, check, explain_rules, images_with};
use super::{Backend, Capture};
use crate::attach::Links;
use crate::bpf::loaded::Loaded;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{explain_load, filters_for};
use crate::rules::{Compiled, Hits};
use crate::sys::kernel;
use crate::{Config, Error};

impl Capture {
    /// Takes another filter, or none, while packets flow: each is judged by the old one or by the
    /// new one, and when this returns none is judged by the old one any more.
    ///
    /// # Errors
    /// A filter that does not compile or that the kernel refuses, and a hook that cannot exchange
    /// it; the old one is then still there.
    pub fn set_filter(&mut self, expression: Option<&str>) -> Result<(), Error> {
        let config = Config { filter: expression.map(str::to_owned), ..self.config.clone() };
        check(&config)?;
        let interface = &self.device.interface;
        match &mut self.backend {
            Backend::Socket(hook) => {
                let now = Config { snaplen: self.snaplen, ..config.clone() };
                hook.set_filter(interface, &now)?;
            }
            Backend::Kernel { .. } if !config.hook.can_exchange_filter() && self.attached => {
                return Err(Error::FixedFilter(config.hook));
            }
            Backend::Kernel { loaded, programs, params, filters, links, .. } => {
                let new = filters_for(interface, &config)?;
                let changed = Params { filtered: !new.is_empty(), ..*params };
                loaded
                    .reload(programs, &changed, &new)
                    .map_err(|e| explain_load(interface, &config, &new, e))?;
                if let Err(e) = links.exchange(programs, &|which| loaded.program(which)) {
                    put_back(loaded, programs, params, filters, links);
                    return Err(explain(interface, config.hook, e));
                }
                kernel::wait_for_running_programs();
                (*filters, *params) = (new, changed);
            }
        }
        self.config = config;
        Ok(())
    }

    /// Takes another set of rules, or none, while packets flow, and gives what the old one counted
    /// in the end. Each packet is judged by one of them as a whole, and when this returns none
    /// is judged by the old one any more.
    ///
    /// # Errors
    /// A hook that takes no rules or cannot begin with them now, and a set that the kernel has no
    /// memory for; the old one is then still there.
    pub fn set_rules(&mut self, rules: Option<Arc<Compiled>>) -> Result<Option<Hits>, Error> {
        let config = Config { rules, ..self.config.clone() };
        check(&config)?;
        let interface = &self.device.interface;
        let Backend::Kernel { loaded, programs, params, filters, images, links, .. } =
            &mut self.backend
        else {
            self.config = config;
            return Ok(None);
        };
        let mut hits = None;
        match (images, &config.rules) {
            (Some(images), rules) => hits = images.set(0, rules.as_ref())?,
            (None, None) => {}
            // Rules would need other programs.
            (None, Some(_)) if !config.hook.can_exchange_filter() && self.attached => {
                return Err(Error::FixedRules(config.hook));
            }
            (images, Some(rules)) => {
                let changed = Params { judged: true, ..*params };
                loaded
                    .reload(programs, &changed, filters)
                    .map_err(|e| explain_load(interface, &config, filters, e))?;
                let exchanged = images_with(loaded, rules).and_then(|new| {
                    let exchange = links.exchange(programs, &|which| loaded.program(which));
                    exchange.map(|()| new).map_err(RulesFault::Load)
                });
                let new = exchanged.map_err(|e| {
                    put_back(loaded, programs, params, filters, links);
                    explain_rules(interface, &config, e)
                })?;
                kernel::wait_for_running_programs();
                (*images, *params) = (Some(new), changed);
            }
        }
        self.config = config;
        Ok(hits)
    }

    /// What the present set of rules has counted.
    pub fn rule_hits(&self) -> Option<Hits> {
        match &self.backend {
            Backend::Kernel { images, .. } => images.as_ref()?.hits(0),
            Backend::Socket(_) => None,
        }
    }

    /// Keeps at most so many bytes of each packet from now on.
    ///
    /// # Errors
    /// Where that is 0 or more than the recording began with.
    pub fn set_snaplen(&mut self, bytes: u32) -> Result<(), Error> {
        if !(1..=self.config.snaplen).contains(&bytes) {
            return Err(Error::Snaplen { asked: bytes, most: self.config.snaplen });
        }
        if !self.config.hook.facts().can_change_snaplen {
            return Err(Error::Deliver { hook: self.config.hook, why: "keeps its snaplen" });
        }
        match &mut self.backend {
            Backend::Kernel { loaded, .. } => loaded.set_snaplen(bytes),
            Backend::Socket(hook) => {
                let now = Config { snaplen: bytes, ..self.config.clone() };
                hook.set_filter(&self.device.interface, &now)?;
            }
        }
        self.snaplen = bytes;
        Ok(())
    }

    /// How many bytes of each packet are kept now.
    pub fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// Sees no packets until [`Capture::resume`], and what the device counts meanwhile does not
    /// count.
    pub fn pause(&mut self) {
        if !self.paused {
            self.device.refresh();
            self.device.pause();
            self.stop();
            self.paused = true;
        }
    }

    /// Sees packets again. Where the interface is not there, [`Capture::watch`] waits for it.
    ///
    /// # Errors
    /// Where the hook cannot be attached any more; it is still paused then.
    pub fn resume(&mut self) -> Result<(), Error> {
        if !self.paused {
            return Ok(());
        }
        if self.device.is_back()? {
            // It may be another device, since the pause or since a call that failed.
            self.reload()?;
            self.attach()?;
        }
        self.paused = false;
        Ok(())
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }
}

/// Loads the programs as they were before a change, after some of the links, or none, took the
/// changed ones. A link that took no changed one still has its old one.
fn put_back(
    loaded: &mut Loaded,
    programs: &[Program],
    params: &Params,
    filters: &Filters,
    links: &mut Links,
) {
    // Where the device is gone neither can be done, and Capture::watch loads them anew.
    if loaded.reload(programs, params, filters).is_ok() {
        let _ = links.exchange(programs, &|which| loaded.program(which));
        kernel::wait_for_running_programs();
    }
}
