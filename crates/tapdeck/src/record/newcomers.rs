//! Which interfaces does a pattern of `-i` mean, and which have come since? What is recorded is
//! settled at the start. An interface that comes later and fits is told, so that nobody takes the
//! recording for whole.

use std::collections::BTreeSet;

use anyhow::Result;
use tapdeck_capture::interface::Interface;
use tapdeck_store::choice;

/// Interfaces that fit a pattern and are not recorded.
#[derive(Debug)]
pub struct Newcomers {
    patterns: Vec<String>,
    told: BTreeSet<String>,
}

impl Newcomers {
    pub fn new(patterns: Vec<String>) -> Self {
        Self { patterns, told: BTreeSet::new() }
    }

    /// Looks at all interfaces, and says of those that came up since the last look. Where there are
    /// no patterns, nothing is asked of the kernel.
    pub fn look<'a>(&mut self, recorded: impl Iterator<Item = &'a str>) -> Vec<String> {
        if self.patterns.is_empty() {
            return Vec::new();
        }
        // What the kernel does not tell now it tells a second later.
        let Ok(all) = Interface::all() else { return Vec::new() };
        let recorded: BTreeSet<&str> = recorded.collect();
        let up = all.iter().filter(|interface| is_recordable(interface));
        let mut there = BTreeSet::new();
        let mut said = Vec::new();
        for name in up.map(|interface| &interface.name) {
            let pattern = self.patterns.iter().find(|pattern| fits(pattern, name));
            let Some(pattern) = pattern.filter(|_| !recorded.contains(name.as_str())) else {
                continue;
            };
            there.insert(name.clone());
            if !self.told.contains(name) {
                said.push(format!(
                    "{name} came up and fits -i {pattern}: it is not recorded before the recorder is started again"
                ));
            }
        }
        self.told = there;
        said
    }
}

/// Returns those of the names of `-i` that are patterns.
pub fn patterns(names: &[String]) -> Vec<String> {
    names.iter().filter(|name| is_pattern(name)).cloned().collect()
}

/// Puts the interfaces that are up now in the place of patterns.
pub fn expand(names: &[String]) -> Result<Vec<String>> {
    if !names.iter().any(|name| is_pattern(name)) {
        return Ok(names.to_vec());
    }
    let all = Interface::all()?;
    let mut expanded: Vec<String> = Vec::new();
    for name in names {
        if !is_pattern(name) {
            expanded.push(name.clone());
            continue;
        }
        let found =
            all.iter().filter(|interface| is_recordable(interface) && fits(name, &interface.name));
        let before = expanded.len();
        for interface in found {
            if !names.contains(&interface.name) && !expanded.contains(&interface.name) {
                expanded.push(interface.name.clone());
            }
        }
        if expanded.len() == before && !names.iter().any(|other| other != name && fits(name, other))
        {
            let there: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
            anyhow::bail!("no interface that is up fits {name}; there are: {}", there.join(", "));
        }
    }
    Ok(expanded)
}

fn is_pattern(name: &str) -> bool {
    name == "any" || name.contains(['*', '?'])
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern == "any" || choice::fits(pattern, name)
}

/// Whether a pattern means the interface, if its name fits.
fn is_recordable(interface: &Interface) -> bool {
    interface.up && interface.link.is_some()
}
