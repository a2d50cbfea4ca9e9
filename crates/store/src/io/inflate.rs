//! Reads what gzip, Zstandard or LZ4 compressed as if it were not compressed.
//!
//! A compressed file can be read forwards alone. [`Inflating`] makes an object of one all the same:
//! it goes on where it stands, keeps the last of what it read, and begins again where somebody asks
//! for what was before that. Whoever reads forwards, with a piece now and then again, reads the
//! file once. How long the object is nobody knows before its end ([`Object::is_measured`]), and
//! damage ends it ([`Object::fault`]).
//!
//! Memory: what each format needs (gzip 32 KiB, LZ4 some 8 MiB, Zstandard its window, of at most
//! 100 MiB) and [`WINDOW`], for each of the [`OPEN`] files that were read last.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Cursor, Error, ErrorKind, Read, Result};
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder as Lz4;
use ruzstd::decoding::StreamingDecoder;

use super::read::{Access, Object, State, Storage};

/// How much of what was read last can be read again.
const WINDOW: usize = 1 << 20;
/// How many files are open at a time; another begins again from its beginning.
const OPEN: usize = 16;
/// How much is read of a compressed file at once.
const BUFFER: usize = 256 << 10;
/// How much is decompressed at once.
const STEP: usize = 64 << 10;

/// A format of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Gzip,
    Zstandard,
    Lz4,
}

impl Compression {
    /// Returns how a file is compressed that begins so.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstandard),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            _ => None,
        }
    }

    fn decoder(self, input: Box<dyn BufRead + Send>) -> Box<dyn Read + Send> {
        match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(input)),
            Self::Zstandard => Box::new(Zstandard::Between(Some(input))),
            Self::Lz4 => Box::new(Lz4Frames(Lz4::new(input))),
        }
    }
}

/// Reads an input from its beginning, decompressed if it is compressed. Returns whether it is.
pub fn inflate(mut input: impl Read + Send + 'static) -> Result<(Box<dyn Read + Send>, bool)> {
    let mut head = Vec::new();
    input.by_ref().take(4).read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let input = Cursor::new(head).chain(input);
    Ok(match compression {
        None => (Box::new(input), false),
        Some(compression) => {
            let input = BufReader::with_capacity(BUFFER, input);
            (compression.decoder(Box::new(input)), true)
        }
    })
}

/// The frames of an LZ4 file, one behind the other.
struct Lz4Frames(Lz4<Box<dyn BufRead + Send>>);

impl Read for Lz4Frames {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let n = self.0.read(buffer)?;
            if n > 0 || buffer.is_empty() || self.0.get_mut().fill_buf()?.is_empty() {
                return Ok(n);
            }
        }
    }
}

/// The frames of a Zstandard file, one behind the other.
enum Zstandard {
    /// The place before a frame, or the end. The input is away only while a frame begins.
    Between(Option<Box<dyn BufRead + Send>>),
    In(Box<StreamingDecoder<Box<dyn BufRead + Send>, ruzstd::decoding::FrameDecoder>>),
}

impl Read for Zstandard {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self {
                Self::In(decoder) => {
                    let n = decoder.read(buffer)?;
                    if n > 0 || buffer.is_empty() {
                        return Ok(n);
                    }
                    let Self::In(decoder) = std::mem::replace(self, Self::Between(None)) else {
                        unreachable!("it was seen above");
                    };
                    *self = Self::Between(Some(decoder.into_inner()));
                }
                Self::Between(input) => {
                    let Some(mut input) = input.take() else { return Ok(0) };
                    if skip_frames(&mut *input)? {
                        *self = Self::Between(Some(input));
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(input);
                    *self = Self::In(Box::new(decoder.map_err(Error::other)?));
                }
            }
        }
    }
}

/// Passes over frames that hold nothing of the file (RFC 8878, section 3.1.2). Returns whether the
/// file has ended.
fn skip_frames(input: &mut dyn BufRead) -> Result<bool> {
    loop {
        let head = input.fill_buf()?;
        if head.is_empty() {
            return Ok(true);
        }
        if head.len() < 4 || head[0] & 0xf0 != 0x50 || head[1..4] != [0x2a, 0x4d, 0x18] {
            return Ok(false);
        }
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let len = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        if std::io::copy(&mut Read::take(&mut *input, len), &mut std::io::sink())? < len {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

/// An object as bytes from its beginning on.
struct Forwards {
    object: Arc<dyn Object>,
    at: u64,
}

impl Read for Forwards {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let n = self.object.read_at(buffer, self.at)?;
        self.object.forget(self.at..self.at + n as u64);
        self.at += n as u64;
        Ok(n)
    }
}

/// A place whose compressed objects read as if they were not.
#[derive(Debug)]
pub struct Inflating<S> {
    storage: S,
    /// Those that were read last, the last one behind.
    open: Mutex<Vec<(OsString, Arc<Inflated>)>>,
}

impl<S: Storage> Inflating<S> {
    pub fn new(storage: S) -> Self {
        Self { storage, open: Mutex::default() }
    }
}

impl<S: Storage> Storage for Inflating<S> {
    fn place(&self) -> &Path {
        self.storage.place()
    }

    fn list(&self) -> Result<Vec<OsString>> {
        self.storage.list()
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        let object = self.storage.open(name, access)?;
        let mut head = [0; 4];
        let have = object.read_up_to(&mut head, 0)?;
        let Some(compression) = Compression::of(&head[..have]) else { return Ok(object) };
        let id = object.state()?.id;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().position(|(known, _)| known == name);
        let known = known.map(|at| open.remove(at).1);
        let inflated = match known {
            Some(known) if known.object.state()?.id == id => known,
            _ => Arc::new(Inflated { object, compression, state: Mutex::default() }),
        };
        if open.len() >= OPEN {
            open.remove(0);
        }
        open.push((name.to_owned(), inflated.clone()));
        Ok(inflated)
    }

    fn state(&self, name: &OsStr) -> Result<State> {
        self.storage.state(name)
    }

    fn location(&self, name: &OsStr) -> PathBuf {
        self.storage.location(name)
    }
}

/// A compressed object that reads as what is in it. Its state is that of the compressed one.
struct Inflated {
    object: Arc<dyn Object>,
    compression: Compression,
    state: Mutex<Inflation>,
}

/// How far an object was decompressed.
#[derive(Default)]
struct Inflation {
    decoder: Option<Box<dyn Read + Send>>,
    /// The last of what was read.
    window: Vec<u8>,
    /// Where the window ends.
    end: u64,
    has_ended: bool,
    fault: Option<String>,
}

impl fmt::Debug for Inflated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, compression, .. } = self;
        f.debug_struct("Inflated")
            .field("object", object)
            .field("compression", compression)
            .finish()
    }
}

impl Inflation {
    /// Reads on. Returns false at the end.
    fn step(&mut self, object: &Arc<dyn Object>, compression: Compression) -> bool {
        if self.has_ended {
            return false;
        }
        let decoder = self.decoder.get_or_insert_with(|| {
            let input = Forwards { object: object.clone(), at: 0 };
            compression.decoder(Box::new(BufReader::with_capacity(BUFFER, input)))
        });
        if self.window.len() >= 2 * WINDOW {
            self.window.drain(..self.window.len() - WINDOW);
        }
        let len = self.window.len();
        self.window.resize(len + STEP, 0);
        let read = loop {
            match decoder.read(&mut self.window[len..]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let n = *read.as_ref().unwrap_or(&0);
        self.window.truncate(len + n);
        self.end += n as u64;
        self.fault = read.err().map(|e| e.to_string());
        self.has_ended = n == 0;
        n > 0
    }
}

impl Object for Inflated {
    fn state(&self) -> Result<State> {
        self.object.state()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if at < state.end - state.window.len() as u64 {
            *state = Inflation::default();
        }
        while state.end <= at {
            if !state.step(&self.object, self.compression) {
                return Ok(0);
            }
        }
        let begin = state.end - state.window.len() as u64;
        let have = &state.window[(at - begin) as usize..];
        let n = have.len().min(buffer.len());
        buffer[..n].copy_from_slice(&have[..n]);
        Ok(n)
    }

    fn is_measured(&self) -> bool {
        false
    }

    fn fault(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fault.clone()
    }
}
