//! Reads what gzip, Zstandard or LZ4 compressed as if it were not compressed.
//!
//! A compressed file can be read forwards alone. [`Inflating`] makes an object of one all the same:
//! it goes on where it stands, keeps the last of what it read, and begins again where somebody asks
//! for what was before that. Whoever reads forwards, with a piece now and then again, reads the
//! file once. How long the object is nobody knows before its end ([`Object::is_measured`]), and
//! damage ends it ([`Object::fault`]).
//!
//! Memory: what each format needs (gzip 32 KiB, LZ4 some 12 MiB, Zstandard its window, of at most
//! 2^[`ZSTANDARD_WINDOW_LOG`] bytes) and twice [`WINDOW`], for each of the [`OPEN`] files that were
//! read last.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Cursor, Error, ErrorKind, Read, Result};
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder as Lz4;
use zstd::stream::read::Decoder as Zstandard;

use super::read::{Access, Object, State, Storage};

/// How much of what was read last can be read again.
const WINDOW: usize = 1 << 20;
/// How many files are open at a time; another begins again from its beginning.
const OPEN: usize = 16;
/// How much is read of a compressed file at once.
const BUFFER: usize = 256 << 10;
/// How much is decompressed at once.
const STEP: usize = 64 << 10;
/// The largest window that a Zstandard frame may ask for, as a power of two: 64 MiB. A frame may
/// declare any size, and none of its bytes need be there.
const ZSTANDARD_WINDOW_LOG: u32 = 26;

/// What is compressed.
type Input = Box<dyn BufRead + Send>;

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
            // What pzstd writes begins with a frame to be passed over (RFC 8878, section 3.1.2).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Some(Self::Zstandard)
            }
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            _ => None,
        }
    }

    fn decoder(self, input: Input) -> Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(input)),
            Self::Zstandard => {
                let mut decoder = Zstandard::with_buffer(input)?;
                decoder.window_log_max(ZSTANDARD_WINDOW_LOG)?;
                Box::new(decoder)
            }
            Self::Lz4 => Box::new(Lz4Frames::new(input)),
        })
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
            (compression.decoder(Box::new(input))?, true)
        }
    })
}

/// The frames of an LZ4 file, one behind the other.
struct Lz4Frames {
    decoder: Lz4<SeenToItsEnd>,
    /// Whether all frames that began have ended.
    is_between: bool,
}

/// An input that notes whether more was asked for than it has. To the decoder an input that ends
/// between two blocks of a frame is as good as the frame's end.
struct SeenToItsEnd {
    input: Input,
    has_ended: bool,
}

impl Read for SeenToItsEnd {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let n = self.input.read(buffer)?;
        self.has_ended |= n == 0 && !buffer.is_empty();
        Ok(n)
    }
}

impl Lz4Frames {
    fn new(input: Input) -> Self {
        let decoder = Lz4::new(SeenToItsEnd { input, has_ended: false });
        Self { decoder, is_between: true }
    }
}

impl Read for Lz4Frames {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            if self.is_between && self.decoder.get_mut().input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.is_between = false;
            let n = self.decoder.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            if self.decoder.get_ref().has_ended {
                return Err(Error::new(ErrorKind::UnexpectedEof, "a frame has no end"));
            }
            self.is_between = true;
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
        if self.window.len() >= 2 * WINDOW {
            self.window.drain(..self.window.len() - WINDOW);
        }
        let len = self.window.len();
        self.window.resize(len + STEP, 0);
        let read = self.read_on(object, compression, len);
        let n = *read.as_ref().unwrap_or(&0);
        self.window.truncate(len + n);
        self.end += n as u64;
        self.fault = read.err().map(|e| e.to_string());
        self.has_ended = n == 0;
        n > 0
    }

    /// Reads into the window, from a place in it on.
    fn read_on(
        &mut self,
        object: &Arc<dyn Object>,
        compression: Compression,
        at: usize,
    ) -> Result<usize> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => {
                let input = Forwards { object: object.clone(), at: 0 };
                let input = BufReader::with_capacity(BUFFER, input);
                none.insert(compression.decoder(Box::new(input))?)
            }
        };
        loop {
            match decoder.read(&mut self.window[at..]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
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
