//! How is it told what is wrong with a configuration file? On one line, which names the file's line
//! and, of a key that is none, the key that was probably meant.

use std::ops::Range;
use std::path::Path;

use crate::printable;

/// What serde says of a key that is none, in front of its name and behind it.
const UNKNOWN: [&str; 2] = ["unknown field `", "`, expected "];

/// Returns the text of a fault in a file, of which `at` is the place in the file's text.
pub fn fault(path: &Path, text: &str, at: Option<Range<usize>>, why: &str) -> String {
    let line = at.map(|at| format!(", line {}", line(text, &at)));
    let why = unknown(why).unwrap_or_else(|| why.lines().collect::<Vec<_>>().join(" "));
    format!("{}{}: {}", path.display(), line.unwrap_or_default(), printable::name(&why))
}

/// Returns the number of the line, counted from 1, in which a place in a text begins.
pub fn line(text: &str, at: &Range<usize>) -> usize {
    text.get(..at.start).unwrap_or(text).matches('\n').count() + 1
}

/// Says that a key is none, and which one was probably meant.
pub fn no_key<'a>(key: &str, keys: impl Iterator<Item = &'a str>) -> String {
    match nearest(key, keys) {
        Some(nearest) => format!("there is no key {key}; the nearest is {nearest}"),
        None => format!("there is no key {key}"),
    }
}

/// Returns the name that is most like a text.
pub fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let like = |name: &str| strsim::jaro_winkler(name, &text);
    names.max_by(|a, b| like(a).total_cmp(&like(b)))
}

/// Returns what serde says of a key that is none in the words of [`no_key`]; `None` where it says
/// something else.
fn unknown(why: &str) -> Option<String> {
    let (key, keys) = why.strip_prefix(UNKNOWN[0])?.split_once(UNKNOWN[1])?;
    // Every other part stands in backticks.
    Some(no_key(key, keys.split('`').skip(1).step_by(2)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{fault, unknown};

    #[test]
    fn a_key_that_is_none_is_told_with_the_nearest() {
        for (said, told) in [
            ("unknown field `snap-len`, expected one of `name`, `snaplen`, `hook`", "snaplen"),
            ("unknown field `Grup`, expected `serve` or `group`", "group"),
            ("unknown field `x`, expected `serve`", "serve"),
        ] {
            let told = format!("; the nearest is {told}");
            let said = unknown(said).unwrap();
            assert!(said.starts_with("there is no key ") && said.ends_with(&told), "{said}");
        }
        assert_eq!(unknown("missing field `name`"), None);
    }

    #[test]
    fn a_fault_is_one_line_with_its_place() {
        let text = "a = 1\nb = 2\n";
        let path = Path::new("x.toml");
        assert_eq!(
            fault(path, text, Some(6..7), "no\ngood\u{1b}"),
            "x.toml, line 2: no good\\u{1b}"
        );
        assert_eq!(fault(path, text, None, "empty"), "x.toml: empty");
    }
}
