//! The part of a source that is in memory, and how it moves on.

use std::io::{self, ErrorKind, Read};

use super::error::Error;

/// Bytes that are asked of the source at once, and the size of the window as long as nothing larger
/// has to fit in it.
const PIECE: usize = 256 << 10;

pub(super) struct Window<R> {
    source: R,
    /// The bytes `start..end` of it were read and not yet passed.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the source of the byte at `start`.
    at: u64,
    /// Offset in the source of the end of what was last taken.
    taken: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; PIECE], start: 0, end: 0, at: 0, taken: 0 }
    }

    /// Returns the bytes in the window.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Offset in the source of the end of what was last taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Reads until there are `n` bytes in the window or the source ends. Returns whether there are
    /// so many.
    pub(super) fn fill(&mut self, n: usize) -> Result<bool, Error> {
        if self.end - self.start < n {
            self.read(n).map_err(Error::Io)?;
        }
        Ok(self.end - self.start >= n)
    }

    /// Reads until there are `n` bytes, and more where the source has them at once. The buffer
    /// grows with what is really read, not with what a length claims. Bytes beyond `n` are not
    /// waited for, so that packets from a live pipe come at once.
    #[cold]
    fn read(&mut self, n: usize) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < n {
            if self.end == self.buffer.len() {
                self.buffer.resize((2 * self.end).min(n), 0);
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(got) => self.end += got,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes the next `n` bytes, which are in the window.
    pub(super) fn take(&mut self, n: usize) -> &[u8] {
        let start = self.start;
        self.pass(n);
        self.taken = self.at;
        &self.buffer[start..self.start]
    }

    /// Passes `n` bytes without keeping them; they count as taken with what is taken next. Returns
    /// whether the source had so many.
    pub(super) fn skip(&mut self, n: usize) -> Result<bool, Error> {
        let mut left = n;
        loop {
            let step = left.min(self.end - self.start);
            self.pass(step);
            left -= step;
            if left == 0 || !self.fill(1)? {
                return Ok(left == 0);
            }
        }
    }

    fn pass(&mut self, n: usize) {
        self.start += n;
        self.at += n as u64;
    }

    /// Returns the error where the source has ended before the `needed` bytes behind
    /// [`Window::taken`].
    pub(super) fn short(&self, needed: usize) -> Error {
        let have = self.at - self.taken + (self.end - self.start) as u64;
        Error::CutShort { at: self.taken, needed: needed as u64, have }
    }
}
