//! How an image is made: what a user may choose.

use std::collections::BTreeMap;

use super::super::bloom;

/// How a packet's rule is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The packet's addresses say which signatures are tried.
    #[default]
    Candidates,
    /// All signatures are tried in order, each after the Bloom filter, as in the thesis.
    Walk,
}

/// A name that is not that of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no rules engine {0:?}: take candidates or walk")]
pub struct NoEngine(String);

impl std::str::FromStr for Engine {
    type Err = NoEngine;

    fn from_str(name: &str) -> Result<Self, NoEngine> {
        match name {
            "candidates" => Ok(Self::Candidates),
            "walk" => Ok(Self::Walk),
            _ => Err(NoEngine(name.into())),
        }
    }
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Candidates => "candidates",
            Self::Walk => "walk",
        })
    }
}

/// How an image is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub engine: Engine,
    /// Promised false-positive rate of the Bloom filter.
    pub false_positive_rate: f64,
    /// Size of the Bloom filter. [`bloom::Size::UpTo`] takes as many bits as the promise needs.
    pub bloom: bloom::Size,
    /// The number of each group that a rule may name with `group=NAME`.
    pub groups: BTreeMap<String, u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            false_positive_rate: bloom::PROMISED_RATE,
            bloom: bloom::Size::UpTo(bloom::MAX_BITS),
            groups: BTreeMap::new(),
        }
    }
}
