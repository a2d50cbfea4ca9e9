//! The asking end of the control socket, as `tapdeck ctl` has it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use serde_json::{Map, Value};

use super::socket;

/// A request. The server takes a long one only if it begins with the verb of rules, so the verb
/// stands before all else.
#[derive(Serialize)]
pub struct Request {
    pub verb: &'static str,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A connection to a recorder or a daemon.
pub struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    pub fn open(path: &Path) -> Result<Self> {
        let stream = socket::connect(path).map_err(|e| {
            let shown = path.display();
            match e.kind() {
                ErrorKind::NotFound => anyhow!("nobody listens at {shown}: is tapdeck running, and is that its socket? (--socket PATH, --dir DIR of a recorder)"),
                ErrorKind::ConnectionRefused => anyhow!("nobody listens at {shown} any more: the tapdeck that did has died"),
                ErrorKind::PermissionDenied => anyhow!("no permission to connect to {shown}: ask for membership in its group, or be root"),
                _ => anyhow!(e).context(format!("cannot connect to {shown}")),
            }
        })?;
        Ok(Self { stream: BufReader::new(stream), path: path.to_owned() })
    }

    /// Has the other end answer within a time.
    pub fn limited(self, time: Duration) -> Result<Self> {
        let stream = self.stream.get_ref();
        stream
            .set_read_timeout(Some(time))
            .and_then(|()| stream.set_write_timeout(Some(time)))
            .with_context(|| format!("cannot ask at {}", self.path.display()))?;
        Ok(self)
    }

    /// Sends a request.
    pub fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request).context("cannot make the request")?;
        line.push(b'\n');
        let sent = self.stream.get_mut().write_all(&line);
        // A server that refuses a long request says why before it closes; the answer can be read.
        match sent {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.with_context(|| format!("cannot ask at {}", self.path.display())),
        }
    }

    /// Returns the next line from the other end; `None` where the connection has ended.
    pub fn next(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let what = || format!("cannot read the answer of {}", self.path.display());
        match read {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                Err(anyhow!("no answer from {}", self.path.display()))
            }
            Err(e) => Err(e).with_context(what),
            Ok(0) => Ok(None),
            Ok(_) => serde_json::from_str(&line).map(Some).with_context(what),
        }
    }

    /// Sends a request and returns the answer; an error where the request was refused.
    pub fn ask(&mut self, request: &Request) -> Result<Value> {
        self.send(request)?;
        let answer = self.next()?;
        let answer =
            answer.with_context(|| format!("{} ended without an answer", self.path.display()))?;
        match answer["ok"].as_bool() {
            Some(true) => Ok(answer),
            _ => Err(anyhow!("{}", answer["error"].as_str().unwrap_or("it was refused"))),
        }
    }
}
