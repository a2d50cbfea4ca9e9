//! What holds when any bytes at all are the body of a request for a pin. Shared by the fuzz target
//! and by the tests of `wanted.rs` in `crates/gateway`, which run it on the stable compiler.
//! Whoever includes it has the module `wanted` of the gateway at its root.

use crate::wanted::{AHEAD_NS, FILTER, REASON, Wanted};

/// When it is asked for.
const NOW_NS: i64 = 1_767_323_045_000_000_000;

/// Reads `data` as what is wanted. What makes sense is within the bounds of any pin. True if it
/// does.
///
/// # Panics
/// If it is not.
pub fn wanted(data: &[u8]) -> bool {
    let Ok(sound) = Wanted::read(data).and_then(|wanted| wanted.check(NOW_NS)) else {
        return false;
    };
    let (after_ns, before_ns) = (sound.span.after_ns, sound.span.before_ns);
    assert!(after_ns < before_ns && before_ns <= NOW_NS + AHEAD_NS, "{:?}", sound.span);
    assert!(sound.until_ns.is_none_or(|until_ns| until_ns > before_ns.max(NOW_NS)));
    assert!(!sound.reason.is_empty() && sound.reason.trim() == sound.reason);
    assert!(sound.reason.len() <= REASON && sound.filter.len() <= FILTER);
    true
}
