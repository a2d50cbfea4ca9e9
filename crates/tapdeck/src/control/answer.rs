//! One line back to a client.

use std::os::fd::OwnedFd;

use serde::Serialize;

/// A line of JSON, and what goes with it.
pub struct Answer {
    pub(super) line: Vec<u8>,
    /// Go with the first byte of the line (SCM_RIGHTS).
    pub(super) fds: Vec<OwnedFd>,
}

#[derive(Serialize)]
struct Good<T> {
    ok: bool,
    #[serde(flatten)]
    rest: T,
}

#[derive(Serialize)]
struct Bad<'a> {
    ok: bool,
    error: &'a str,
}

/// An answer that has nothing to tell.
#[derive(Serialize)]
pub struct Nothing {}

impl Answer {
    /// What was asked is done. `rest` is an object.
    pub fn ok(rest: impl Serialize) -> Self {
        Self::line(&Good { ok: true, rest })
    }

    pub fn done() -> Self {
        Self::ok(Nothing {})
    }

    /// What was asked is not done: what, why, what to do.
    pub fn error(text: &str) -> Self {
        // One line whatever it quotes.
        Self::line(&Bad { ok: false, error: &text.replace(['\n', '\r'], " ") })
    }

    pub fn with(mut self, fds: Vec<OwnedFd>) -> Self {
        self.fds = fds;
        self
    }

    /// Returns the answer as it goes over the socket, without the line's end.
    #[cfg(test)]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.line).expect("JSON is UTF-8").trim_end()
    }

    fn line(answer: &impl Serialize) -> Self {
        let mut line = serde_json::to_vec(answer)
            .unwrap_or_else(|_| br#"{"ok":false,"error":"the answer cannot be told"}"#.to_vec());
        line.push(b'\n');
        Self { line, fds: Vec::new() }
    }
}

impl From<Result<Answer, String>> for Answer {
    fn from(result: Result<Answer, String>) -> Self {
        result.unwrap_or_else(|text| Answer::error(&text))
    }
}
