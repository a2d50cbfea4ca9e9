//! Answers: the lines of JSON that go back to a client.

use std::os::fd::OwnedFd;

use serde::Serialize;

/// A line of JSON, and the file descriptors that go with it.
pub struct Answer {
    pub(super) line: Vec<u8>,
    /// File descriptors that go with the first byte of the line (SCM_RIGHTS).
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

/// The keys of an answer that says only that the command was done.
#[derive(Serialize)]
pub struct Nothing {}

impl Answer {
    /// Returns the answer to a command that was done. `rest` must become an object of JSON.
    pub fn ok(rest: impl Serialize) -> Self {
        Self::line(&Good { ok: true, rest })
    }

    pub fn done() -> Self {
        Self::ok(Nothing {})
    }

    /// Returns the answer to a command that was not done. `text` says what, why and what to do.
    pub fn error(text: &str) -> Self {
        // The answer is one line, whatever the text quotes.
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
