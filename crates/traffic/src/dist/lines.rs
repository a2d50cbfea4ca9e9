//! Text input, line by line. Comments are taken off; the one that means something is kept:
//! `# length: frame`.

use std::io::{BufRead, Read};

use super::{Error, Fault, Length};

/// The most bytes of a line, so that a file which is no text takes no more memory.
const MAX_BYTES: u64 = 16 << 20;

pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The number of the last line that was read, from 1.
    number: u64,
    /// Whether a line that counts has been read.
    begun: bool,
    pub length: Option<Length>,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), number: 0, begun: false, length: None }
    }

    /// Returns the next line that holds more than a comment, without its comment and the space
    /// around.
    pub fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            self.buffer.clear();
            self.number += 1;
            let n = (&mut self.input).take(MAX_BYTES + 1).read_until(b'\n', &mut self.buffer)?;
            if n == 0 {
                return Ok(None);
            }
            let line = self.number;
            let text = str::from_utf8(&self.buffer).ok().filter(|text| !text.contains('\0'));
            let text = text.ok_or_else(|| Fault::NotText.at(line))?;
            if n as u64 > MAX_BYTES {
                return Err(Fault::LongLine.at(line));
            }
            let (content, comment) = text.split_once('#').unwrap_or((text, ""));
            let content = content.trim().to_owned();
            if let Some(name) = comment.trim().strip_prefix("length:") {
                self.length = Some(self.stated(name.trim()).map_err(|fault| fault.at(line))?);
            }
            if !content.is_empty() {
                self.begun = true;
                return Ok(Some(content));
            }
        }
    }

    /// Takes note of what sizes measure. Files that were put one behind another may say it again.
    fn stated(&self, name: &str) -> Result<Length, Fault> {
        let length = Length::from_name(name).ok_or_else(|| Fault::Length(Fault::shown(name)))?;
        match self.length {
            Some(before) if before != length && self.begun => Err(Fault::MixedLength(before)),
            _ => Ok(length),
        }
    }

    /// Hands `first` and every line after it to `take`.
    pub fn each(
        &mut self,
        first: String,
        mut take: impl FnMut(&str) -> Result<(), Fault>,
    ) -> Result<(), Error> {
        let mut line = Some(first);
        while let Some(text) = line {
            take(&text).map_err(|fault| fault.at(self.number))?;
            line = self.next()?;
        }
        Ok(())
    }

    /// Returns `first` and everything after it as one text, whose lines have their own numbers.
    pub fn into_text(mut self, first: &str) -> Result<String, Error> {
        let mut text = "\n".repeat(self.number as usize - 1);
        text.push_str(first);
        text.push('\n');
        let before = text.len();
        let mut rest = Vec::new();
        self.input.by_ref().take(MAX_BYTES + 1).read_to_end(&mut rest)?;
        if before as u64 + rest.len() as u64 > MAX_BYTES {
            return Err(Fault::LongFile.at(self.number));
        }
        text.push_str(str::from_utf8(&rest).map_err(|_| Fault::NotText.at(self.number + 1))?);
        Ok(text)
    }

    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Reads a whole number that is not negative.
pub(super) fn number(word: &str) -> Result<u64, Fault> {
    let shown = || Fault::shown(word);
    let digits = word.strip_prefix('-').unwrap_or(word);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Fault::NotANumber(shown()));
    }
    if digits.len() < word.len() {
        return Err(Fault::Negative(shown()));
    }
    word.parse().map_err(|_| Fault::LargeCount(shown()))
}

/// Reads a size in bytes, from 1 to 65,535.
pub(super) fn size(word: &str) -> Result<u16, Fault> {
    match number(word) {
        Ok(n @ 1..=0xffff) => Ok(n as u16),
        Ok(_) | Err(Fault::LargeCount(_)) => Err(Fault::Size(Fault::shown(word))),
        Err(fault) => Err(fault),
    }
}
