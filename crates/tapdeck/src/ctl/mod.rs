//! `tapdeck ctl`: asks a running recorder or daemon over its control socket.
//!
//! The command line becomes a request, and the answer becomes a text for people. `docs/CONTROL.md`
//! says what can be asked and what is answered; nothing here knows what it means.

mod persist;
mod text;

use std::io::{self, Read, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::control::{Connection, Request, recorder_path};
use crate::flags::{self, CtlGroup, CtlLines, CtlRules, CtlVerb};
use crate::standard_input;
use crate::usage::usage;

/// Sends the request and prints the answer.
pub fn run(flags: &flags::Ctl) -> Result<()> {
    if let CtlVerb::Persist(verb) = &flags.verb {
        return Ok(print(&persist::run(verb, flags.json)?)?);
    }
    let request = request(&flags.verb)?;
    let path = match (&flags.socket, &flags.dir) {
        (Some(path), _) => path.clone(),
        (None, Some(dir)) => in_store(dir)?,
        (None, None) => tapdeck_client::default_socket(),
    };
    let mut connection = Connection::open(&path)?;
    let answer = connection.ask(&request)?;
    match flags.verb {
        CtlVerb::Watch => return watch(&mut connection, answer, flags.json),
        // The other end closes the connection when it has ended.
        CtlVerb::Stop => while connection.next()?.is_some() {},
        _ => {}
    }
    if flags.json {
        print(&format!("{answer}\n"))?;
    } else {
        print(&text::of(&flags.verb, &answer))?;
    }
    Ok(())
}

fn in_store(dir: &Path) -> Result<PathBuf> {
    anyhow::ensure!(dir.is_dir(), "{} is not a directory", dir.display());
    Ok(recorder_path(dir))
}

fn watch(connection: &mut Connection, first: Value, json: bool) -> Result<()> {
    let mut before = first;
    if json {
        print(&format!("{before}\n"))?;
    }
    while let Some(answer) = connection.next()? {
        if json {
            print(&format!("{answer}\n"))?;
        } else {
            print(&text::second(&before, &answer))?;
        }
        before = answer;
    }
    Ok(())
}

/// Prints a text, which is out when this returns.
fn print(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn request(verb: &CtlVerb) -> Result<Request> {
    let (verb, rest) = match verb {
        CtlVerb::Stats | CtlVerb::Metrics { .. } => ("stats", Map::new()),
        CtlVerb::Watch => ("watch", Map::new()),
        CtlVerb::Pause(group) => ("pause", of(group)),
        CtlVerb::Resume(group) => ("resume", of(group)),
        CtlVerb::Snaplen { bytes, group } => ("snaplen", with(group, "snaplen", (*bytes).into())),
        CtlVerb::Filter { expression, none, group } => {
            let filter = (!none).then(|| expression.join(" "));
            ("filter", with(group, "filter", filter.into()))
        }
        CtlVerb::Rules(verb) => ("rules", rules(verb)?),
        CtlVerb::Groups => ("groups", Map::new()),
        CtlVerb::Rotate => ("rotate", Map::new()),
        CtlVerb::Reload => ("reload", Map::new()),
        CtlVerb::Stop => ("stop", Map::new()),
        CtlVerb::Persist(_) => return usage("persist: no recorder is asked for that"),
    };
    Ok(Request { verb, rest })
}

type Keys = Map<String, Value>;

fn of(group: &CtlGroup) -> Keys {
    group.group.iter().map(|name| ("group".to_owned(), name.as_str().into())).collect()
}

fn with(group: &CtlGroup, key: &str, value: Value) -> Keys {
    let mut rest = of(group);
    rest.insert(key.into(), value);
    rest
}

fn rules(verb: &CtlRules) -> Result<Keys> {
    let lines = |what: &str, lines: &CtlLines| -> Result<Keys> {
        let mut rest = with(&lines.group, "do", what.into());
        if let Some(file) = &lines.file {
            rest.insert("rules".into(), read(file)?.into());
        } else if !lines.rules.is_empty() {
            rest.insert("rules".into(), lines.rules.join("\n").into());
        } else if matches!(what, "add" | "remove") {
            return usage(format!("rules {what}: which? give a RULE, or --file FILE"));
        }
        Ok(rest)
    };
    let all = |what: &str, group: &CtlGroup| with(group, "do", what.into());
    Ok(match verb {
        CtlRules::Add(given) => lines("add", given)?,
        CtlRules::Remove(given) => lines("remove", given)?,
        CtlRules::Enable(given) => lines("enable", given)?,
        CtlRules::Disable(given) => lines("disable", given)?,
        CtlRules::Replace { file, group } => {
            let mut rest = all("replace", group);
            rest.insert("rules".into(), read(file)?.into());
            rest
        }
        CtlRules::List(group) => all("list", group),
        CtlRules::Hits(group) => all("hits", group),
        CtlRules::Reset(group) => all("reset", group),
    })
}

fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    standard_input::open(file)
        .and_then(|(mut input, _)| input.read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", standard_input::name(file)))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::request;
    use crate::flags::{Cli, Command};

    #[test]
    fn the_command_line_makes_requests() {
        for (line, expected) in [
            ("stats", json!({"verb": "stats"})),
            ("metrics --prometheus", json!({"verb": "stats"})),
            ("watch --json", json!({"verb": "watch"})),
            ("pause --group ids", json!({"verb": "pause", "group": "ids"})),
            ("snaplen 96", json!({"verb": "snaplen", "snaplen": 96})),
            ("filter tcp port 80", json!({"verb": "filter", "filter": "tcp port 80"})),
            ("filter --none", json!({"verb": "filter", "filter": null})),
            ("rules list", json!({"verb": "rules", "do": "list"})),
            ("rules enable", json!({"verb": "rules", "do": "enable"})),
            (
                "rules add a b --group x",
                json!({"verb": "rules", "do": "add", "rules": "a\nb", "group": "x"}),
            ),
            ("rotate --socket /x", json!({"verb": "rotate"})),
            ("reload", json!({"verb": "reload"})),
            ("stop --dir /x", json!({"verb": "stop"})),
        ] {
            let words = ["tapdeck", "ctl"].into_iter().chain(line.split(' '));
            let Command::Ctl(flags) = Cli::try_parse_from(words).unwrap().command else {
                panic!("{line}")
            };
            let made = serde_json::to_string(&request(&flags.verb).unwrap()).unwrap();
            assert!(made.starts_with(r#"{"verb":"#), "{made}");
            assert_eq!(serde_json::from_str::<Value>(&made).unwrap(), expected, "{line}");
            assert!(crate::control::Command::decode(made.as_bytes()).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "dance",
            "filter",
            "filter --none port 53",
            "snaplen -1",
            "snaplen",
            "stats --socket /x --dir /y",
            "metrics --prometheus --json",
            "rules",
            "rules add x --file y",
        ] {
            let words = ["tapdeck", "ctl"].into_iter().chain(line.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }
}
