//! `tapdeck extcap --install`: where does Wireshark find the command?
//!
//! Wireshark runs what is executable in its extcap folder. A script there runs this program, so
//! that there is one program to be upgraded.

use std::fs;
use std::io::{Write as _, stdout};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::flags;

const NAME: &str = "tapdeck";
/// The line of the script by which it is known as ours.
const MARK: &[u8] = b"# Made by `tapdeck extcap --install`.\n";

/// Writes the script, and says where.
pub fn run(flags: &flags::Extcap) -> Result<()> {
    let dir = match (&flags.into, flags.user) {
        (Some(dir), _) => dir.clone(),
        (None, true) => of_user()?,
        (None, false) => of_all()?,
    };
    let path = dir.join(NAME);
    let what = || format!("cannot install {}", path.display());
    fs::create_dir_all(&dir).with_context(what)?;
    let program = std::env::current_exe().context("this program has no path")?;
    if fs::symlink_metadata(&path).is_ok() {
        let is_ours = fs::read(&path).is_ok_and(|old| old.windows(MARK.len()).any(|w| w == MARK));
        anyhow::ensure!(is_ours, "{} is there, and is not this program's", path.display());
        fs::remove_file(&path).with_context(what)?;
    }
    fs::write(&path, script(&program)).with_context(what)?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).with_context(what)?;
    writeln!(stdout(), "{}", path.display())?;
    Ok(())
}

/// Returns the script for a program. The package has the one for its own.
fn script(program: &Path) -> Vec<u8> {
    let program = quoted(program);
    [b"#!/bin/sh\n", MARK, b"exec ", &program, b" extcap \"$@\"\n"].concat()
}

/// Returns the extcap folder of this user.
fn of_user() -> Result<PathBuf> {
    let told = folder("Personal Extcap path:");
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    told.or_else(|| Some(home?.join(".local/lib/wireshark/extcap")))
        .context("HOME names no directory: name the extcap folder with --into")
}

/// Returns the extcap folder of all users.
fn of_all() -> Result<PathBuf> {
    let named = std::env::var_os("WIRESHARK_EXTCAP_DIR").map(PathBuf::from);
    let told = || folder("Global Extcap path:").or_else(|| folder("Extcap path:"));
    named
        .filter(|dir| dir.is_absolute())
        .or_else(told)
        .context("tshark, which would tell its extcap folder, is not there: name it with --into")
}

/// Returns a folder as tshark tells it.
fn folder(title: &str) -> Option<PathBuf> {
    let told = Command::new("tshark").args(["-G", "folders"]).output().ok()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let path = told.lines().find_map(|line| line.strip_prefix(title))?.trim();
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

/// Returns a path as a word of the shell.
fn quoted(path: &Path) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\'' => word.extend(br"'\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_package_has_what_its_program_would_install() {
        let packaged = include_str!("../../../../packaging/extcap/tapdeck");
        let installed = super::script(Path::new("/usr/bin/tapdeck"));
        assert_eq!(String::from_utf8(installed).unwrap(), packaged);
    }

    #[test]
    fn a_path_is_one_word_of_the_shell() {
        let path = "/opt/it's $HOME/tapdeck";
        let line = [b"printf %s ".to_vec(), super::quoted(Path::new(path))].concat();
        let line = String::from_utf8(line).unwrap();
        let out = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(out.stdout, path.as_bytes());
    }
}
