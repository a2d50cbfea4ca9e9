//! How is a text shown that somebody else wrote? Names of interfaces and files come with what is
//! read, from whoever made it, and a terminal obeys what stands in them: so what is no letter to it
//! is shown as its number.

use std::borrow::Cow;

/// Returns a name as one line that a terminal only shows: control characters, line ends among them,
/// and marks that turn the direction of writing become `\u{1b}` and the like.
pub fn name(text: &str) -> Cow<'_, str> {
    escaped(text, acts, |c| c.escape_unicode().to_string())
}

/// Returns a text of several lines that a terminal only shows: as [`name()`], but line ends and
/// tabulators stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    let acts = |c| acts(c) && !['\n', '\t'].contains(&c);
    escaped(text, acts, |c| c.escape_unicode().to_string())
}

/// Returns JSON that means the same, of which a terminal obeys nothing. JSON itself escapes only
/// what is below U+0020; the rest can stand in its strings alone.
pub fn json(text: &str) -> Cow<'_, str> {
    let acts = |c| acts(c) && c != '\n';
    escaped(text, acts, |c| format!("\\u{:04x}", u32::from(c)))
}

/// Returns a count as people read it: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Returns how many there are of something, as people read it: `1 packet`, `1,234 packets`.
pub fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Whether a terminal does something else with a character than to show it.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(
    text: &str,
    acts: impl Fn(char) -> bool,
    number: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            shown.push_str(&number(c));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::{json, lines, name};

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let hostile = "eth0\x1b]0;owned\x07\r\n\t\u{9b}2J\u{7f}\u{202e}";
        let shown = r"eth0\u{1b}]0;owned\u{7}\u{d}\u{a}\u{9}\u{9b}2J\u{7f}\u{202e}";
        assert_eq!(name(hostile), shown);
        let shown = "eth0\\u{1b}]0;owned\\u{7}\\u{d}\n\t\\u{9b}2J\\u{7f}\\u{202e}";
        assert_eq!(lines(hostile), shown);
        // As a serializer leaves it.
        assert_eq!(
            json("\"\\u001b\u{9b}\u{7f}\u{202e}ü\"\n"),
            "\"\\u001b\\u009b\\u007f\\u202eü\"\n"
        );
    }

    #[test]
    fn everything_else_stays() {
        for text in ["eth0.7", "Büro-Netz", "以太网", "\\u{1b}"] {
            assert_eq!((name(text), lines(text)), (text.into(), text.into()));
        }
    }
}
