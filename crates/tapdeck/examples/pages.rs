//! Writes what the package has beside the program: a manual page of each command, and completions
//! for shells. All of it is what clap knows of the flags.
//!
//! `cargo run -p tapdeck --example pages -- DIR` writes `DIR/man/tapdeck*.1` and
//! `DIR/completions/{tapdeck.bash,_tapdeck,tapdeck.fish}`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap_complete::Shell;

const PROGRAM: &str = "tapdeck";

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from);
    write(&dir.context("where to? name a directory")?)
}

/// Writes all of it into a directory.
pub fn write(dir: &Path) -> Result<()> {
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    for made in [&man, &completions] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    clap_mangen::generate_to(tapdeck_program::command_line(), &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let command = &mut tapdeck_program::command_line();
        clap_complete::generate_to(shell, command, PROGRAM, &completions)?;
    }
    Ok(())
}
