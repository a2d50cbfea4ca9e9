//! Packet-size distributions: how long are the packets of a network, and how does a generator make
//! packets that are as long?
//!
//! The truth is [`Counts`], the number of packets of every size, from a capture file, a list of
//! sizes or a table ([`read`]). Out of it a generator draws exactly, by the alias method, or
//! through [`TwoStage`], the model of Schneider's thesis (2005, section 4.2) which made that
//! affordable inside a kernel of its time: often seen sizes exactly, the others in bins. How far a
//! model or a sample is from the truth is one number, [`Counts::ks_distance`].
//!
//! A size has one of two meanings, and no file may mix them: [`Length`].

mod counts;
mod error;
mod length;
mod lines;
mod pktgen;
pub mod plot;
mod read;
mod tally;
mod text;
mod toml;
mod two_stage;

pub use counts::{Counts, Share};
pub use error::{Error, Fault};
pub use length::Length;
pub use pktgen::write_pktgen;
pub use read::{DistInput, Format, Options, read, read_file};
pub use tally::{LeftOut, Tally};
pub use text::{write_dist, write_sizes};
pub use toml::write_toml;
pub use two_stage::{Cells, MAX_PRECISION, Parameters, TwoStage};
