//! What a daemon writes down for the next one: which groups and members there are.
//!
//! ```text
//! 0      header, as of a recorder's state: mark, layout, version, takeovers, last beat
//! 4096   the roster: a record of JSON
//! ...    the account of each port: records of the thread that looks after the hooks
//! ```
//!
//! The roster changes as a whole, by one store, before and after what it tells of is changed in the
//! kernel. So whenever a daemon dies, the next one finds a roster that names all that programs may
//! be working with.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::state::{ACCOUNT, DAEMON, HEAD, Record, State, Unreadable, record_bytes};
use crate::ring::Geometry;
use crate::sys::mapping::Mapping;
use crate::sys::pins;

/// The most ports of lasting groups.
pub(crate) const MOST_PORTS: usize = 64;
/// Words of the roster: 1024 members take a quarter of them.
const WORDS: usize = 64 << 10;

/// The groups and members of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    /// How the memory of each member is divided: rings, blocks, binary logarithm of a block's
    /// bytes, bytes kept of a frame.
    pub(crate) geometry: [u32; 4],
    /// Ports, groups and members by their numbers.
    pub(crate) ports: BTreeMap<u32, PortEntry>,
    pub(crate) groups: BTreeMap<u32, GroupEntry>,
    pub(crate) members: BTreeMap<u32, MemberEntry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortEntry {
    pub(crate) interface: String,
    pub(crate) hook: String,
    /// A hash of what the attached programs were told.
    pub(crate) told: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupEntry {
    pub(crate) name: String,
    pub(crate) hook: String,
    pub(crate) interfaces: Vec<String>,
    pub(crate) steering: String,
    /// Which of the counters are the group's at each interface.
    pub(crate) counts: Vec<u32>,
    /// What members that are gone got: packets, bytes, dropped for want of room, dropped otherwise.
    pub(crate) gone: [u64; 4],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberEntry {
    pub(crate) group: u32,
    pub(crate) weight: u32,
    /// The user whose process it is.
    pub(crate) user: u32,
    /// The word by which the member is known when it comes back.
    pub(crate) secret: String,
    /// Whether it has begun to leave.
    pub(crate) leaves: bool,
}

impl Roster {
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        let [nrings, nblocks, block_shift, snaplen] = self.geometry;
        let geometry = Geometry { nrings, nblocks, block_shift, snaplen };
        geometry.is_sound().then_some(geometry)
    }

    pub(crate) fn set_geometry(&mut self, geometry: Geometry) {
        let Geometry { nrings, nblocks, block_shift, snaplen } = geometry;
        self.geometry = [nrings, nblocks, block_shift, snaplen];
    }
}

/// A daemon's state in memory.
#[derive(Clone, Debug)]
pub(super) struct DaemonState {
    pub(super) head: State,
}

fn bytes() -> usize {
    HEAD + record_bytes(WORDS) + MOST_PORTS * record_bytes(ACCOUNT)
}

impl DaemonState {
    /// Makes a state at a path. It counts when [`DaemonState::finish`] was called.
    pub(super) fn make(path: &Path) -> io::Result<Self> {
        let map = pins::memory(bytes())?;
        let state = Self::of(Mapping::of_fd(map.as_fd(), bytes(), true)?);
        state.head.set_layout();
        pins::pin(map.as_fd(), path)?;
        Ok(state)
    }

    fn of(memory: Mapping) -> Self {
        Self { head: State { memory: Arc::new(memory) } }
    }

    /// Opens the state at a path.
    pub(super) fn open(path: &Path) -> Result<Self, Unreadable> {
        let map = pins::open(path)?;
        let head = State { memory: Arc::new(Mapping::of_fd(map.as_fd(), HEAD, false)?) };
        head.check_head(DAEMON)?;
        Ok(Self::of(Mapping::of_fd(map.as_fd(), bytes(), true)?))
    }

    /// Takes note that all is there, or that another daemon has taken it over.
    pub(super) fn finish(&self, takeovers: u64) {
        self.head.finish_as(DAEMON, takeovers);
    }

    fn record(&self) -> Record {
        Record { memory: self.head.memory.clone(), at: HEAD, words: WORDS }
    }

    /// Returns the roster; `None` where it makes no sense.
    pub(super) fn roster(&self) -> Option<Roster> {
        let words = self.record().read()?;
        let len = usize::try_from(*words.first()?).ok()?;
        let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        serde_json::from_slice(bytes.get(..len)?).ok()
    }

    /// Replaces the roster, at once. Returns false where it has no room.
    pub(super) fn set_roster(&self, roster: &Roster) -> bool {
        let Ok(text) = serde_json::to_vec(roster) else { return false };
        let fits = text.len() <= (WORDS - 1) * 8;
        if fits {
            let word = |part: &[u8]| {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                u64::from_ne_bytes(word)
            };
            self.record().write([text.len() as u64].into_iter().chain(text.chunks(8).map(word)));
        }
        fits
    }

    /// Returns the record of a port's account.
    pub(super) fn account(&self, port: u32) -> Record {
        let first = HEAD + record_bytes(WORDS);
        let at = first + (port as usize % MOST_PORTS) * record_bytes(ACCOUNT);
        Record { memory: self.head.memory.clone(), at, words: ACCOUNT }
    }
}

#[cfg(test)]
mod tests {
    use super::{DaemonState, GroupEntry, MemberEntry, Roster, bytes};
    use crate::persist::state::{DAEMON, State, Unreadable};
    use crate::sys::mapping::Mapping;

    fn state() -> DaemonState {
        let state = DaemonState::of(Mapping::anonymous(bytes()).expect("memory"));
        state.head.set_layout();
        state
    }

    #[test]
    fn a_roster_counts_as_a_whole_and_has_room_for_all_there_can_be() {
        let state = state();
        assert_eq!(state.roster(), None);
        let mut roster = Roster::default();
        for number in 0..256 {
            let entry = GroupEntry {
                name: "n".repeat(64),
                hook: "xdp-generic".into(),
                interfaces: vec!["fifteen-letters".into(); 2],
                steering: "round-robin".into(),
                counts: vec![1000, 1001],
                gone: [u64::MAX; 4],
            };
            roster.groups.insert(number, entry);
        }
        for number in 0..1024 {
            let secret = "f".repeat(32);
            let user = u32::MAX;
            let entry = MemberEntry { group: 255, weight: 100, user, secret, leaves: false };
            roster.members.insert(number, entry);
        }
        assert!(state.set_roster(&roster));
        assert_eq!(state.roster().as_ref(), Some(&roster));
        let mut more = roster.clone();
        more.members.entry(0).or_default().secret = "x".repeat(1 << 20);
        assert!(!state.set_roster(&more), "it has no room");
        assert_eq!(state.roster(), Some(roster));
        assert!(state.set_roster(&Roster::default()));
        assert_eq!(state.roster(), Some(Roster::default()));
        state.account(63).write([7]);
        assert_eq!(state.account(63).read().map(|words| words[0]), Some(7));
    }

    #[test]
    fn the_two_kinds_of_state_are_told_apart() {
        let state = state();
        assert!(matches!(state.head.check_head(DAEMON), Err(Unreadable::Unfinished)));
        state.finish(2);
        assert!(state.head.check_head(DAEMON).is_ok());
        let recorder = State { memory: state.head.memory.clone() };
        recorder.finish(0);
        assert!(matches!(state.head.check_head(DAEMON), Err(Unreadable::OtherKind)));
    }
}
