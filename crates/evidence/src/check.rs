//! Is a bundle what its key's owner has signed? Nothing of it is believed before the signature is
//! found to be right: neither the names of files nor the words of the manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::bundle::{FORMAT, MANIFEST, Manifest, SIGNATURE};
use crate::error::Error;
use crate::key::{PublicKey, hex};

/// A manifest longer than this is none of ours.
const MOST: u64 = 64 << 20;

/// What was found of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The manifest, where it is what was signed.
    pub manifest: Option<Manifest>,
    /// What is not as it was signed: a sentence each. None in a bundle that is sound.
    pub faults: Vec<String>,
}

/// Checks a bundle against the public key of who should have signed it.
///
/// # Errors
/// If the bundle cannot be read at all; whatever is wrong with what can be read is a fault.
pub fn check(bundle: &Path, key: &PublicKey) -> Result<Checked, Error> {
    let mut there = BTreeMap::new();
    let mut faults = Vec::new();
    for entry in fs::read_dir(bundle).map_err(Error::io("read", bundle))? {
        let entry = entry.map_err(Error::io("read", bundle))?;
        let meta = entry.path().symlink_metadata().map_err(Error::io("read", &entry.path()))?;
        let Ok(name) = entry.file_name().into_string() else {
            let name = entry.file_name();
            faults.push(format!("{} is there and is not in the manifest", name.display()));
            continue;
        };
        there.insert(name, meta);
    }
    let mut take = |name: &str| match there.remove(name) {
        Some(meta) if meta.is_file() => Ok(meta.len()),
        Some(_) => Err(format!("{name} is no file")),
        None => Err(format!("{name} is missing")),
    };
    let lens = take(MANIFEST).and_then(|len| Ok((len, take(SIGNATURE)?)));
    let signed = match lens {
        Ok((manifest, signature)) if manifest <= MOST && signature <= MOST => {
            let read = |name| fs::read(bundle.join(name)).map_err(Error::io("read", bundle));
            signed(&read(MANIFEST)?, &read(SIGNATURE)?, key)
        }
        Ok(_) => Err(format!("{MANIFEST} is too long to be one")),
        Err(fault) => Err(fault),
    };
    let manifest = match signed {
        Ok(manifest) => manifest,
        Err(fault) => {
            faults.push(fault);
            return Ok(Checked { manifest: None, faults });
        }
    };
    for file in &manifest.files {
        let len = match take(&file.name) {
            Ok(len) => len,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        let path = bundle.join(&file.name);
        if len != file.bytes {
            let (name, was) = (&file.name, file.bytes);
            faults.push(format!("{name} has {len} bytes, and had {was} when it was signed"));
        } else if sum_of(&path).map_err(Error::io("read", &path))? != file.sha256 {
            faults.push(format!("{} is not what was signed: its SHA-256 differs", file.name));
        }
    }
    let extra = there.keys().map(|name| format!("{name} is there and is not in the manifest"));
    faults.extend(extra);
    Ok(Checked { manifest: Some(manifest), faults })
}

/// Returns a manifest that was signed so by the owner of a key, or what is wrong with it.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn signed(text: &[u8], signature: &[u8], key: &PublicKey) -> Result<Manifest, String> {
    if !key.has_signed(text, signature) {
        let key = key.fingerprint();
        return Err(format!(
            "{MANIFEST} and {SIGNATURE} do not go together under the key {key}: one of them was changed, or another key has signed"
        ));
    }
    read(text)
}

/// Reads a manifest, whoever signed it.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn read(text: &[u8]) -> Result<Manifest, String> {
    let manifest: Manifest =
        serde_json::from_slice(text).map_err(|e| format!("{MANIFEST} is none: {e}"))?;
    if manifest.format != FORMAT {
        return Err(format!(
            "{MANIFEST} is of the format {:?}, which this version does not know",
            manifest.format
        ));
    }
    let mut names: Vec<&str> = manifest.files.iter().map(|file| &*file.name).collect();
    names.sort_unstable();
    let is_plain = |name: &&str| {
        !matches!(*name, "" | "." | ".." | MANIFEST | SIGNATURE)
            && !name.contains(|c: char| c == '/' || c.is_control())
    };
    if !names.iter().all(is_plain) || names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("{MANIFEST} names files that no bundle has"));
    }
    Ok(manifest)
}

fn sum_of(path: &Path) -> io::Result<String> {
    let (mut file, mut sum) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0; 256 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&sum.finalize())),
            have => sum.update(&piece[..have]),
        }
    }
}
