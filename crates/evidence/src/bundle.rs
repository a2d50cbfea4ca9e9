//! Makes bundles: a directory with packets, a manifest, and the manifest's signature.
//!
//! The manifest names each file with its length and SHA-256; the signature is over the bytes of the
//! manifest as they stand. So whoever trusts the key trusts all of the bundle, and needs nothing
//! for it but a program for each of the two.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tapdeck_store::io::Storage;
use tapdeck_store::recorded::recorded;

use crate::account::Account;
use crate::copy::{APPLICATION, Copied, Most, Question, copy};
use crate::error::Error;
use crate::key::{PrivateKey, hex};
use crate::pin::{Pin, State};
use crate::pins::PinStore;
use crate::time::Time;

/// What the first field of a manifest says.
pub const FORMAT: &str = "tapdeck evidence 1";
pub const MANIFEST: &str = "manifest.json";
pub const SIGNATURE: &str = "manifest.sig";
/// The file of packets of a bundle that was made of a store.
pub const PACKETS: &str = "packets.pcapng";

/// What a bundle is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// The program that made the bundle, and its version.
    pub made_by: String,
    pub made: Time,
    /// The name of the machine on which the bundle was made.
    pub machine: String,
    /// Where the store lay.
    pub store: String,
    /// Why a pin was made, where the packets are a pin's.
    pub reason: Option<String>,
    pub question: Question,
    pub packets: u64,
    /// Times of the first and the last packet.
    pub first: Option<Time>,
    pub last: Option<Time>,
    pub account: Account,
    pub clock: Clock,
    /// The interfaces of the recording.
    pub interfaces: Vec<Interface>,
    /// All files of the bundle but the manifest and its signature.
    pub files: Vec<FileEntry>,
    /// The fingerprint of the key that signed.
    pub key: String,
}

/// An interface, as the recording describes it: also by which clock its packets were stamped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    pub name: String,
    pub description: String,
}

/// How far the times of packets are to be believed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Whether something kept the clock at UTC in all of the span, as recorders were told by the
    /// kernel; `None` where nothing tells.
    pub kept_at_utc: Option<bool>,
    /// When the clock was stepped.
    pub steps: Vec<Time>,
}

impl Clock {
    /// Tells of the clock in a span, as the lines of recorders do.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn of(storage: &dyn Storage, question: &Question, steps: Vec<Time>) -> Result<Self, Error> {
        let span = question.span();
        let lives = recorded(storage).map_err(Error::io("list", storage.place()))?;
        let lives = lives
            .iter()
            .filter(|life| life.first_ns < span.before_ns && life.last_ns >= span.after_ns);
        let kept = lives.map(|life| life.clock_is_kept);
        let kept_at_utc = kept.reduce(|a, b| Some(a? && b?)).flatten();
        Ok(Self { kept_at_utc, steps })
    }

    /// Takes in what is known of the time behind.
    pub fn append(&mut self, next: Self) {
        self.kept_at_utc = self.kept_at_utc.zip(next.kept_at_utc).map(|(a, b)| a && b);
        self.steps.extend(next.steps);
        self.steps.sort_unstable();
        self.steps.dedup();
    }
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// A bundle while it is made, under another name; it is removed again unless it is finished.
pub struct Bundle {
    path: PathBuf,
    draft: PathBuf,
}

impl Bundle {
    /// Begins a bundle at a path where nothing is yet.
    ///
    /// # Errors
    /// [`Error::Exists`], and what the file system says.
    pub fn begin(path: &Path) -> Result<Self, Error> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists(path.to_owned()));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let draft = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        DirBuilder::new().mode(0o750).create(&draft).map_err(Error::io("make", &draft))?;
        Ok(Self { path: path.to_owned(), draft })
    }

    /// Adds what a store has for a question. Returns a manifest that lacks reason and key.
    ///
    /// # Errors
    /// As [`copy`] says.
    pub fn add_packets(
        &self,
        storage: &Arc<dyn Storage>,
        question: &Question,
        mut watch: impl FnMut() -> bool,
    ) -> Result<Manifest, Error> {
        let mut account = Account::of(storage, question.span(), &mut watch)?;
        let path = self.draft.join(PACKETS);
        let mut file = create(&path)?;
        let copied = copy(storage, question, (&mut file, &path), Most::ALL, watch)?;
        let Copied { packets, bytes, sha256, times, interfaces, clock_steps, faults } = copied;
        for fault in faults {
            account.add_fault(fault);
        }
        let interfaces = interfaces.into_iter();
        Ok(Manifest {
            question: question.clone(),
            packets,
            first: times.map(|times| times.0),
            last: times.map(|times| times.1),
            account,
            clock: Clock::of(&**storage, question, clock_steps)?,
            interfaces: interfaces
                .map(|(name, description)| Interface { name, description })
                .collect(),
            files: vec![FileEntry { name: PACKETS.to_owned(), bytes, sha256 }],
            ..Manifest::empty(storage.place())
        })
    }

    /// Adds a pin's packets, as far as they are copied. Returns a manifest that lacks the key.
    ///
    /// # Errors
    /// [`Error::Changed`] where a file is not what was copied; and what the file system says.
    pub fn add_pin(&self, pins: &PinStore, pin: &Pin) -> Result<Manifest, Error> {
        let mut files = Vec::with_capacity(pin.files.len());
        for file in &pin.files {
            let from = pins.packets_of(pin.number).join(&file.name);
            let copied = self.add_file(&from, &file.name)?;
            if copied != *file {
                return Err(Error::Changed(from));
            }
            files.push(copied);
        }
        let before = if pin.state == State::Open { pin.reached } else { pin.before };
        let (after, before) = (Some(pin.after), Some(before));
        Ok(Manifest {
            reason: Some(pin.reason.clone()),
            question: Question { after, before, ..pin.question.clone() },
            packets: pin.packets,
            first: pin.first,
            last: pin.last,
            account: pin.account.clone(),
            clock: pin.clock.clone(),
            interfaces: pin.interfaces.clone(),
            files,
            ..Manifest::empty(&pin.store)
        })
    }

    /// Adds a copy of a file, under a name. Returns its entry.
    ///
    /// # Errors
    /// What the file system says.
    pub fn add_file(&self, from: &Path, name: &str) -> Result<FileEntry, Error> {
        let path = self.draft.join(name);
        let (mut to, mut sum, mut bytes) = (create(&path)?, Sha256::new(), 0);
        let mut from_file = File::open(from).map_err(Error::io("read", from))?;
        let mut piece = vec![0; 256 << 10];
        loop {
            let have = from_file.read(&mut piece).map_err(Error::io("read", from))?;
            if have == 0 {
                break;
            }
            sum.update(&piece[..have]);
            to.write_all(&piece[..have]).map_err(Error::io("write", &path))?;
            bytes += have as u64;
        }
        to.sync_all().map_err(Error::io("write", &path))?;
        Ok(FileEntry { name: name.to_owned(), bytes, sha256: hex(&sum.finalize()) })
    }

    /// Signs the manifest, and gives the bundle its name.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(self, mut manifest: Manifest, key: &PrivateKey) -> Result<Manifest, Error> {
        manifest.key = key.public().fingerprint();
        let mut text = serde_json::to_string_pretty(&manifest)
            .map_err(|e| Error::io("write", &self.draft.join(MANIFEST))(e.into()))?;
        text.push('\n');
        for (name, bytes) in [(MANIFEST, text.as_bytes()), (SIGNATURE, &key.sign(text.as_bytes()))]
        {
            let path = self.draft.join(name);
            let written = create(&path)?.write_all(bytes);
            written.map_err(Error::io("write", &path))?;
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(Error::io("write", &path))?;
        }
        if self.path.symlink_metadata().is_ok() {
            return Err(Error::Exists(self.path.clone()));
        }
        fs::rename(&self.draft, &self.path).map_err(Error::io("write", &self.path))?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // Where that cannot be done, the bundle lasts as long as the machine runs.
        let _ = File::open(parent.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all());
        Ok(manifest)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        // After it got its name there is nothing of it.
        let _ = fs::remove_dir_all(&self.draft);
    }
}

impl Manifest {
    /// Returns the manifest of a bundle without anything.
    pub fn empty(store: &Path) -> Self {
        Self {
            format: FORMAT.to_owned(),
            made_by: APPLICATION.to_owned(),
            made: Time::now(),
            machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            store: store.display().to_string(),
            reason: None,
            question: Question::default(),
            packets: 0,
            first: None,
            last: None,
            account: Account::default(),
            clock: Clock::default(),
            interfaces: Vec::new(),
            files: Vec::new(),
            key: String::new(),
        }
    }
}

fn create(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o640).open(path);
    opened.map_err(Error::io("write", path))
}
