//! Which flags does a configuration file stand for? Those that clap knows: a flag of `record` is a
//! key of its file by being a flag, with the same values and the same text of a fault.
//!
//! A file becomes words, which are placed before those of the command line; both are then read
//! together. Flags win: what the command line says is left out of the file.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::num::ParseIntError;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, ValueHint, value_parser};
use tapdeck_packet::config_fault::{fault, line, no_key};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::flags::Cli;
use crate::usage::{Usage, exit_code};

/// The command whose flags are keys.
const COMMAND: &str = "record";
/// The flag that names a file, and so is no key.
const FLAG: &str = "config";

/// A command line, with what its configuration file says.
#[derive(Debug)]
pub struct Words {
    /// The words of both, for clap.
    pub all: Vec<OsString>,
    /// The file, where one was named.
    pub file: Option<RecordFile>,
    /// Where the flags of the command begin.
    begin: usize,
}

impl Words {
    /// Reads the file that a command line names, if it names one.
    ///
    /// # Errors
    /// Where the file cannot be read, or says what no flag could say. Whether flags make sense
    /// together is clap's to say of the words.
    pub fn read(given: Vec<OsString>) -> Result<Self> {
        let Some(begin) = begin_of_record(&given) else {
            return Ok(Self { begin: given.len(), all: given, file: None });
        };
        let flags = Flags::of_record();
        let said = flags.said(&given[begin..]);
        let Some(path) = said.get_one::<OsString>(FLAG) else {
            return Ok(Self { all: given, file: None, begin });
        };
        let path = Path::new(path);
        let text = super::text::read(path)?;
        let (file, faults) = flags.file(path, &text);
        if let Some(fault) = faults.into_iter().next() {
            return Err(Usage(fault).into());
        }
        let is_said = |id: &str| said.value_source(id) == Some(ValueSource::CommandLine);
        // The same flag in another form wins as well.
        let kept = |key: &&Key| !(is_said(&key.id) || key.id == "filter" && is_said("expression"));
        let words = file.keys.iter().filter(kept).flat_map(|key| key.words.iter().cloned());
        let (before, rest) = given.split_at(begin);
        let all = before.iter().cloned().chain(words).chain(rest.iter().cloned()).collect();
        Ok(Self { all, file: Some(file), begin })
    }

    /// Returns the flags of a recorder that are given, with their values as they were written.
    pub fn settings(&self) -> Settings {
        let flags = Flags::of_record();
        let said = flags.said(self.all.get(self.begin..).unwrap_or_default());
        let given = flags.keys().filter_map(|(name, arg)| {
            let id = arg.get_id().as_str();
            said.value_source(id).filter(|source| *source == ValueSource::CommandLine)?;
            let values = if arg.get_action().takes_values() { said.get_raw(id) } else { None };
            let values = values.into_iter().flatten().map(OsStr::to_os_string).collect();
            Some((name.to_owned(), values))
        });
        given.collect()
    }
}

/// Returns where the flags of a recorder begin, if the command line is one's: behind the command,
/// which flags of the program may stand before.
fn begin_of_record(given: &[OsString]) -> Option<usize> {
    let cli = Cli::command();
    let args = cli.get_arguments().filter(|arg| !only_tells(arg));
    let args = args.map(|arg| alone(arg, value_parser!(OsString)));
    let program = Command::new(cli.get_name().to_owned()).args(args).disable_help_flag(true);
    let program = program.allow_external_subcommands(true).disable_help_subcommand(true);
    let said = program.ignore_errors(true).try_get_matches_from(given).ok()?;
    let (_, rest) = said.subcommand().filter(|(name, _)| *name == COMMAND)?;
    let rest = rest.get_many::<OsString>("").map_or(0, Iterator::count);
    given.len().checked_sub(rest)
}

/// What flags were given, by their names.
pub type Settings = BTreeMap<String, Vec<OsString>>;

/// What a configuration file says, each key checked for itself.
#[derive(Debug)]
pub struct RecordFile {
    pub path: PathBuf,
    keys: Vec<Key>,
}

/// A key of a file.
#[derive(Debug)]
struct Key {
    /// The name of the flag, and by which clap knows it.
    name: String,
    id: String,
    line: usize,
    /// What stands for the key on a command line.
    words: Vec<OsString>,
}

impl RecordFile {
    /// Returns all that is wrong with the keys of a file, one by one.
    pub fn faults(path: &Path, text: &str) -> Vec<String> {
        Flags::of_record().file(path, text).1
    }

    /// Returns a text that tells what is wrong with flags, with the file's name, and the line of
    /// the flag that is named first if it is the file's.
    pub fn explain(&self, why: &str) -> String {
        let named = |key: &&Key| {
            let flag = format!("--{}", key.name);
            let at = why.match_indices(&flag).find(|(at, _)| {
                let next = why[at + flag.len()..].chars().next();
                next.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '-')
            });
            at.map(|(at, _)| at)
        };
        let path = self.path.display();
        match self.keys.iter().filter(|key| named(key).is_some()).min_by_key(named) {
            Some(key) => format!("{path}, line {}: {why}", key.line),
            None => format!("{path}: {why}"),
        }
    }
}

/// The flags of a command, as clap has them.
struct Flags(Command);

impl Flags {
    fn of_record() -> Self {
        let mut cli = Cli::command();
        cli.build();
        let command = cli.find_subcommand(COMMAND).cloned();
        Self(command.unwrap_or_default())
    }

    /// Returns what a command line says, as far as it can be told: faults are told later.
    fn said(&self, words: &[OsString]) -> ArgMatches {
        let args = self.0.get_arguments().filter(|arg| !only_tells(arg));
        let args = args.map(|arg| alone(arg, value_parser!(OsString)));
        let command = Command::new(COMMAND).args(args).disable_help_flag(true);
        let command = command.no_binary_name(true).ignore_errors(true);
        command.get_matches_from(words)
    }

    /// Returns the flags that are keys, by their names.
    fn keys(&self) -> impl Iterator<Item = (&str, &Arg)> {
        let flags = self.0.get_arguments().filter(|arg| !only_tells(arg));
        flags.filter_map(|arg| Some((arg.get_long()?, arg))).filter(|(name, _)| *name != FLAG)
    }

    /// Reads a file's text. Returns what can be used of it, and what is wrong with the rest.
    fn file(&self, path: &Path, text: &str) -> (RecordFile, Vec<String>) {
        let mut file = RecordFile { path: path.to_owned(), keys: Vec::new() };
        let fault = |at: Option<Range<usize>>, why: &str| fault(path, text, at, why);
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(e) => return (file, vec![fault(e.span(), e.message())]),
        };
        let mut faults = Vec::new();
        for (key, value) in table.get_ref() {
            match self.key(path, key.get_ref(), value) {
                Ok(read) => file.keys.push(Key { line: line(text, &key.span()), ..read }),
                Err(why) => faults.push((key.span().start, fault(Some(key.span()), &why))),
            }
        }
        faults.sort();
        (file, faults.into_iter().map(|(_, fault)| fault).collect())
    }

    fn key(&self, path: &Path, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Key, String> {
        let Some((_, arg)) = self.keys().find(|(flag, _)| *flag == name) else {
            return Err(no_key(name, self.keys().map(|(name, _)| name)));
        };
        let wrong = |why: String| format!("{name}: {why}");
        let values = values(arg, value).map_err(wrong)?;
        let values = values.into_iter().map(|value| seen_from(path, arg, value));
        let words: Vec<OsString> = values.map(|value| word(name, value.as_deref())).collect();
        check(arg, &words).map_err(wrong)?;
        Ok(Key { name: name.to_owned(), id: arg.get_id().to_string(), line: 0, words })
    }
}

/// Whether a flag only has something told, as `--help` does.
fn only_tells(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
    )
}

/// Returns a flag without what it has to do with others, whose values are read as is said.
fn alone(arg: &Arg, values: ValueParser) -> Arg {
    let mut alone = Arg::new(arg.get_id().clone()).action(arg.get_action().clone());
    if let Some(name) = arg.get_long() {
        alone = alone.long(name.to_owned());
    }
    if let Some(name) = arg.get_short() {
        alone = alone.short(name);
    }
    if arg.get_action().takes_values() {
        alone = alone.value_parser(values);
        if let Some(number) = arg.get_num_args() {
            alone = alone.num_args(number);
        }
        if let Some(delimiter) = arg.get_value_delimiter() {
            alone = alone.value_delimiter(delimiter);
        }
    }
    alone
}

/// Returns the values that stand for a key on a command line; `None` is a flag without a value.
fn values(arg: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<Option<String>>, String> {
    let is_switch = !arg.get_action().takes_values();
    let takes_many = matches!(arg.get_action(), ArgAction::Append);
    let one = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(Some(text.to_string())),
        DeValue::Integer(n) if n.radix() == 10 => Ok(Some(n.as_str().to_owned())),
        other => Err(format!(
            "takes a text or a number{}, and this is {}",
            if takes_many { ", or several in [ ]" } else { "" },
            match other {
                DeValue::Array(_) => "an array",
                DeValue::Boolean(_) => "true or false",
                DeValue::Datetime(_) => "a date without quotation marks",
                DeValue::Float(_) => "a fraction",
                DeValue::Table(_) => "a table",
                DeValue::Integer(_) | DeValue::String(_) => "a number to another base than ten",
            },
        )),
    };
    match value.get_ref() {
        DeValue::Boolean(is_on) if is_switch => Ok(if *is_on { vec![None] } else { Vec::new() }),
        _ if is_switch => Err("is true or false, without quotation marks".into()),
        DeValue::Array(all) if takes_many => all.iter().map(|value| one(value.get_ref())).collect(),
        value => one(value).map(|value| vec![value]),
    }
}

/// Returns a value as it is on the command line. The name of a file in a file is seen from there,
/// so that it means the same wherever the program is started.
fn seen_from(file: &Path, arg: &Arg, value: Option<String>) -> Option<OsString> {
    let is_name = arg.get_value_hint() == ValueHint::AnyPath;
    let value = value?;
    if is_name && value != "-" && !value.is_empty() {
        let beside = file.parent().unwrap_or(Path::new(""));
        return Some(beside.join(value).into());
    }
    Some(value.into())
}

fn word(name: &str, value: Option<&OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}"));
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

/// Has clap read a flag by itself, as it reads it on a command line.
fn read_alone(arg: &Arg, words: &[OsString]) -> Result<(), clap::Error> {
    let command = Command::new(COMMAND).arg(alone(arg, arg.get_value_parser().clone()));
    let read = command.no_binary_name(true).disable_help_flag(true).try_get_matches_from(words);
    read.map(drop)
}

/// Says what is wrong with a flag's value, if anything is.
fn check(arg: &Arg, words: &[OsString]) -> Result<(), String> {
    read_alone(arg, words).map_err(|e| {
        let (value, invalid) = match e.get(ContextKind::InvalidValue) {
            Some(ContextValue::String(value)) => (format!("{value} "), format!("{value:?} ")),
            _ => (String::new(), String::new()),
        };
        if let Some(why) = std::error::Error::source(&e) {
            if why.is::<ParseIntError>() {
                return format!("{invalid}is no whole number{}", range(arg).unwrap_or_default());
            }
            let why = why.to_string();
            return format!("{invalid}{}", why.strip_prefix(&value).unwrap_or(&why));
        }
        match e.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(all)) if !all.is_empty() => {
                format!("{invalid}is none of {}", all.join(", "))
            }
            _ => one_line(&e),
        }
    })
}

/// Returns the range of the numbers that a flag takes, as clap tells it of one that is outside.
fn range(arg: &Arg) -> Option<String> {
    let outside = ["0".to_owned(), u64::MAX.to_string()];
    outside.iter().find_map(|number| {
        let wrong = read_alone(arg, &[word(arg.get_long()?, Some(number.as_ref()))]).err()?;
        let why = std::error::Error::source(&wrong)?.to_string();
        Some(format!(" in {}", why.split_once(" is not in ")?.1))
    })
}

/// Returns what clap says is wrong, on one line.
pub fn one_line(e: &clap::Error) -> String {
    let text = e.to_string();
    let said = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let said: Vec<&str> = said.map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = said.join(" ");
    said.strip_prefix("error: ").unwrap_or(&said).to_owned()
}

/// Returns an error of flags, some of which came from a file.
pub fn explain(file: Option<&RecordFile>, e: anyhow::Error) -> anyhow::Error {
    match file {
        Some(file) if exit_code(&e) == 2 => Usage(file.explain(&format!("{e:#}"))).into(),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::{Flags, RecordFile, Words};

    /// Returns the words that a file and a command line become.
    fn words(text: &str, given: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eth0.toml");
        std::fs::write(&path, text).unwrap();
        let given = "tapdeck --log lines record".split(' ').chain(given.split_whitespace());
        let given = given.chain(["--config"]).map(OsString::from).chain([path.clone().into()]);
        let words = Words::read(given.collect()).unwrap();
        let file = words.file.expect("a file was named");
        assert_eq!(file.path, path);
        let dir = dir.path().display().to_string();
        let shown = words.all.iter().map(|word| word.to_str().unwrap().replace(&dir, "DIR"));
        shown.take_while(|word| word != "--config").skip(4).collect()
    }

    #[test]
    fn a_file_stands_before_the_command_line_which_wins() {
        let text = "interface = [\"eth0\", \"eth1\"]\nsnaplen = 96\nkeep-time = \"7d\"\n\
                    no-index = true\nno-promiscuous = false\ndir = \"/var/tape\"\n\
                    rules = \"ids.rules\"\nstats-json = \"-\"\n";
        let mut all = words(text, "");
        all.sort();
        assert_eq!(
            all,
            [
                "--dir=/var/tape",
                "--interface=eth0",
                "--interface=eth1",
                "--keep-time=7d",
                "--no-index",
                "--rules=DIR/ids.rules",
                "--snaplen=96",
                "--stats-json=-",
            ]
        );
        let wins = "-i eth7 --snaplen=60 -p --no-index";
        assert_eq!(
            words("interface = \"eth0\"\nsnaplen = 96\nno-index = true\npersist = \"x\"", wins),
            ["--persist=x", "-i", "eth7", "--snaplen=60", "-p", "--no-index"]
        );
        let form = |given| words("filter = \"tcp\"", given);
        assert_eq!(form(""), ["--filter=tcp"]);
        assert_eq!(form("udp port 53"), ["udp", "port", "53"]);
        assert_eq!(form("--filter udp"), ["--filter", "udp"]);
        assert_eq!(words("", ""), [""; 0]);
    }

    #[test]
    fn other_commands_and_lines_without_a_file_stay_as_they_are() {
        for line in ["tapdeck", "tapdeck serve --config /nowhere", "tapdeck record -i eth0 -w -"] {
            let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let words = Words::read(given.clone()).unwrap();
            assert_eq!(words.all, given);
            assert!(words.file.is_none(), "{line}");
        }
    }

    #[test]
    fn every_flag_is_a_key_by_being_a_flag() {
        let flags = Flags::of_record();
        let keys: Vec<&str> = flags.keys().map(|(name, _)| name).collect();
        for key in ["interface", "dir", "write", "keep-bytes", "persist", "no-device-bound"] {
            assert!(keys.contains(&key), "{key}: {keys:?}");
        }
        for key in ["config", "help", "version"] {
            assert!(!keys.contains(&key), "{key}: {keys:?}");
        }
        for (name, arg) in flags.keys() {
            let is_switch = !arg.get_action().takes_values();
            let value = if is_switch { "true" } else { "\"\"" };
            let (file, faults) = flags.file(Path::new("x.toml"), &format!("{name} = {value}"));
            // A value may be none that this flag takes.
            assert!(faults.iter().all(|fault| !fault.contains("there is no key")), "{faults:?}");
            assert!(!is_switch || file.keys.len() == 1, "{name}: {faults:?}");
        }
    }

    #[test]
    fn faults_are_told_with_line_and_key() {
        for (text, line, part) in [
            ("snap-len = 96", 1, "there is no key snap-len; the nearest is snaplen"),
            ("\nkeep_bytes = \"1GiB\"", 2, "there is no key keep_bytes; the nearest is keep-bytes"),
            ("Interfaces = \"eth0\"", 1, "the nearest is interface"),
            ("config = \"x\"", 1, "there is no key config"),
            ("# a\n# b\nsnaplen = 0", 3, "snaplen: \"0\" is not in 1..=262144"),
            ("count = -1", 1, "count: \"-1\" is no whole number in 1.."),
            ("snaplen = -1", 1, "snaplen: \"-1\" is not in 1..=262144"),
            ("index-cpu = -1", 1, "index-cpu: \"-1\" is not in 0..=4294967295"),
            ("keep-time = \"soon\"", 1, "keep-time: \"soon\" is no time"),
            ("ring-bytes = \"lots\"", 1, "ring-bytes: \"lots\" is no size"),
            ("hook = \"pcap\"", 1, "hook: \"pcap\" is none of auto, xdp"),
            ("deliver = \"maybe\"", 1, "deliver: \"maybe\" is none of pass, consume"),
            ("snaplen = true", 1, "snaplen: takes a text or a number, and this is true or false"),
            ("snaplen = 0x60", 1, "this is a number to another base than ten"),
            ("min-free = 5.5", 1, "this is a fraction"),
            ("dir = [\"/a\", \"/b\"]", 1, "this is an array"),
            ("no-index = \"yes\"", 1, "no-index: is true or false, without"),
            ("interface = [1, [2]]", 1, "this is an array"),
            ("[snaplen]\na = 1", 1, "this is a table"),
            ("snaplen = ", 1, ""),
            ("dir = \"/a\"\ndir = \"/b\"", 2, "duplicate"),
        ] {
            let faults = RecordFile::faults(Path::new("x.toml"), text);
            let [fault] = &faults[..] else { panic!("{text}: {faults:?}") };
            assert!(fault.starts_with(&format!("x.toml, line {line}: ")), "{text}: {fault}");
            assert!(fault.contains(part) && !fault.contains('\n'), "{text}: {fault}");
        }
        let faults = RecordFile::faults(Path::new("x.toml"), "b = 1\nsnaplen = 7\na = 2");
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("line 1") && faults[1].contains("line 3"), "{faults:?}");
    }

    #[test]
    fn what_makes_no_sense_together_is_told_with_the_line_of_the_first_flag() {
        let flags = Flags::of_record();
        let text = "dir = \"/a\"\nkeep-bytes = \"1GiB\"\nkeep-time = \"1d\"";
        let (file, faults) = flags.file(Path::new("x.toml"), text);
        assert!(faults.is_empty());
        for (why, told) in [
            ("--keep-bytes must be more", "x.toml, line 2: --keep-bytes must be more"),
            ("the --keep-time and --dir", "x.toml, line 3: the --keep-time and --dir"),
            ("--dir-x and --keep", "x.toml: --dir-x and --keep"),
        ] {
            assert_eq!(file.explain(why), told);
        }
    }
}
