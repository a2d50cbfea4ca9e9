//! What libbpf says, made fit for this crate: its errors as those of the operating system, and its
//! messages to nobody who did not ask for them.

use std::io;
use std::sync::Once;

use libbpf_rs::PrintLevel;

/// The error number behind an error of libbpf-rs, which shows it in its text only.
pub(crate) fn io_error(e: &libbpf_rs::Error) -> io::Error {
    let text = format!("{e:#}");
    let number =
        text.rsplit_once("(os error ").and_then(|(_, n)| n.split(')').next()?.parse().ok());
    number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
}

/// What libbpf says goes to nobody, but for a person who asks for it.
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
