//! Which packets do the flags of `query` ask for?

use std::fmt;

use clap::ValueEnum;
use tapdeck_store::choice::{self, Wanted};

use crate::flags;

/// The direction in which a packet passed its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// The interface received the packet
    In,
    /// The interface sent the packet
    Out,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
        })
    }
}

impl From<Direction> for choice::Direction {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::In => Self::In,
            Direction::Out => Self::Out,
        }
    }
}

/// Returns what the flags ask for.
pub fn wanted(flags: &flags::Query) -> Wanted {
    Wanted {
        expression: flags.expression.join(" "),
        inner: flags.inner,
        interfaces: flags.interfaces.clone(),
        direction: flags.direction.map(choice::Direction::from),
        flow: flags.community_id,
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_capture::Hook;
    use tapdeck_store::choice::INBOUND_HOOKS;

    #[test]
    fn packets_of_a_hook_have_the_directions_that_it_sees() {
        let inbound = Hook::ALL.into_iter().filter(|hook| !hook.sees_outbound());
        let names: Vec<&str> = inbound.map(Hook::name).collect();
        assert_eq!(names, INBOUND_HOOKS);
    }
}
