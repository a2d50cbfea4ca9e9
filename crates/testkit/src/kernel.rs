//! May a test be left out? Only where the kernel is too old for what it tests. Everywhere else what
//! is missing is a failure, or a skip would hide it.

/// Returns the version and the patch level of the running kernel: (6, 1) for 6.1.0-18-amd64.
///
/// # Panics
/// If the kernel's release does not begin with two numbers.
pub fn version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().expect("ASCII");
    parse(release).unwrap_or_else(|| panic!("{release} is no kernel's release"))
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']).map_while(|n| n.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Returns whether the kernel is of this version or later. Where it is not, says on standard error
/// that what came with that version is left out.
pub fn at_least(least: (u32, u32), what: &str) -> bool {
    let there = version() >= least;
    if !there {
        eprintln!("left out: {what} came with Linux {}.{}", least.0, least.1);
    }
    there
}

/// Fails with the reason where a test cannot make namespaces.
///
/// # Panics
/// If the test does not run as root.
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes network namespaces: run it as root"
    );
}

#[cfg(test)]
mod tests {
    use super::{at_least, parse};

    #[test]
    fn releases_are_read() {
        assert_eq!(parse("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(parse("6.18+"), Some((6, 18)));
        assert_eq!(parse("six"), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(at_least((2, 10), "nothing"));
        assert!(!at_least((1000, 0), "something to come"));
    }
}
