//! How `record` and `serve` say that packets went unseen.

use tapdeck_capture::{Cause, Unseen};

use crate::query::time;
use crate::units::counted;

/// Returns what went unseen, when and why, as a clause to stand behind the interface's name.
pub fn describe(unseen: &Unseen) -> String {
    let Unseen { packets, first_ns, last_ns, cause } = unseen;
    let when = format!("from {} to {}", show(*first_ns), show(*last_ns));
    let packets = counted(*packets, "packet");
    match cause {
        Cause::Detached => format!(
            "somebody had detached the hook; it is attached again, and {packets} went unseen {when}"
        ),
        Cause::Away => format!("the interface was away {when}; {packets} went unseen"),
        Cause::Late => {
            format!("it had come up, and {packets} went unseen {when}, before it was recorded")
        }
        Cause::Abandoned => format!(
            "the recorder did not run for longer than --abandon, and packets passed by; {packets} went unseen {when}"
        ),
        Cause::Queue => format!(
            "a receive queue was switched on; it is recorded now, and {packets} went unseen {when}"
        ),
        Cause::Daemon => format!(
            "{packets} went unseen {when}, which the hooks of the daemon were not shown; it says why"
        ),
        Cause::DaemonAway => {
            format!("there was no daemon {when}; nobody counted the packets that went unseen")
        }
        Cause::Unexplained => format!(
            "the hook is attached, but {packets} that the device received {when} did not come to it; another program may take them away before (tapdeck probe says who is there)"
        ),
    }
}

fn show(time_ns: u64) -> String {
    time::show(i64::try_from(time_ns).unwrap_or(i64::MAX))
}
