//! Keys that sign bundles: Ed25519, as files that other programs read, too.
//!
//! A private key is PKCS#8 in PEM (RFC 8410), without the public one in it: OpenSSL refuses files
//! that hold both. A public key is a SubjectPublicKeyInfo in PEM. What stands in a manifest is the
//! key's fingerprint, the SHA-256 of that structure: which public key is the right one, whoever
//! checks must know from elsewhere.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{
    DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _, KeypairBytes,
};
use ed25519_dalek::{SIGNATURE_LENGTH, Signature, Signer as _, SigningKey, VerifyingKey};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// A file longer than this is no key.
const MOST: u64 = 16 << 10;

/// A key that signs.
pub struct PrivateKey(SigningKey);

/// A key that checks what was signed.
#[derive(Clone)]
pub struct PublicKey(VerifyingKey);

impl PrivateKey {
    /// Makes a key of the kernel's random numbers.
    ///
    /// # Errors
    /// What getrandom(2) says.
    pub fn generate() -> Result<Self, Error> {
        let mut secret = [0; 32];
        let mut have = 0;
        while have < secret.len() {
            let got = getrandom(&mut secret[have..], GetRandomFlags::empty());
            let of = Path::new("the kernel's random numbers");
            have += got.map_err(|e| Error::io("read", of)(e.into()))?;
        }
        Ok(Self(SigningKey::from_bytes(&secret)))
    }

    /// Returns the key as a file has it.
    ///
    /// # Panics
    /// Never: every such key has that form.
    pub fn pem(&self) -> String {
        let bytes = KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        let pem = bytes.to_pkcs8_pem(LineEnding::LF).expect("32 bytes have a form");
        pem.to_string()
    }

    /// Writes the key into a new file, which nobody but its owner may read.
    ///
    /// # Errors
    /// [`Error::Exists`], and what the file system says.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_new(path, 0o600, &self.pem())
    }

    /// Reads the key of a file.
    ///
    /// # Errors
    /// If the file is another one, or others may read it.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = read(path)?;
        let meta = fs::metadata(path).map_err(Error::io("read", path))?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(Error::OpenKey(path.to_owned()));
        }
        let found = text.and_then(|text| {
            use ed25519_dalek::pkcs8::DecodePrivateKey as _;
            KeypairBytes::from_pkcs8_pem(&text).ok()
        });
        let found = found.and_then(|bytes| SigningKey::try_from(&bytes).ok());
        found.map(Self).ok_or_else(|| Error::NoKey { path: path.to_owned(), kind: "private" })
    }

    /// Returns the key that checks what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; SIGNATURE_LENGTH] {
        self.0.sign(bytes).to_bytes()
    }
}

impl PublicKey {
    /// Returns the key as a file has it.
    ///
    /// # Panics
    /// Never: every such key has that form.
    pub fn pem(&self) -> String {
        self.0.to_public_key_pem(LineEnding::LF).expect("32 bytes have a form")
    }

    /// Writes the key into a new file.
    ///
    /// # Errors
    /// As [`PrivateKey::write`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_new(path, 0o644, &self.pem())
    }

    /// Reads the key of a file.
    ///
    /// # Errors
    /// If the file is another one.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let found = read(path)?.and_then(|text| VerifyingKey::from_public_key_pem(&text).ok());
        found.map(Self).ok_or_else(|| Error::NoKey { path: path.to_owned(), kind: "public" })
    }

    /// Returns the SHA-256 of the key as DER, in hexadecimal.
    ///
    /// # Panics
    /// Never: every such key has that form.
    pub fn fingerprint(&self) -> String {
        let der = self.0.to_public_key_der().expect("32 bytes have a form");
        hex(&Sha256::digest(der.as_bytes()))
    }

    /// Returns whether this key's private one has signed these bytes so. What RFC 8032 leaves open
    /// is refused.
    pub fn has_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify_strict(bytes, &signature).is_ok())
    }
}

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the text of a file; `None` where it is none, or too long for a key.
fn read(path: &Path) -> Result<Option<String>, Error> {
    let meta = fs::metadata(path).map_err(Error::io("read", path))?;
    if !meta.is_file() || meta.len() > MOST {
        return Ok(None);
    }
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    Ok(String::from_utf8(bytes).ok())
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(path);
    let mut file = opened.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Exists(path.to_owned()),
        _ => Error::io("write", path)(e),
    })?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(Error::io("write", path))
}
