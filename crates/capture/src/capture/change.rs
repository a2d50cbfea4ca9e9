//! What can change while packets flow: filter, rules, cutoff, snaplen, and whether they do.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::kernel_hook::KernelHook;
use super::load::{RulesFault, check, explain_rules};
use super::{Capture, Taking};
use crate::device::Meanwhile;
use crate::explain::explain;
use crate::filter::{explain_load, filters_for};
use crate::helper::wire::{Fault, Request};
use crate::interface::Interface;
use crate::rules::{Compiled, Hits};
use crate::{Config, Error};

impl Capture {
    /// Exchanges the filter, for another or for none, while packets flow. Each packet is judged by
    /// the old filter or by the new one, and when this returns no packet is judged by the old one
    /// any more.
    ///
    /// # Errors
    /// Where the filter does not compile or the kernel refuses it, and at a hook that cannot
    /// exchange it; the old filter is then still there.
    pub fn set_filter(&mut self, expression: Option<&str>) -> Result<(), Error> {
        let config = Config { filter: expression.map(str::to_owned), ..self.config.clone() };
        check(&config)?;
        let interface = &self.device.interface;
        let stands = self.stands();
        match &mut self.taking {
            Taking::Socket(hook) => {
                let now = Config { snaplen: self.snaplen, ..config.clone() };
                hook.set_filter(interface, &now)?;
            }
            Taking::Kernel(_) if !config.hook.can_exchange_filter() && stands => {
                return Err(Error::FixedFilter(config.hook));
            }
            Taking::Kernel(hook) => {
                let new = filters_for(interface, &config)?;
                let program = new.first().cloned();
                let request = Request::SetFilter { program, snaplen: config.snaplen };
                hook.ask(interface, &request).map_err(|fault| match fault {
                    Fault::Load(e) => explain_load(interface, &config, &new, e),
                    Fault::Queue(_, e) | Fault::Place(e) => explain(interface, config.hook, e),
                })?;
            }
        }
        self.config = config;
        Ok(())
    }

    /// Whether programs are attached that stay what they are: also those that outlive their owner,
    /// while it has paused, for the next owner asks what they were at the start.
    fn stands(&self) -> bool {
        self.attached || self.lasting.is_some()
    }

    /// Changes how many bytes are captured of each flow, or captures all of them, while packets
    /// flow. What flows have had before still counts where they were cut off before.
    ///
    /// # Errors
    /// At a hook that knows no flows or cannot exchange its programs, and where the kernel has no
    /// memory for the table of flows; all is then as it was.
    pub fn set_cutoff(&mut self, cutoff: Option<NonZeroU32>) -> Result<(), Error> {
        if cutoff == self.config.cutoff {
            return Ok(());
        }
        let config = Config { cutoff, ..self.config.clone() };
        check(&config)?;
        let interface = &self.device.interface;
        let stands = self.stands();
        if let Taking::Kernel(hook) = &mut self.taking {
            if !config.hook.can_exchange_filter() && stands {
                return Err(Error::FixedCutoff(config.hook));
            }
            let request = Request::SetCutoff { bytes: cutoff.map_or(0, NonZeroU32::get) };
            hook.ask(interface, &request)
                .map_err(|fault| explain(interface, config.hook, fault.into_error()))?;
        }
        self.config = config;
        Ok(())
    }

    /// Exchanges the set of rules, for another or for none, while packets flow. Returns what the
    /// old set had counted in the end. Each packet is judged by one of the two sets as a whole, and
    /// when this returns no packet is judged by the old set any more.
    ///
    /// # Errors
    /// At a hook that takes no rules or cannot begin with rules now, and where the kernel has no
    /// memory for the set; the old set is then still there.
    pub fn set_rules(&mut self, rules: Option<Arc<Compiled>>) -> Result<Option<Hits>, Error> {
        let config = Config { rules, ..self.config.clone() };
        check(&config)?;
        let interface = &self.device.interface;
        let stands = self.stands();
        let Taking::Kernel(hook) = &mut self.taking else {
            self.config = config;
            return Ok(None);
        };
        let mut hits = None;
        match (&mut hook.images, &config.rules) {
            (Some(images), rules) => hits = images.set(0, rules.as_ref())?,
            (None, None) => {}
            // Rules would need other programs.
            (None, Some(_)) if !config.hook.can_exchange_filter() && stands => {
                return Err(Error::FixedRules(config.hook));
            }
            (None, Some(rules)) => {
                hook.ask(interface, &Request::BeginRules)
                    .map_err(|e| explain_load(interface, &config, &hook.filters, e.into_error()))?;
                begin_rules(hook, interface, rules).map_err(|e| {
                    // Where that fails, too, Capture::watch loads the programs anew.
                    let _ = hook.ask(interface, &Request::PutBack);
                    explain_rules(interface, &config, e)
                })?;
            }
        }
        self.config = config;
        Ok(hits)
    }

    /// Returns what the present set of rules has counted.
    pub fn rule_hits(&self) -> Option<Hits> {
        match &self.taking {
            Taking::Kernel(hook) => hook.images.as_ref()?.hits(0),
            Taking::Socket(_) => None,
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
        match &mut self.taking {
            Taking::Kernel(hook) => hook.loaded.set_snaplen(bytes),
            Taking::Socket(hook) => {
                let now = Config { snaplen: bytes, ..self.config.clone() };
                hook.set_filter(&self.device.interface, &now)?;
            }
        }
        self.snaplen = bytes;
        Ok(())
    }

    /// Returns how many bytes of each packet are kept now.
    pub fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// Stops taking packets until [`Capture::resume`]. What the device counts meanwhile is left out
    /// of [`Capture::nic`].
    pub fn pause(&mut self) {
        if !self.paused && !self.has_left {
            self.device.refresh();
            self.device.pause();
            self.stop();
            self.paused = true;
        }
    }

    /// Takes packets again. Where the interface is not there, [`Capture::watch`] waits for it;
    /// `taken` is as there.
    ///
    /// # Errors
    /// Where the hook cannot be attached any more; the capture is still paused then.
    pub fn resume(&mut self, taken: &[u32]) -> Result<(), Error> {
        if !self.paused {
            return Ok(());
        }
        if self.device.is_back(Meanwhile::LeftOut, taken)? {
            // It may be another device, since the pause or since a call that failed.
            self.reload()?;
            self.attach()?;
            self.presence.begin(self.counted());
        }
        self.paused = false;
        Ok(())
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }
}

/// Puts a first set in its place, and the programs that look for it in the place of those that do
/// not.
fn begin_rules(
    hook: &mut KernelHook,
    interface: &Interface,
    rules: &Arc<Compiled>,
) -> Result<(), RulesFault> {
    if let Some(images) = &mut hook.images {
        images.set(0, Some(rules)).map_err(RulesFault::Rules)?;
    }
    hook.ask(interface, &Request::Exchange)?;
    Ok(())
}
