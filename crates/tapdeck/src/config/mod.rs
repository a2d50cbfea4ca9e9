//! Configuration files: what does one of them mean, and what is wrong with it?
//!
//! [`file`] says what a file of `record` stands for; that of `serve` is read where the daemon is
//! (`serve::config`). `tapdeck config check` has both read as they are when the program begins, and
//! tells what would be done.

pub mod again;
mod days;
pub mod file;
mod record;
mod serve;
pub mod text;

use std::fmt::{self, Write as _};
use std::io::{Write as _, stdout};
use std::path::Path;

use anyhow::Result;
use toml::de::{DeTable, DeValue};

use crate::flags::{self, ConfigVerb};
use crate::progress_line::say;

/// Columns in front of what is said of a file.
const LABEL: usize = 10;

/// Does what the verb says.
pub fn run(flags: &flags::Config) -> Result<()> {
    let ConfigVerb::Check { files } = &flags.verb;
    let mut wrong = 0;
    for path in files {
        match check(path) {
            Ok(page) => write!(stdout(), "{}: usable\n{page}", path.display())?,
            Err(faults) => {
                wrong += 1;
                for fault in faults {
                    say(&fault);
                }
            }
        }
    }
    stdout().flush()?;
    anyhow::ensure!(wrong == 0, "{wrong} of {} files cannot be used, as said above", files.len());
    Ok(())
}

/// Whose configuration a file is, by what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Recorders,
    Daemons,
    Gateways,
}

impl Whose {
    /// The files of a daemon and of a gateway have tables, a recorder's has none. Of text that is
    /// no TOML the file's name tells.
    fn of(path: &Path, text: &str) -> Self {
        let is_table = |value: &DeValue<'_>| value.is_table() || value.is_array();
        let parsed = DeTable::parse(text);
        let has = |tables: &[&str], name: &str| match &parsed {
            Ok(all) => tables
                .iter()
                .any(|key| all.get_ref().get(*key).is_some_and(|value| is_table(value.get_ref()))),
            Err(_) => path.file_name().is_some_and(|file| file == name),
        };
        if has(&["serve", "group"], "serve.toml") {
            Self::Daemons
        } else if has(&["listen", "store", "daemon", "role", "user"], "gateway.toml") {
            Self::Gateways
        } else {
            Self::Recorders
        }
    }
}

/// Returns what a file would do, or all that is wrong with it.
fn check(path: &Path) -> Result<Page, Vec<String>> {
    let one = |e: anyhow::Error| vec![format!("{e:#}")];
    let text = text::read(path).map_err(one)?;
    match Whose::of(path, &text) {
        Whose::Recorders => record::check(path, &text),
        Whose::Daemons => serve::check(path, &text).map_err(one),
        Whose::Gateways => Err(vec![format!(
            "{0}: this configures tapdeck-gateway, which says what it would do: \
             tapdeck-gateway check {0}",
            path.display()
        )]),
    }
}

/// What a file would do, for people.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: impl fmt::Display) {
        // Writing into a string does not fail.
        let _ = writeln!(self.0, "  {label:<LABEL$}{text}");
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Whose;

    #[test]
    fn a_file_is_told_by_what_is_in_it() {
        for (name, text, whose) in [
            ("eth0.toml", "interface = \"eth0\"", Whose::Recorders),
            ("serve.toml", "interface = \"eth0\"", Whose::Recorders),
            ("a.toml", "group = \"ids\"\ndir = \"/x\"", Whose::Recorders),
            ("a.toml", "", Whose::Recorders),
            ("a.toml", "[serve]", Whose::Daemons),
            ("a.toml", "[[group]]\nname = \"ids\"", Whose::Daemons),
            ("a.toml", "[[group]\n", Whose::Recorders),
            ("serve.toml", "[[group]\n", Whose::Daemons),
            ("a.toml", "[[listen]]\naddress = \"[::1]:9670\"", Whose::Gateways),
            ("a.toml", "[[store]]", Whose::Gateways),
            ("gateway.toml", "[[store]\n", Whose::Gateways),
        ] {
            assert_eq!(Whose::of(Path::new(name), text), whose, "{name}: {text}");
        }
    }
}
