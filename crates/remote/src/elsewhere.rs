//! A store elsewhere as a [`Storage`].
//!
//! A round trip costs more than some thousand bytes, so more is read than is asked for, as much as
//! the way of reading makes likely to be needed; what is expected ([`Storage::expect`]) is asked
//! for all at once, with gaps between ranges read over that are not worth a question of their own.
//!
//! A closed segment and its index do not change: whatever comes of them later has to agree with
//! what came first. What is still written (`.live`) grows, and is read without memory of what it
//! was.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tapdeck_store::io::{Access, Object, State, Storage};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::extents::{At, Extents, MEMORY};
use crate::server::{Failed, LONGEST_OBJECT, Part, Server};

/// Requests that are under way at a time.
const REQUESTS: usize = 16;
/// The longest range of a request.
const LONGEST: u64 = 4 << 20;
/// What is read of an object when it is opened: how a segment begins, or the head of an index.
const HEAD: u64 = 64 << 10;
/// What is read at least where more of the object will be needed nearby.
const NEARBY: u64 = 128 << 10;
/// How often a range is asked for until it is given up, and how long is waited before the second
/// time; before the third it is three times as long.
const TIMES: u32 = 3;
const WAIT: Duration = Duration::from_millis(100);

/// A store elsewhere.
#[derive(Debug)]
pub struct Elsewhere {
    place: PathBuf,
    shared: Arc<Shared>,
    runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    server: Server,
    extents: Extents,
    requests: Semaphore,
    /// What is known of objects that do not change.
    known: Mutex<HashMap<Arc<str>, Known>>,
}

/// What a server said of an object first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    len: u64,
    tag: Option<String>,
}

impl Known {
    fn of(part: &Part) -> Self {
        Self { len: part.len, tag: part.tag.clone() }
    }

    fn state(&self) -> State {
        let mut hasher = DefaultHasher::new();
        self.tag.hash(&mut hasher);
        State { len: self.len, changed_ns: 0, id: (hasher.finish(), self.len), owner: None }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets a range, again where that may help.
    async fn get(&self, name: &str, range: &Range<u64>) -> Result<Part, Failed> {
        again(|| self.get_once(name, range)).await
    }

    async fn get_once(&self, name: &str, range: &Range<u64>) -> Result<Part, Failed> {
        let permit = self.requests.acquire().await;
        let _permit = permit.map_err(|e| Failed::new(ErrorKind::Other, e.to_string()))?;
        self.server.get(name, range.clone()).await
    }

    /// Gets a range of an object that does not change.
    async fn get_unchanged(&self, name: &Arc<str>, range: &Range<u64>) -> Result<Bytes, Failed> {
        let part = self.get(name, range).await?;
        let now = Known::of(&part);
        let mut known = self.known();
        let agrees = match known.get(name) {
            // Where a range has no bytes, a server tells the length, and may tell nothing else.
            Some(first) if part.bytes.is_empty() => first.len == now.len,
            Some(first) => *first == now,
            None => {
                if !part.bytes.is_empty() || now.len == 0 {
                    known.insert(name.clone(), now);
                }
                true
            }
        };
        if agrees { Ok(part.bytes) } else { Err(Failed::lie("it was changed while it was read")) }
    }
}

/// Asks, and asks again where that may help.
async fn again<T, F>(ask: impl Fn() -> F) -> Result<T, Failed>
where
    F: Future<Output = Result<T, Failed>>,
{
    let mut wait = WAIT;
    for _ in 1..TIMES {
        match ask().await {
            Err(failed) if failed.may_pass => {}
            outcome => return outcome,
        }
        tokio::time::sleep(wait).await;
        wait *= 3;
    }
    ask().await
}

impl Elsewhere {
    pub fn new(url: &str, server: Server) -> io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let shared = Shared {
            server,
            extents: Extents::default(),
            requests: Semaphore::new(REQUESTS),
            known: Mutex::default(),
        };
        Ok(Self { place: PathBuf::from(url), shared: Arc::new(shared), runtime })
    }

    /// Begins to get a range, in requests of some length.
    fn begin(&self, name: &Arc<str>, range: Range<u64>, is_ahead: bool) {
        begin(&self.shared, self.runtime.handle(), name, range, is_ahead);
    }
}

fn begin(
    shared: &Arc<Shared>,
    runtime: &tokio::runtime::Handle,
    name: &Arc<str>,
    range: Range<u64>,
    is_ahead: bool,
) {
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + LONGEST);
        for part in shared.extents.begin(name, at..end, is_ahead) {
            let (shared, name) = (shared.clone(), name.clone());
            runtime.spawn(async move {
                let get = {
                    let (shared, name, part) = (shared.clone(), name.clone(), part.clone());
                    async move { shared.get_unchanged(&name, &part).await }
                };
                // However this ends, somebody may wait for it.
                let outcome = tokio::spawn(get).await;
                let outcome =
                    outcome.unwrap_or_else(|e| Err(Failed::new(ErrorKind::Other, e.to_string())));
                shared.extents.end(&name, &part, outcome);
            });
        }
        at = end;
    }
}

/// Returns a name as servers have it.
fn text(name: &OsStr) -> io::Result<Arc<str>> {
    name.to_str().map(Arc::from).ok_or_else(|| ErrorKind::NotFound.into())
}

/// Whether an object is written while it has its name.
fn grows(name: &str) -> bool {
    name.rsplit('.').next() == Some("live")
}

impl Storage for Elsewhere {
    fn place(&self) -> &Path {
        &self.place
    }

    fn list(&self) -> io::Result<Vec<OsString>> {
        let listed = self.runtime.block_on(again(|| self.shared.server.list()));
        let listed = listed.map_err(|failed| failed.error())?;
        Ok(listed.into_iter().map(OsString::from).collect())
    }

    fn open(&self, name: &OsStr, access: Access) -> io::Result<Arc<dyn Object>> {
        let name = text(name)?;
        let (shared, runtime) = (self.shared.clone(), self.runtime.handle().clone());
        if grows(&name) {
            let part = self.runtime.block_on(shared.get(&name, &(0..HEAD)));
            let part = part.map_err(|failed| failed.error())?;
            let state = Known::of(&part).state();
            let window = Mutex::new((0, part.bytes));
            return Ok(Arc::new(Growing { name, state, shared, runtime, window }));
        }
        let known = loop {
            if let Some(known) = shared.known().get(&name).cloned() {
                break known;
            }
            self.begin(&name, 0..HEAD, false);
            // An object without a byte has no extent, but something is known of it then.
            shared.extents.at(&name, 0)?;
        };
        Ok(Arc::new(Closed { name, known, access, shared, runtime }))
    }

    fn expect(&self, name: &OsStr, parts: &[Range<u64>]) {
        let Ok(name) = text(name) else { return };
        if grows(&name) {
            return;
        }
        // Who says what will be read may have it from others, who may say anything.
        let end = self.shared.known().get(&name).map_or(LONGEST_OBJECT, |known| known.len);
        let mut room = MEMORY;
        for range in coalesced(parts, self.shared.server.gap()) {
            let range = range.start..range.end.min(end).min(range.start.saturating_add(room));
            room -= range.end.saturating_sub(range.start);
            self.begin(&name, range, true);
        }
    }
}

/// Returns ranges in ascending order, as one where the gap between two is not worth a question.
fn coalesced(parts: &[Range<u64>], gap: u64) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = parts.iter().filter(|p| !p.is_empty()).cloned().collect();
    parts.sort_unstable_by_key(|part| part.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for part in parts {
        match all.last_mut() {
            Some(last) if part.start <= last.end.saturating_add(gap) => {
                last.end = last.end.max(part.end);
            }
            _ => all.push(part),
        }
    }
    all
}

/// An object that does not change.
#[derive(Debug)]
struct Closed {
    name: Arc<str>,
    known: Known,
    access: Access,
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
}

impl Closed {
    /// Returns what is to be read where `want` bytes are asked for and nothing is there.
    fn window(&self, at: u64, want: u64) -> Range<u64> {
        let least = match self.access {
            Access::Once => 0,
            Access::Ranges | Access::Scattered => NEARBY,
            Access::Sequential => LONGEST,
        };
        at..self.known.len.min(at.saturating_add(want.max(least).min(LONGEST)))
    }
}

impl Object for Closed {
    fn state(&self) -> io::Result<State> {
        Ok(self.known.state())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let want = (buffer.len() as u64).min(self.known.len.saturating_sub(at));
        if want == 0 {
            return Ok(0);
        }
        loop {
            match self.shared.extents.at(&self.name, at)? {
                At::Here(bytes) => {
                    let len = bytes.len().min(want as usize);
                    buffer[..len].copy_from_slice(&bytes[..len]);
                    if self.access == Access::Once && len == bytes.len() {
                        self.shared.extents.forget(&self.name, at);
                    }
                    return Ok(len);
                }
                At::Nothing(upto) => {
                    let window = self.window(at, want);
                    let end = window.end.min(upto);
                    begin(&self.shared, &self.runtime, &self.name, window.start..end, false);
                    if self.access == Access::Sequential {
                        let ahead = end..self.known.len.min(end + LONGEST);
                        begin(&self.shared, &self.runtime, &self.name, ahead, true);
                    }
                }
            }
        }
    }
}

/// An object that is being written. What was read of it last is kept.
#[derive(Debug)]
struct Growing {
    name: Arc<str>,
    /// What the object was when it was opened.
    state: State,
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
    window: Mutex<(u64, Bytes)>,
}

impl Object for Growing {
    fn state(&self) -> io::Result<State> {
        Ok(self.state)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let want = (buffer.len() as u64).min(self.state.len.saturating_sub(at));
        if want == 0 {
            return Ok(0);
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, bytes) = &*window;
        if at < *start || at >= start + bytes.len() as u64 {
            let range = at..self.state.len.min(at + want.clamp(NEARBY, LONGEST));
            let part = self.runtime.block_on(self.shared.get(&self.name, &range));
            let part = part.map_err(|failed| failed.error())?;
            if part.len < self.state.len {
                return Err(Failed::lie("it became shorter while it was read").error());
            }
            *window = (at, part.bytes);
        }
        let (start, bytes) = &*window;
        let bytes = &bytes[(at - start) as usize..];
        let len = bytes.len().min(want as usize);
        buffer[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "these are lists of ranges")]
mod tests {
    use super::coalesced;

    #[test]
    fn gaps_are_read_over_that_are_not_worth_a_question() {
        let parts = [100..200, 0..10, 15..20, 150..160, 30..30];
        assert_eq!(coalesced(&parts, 0), [0..10, 15..20, 100..200]);
        assert_eq!(coalesced(&parts, 5), [0..20, 100..200]);
        assert_eq!(coalesced(&parts, 80), vec![0..200]);
    }
}
