//! What the tests and benchmarks of several crates share, and nothing that the programs need.
//!
//! A test of capture needs a network of its own with a cable in it ([`namespace`], [`cable`],
//! [`net`]), a sender that loses nothing before the far end has it ([`sender`]), frames to send
//! ([`frame`]), often a program that runs beside it ([`process`]), and a way to wait for what it
//! asserts ([`wait`]). A test that draws its input takes numbers from a seed ([`random`]), and one
//! of a feature that came with a later kernel asks whether this one has it ([`kernel`]). One of bad
//! disks mounts its own ([`mount`]).
//!
//! Other crates have this one as a development dependency, by its path. It knows none of them: the
//! program under test is named to it by the caller, who has it from cargo
//! (`env!("CARGO_BIN_EXE_tapdeck")`), so that a test runs what was built for it and not what
//! happens to lie around.
//!
//! What goes wrong here is a panic with the reason, for the caller is a test.

pub mod cable;
pub mod frame;
pub mod kernel;
pub mod mount;
pub mod namespace;
pub mod net;
pub mod process;
pub mod random;
pub mod sender;
pub mod wait;

pub use cable::Cable;
pub use mount::Mount;
pub use namespace::Namespace;
pub use net::Net;
pub use process::{Running, Talking};
pub use random::SplitMix64;
pub use sender::Sender;
pub use wait::wait_for;
