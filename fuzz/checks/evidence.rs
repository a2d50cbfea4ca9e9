//! What holds when any bytes at all are taken for a line of alerts, or for a bundle's manifest.

use tapdeck_evidence::PrivateKey;
use tapdeck_evidence::alerts::{Alert, Scope};
use tapdeck_evidence::check::{read, signed};
use tapdeck_packet::link::LinkType;
use tapdeck_store::filter::Filter;

/// Takes bytes for a line of EVE. True if it is an alert.
///
/// # Panics
/// If an alert asks for packets by a filter that there is not, or that no packet can match.
pub fn alert(line: &[u8]) -> bool {
    let Ok(Some(alert)) = Alert::parse(line) else { return false };
    assert!(alert.signature.len() < 300 && alert.category.len() < 300);
    for scope in [Scope::Flow, Scope::Hosts, Scope::Source, Scope::Destination] {
        let filter = alert.filter(scope).expect("packets are wanted");
        let compiled = Filter::for_links(&filter, [LinkType::ETHERNET], true);
        assert!(compiled.is_ok(), "{filter}: {:?}", compiled.err());
    }
    true
}

/// Takes bytes for a manifest, behind a signature. True if they are one that nobody signed.
///
/// # Panics
/// If a manifest is believed that nobody signed, or it names files elsewhere.
pub fn manifest(bytes: &[u8], key: &PrivateKey) -> bool {
    let (signature, text) = bytes.split_at(bytes.len().min(64));
    assert!(signed(text, signature, &key.public()).is_err(), "nobody has signed this");
    let found = read(text);
    // What is signed is taken as it is read.
    assert_eq!(signed(text, &key.sign(text), &key.public()), found);
    let Ok(manifest) = found else { return false };
    for file in &manifest.files {
        assert!(!file.name.contains('/') && file.name != "..", "{:?}", file.name);
    }
    let _ = manifest.account.lines();
    true
}
