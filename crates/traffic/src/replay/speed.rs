//! How fast is a recording sent again? What a person writes, and the timing that follows.

use std::str::FromStr;

use super::{Error, Timing};
use crate::pacing::{self, Gaps, Rate, Schedule};

/// A speed as a person asks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// A multiple of the recording's speed, above 0 and finite.
    Factor(f64),
    /// The greatest speed that the sender reaches.
    Max,
    /// A rate; a text never makes this [`Rate::Max`].
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
    /// Returns the timing of one sender. `gaps` and `seed` matter where a rate was asked for.
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
