//! Who spoke to whom, when and how much? Flow records from packets, and the files they go into.
//!
//! A **row** is a slice of a biflow (RFC 5103): the packets between two ends, both ways, that lie
//! in one segment and on one day. [`FlowTable`] takes a segment's packets in any order and gives
//! rows; every packet is in exactly one of them, also one that is no IP packet, a fragment, cut or
//! damaged. [`ParquetFile`] writes rows, and [`LineFile`] as lines that other programs know;
//! [`COLUMNS`] are for other writers. `docs/FLEET.md` says what each column means.
//!
//! Rows are a pure function of the packets and the granules that they lie in, and a file is one of
//! its rows: nothing here reads a clock, a machine's name or a random number that could show. That
//! is what makes delivering them twice harmless.
//!
//! The way back is a [`Pointer`], which is what a row says of where its packets are, and a
//! [`Chooser`], which knows them by the same key that put them into the row.
//!
//! This crate opens no file and knows no store: whoever has packets and the places where they lie
//! can ask it. Which packets lie inside others is [`tapdeck_packet::header::innermost`]'s business.
#![forbid(unsafe_code)]

mod arrow_rows;
mod columns;
mod key;
mod lines;
mod parquet_file;
mod pointer;
mod row;
mod runs;
mod table;
mod text;

pub use arrow_rows::{ARROW_FILE, ARROW_STREAM, pointers_of_arrow_file, pointers_of_arrow_stream};
pub use columns::{COLUMNS, Values};
pub use lines::{LineFile, LineForm};
pub use parquet_file::{Error, ParquetFile};
pub use pointer::{Chooser, Pointer, PointerError, pointers, pointers_of_lines};
pub use row::{EndReason, Row, Rows};
pub use table::{FlowTable, MAX_ROWS};
pub use text::put_address;

/// Nanoseconds of a day; leap seconds are not in UTC's count.
pub const DAY_NS: i64 = 86_400_000_000_000;
