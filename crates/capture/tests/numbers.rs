//! The numbers and the places of fields that the hook programs know, against those that Rust knows:
//! each name of `bpf/numbers.h` and `bpf/fields.h` is in the module of Rust that it names, with the
//! same value.

use std::collections::BTreeMap;

const NUMBERS: (&str, &str) =
    (include_str!("../bpf/numbers.h"), include_str!("../../packet/src/numbers.rs"));
const FIELDS: (&str, &str) =
    (include_str!("../bpf/fields.h"), include_str!("../../packet/src/header/field.rs"));

/// The modules of `numbers.rs`, and what C has in their place.
const MODULES: [(&str, &str); 7] = [
    ("ETHERTYPE", "ether_type"),
    ("PROTO", "ip_protocol"),
    ("UDP_PORT", "udp_port"),
    ("PPP", "ppp_protocol"),
    ("ICMP", "icmp_type"),
    ("ICMPV6", "icmpv6_type"),
    ("ARPHRD", "arphrd"),
];

/// Returns a number as both languages write it; of an array of bytes, the number in network order.
fn number(text: &str) -> Option<u64> {
    if let Some(bytes) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return bytes.split(',').try_fold(0, |sum, byte| Some(sum << 8 | number(byte.trim())?));
    }
    let text = text.replace('_', "");
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the constants of all modules of a file of Rust, by module and name.
fn constants(rust: &str) -> BTreeMap<(String, String), u64> {
    let mut module = "";
    let mut found = BTreeMap::new();
    for line in rust.lines() {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = name.trim_end_matches(" {");
        }
        let Some(constant) = line.strip_prefix("    pub const ") else { continue };
        let Some((name, (_, value))) = constant
            .split_once(": ")
            .and_then(|(name, rest)| Some((name, rest.split_once(" = ")?)))
        else {
            continue;
        };
        if let Some(value) = number(value.trim_end_matches(';')) {
            found.insert((module.to_owned(), name.to_owned()), value);
        }
    }
    found
}

/// Returns names and values that a header of C defines, without `TD_`.
fn definitions(c: &str) -> Vec<(&str, u64)> {
    let words = c.lines().filter_map(|line| line.strip_prefix("#define TD_"));
    let values = words.map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name");
        let value = words.next().unwrap_or_else(|| panic!("{name} has no value"));
        (name, number(value).unwrap_or_else(|| panic!("{name}: {value} is no number")))
    });
    values.collect()
}

/// Holds each definition against the constant of the module that `modules` has for its beginning.
fn compare((c, rust): (&str, &str), modules: &[(String, String)]) -> usize {
    let constants = constants(rust);
    let definitions = definitions(c);
    for (name, value) in &definitions {
        let named = modules.iter().find_map(|(beginning, module)| {
            let constant = name.strip_prefix(beginning)?.strip_prefix('_')?;
            constants.get(&(module.clone(), constant.to_owned()))
        });
        assert_eq!(named, Some(value), "TD_{name}");
    }
    definitions.len()
}

#[test]
fn numbers_of_protocols_are_those_of_rust() {
    let modules = MODULES.map(|(beginning, module)| (beginning.to_owned(), module.to_owned()));
    assert!(compare(NUMBERS, &modules) > 40);
}

#[test]
fn places_of_fields_are_those_of_rust() {
    let modules: Vec<_> = constants(FIELDS.1)
        .into_keys()
        .map(|(module, _)| (module.to_uppercase(), module))
        .collect();
    assert!(compare(FIELDS, &modules) > 50);
}
