//! Which group did the user name, where the program has cut the name at its colon?
//!
//! softflowd reads `-i deck:ids` as interface `ids` with the number `deck`, and asks libpcap for
//! `ids`. What the user wrote is still in the program's arguments: so a device whose name stands
//! there behind `deck:` is a group, and one that does not is none, whatever groups there are.

use std::fs;

use crate::handle::PREFIX;

/// Whether the program was started with `deck:` and this name in an argument. Without /proc nobody
/// knows, and the device is taken for what its name says.
pub fn name_group(device: &str) -> bool {
    fs::read("/proc/self/cmdline").is_ok_and(|line| names_group(&line, device))
}

/// Whether an argument of a command line ends with `deck:` and this name. Arguments end with NUL,
/// and a program may have cut one there by a NUL in place of the colon.
fn names_group(line: &[u8], device: &str) -> bool {
    let Some(before) = PREFIX.strip_suffix(':') else { return false };
    let names = |colon: &str| {
        let name = format!("{before}{colon}{device}\0").into_bytes();
        line.windows(name.len()).any(|window| window == name)
    };
    !device.is_empty() && (names(":") || names("\0"))
}

#[cfg(test)]
mod tests {
    use super::names_group;

    #[test]
    fn a_name_counts_behind_the_prefix_alone() {
        let whole = b"softflowd\0-i\0deck:ids\0-n\0host:9995\0";
        let cut = b"softflowd\0-i\0deck\0ids\0-n\0host:9995\0";
        for line in [&whole[..], cut, b"softflowd\0-ideck\0ids\0"] {
            assert!(names_group(line, "ids"));
            assert!(!names_group(line, "id") && !names_group(line, "ds"));
            assert!(!names_group(line, "9995") && !names_group(line, ""));
        }
        assert!(!names_group(b"tcpdump\0-i\0ids\0", "ids"));
        assert!(!names_group(b"tcpdump\0-i\0deck:ids2\0", "ids"));
    }
}
