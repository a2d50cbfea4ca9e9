//! The program; `lib.rs` has what it does.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    tapdeck_program::main()
}
