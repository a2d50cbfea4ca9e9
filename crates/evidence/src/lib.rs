//! Which packets outlive retention, and how can somebody else believe what they say?
//!
//! A **pin** copies the packets of a question into an evidence store, a directory beside the store
//! that no recorder deletes from ([`PinStore`]). A **bundle** is a directory to be handed on:
//! packets, and a manifest of what they are, which is signed ([`bundle`], [`check`]). Both hold the
//! **account** of their span: whether the recording was complete there, or what it lacks and when
//! ([`Account`]).
//!
//! Packets are found and read as a query does it; nothing here writes into a store, and nothing
//! here knows a network. What alerts say is read from a file ([`alerts`]).
#![forbid(unsafe_code)]

mod account;
pub mod alerts;
pub mod bundle;
pub mod check;
mod copy;
mod driver;
mod error;
mod key;
mod pin;
mod pins;
mod time;

pub use account::{Account, Cutoff, Interval, Lost, Shed, Unseen};
pub use bundle::{Bundle, Clock, FileEntry, Interface, Manifest};
pub use check::{Checked, check};
pub use copy::{Copied, Most, Question};
pub use driver::Driver;
pub use error::Error;
pub use key::{PrivateKey, PublicKey};
pub use pin::{Order, Pin, State, Wish};
pub use pins::{BUDGET, PinStore};
pub use time::Time;
