//! Addresses as text, fast: a table of bytes for IPv4, RFC 5952 for IPv6.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

/// Each byte as decimal digits and a full stop, and how long that is.
const BYTES: [([u8; 4], usize); 256] = {
    let mut bytes = [([b'.'; 4], 0); 256];
    let mut byte = 0;
    while byte < 256 {
        let (text, len) = &mut bytes[byte];
        let mut power = 100;
        while power > 0 {
            if byte >= power || power == 1 {
                text[*len] = b'0' + (byte / power % 10) as u8;
                *len += 1;
            }
            power /= 10;
        }
        *len += 1;
        byte += 1;
    }
    bytes
};

/// Appends an address.
pub fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let (mut text, mut end) = ([0; 16], 0);
            for byte in address.octets() {
                let (digits, len) = BYTES[usize::from(byte)];
                text[end..end + digits.len()].copy_from_slice(&digits);
                end += len;
            }
            // Without the last full stop.
            out.extend_from_slice(&text[..end - 1]);
        }
        IpAddr::V6(address) => put_ipv6(out, address),
    }
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

    #[test]
    fn each_byte_is_written_at_each_place() {
        for byte in 0..=255 {
            for place in 0..4 {
                let mut octets = [7; 4];
                octets[place] = byte;
                let mut out = b"before".to_vec();
                put_address(&mut out, octets.into());
                let [a, b, c, d] = octets;
                assert_eq!(String::from_utf8(out).unwrap(), format!("before{a}.{b}.{c}.{d}"));
            }
        }
    }
}
