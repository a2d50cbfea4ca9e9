//! How fast a recording is sent again: what a person writes.

use std::str::FromStr;

use super::{Error, Timing};
use crate::pacing::{self, Gaps, Rate, Schedule};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// So many times as fast as it was recorded: above 0, and finite.
    Factor(f64),
    /// As fast as it goes.
    Max,
    /// Never [`Rate::Max`] out of a text.
    Rate(Rate),
}

impl FromStr for Speed {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        if let Some(factor) = s.trim().strip_prefix(['x', 'X']) {
            let factor: f64 = factor.parse().map_err(|_| Error::Speed(s.to_owned()))?;
            let fits = factor > 0.0 && factor.is_finite();
            return if fits { Ok(Self::Factor(factor)) } else { Err(Error::Factor(s.to_owned())) };
        }
        match s.parse() {
            Ok(Rate::Max) => Ok(Self::Max),
            Ok(rate) => Ok(Self::Rate(rate)),
            Err(e @ pacing::Error::Value(_)) => Err(Error::Rate(e)),
            Err(_) => Err(Error::Speed(s.to_owned())),
        }
    }
}

impl Speed {
    /// For one sender. `gaps` and `seed` are of meaning where a rate is asked for.
    pub fn timing(self, gaps: Gaps, seed: u64) -> Timing {
        match self {
            Self::Factor(factor) => Timing::Own { factor },
            Self::Max => Timing::Max,
            Self::Rate(rate) => match rate.pace(1.0, 0) {
                Some(pace) => Timing::Paced(Schedule::new(pace, gaps, seed)),
                None => Timing::Max,
            },
        }
    }
}
