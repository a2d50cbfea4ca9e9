//! What does whoever asks hear of a configuration that was read again?

use serde_json::{Value, json};

/// Returns the answer of the control socket.
pub fn answer(changed: &[impl AsRef<str>], restart: &[String]) -> Value {
    let changed: Vec<&str> = changed.iter().map(AsRef::as_ref).collect();
    json!({ "changed": changed, "restart": restart })
}

/// Returns what the user is told of one that is in force.
pub fn said(changed: &[impl AsRef<str>], restart: &[String]) -> String {
    let names = changed.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    let changed = match names.as_str() {
        "" => "nothing changes at once".to_owned(),
        names => format!("{names} changed"),
    };
    let restart = match restart {
        [] => String::new(),
        some => format!("; as before until a restart: {}", some.join(", ")),
    };
    format!("the configuration was read again: {changed}{restart}")
}

/// Returns what the user is told of one that was refused.
pub fn refused(why: &str) -> String {
    format!("the configuration was not taken, all is as before: {why}")
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn what_changed_and_what_did_not_is_told() {
        let none: [&str; 0] = [];
        assert!(said(&["filter", "rules"], &[]).ends_with("again: filter, rules changed"));
        let restart = ["hook".to_owned()];
        assert!(said(&none, &restart).ends_with("at once; as before until a restart: hook"));
    }
}
