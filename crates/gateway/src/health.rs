//! Is a recorder or a daemon as it should be?
//!
//! It is where it answers, all its hooks stand, and what it takes gets onto the disk. An idle link
//! is healthy, and so is a recorder that drops packets: that is what metrics tell. One that was
//! paused is not: it records nothing, whoever wanted that.

use serde_json::Value;

/// How long a write may take before the writer counts as one that does not get on.
const STALLED_US: u64 = 10_000_000;

/// Returns what is wrong, a sentence each; nothing where all is well.
pub fn faults(statistics: &Result<Value, String>) -> Vec<String> {
    let answer = match statistics {
        Ok(answer) => answer,
        Err(why) => return vec![why.clone()],
    };
    let mut faults = Vec::new();
    let recorded = answer["interfaces"].as_object().into_iter().flatten();
    let recorded = recorded.map(|(name, interface)| (name.as_str(), interface));
    let served = answer["ports"].as_array().into_iter().flatten();
    let served = served.map(|port| (port["interface"].as_str().unwrap_or("?"), port));
    for (name, interface) in recorded.chain(served) {
        if interface["paused"] == true {
            faults.push(format!("{name} is paused"));
        } else if interface["attached"] == false {
            faults.push(format!("{name}: the hook is not attached"));
        }
    }
    for group in answer["groups"].as_array().into_iter().flatten() {
        if group["paused"] == true {
            faults.push(format!("group {} is paused", group["name"].as_str().unwrap_or("?")));
        }
    }
    if let Some(us) = answer["write_us"].as_u64().filter(|us| *us >= STALLED_US) {
        faults.push(format!("nothing could be written for {} s", us / 1_000_000));
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::faults;

    fn of(statistics: Value) -> Vec<String> {
        faults(&Ok(statistics))
    }

    #[test]
    fn an_idle_recorder_is_healthy() {
        let interface = json!({"attached": true, "paused": false, "seen": 0});
        let idle = json!({"interfaces": {"eth0": interface}, "write_us": 20_000});
        assert_eq!(of(idle), [""; 0]);
        assert_eq!(of(json!({"ports": [{"interface": "a", "attached": true}]})), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(faults(&Err("nobody there".into())), ["nobody there"]);
        let ill = json!({"interfaces": {"a": {"attached": false}, "b": {"attached": true},
            "c": {"attached": false, "paused": true}}, "write_us": 61_500_000});
        assert_eq!(
            of(ill),
            ["a: the hook is not attached", "c is paused", "nothing could be written for 61 s"]
        );
        let ill = json!({"ports": [{"interface": "x", "attached": false}],
            "groups": [{"name": "ids", "paused": true}]});
        assert_eq!(of(ill), ["x: the hook is not attached", "group ids is paused"]);
    }
}
