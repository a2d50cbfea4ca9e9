//! Who asks, and what may they have?
//!
//! A user is known by the common name of a certificate, by a token, or by the listener that they
//! connect to. Each has a role, and a role has ceilings, which hold for every question.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::rand_core::{OsRng, RngCore as _};
use argon2::password_hash::{PasswordHash, PasswordHasher as _, PasswordVerifier as _, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use serde::Deserialize;
use tokio::sync::Semaphore;

/// What a role may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Ask for packets, and what stores hold.
    Reader,
    /// And keep packets from retention: make pins, and remove them.
    Pinner,
    /// Ask as a reader, and ask from elsewhere how recorders do: metrics and health.
    Operator,
}

/// What users of a role may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    pub kind: Kind,
    /// The stores; `None` is all.
    pub stores: Option<Vec<String>>,
    /// A filter that every packet must match besides; empty takes every packet.
    pub filter: String,
    /// How far back questions reach.
    pub history: Option<Duration>,
    /// Packets of an answer.
    pub packets: u64,
    /// Bytes of an answer.
    pub bytes: u64,
    /// Questions of a user that are answered at once.
    pub questions: usize,
}

impl Role {
    pub fn may_see(&self, store: &str) -> bool {
        self.stores.as_ref().is_none_or(|stores| stores.iter().any(|name| name == store))
    }
}

/// Somebody who may ask.
#[derive(Debug)]
pub struct User {
    pub name: String,
    pub role: Arc<Role>,
    /// Places for questions that are answered at once.
    pub places: Arc<Semaphore>,
    /// Places to be told each second how a recorder does.
    pub watches: Arc<Semaphore>,
    /// Room for one filter that is tried while it is typed.
    pub typing: Arc<Semaphore>,
}

/// How many times a user is told each second how a recorder does.
const WATCHES: usize = 8;

impl User {
    pub fn new(name: String, role: Arc<Role>) -> Self {
        let places = Arc::new(Semaphore::new(role.questions));
        let (watches, typing) = (Semaphore::new(WATCHES), Semaphore::new(1));
        Self { name, role, places, watches: Arc::new(watches), typing: Arc::new(typing) }
    }
}

/// All users, by what shows who they are.
#[derive(Debug, Default)]
pub struct Users {
    by_name: HashMap<String, Arc<User>>,
    by_certificate: HashMap<String, Arc<User>>,
    /// Hashes of tokens, by the user's name, which each token begins with.
    tokens: HashMap<String, String>,
}

impl Users {
    pub fn add(&mut self, user: User, certificate: Option<String>, token: Option<String>) {
        let user = Arc::new(user);
        if let Some(certificate) = certificate {
            self.by_certificate.insert(certificate, user.clone());
        }
        if let Some(token) = token {
            self.tokens.insert(user.name.clone(), token);
        }
        self.by_name.insert(user.name.clone(), user);
    }

    pub fn named(&self, name: &str) -> Option<Arc<User>> {
        self.by_name.get(name).cloned()
    }

    pub fn with_certificate(&self, common_name: &str) -> Option<Arc<User>> {
        self.by_certificate.get(common_name).cloned()
    }

    /// Returns whose token it is. This takes a moment, and memory as [`MEMORY_KIB`] says.
    pub fn with_token(&self, token: &str) -> Option<Arc<User>> {
        let (name, secret) = token.split_once('.')?;
        let hash = self.tokens.get(name)?;
        let hash = PasswordHash::new(hash).ok()?;
        argon2().verify_password(secret.as_bytes(), &hash).ok()?;
        self.named(name)
    }
}

/// Memory that hashing a token takes. Tokens have 256 random bits, which nobody guesses however
/// cheap a try is.
const MEMORY_KIB: u32 = 1024;
/// Memory that holding a token against a hash may take, whoever has made that.
const MOST_KIB: u32 = 8192;

fn argon2() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, 1, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// Returns whether a hash can be held against tokens.
pub fn is_hash(hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| {
        hash.algorithm.as_str() == "argon2id"
            && Params::try_from(&hash).is_ok_and(|params| params.m_cost() <= MOST_KIB)
    })
}

/// Makes a token for a user. Returns it, and its hash.
pub fn new_token(name: &str) -> Result<(String, String), String> {
    let mut secret = [0; 32];
    OsRng.try_fill_bytes(&mut secret).map_err(|e| format!("{e}"))?;
    let mut shown = String::new();
    for byte in secret {
        // Writing into a string does not fail.
        let _ = write!(shown, "{byte:02x}");
    }
    let secret = shown;
    let salt = SaltString::generate(&mut OsRng);
    let hash = argon2().hash_password(secret.as_bytes(), &salt).map_err(|e| format!("{e}"))?;
    Ok((format!("{name}.{secret}"), hash.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Kind, Role, User, Users, is_hash, new_token};

    #[test]
    fn a_token_is_its_users_and_nobody_elses() {
        let role = Arc::new(Role {
            kind: Kind::Reader,
            stores: Some(vec!["edge".into()]),
            filter: String::new(),
            history: None,
            packets: 1,
            bytes: 1,
            questions: 1,
        });
        assert!(role.may_see("edge") && !role.may_see("core"));
        let mut users = Users::default();
        let mut tokens = Vec::new();
        for name in ["alice", "bob"] {
            let (token, hash) = new_token(name).expect("there is chance");
            assert!(is_hash(&hash) && !hash.contains(token.rsplit_once('.').unwrap().1));
            users.add(User::new(name.into(), role.clone()), None, Some(hash));
            tokens.push(token);
        }
        let whose = |token: &str| users.with_token(token).map(|user| user.name.clone());
        assert_eq!(whose(&tokens[0]).as_deref(), Some("alice"));
        let stolen = tokens[0].replace("alice", "bob");
        let shorter = &tokens[0][..tokens[0].len() - 1];
        for token in [&*stolen, shorter, "alice.", "alice", "", "carol.00"] {
            assert_eq!(whose(token), None, "{token}");
        }
        assert!(
            !is_hash("alice") && !is_hash("$argon2id$v=19$m=1000000,t=1,p=1$c2FsdHNhbHQ$aGFzaA")
        );
    }
}
