//! Addresses as text, fast: a table of bytes for IPv4, RFC 5952 for IPv6.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

/// Appends an address.
pub fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (i, byte) in address.octets().into_iter().enumerate() {
                if i > 0 {
                    out.push(b'.');
                }
                put_byte(out, byte);
            }
        }
        IpAddr::V6(address) => put_ipv6(out, address),
    }
}

fn put_byte(out: &mut Vec<u8>, byte: u8) {
    if byte >= 100 {
        out.push(b'0' + byte / 100);
    }
    if byte >= 10 {
        out.push(b'0' + byte / 10 % 10);
    }
    out.push(b'0' + byte % 10);
}

/// The standard library writes addresses as RFC 5952 says.
fn put_ipv6(out: &mut Vec<u8>, address: Ipv6Addr) {
    // Writing to memory does not fail.
    let _ = write!(out, "{address}");
}

#[cfg(test)]
mod tests {
    use super::put_address;

    #[test]
    fn addresses_are_written_as_the_rfc_says() {
        for text in [
            "0.0.0.0",
            "1.20.255.100",
            "255.99.9.10",
            "::",
            "::1",
            "2001:db8::1:0:0:1",
            "2001:db8:0:1:1:1:1:1",
            "::ffff:192.0.2.1",
            "fe80::1",
        ] {
            let mut out = Vec::new();
            put_address(&mut out, text.parse().unwrap());
            assert_eq!(std::str::from_utf8(&out).unwrap(), text);
        }
    }
}
