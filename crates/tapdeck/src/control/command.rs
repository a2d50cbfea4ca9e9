//! The commands: all that can be asked over the control socket.
//!
//! What does a line of JSON ask for? Here is how it becomes a [`Command`], and which commands
//! anybody who can connect may give. What a command does is said by the recorder
//! (`record::commands`) and the daemon (`serve::daemon`).

use serde::{Deserialize, Deserializer};
use tapdeck_packet::printable;

/// One request. Without a group, a command is for the recorder, or for all groups of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    Stats {},
    /// Asks for statistics at once and again every second.
    Watch {},
    Pause {
        group: Option<String>,
    },
    Resume {
        group: Option<String>,
    },
    Snaplen {
        snaplen: u32,
        group: Option<String>,
    },
    Filter {
        /// The filter; `None` takes every packet.
        #[serde(deserialize_with = "said")]
        filter: Option<String>,
        group: Option<String>,
    },
    Rules(RulesCommand),
    Groups {},
    /// Begins a new segment.
    Rotate {},
    /// Reads the configuration again.
    Reload {},
    Stop {},
    /// Makes the connection a member of a group.
    Attach {
        group: String,
        #[serde(default = "one")]
        weight: u32,
    },
    /// Gives the connection the place that a member had with the daemon before.
    Reattach {
        group: String,
        member: u32,
        secret: String,
    },
    /// Closes the part-filled blocks of the member that asks.
    Flush {},
    /// Ends the membership of the member that asks, in good order.
    Leave {},
}

/// What can be done with rules. `rules` are lines as in a rule file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RulesCommand {
    Add {
        rules: String,
        group: Option<String>,
    },
    Remove {
        rules: String,
        group: Option<String>,
    },
    Replace {
        rules: String,
        group: Option<String>,
    },
    List {
        group: Option<String>,
    },
    Hits {
        group: Option<String>,
    },
    /// Switches these rules on, or judging as a whole.
    Enable {
        rules: Option<String>,
        group: Option<String>,
    },
    Disable {
        rules: Option<String>,
        group: Option<String>,
    },
    /// Takes all rules away: every packet is taken.
    Reset {
        group: Option<String>,
    },
}

/// Reads a key that must be there, and whose value may be `null`.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(from)
}

fn one() -> u32 {
    1
}

impl Command {
    /// Reads a line. The error is the text that the client is told.
    pub fn decode(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|e: serde_json::Error| {
            let e = e.to_string();
            let e = printable::name(&e);
            format!("bad request: {e}; a request is one line as {{\"verb\":\"stats\"}}, docs/CONTROL.md has them all")
        })
    }

    /// Whether the answer may be long.
    pub fn is_heavy(&self) -> bool {
        matches!(self, Self::Rules(RulesCommand::List { .. } | RulesCommand::Hits { .. }))
    }

    /// Returns what the command costs a user who may not ask for as much as they like
    /// (`control::rates`). Rings that are made and taken away cost the whole machine.
    pub fn cost(&self) -> u32 {
        match self {
            Self::Attach { .. } => 10,
            _ => 1,
        }
    }

    /// Whether the command only looks, or belongs to being a member. All other commands change what
    /// is captured for everybody, so the permission to connect is not enough for them.
    pub fn is_harmless(&self) -> bool {
        match self {
            Self::Stats {}
            | Self::Watch {}
            | Self::Groups {}
            | Self::Attach { .. }
            | Self::Reattach { .. }
            | Self::Flush {}
            | Self::Leave {}
            | Self::Rules(RulesCommand::List { .. } | RulesCommand::Hits { .. }) => true,
            Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Snaplen { .. }
            | Self::Filter { .. }
            | Self::Rules(_)
            | Self::Rotate {}
            | Self::Reload {}
            | Self::Stop {} => false,
        }
    }
}

impl RulesCommand {
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Add { group, .. }
            | Self::Remove { group, .. }
            | Self::Replace { group, .. }
            | Self::List { group }
            | Self::Hits { group }
            | Self::Enable { group, .. }
            | Self::Disable { group, .. }
            | Self::Reset { group } => group.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, RulesCommand};

    fn decode(line: &str) -> Result<Command, String> {
        Command::decode(line.as_bytes())
    }

    #[test]
    fn every_verb_is_read() {
        let group = || Some("ids".to_owned());
        for (line, command) in [
            (r#"{"verb":"stats"}"#, Command::Stats {}),
            (r#"{"verb":"watch"}"#, Command::Watch {}),
            (r#" { "group" : "ids" , "verb" : "pause" } "#, Command::Pause { group: group() }),
            (r#"{"verb":"resume","group":null}"#, Command::Resume { group: None }),
            (r#"{"verb":"snaplen","snaplen":96}"#, Command::Snaplen { snaplen: 96, group: None }),
            (
                r#"{"verb":"filter","filter":"port 53","group":"ids"}"#,
                Command::Filter { filter: Some("port 53".into()), group: group() },
            ),
            (r#"{"verb":"filter","filter":null}"#, Command::Filter { filter: None, group: None }),
            (r#"{"verb":"groups"}"#, Command::Groups {}),
            (r#"{"verb":"rotate"}"#, Command::Rotate {}),
            (r#"{"verb":"reload"}"#, Command::Reload {}),
            (r#"{"verb":"stop"}"#, Command::Stop {}),
            (
                r#"{"verb":"attach","group":"ids"}"#,
                Command::Attach { group: "ids".into(), weight: 1 },
            ),
            (
                r#"{"verb":"attach","group":"ids","weight":3}"#,
                Command::Attach { group: "ids".into(), weight: 3 },
            ),
            (
                r#"{"verb":"reattach","group":"ids","member":7,"secret":"f0"}"#,
                Command::Reattach { group: "ids".into(), member: 7, secret: "f0".into() },
            ),
            (r#"{"verb":"leave"}"#, Command::Leave {}),
            (r#"{"verb":"flush"}"#, Command::Flush {}),
            (
                r#"{"verb":"rules","do":"add","rules":"x\ny","group":"ids"}"#,
                Command::Rules(RulesCommand::Add { rules: "x\ny".into(), group: group() }),
            ),
            (
                r#"{"do":"disable","verb":"rules"}"#,
                Command::Rules(RulesCommand::Disable { rules: None, group: None }),
            ),
        ] {
            assert_eq!(decode(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (line, part) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("stats", "expected"),
            ("\"stats\"", "invalid type"),
            ("[]", "verb"),
            ("{}", "missing field `verb`"),
            (r#"{"verb":"dance"}"#, "unknown variant `dance`"),
            (r#"{"verb":7}"#, "invalid type"),
            (r#"{"verb":"stats","group":"ids"}"#, "unknown field `group`"),
            (r#"{"verb":"stats"} {"verb":"stop"}"#, "trailing"),
            (r#"{"verb":"snaplen"}"#, "missing field `snaplen`"),
            (r#"{"verb":"snaplen","snaplen":-1}"#, "invalid value"),
            (r#"{"verb":"snaplen","snaplen":4294967296}"#, "invalid value"),
            (r#"{"verb":"snaplen","snaplen":"96"}"#, "invalid type"),
            (r#"{"verb":"filter"}"#, "missing field `filter`"),
            (r#"{"verb":"rules"}"#, "missing field `do`"),
            (r#"{"verb":"rules","do":"dance"}"#, "unknown variant `dance`"),
            (r#"{"verb":"rules","do":"list","rules":"x"}"#, "unknown field `rules`"),
            (r#"{"verb":"attach"}"#, "missing field `group`"),
            (r#"{"verb":"attach","group":"ids","weight":1.5}"#, "invalid type"),
        ] {
            let why = decode(line).expect_err(line);
            assert!(why.contains(part) && !why.contains('\n'), "{line}: {why}");
        }
    }

    #[test]
    fn deep_or_binary_requests_are_no_danger() {
        let deep = "[".repeat(100_000);
        assert!(decode(&deep).is_err());
        let hidden = format!(r#"{{"x":{},"verb":"stats"}}"#, "[".repeat(100_000));
        assert!(decode(&hidden).is_err());
        assert!(Command::decode(&[0xff, 0xfe, 0, 1]).is_err());
    }
}
