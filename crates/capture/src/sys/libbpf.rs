//! libbpf made fit for this crate: its errors as those of the operating system, its messages to
//! nobody who did not ask for them, and what an object has by name, or an error that says the name.

use std::io;
use std::sync::Once;

use libbpf_rs::{Map, MapCore, Object, OpenObject, PrintLevel, ProgramMut};

use super::process::without_signals;

/// Returns the error of the operating system behind one of libbpf-rs, which shows its number in the
/// text only.
pub(crate) fn io_error(e: &libbpf_rs::Error) -> io::Error {
    let text = format!("{e:#}");
    let number =
        text.rsplit_once("(os error ").and_then(|(_, n)| n.split(')').next()?.parse().ok());
    number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
}

/// Makes an object's maps and loads its programs.
///
/// The verifier gives up with `EAGAIN` as soon as a signal is there for its thread. libbpf tries
/// five times, which is not enough where signals come faster than programs are verified, so they
/// wait.
///
/// # Errors
/// As bpf(2).
pub(crate) fn load(object: OpenObject) -> io::Result<Object> {
    without_signals(|| object.load()).map_err(|e| io_error(&e))
}

/// Silences libbpf, unless a person asks for its messages by TAPDECK_LIBBPF_LOG.
pub(crate) fn quiet_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("TAPDECK_LIBBPF_LOG").is_none() {
            libbpf_rs::set_print(None);
        } else {
            libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| eprint!("{text}"))));
        }
    });
}

/// Returns a loaded object's map by name. libbpf puts the object's name before that of a map which
/// is a section, such as `.bss`.
///
/// # Errors
/// Where there is no such map.
pub(crate) fn map<'o>(object: &'o Object, name: &str) -> io::Result<Map<'o>> {
    let is_it = |map: &Map<'_>| match map.name().to_str() {
        Some(its) if name.starts_with('.') => its.ends_with(name),
        Some(its) => its == name,
        None => false,
    };
    let found = object.maps().find(is_it);
    found.ok_or_else(|| io::Error::other(format!("the program has no map {name}")))
}

/// Returns a loaded object's program by name.
///
/// # Errors
/// Where there is no such program.
pub(crate) fn program<'o>(object: &'o Object, name: &str) -> io::Result<ProgramMut<'o>> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| io::Error::other(format!("{name} is not loaded")))
}
