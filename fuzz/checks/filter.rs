//! What holds when any text at all is read as a filter expression. Shared by the fuzz target and by
//! `crates/packet/tests/filter.rs`, which runs it on the stable compiler.

use tapdeck_packet::filter;
use tapdeck_packet::key::Plan;

/// Reads `data` as an expression. What is understood is understood again when it is printed. True
/// if it was.
///
/// # Panics
/// If it is not, or if the plan is none.
pub fn check(data: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(data) else { return false };
    let expression = match filter::parse(text) {
        Ok(expression) => expression,
        Err(error) => {
            assert!(error.at <= text.len(), "{error}, of {} bytes", text.len());
            return false;
        }
    };
    let printed = expression.to_string();
    let again = filter::parse(&printed).unwrap_or_else(|e| panic!("{printed}: {e}"));
    assert_eq!(again, expression, "{printed}");
    assert_eq!(again.to_string(), printed);
    assert_simple(&expression.plan(), true);
    true
}

/// Nothing stands in a plan that says nothing, and no key that there cannot be.
fn assert_simple(plan: &Plan, is_whole: bool) {
    match plan {
        Plan::All => assert!(is_whole, "all packets inside a plan"),
        Plan::Keys { class, first, last } => {
            let unused_bits = 128 - 8 * class.width();
            assert!(first <= last, "from {first} to {last}");
            assert!(last << unused_bits >> unused_bits == *last, "{last} is no {}", class.name());
        }
        Plan::Every(plans) | Plan::Any(plans) => {
            assert!(plans.len() > 1, "one alone");
            for plan in plans {
                assert_simple(plan, false);
            }
        }
    }
}
