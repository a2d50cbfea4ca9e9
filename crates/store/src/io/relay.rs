//! A place that another process reads for this one. What reads packets and what speaks with a
//! network are processes of their own; between them goes what [`Storage`] asks and what it is
//! answered, over a pair of sockets.
//!
//! One end is [`serve`], which has a storage and answers; the other is [`Relayed`], which is a
//! storage and asks. Several threads may ask at a time, and answers come in any order. A message is
//! its length, the number of the question, what it is, and its contents:
//!
//! | question | contents | answer |
//! | --- | --- | --- |
//! | list | | names, each with its length |
//! | open | access, name | handle, length, time, id |
//! | read | handle, offset, length | bytes: fewer, or none, only at the object's end |
//! | close | handle | none |
//! | expect | name, ranges | none |
//!
//! Numbers are little-endian. Instead of any answer there may be an error: its kind and its text.
//! The end that serves begins with an answer to question 0, which says whether it can serve at all.
//! Neither end takes more memory for what the other says than [`LONGEST`].

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufReader, Error, ErrorKind, Read, Result, Write};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::read::{Access, Object, State, Storage};

/// The longest message, in bytes.
const LONGEST: usize = 64 << 20;
/// Bytes that are read at a time, at most.
const MOST: usize = 8 << 20;
/// Questions that are answered at a time: most of them wait for a network.
const THREADS: usize = 16;
const STACK: usize = 256 << 10;
/// How often is looked, while an answer is waited for, whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);
/// Objects that are open at a time, at most.
const OPEN: usize = 65_536;

const LIST: u8 = 0;
const OPEN_OBJECT: u8 = 1;
const READ: u8 = 2;
const CLOSE: u8 = 3;
const EXPECT: u8 = 4;

const ANSWER: u8 = 0;
const FAILED: u8 = 1;

/// The kinds of errors that mean something to whoever reads a storage.
const KINDS: [ErrorKind; 8] = [
    ErrorKind::Other,
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::NotADirectory,
    ErrorKind::TimedOut,
    ErrorKind::InvalidData,
    ErrorKind::UnexpectedEof,
    ErrorKind::InvalidInput,
];

/// A message without its length.
struct Message {
    number: u32,
    what: u8,
    contents: Vec<u8>,
}

impl Message {
    /// Reads a message; `None` where the other end has closed.
    fn read(from: &mut impl Read) -> Result<Option<Self>> {
        let mut head = [0; 9];
        match from.read_exact(&mut head) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [len, number] = [0, 4].map(|at| u32_at(&head, at));
        let len = usize::try_from(len).ok().filter(|len| *len <= LONGEST);
        let mut contents = vec![0; len.ok_or_else(unfit)?];
        from.read_exact(&mut contents)?;
        Ok(Some(Self { number, what: head[8], contents }))
    }

    fn write(&self, to: &mut impl Write) -> Result<()> {
        let len = u32::try_from(self.contents.len()).map_err(|_| unfit())?;
        let mut head = [0; 9];
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..8].copy_from_slice(&self.number.to_le_bytes());
        head[8] = self.what;
        to.write_all(&head)?;
        to.write_all(&self.contents)
    }
}

fn unfit() -> Error {
    Error::new(ErrorKind::InvalidData, "the program that reads for this one makes no sense")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Takes numbers off the contents of a message.
struct Contents<'a>(&'a [u8]);

impl<'a> Contents<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(unfit)?;
        self.0 = rest;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32_at(self.take(4)?, 0))
    }

    fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.first_chunk().ok_or_else(unfit)?;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn name(&mut self) -> Result<&'a OsStr> {
        let len = self.u32()? as usize;
        Ok(OsStr::from_bytes(self.take(len)?))
    }
}

fn put_name(out: &mut Vec<u8>, name: &OsStr) {
    out.extend((name.len() as u32).to_le_bytes());
    out.extend(name.as_bytes());
}

fn put_error(e: &Error) -> Vec<u8> {
    let kind = KINDS.iter().position(|kind| *kind == e.kind()).unwrap_or(0);
    let mut out = vec![kind as u8];
    out.extend(e.to_string().bytes().take(4096));
    out
}

fn take_error(contents: &[u8]) -> Error {
    let (kind, text) = contents.split_first().unwrap_or((&0, &[]));
    let kind = KINDS.get(usize::from(*kind)).copied().unwrap_or(ErrorKind::Other);
    Error::new(kind, String::from_utf8_lossy(text).into_owned())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers what the other end asks of a storage, or says why nothing can be asked. Returns when the
/// other end has closed.
///
/// # Errors
/// Where the other end cannot be heard or answered.
pub fn serve(storage: Result<Arc<dyn Storage>>, stream: UnixStream) -> Result<()> {
    let writer = Mutex::new(stream.try_clone()?);
    let hello = match &storage {
        Ok(_) => Message { number: 0, what: ANSWER, contents: Vec::new() },
        Err(e) => Message { number: 0, what: FAILED, contents: put_error(e) },
    };
    hello.write(&mut *lock(&writer))?;
    let Ok(storage) = storage else { return Ok(()) };
    let server = Server { storage, writer, open: Mutex::default(), next: AtomicU32::new(1) };
    let (sender, receiver) = sync_channel(THREADS);
    let receiver = Mutex::new(receiver);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let builder = thread::Builder::new().name("tapdeck-relay".into()).stack_size(STACK);
            builder.spawn_scoped(scope, || server.answer_all(&receiver))?;
        }
        let outcome = hear(stream, &sender);
        drop(sender);
        outcome
    })
}

/// Hands on questions as they come.
fn hear(stream: UnixStream, to: &SyncSender<Message>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(question) = Message::read(&mut stream)? {
        if to.send(question).is_err() {
            break;
        }
    }
    Ok(())
}

struct Server {
    storage: Arc<dyn Storage>,
    writer: Mutex<UnixStream>,
    open: Mutex<HashMap<u32, Arc<dyn Object>>>,
    /// The handle of the next object.
    next: AtomicU32,
}

impl Server {
    fn answer_all(&self, questions: &Mutex<Receiver<Message>>) {
        loop {
            let question = lock(questions).recv();
            let Ok(question) = question else { return };
            let number = question.number;
            let answer = match self.answer(&question) {
                Ok(None) => continue,
                Ok(Some(contents)) => Message { number, what: ANSWER, contents },
                Err(e) => Message { number, what: FAILED, contents: put_error(&e) },
            };
            // Where nobody hears any more, the questions end, too.
            let _ = answer.write(&mut *lock(&self.writer));
        }
    }

    /// Returns the contents of an answer; `None` where none is wanted.
    fn answer(&self, question: &Message) -> Result<Option<Vec<u8>>> {
        let mut contents = Contents(&question.contents);
        match question.what {
            LIST => {
                let mut out = Vec::new();
                self.storage.list()?.iter().for_each(|name| put_name(&mut out, name));
                Ok(Some(out))
            }
            OPEN_OBJECT => {
                let access = access_of(contents.u32()?)?;
                self.open(contents.name()?, access).map(Some)
            }
            READ => {
                let (handle, at, len) = (contents.u32()?, contents.u64()?, contents.u32()?);
                let object = lock(&self.open).get(&handle).cloned();
                let object = object.ok_or_else(unfit)?;
                let mut buffer = vec![0; (len as usize).min(MOST)];
                let have = object.read_up_to(&mut buffer, at)?;
                buffer.truncate(have);
                Ok(Some(buffer))
            }
            CLOSE => {
                lock(&self.open).remove(&contents.u32()?);
                Ok(None)
            }
            EXPECT => {
                let name = contents.name()?;
                let mut parts = Vec::new();
                while !contents.0.is_empty() {
                    parts.push(contents.u64()?..contents.u64()?);
                }
                self.storage.expect(name, &parts);
                Ok(None)
            }
            _ => Err(unfit()),
        }
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Vec<u8>> {
        let object = self.storage.open(name, access)?;
        let State { len, changed_ns, id, .. } = object.state()?;
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&self.open);
        if open.len() >= OPEN {
            return Err(Error::other("too many objects are open"));
        }
        open.insert(handle, object);
        let mut out = handle.to_le_bytes().to_vec();
        for number in [len, changed_ns as u64, id.0, id.1] {
            out.extend(number.to_le_bytes());
        }
        Ok(out)
    }
}

/// The accesses, by the numbers that messages have for them.
const ACCESSES: [Access; 4] = [Access::Ranges, Access::Sequential, Access::Scattered, Access::Once];

fn access_of(number: u32) -> Result<Access> {
    ACCESSES.get(number as usize).copied().ok_or_else(unfit)
}

/// A place that another process reads.
#[derive(Clone, Debug)]
pub struct Relayed {
    place: PathBuf,
    asker: Arc<Asker>,
}

impl Relayed {
    /// Begins to ask at one end of a pair of sockets, at whose other end is [`serve`]. `place` is
    /// what messages call the whole. When `stop` is set, nothing is waited for any longer.
    ///
    /// # Errors
    /// What the other end says that keeps it from serving; `ConnectionAborted` where it has closed
    /// without a word.
    pub fn begin(place: PathBuf, stream: UnixStream, stop: Arc<AtomicBool>) -> Result<Self> {
        let writer = stream.try_clone()?;
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let asker = Asker { writer: Mutex::new(writer), waiting: waiting.clone(), stop };
        // What the other end says first is the answer to a question that nobody has to ask.
        let hello = lock(&waiting).expect(0);
        let builder = thread::Builder::new().name("tapdeck-relayed".into()).stack_size(STACK);
        builder.spawn(move || hand_out(BufReader::new(stream), &waiting))?;
        asker.wait(&hello)?;
        Ok(Self { place, asker: Arc::new(asker) })
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::ConnectionAborted, "the program that reads for this one ended early")
}

/// Hands answers to those that wait for them, until the other end closes.
fn hand_out(mut stream: impl Read, waiting: &Mutex<Waiting>) {
    while let Ok(Some(answer)) = Message::read(&mut stream) {
        let waits = lock(waiting).answers.remove(&answer.number);
        // Whoever asked may have gone.
        let _ = waits.map(|waits| waits.send(answer));
    }
    let mut waiting = lock(waiting);
    waiting.is_over = true;
    waiting.answers.clear();
}

#[derive(Debug)]
struct Asker {
    writer: Mutex<UnixStream>,
    waiting: Arc<Mutex<Waiting>>,
    /// Whether nothing is waited for any longer.
    stop: Arc<AtomicBool>,
}

/// Those who wait for answers.
#[derive(Debug, Default)]
struct Waiting {
    /// The number of the last question.
    last: u32,
    answers: HashMap<u32, SyncSender<Message>>,
    /// Whether no answer will come.
    is_over: bool,
}

impl Waiting {
    /// Returns where the answer to a question comes.
    fn expect(&mut self, number: u32) -> Receiver<Message> {
        let (sender, receiver) = sync_channel(1);
        self.answers.insert(number, sender);
        receiver
    }
}

impl Asker {
    /// Asks, and waits for the answer.
    fn ask(&self, what: u8, contents: Vec<u8>) -> Result<Vec<u8>> {
        let (number, receiver) = {
            let mut waiting = lock(&self.waiting);
            if waiting.is_over {
                return Err(gone());
            }
            let number = waiting.last.wrapping_add(1).max(1);
            waiting.last = number;
            (number, waiting.expect(number))
        };
        let question = Message { number, what, contents };
        question.write(&mut *lock(&self.writer)).map_err(|_| gone())?;
        self.wait(&receiver)
    }

    /// Waits for an answer, as long as it is wanted.
    fn wait(&self, answer: &Receiver<Message>) -> Result<Vec<u8>> {
        let answer = loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => {
                    return Err(Error::other("stopped by a signal"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        match answer.what {
            ANSWER => Ok(answer.contents),
            _ => Err(take_error(&answer.contents)),
        }
    }

    /// Says something that is not answered.
    fn tell(&self, what: u8, contents: Vec<u8>) {
        // Where nobody hears it, the next question fails.
        let _ = Message { number: 0, what, contents }.write(&mut *lock(&self.writer));
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // It ends the other end, and the thread that hears it.
        let _ = lock(&self.writer).shutdown(std::net::Shutdown::Both);
    }
}

impl Storage for Relayed {
    fn place(&self) -> &Path {
        &self.place
    }

    fn list(&self) -> Result<Vec<OsString>> {
        let answer = self.asker.ask(LIST, Vec::new())?;
        let (mut contents, mut names) = (Contents(&answer), Vec::new());
        while !contents.0.is_empty() {
            names.push(OsString::from_vec(contents.name()?.as_bytes().to_vec()));
        }
        Ok(names)
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        let number = ACCESSES.iter().position(|other| *other == access).unwrap_or(0);
        let mut question = (number as u32).to_le_bytes().to_vec();
        put_name(&mut question, name);
        let answer = self.asker.ask(OPEN_OBJECT, question)?;
        let mut contents = Contents(&answer);
        let handle = contents.u32()?;
        let (len, changed_ns) = (contents.u64()?, contents.u64()? as i64);
        let state = State { len, changed_ns, id: (contents.u64()?, contents.u64()?), owner: None };
        Ok(Arc::new(RelayedObject { handle, state, asker: self.asker.clone() }))
    }

    fn expect(&self, name: &OsStr, parts: &[Range<u64>]) {
        let mut contents = Vec::new();
        put_name(&mut contents, name);
        for part in parts {
            contents.extend(part.start.to_le_bytes());
            contents.extend(part.end.to_le_bytes());
        }
        self.asker.tell(EXPECT, contents);
    }
}

#[derive(Debug)]
struct RelayedObject {
    handle: u32,
    /// What the object was when it was opened.
    state: State,
    asker: Arc<Asker>,
}

impl Object for RelayedObject {
    fn state(&self) -> Result<State> {
        Ok(self.state)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let want = buffer.len().min(MOST);
        if want == 0 {
            return Ok(0);
        }
        let mut question = self.handle.to_le_bytes().to_vec();
        question.extend(at.to_le_bytes());
        question.extend((want as u32).to_le_bytes());
        let answer = self.asker.ask(READ, question)?;
        let to = buffer.get_mut(..answer.len()).ok_or_else(unfit)?;
        to.copy_from_slice(&answer);
        Ok(answer.len())
    }
}

impl Drop for RelayedObject {
    fn drop(&mut self) {
        self.asker.tell(CLOSE, self.handle.to_le_bytes().to_vec());
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{MOST, Relayed, serve};
    use crate::io::{Access, Directory, Storage};

    fn relayed(dir: &std::path::Path) -> Relayed {
        let (here, there) = UnixStream::pair().unwrap();
        let storage = Directory::new(dir);
        thread::spawn(move || serve(Ok(Arc::new(storage)), there).unwrap());
        Relayed::begin(PathBuf::from("elsewhere"), here, Arc::default()).unwrap()
    }

    #[test]
    fn what_is_relayed_is_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..MOST + 12_345).map(|i| (i / 7) as u8).collect();
        std::fs::write(dir.path().join("a"), &bytes).unwrap();
        std::fs::write(dir.path().join("b"), b"").unwrap();
        let storage = relayed(dir.path());
        let mut names = storage.list().unwrap();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(storage.location("a".as_ref()), PathBuf::from("elsewhere/a"));
        let object = storage.open("a".as_ref(), Access::Once).unwrap();
        assert_eq!(object.length().unwrap(), bytes.len() as u64);
        let read = |at: usize, len: usize| {
            let mut buffer = vec![0; len];
            let have = object.read_up_to(&mut buffer, at as u64).unwrap();
            let there = &bytes[at.min(bytes.len())..(at + len).min(bytes.len())];
            assert!(buffer[..have] == *there, "{len} at {at}");
        };
        for (at, len) in [(0, 16), (1, bytes.len()), (bytes.len() - 3, 9), (bytes.len() + 5, 9)] {
            read(at, len);
        }
        // Answers to several that ask at a time come to those that asked.
        thread::scope(|scope| {
            for n in 0..8 {
                let read = &read;
                scope.spawn(move || (0..100).for_each(|i| read(1000 * n + 7 * i, 100 * n + i)));
            }
        });
        let empty = storage.open("b".as_ref(), Access::Ranges).unwrap();
        assert_eq!(empty.read_at(&mut [0; 9], 0).unwrap(), 0);
    }

    #[test]
    fn errors_keep_their_kind_and_their_words() {
        let dir = tempfile::tempdir().unwrap();
        let storage = relayed(dir.path());
        let missing = storage.open("d".as_ref(), Access::Once).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let elsewhere = relayed(&dir.path().join("nowhere"));
        assert_eq!(elsewhere.list().unwrap_err().kind(), ErrorKind::NotFound);
        let (here, there) = UnixStream::pair().unwrap();
        let why = || std::io::Error::new(ErrorKind::PermissionDenied, "no key");
        thread::spawn(move || serve(Err(why()), there));
        let refused = Relayed::begin(PathBuf::new(), here, Arc::default()).unwrap_err();
        assert_eq!((refused.kind(), refused.to_string()), (why().kind(), "no key".into()));
    }

    #[test]
    fn an_end_that_goes_ends_what_waits() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || {
            use std::io::{Read, Write};
            there.write_all(&[0; 9]).unwrap();
            // It hears a question, and goes without an answer.
            there.read_exact(&mut [0; 9]).unwrap();
        });
        let storage = Relayed::begin(PathBuf::new(), here, Arc::default()).unwrap();
        assert_eq!(storage.list().unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(storage.list().unwrap_err().kind(), ErrorKind::ConnectionAborted);
        other.join().unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        let nobody = Relayed::begin(PathBuf::new(), here, Arc::default()).unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::ConnectionAborted);
    }

    #[test]
    fn more_than_was_asked_for_is_not_believed() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || {
            use std::io::{Read, Write};
            there.write_all(&[0; 9]).unwrap();
            let mut question = [0; 9 + 4 + 4 + 1];
            there.read_exact(&mut question).unwrap();
            let mut answer = 36_u32.to_le_bytes().to_vec();
            answer.extend(&question[4..8]);
            answer.extend([0; 37]);
            there.write_all(&answer).unwrap();
            let mut question = [0; 9 + 16];
            there.read_exact(&mut question).unwrap();
            let mut answer = 5_u32.to_le_bytes().to_vec();
            answer.extend(&question[4..8]);
            answer.extend([0; 6]);
            there.write_all(&answer).unwrap();
            let _ = there.read(&mut [0; 99]);
        });
        let storage = Relayed::begin(PathBuf::new(), here, Arc::default()).unwrap();
        let object = storage.open("a".as_ref(), Access::Ranges).unwrap();
        let outcome = object.read_at(&mut [0; 4], 0);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidData);
        drop((object, storage));
        other.join().unwrap();
    }

    #[test]
    fn an_end_that_says_nothing_is_not_waited_for_when_nobody_wants_it() {
        let (here, there) = UnixStream::pair().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let begins = thread::spawn({
            let stop = stop.clone();
            move || Relayed::begin(PathBuf::new(), here, stop).unwrap_err()
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(begins.join().unwrap().to_string(), "stopped by a signal");
        drop(there);
    }
}
