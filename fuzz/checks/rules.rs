//! What holds when any bytes at all are read as a rule file. Shared by the fuzz target and by
//! `crates/packet/tests/rules_mutations.rs`, which runs it on the stable compiler.

use tapdeck_packet::rules::cost::{Model, Sample};
use tapdeck_packet::rules::{Judge, Rule, RuleSet};

/// Rules above which merging and clustering would make one input take too long.
const MANY: usize = 200;

/// Reads `data` as a rule file. What is understood is understood again when it is printed, and all
/// that is made of it judges alike. Returns the number of rules.
///
/// # Panics
/// If one of these does not hold.
pub fn check(data: &[u8]) -> Option<usize> {
    let set = match RuleSet::parse(data) {
        Ok(set) => set,
        Err(errors) => {
            assert!(!errors.errors.is_empty() && errors.errors.len() <= errors.count);
            assert!(errors.errors.is_sorted_by_key(|error| error.line), "errors out of order");
            let lines = data.split(|&b| b == b'\n').count();
            assert!(errors.errors.iter().all(|e| (1..=lines).contains(&(e.line as usize))));
            assert!(!errors.to_string().contains(char::is_control), "{errors:?}");
            return None;
        }
    };
    let printed = set.to_string();
    let again = RuleSet::parse(&printed).unwrap_or_else(|e| panic!("{printed}: {e}"));
    let rules = |set: &RuleSet| set.entries().iter().map(|e| e.rule.clone()).collect::<Vec<Rule>>();
    assert_eq!(rules(&again), rules(&set), "{printed}");
    if set.len() <= MANY {
        check_judges(&set);
    }
    Some(set.len())
}

/// Packets that fit its rules are judged alike by every judge, without what merging would leave
/// out, and after clustering.
pub fn check_judges(set: &RuleSet) {
    let sample = Sample::of_rules(set);
    let merged = set.merge();
    assert!(merged.iter().all(|m| m.rule != m.by));
    let lean = set.without(&merged);
    assert_eq!(lean.len() + merged.len(), set.len());
    let clustered = set.cluster(&sample, 4.0);
    let (judge, model) = (Judge::new(set), Model::new(set));
    for tuple in sample.tuples() {
        let by = set.judge(tuple);
        assert!(by.is_some(), "{tuple:?} was made to fit a rule");
        assert_eq!(judge.judge(tuple), by, "{tuple:?}");
        let action = |set: &RuleSet, by: Option<u32>| {
            by.map(|number| set.entries()[number as usize].rule.action.clone())
        };
        assert_eq!(action(&lean, lean.judge(tuple)), action(set, by), "{tuple:?} when merged");
        let part = clustered.set.judge(tuple).map(|number| clustered.origins[number as usize]);
        assert_eq!(part, by, "{tuple:?} when clustered");
        let tries = model.tries(tuple);
        assert!(tries.candidates <= tries.walk && tries.candidates > 0, "{tries:?}");
    }
}
