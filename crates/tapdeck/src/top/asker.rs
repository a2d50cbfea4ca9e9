//! Who asks the recorder or daemon, again and again? A thread of its own: one that does not answer
//! holds nobody else up.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value};

use super::answer::Answer;
use super::board::Board;
use crate::control::{Connection, Request};

/// How long an answer may take: the screen says so then.
const PATIENCE: Duration = Duration::from_secs(5);

/// A recorder or daemon, asked from time to time.
pub struct Asker {
    socket: PathBuf,
    connection: Option<Connection>,
    before: Option<Value>,
    /// Whether somebody listened when it was last asked.
    listens: bool,
}

impl Asker {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, connection: None, before: None, listens: false }
    }

    /// Returns whether somebody listened when it was last asked.
    pub fn is_heard(&self) -> bool {
        self.listens
    }

    /// Asks once, and connects anew where the connection has ended.
    pub fn ask(&mut self) -> Result<Answer> {
        let known = self.connection.take();
        self.listens = known.is_some();
        let open = || Connection::open(&self.socket).and_then(|new| new.limited(PATIENCE));
        let mut connection = known.map_or_else(open, Ok)?;
        self.listens = true;
        let now = connection.ask(&Request { verb: "stats", rest: Map::new() })?;
        self.connection = Some(connection);
        let answer = Answer::new(&now, self.before.as_ref());
        self.before = Some(now);
        Ok(answer)
    }

    /// Asks, and puts up what is answered.
    pub fn ask_for(&mut self, board: &Board) {
        match self.ask() {
            Ok(answer) => board.answered(answer),
            Err(e) if self.listens || self.before.is_some() => board.silent(&format!("{e:#}")),
            // Nobody records there.
            Err(_) => {}
        }
    }

    /// Asks for ever. Rates need two answers, so the second comes soon.
    pub fn run(mut self, board: &Board, interval: Duration) {
        let mut wait = interval.min(Duration::from_secs(1));
        loop {
            std::thread::sleep(wait);
            self.ask_for(board);
            wait = interval;
        }
    }
}
