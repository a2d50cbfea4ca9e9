//! What holds when any bytes at all are taken for a request or a configuration? Fuzz targets ask
//! this, and tests that run what they do on mutated inputs.

use std::path::Path;

use crate::control::Command;
use crate::serve::config;

/// Takes bytes for a line of the control socket. True if it is a request.
///
/// # Panics
/// If what the client is told could not be sent as a line of JSON.
pub fn request(line: &[u8]) -> bool {
    match Command::decode(line) {
        Ok(command) => {
            let _ = (command.is_heavy(), command.is_harmless());
            true
        }
        Err(why) => {
            assert!(!why.contains(char::is_control), "{why:?}");
            false
        }
    }
}

/// Takes bytes for a daemon's configuration. True if it is one, as far as that can be told without
/// looking at interfaces and rule files.
///
/// # Panics
/// If what is told of a fault is more than a line, or nothing.
pub fn configuration(file: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(file) else { return false };
    match config::parse(Path::new("serve.toml"), text) {
        Ok(_) => true,
        Err(why) => {
            let why = format!("{why:#}");
            assert!(why.starts_with("serve.toml") && !why.contains(char::is_control), "{why:?}");
            false
        }
    }
}
