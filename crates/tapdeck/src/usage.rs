//! Wrong usage: when does the program end with exit code 2, and when with 1?
//!
//! 2 says that the command as it was called cannot work, whatever the machine is like: another call
//! is needed. 1 says that the work failed, or that its answer is incomplete. clap decides for what
//! it parses; [`exit_code`] decides for every error after that, and is the only place that does.
//! An error of another crate says of itself whether its cause is usage (`is_usage`); one that is
//! found in this crate is a [`Usage`].

use std::error::Error;

use anyhow::Result;

/// Wrong usage that this crate found. The text says what is wrong and what to do.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// Returns a [`Usage`] as the error of whatever was to be done.
pub fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(Usage(text.into()).into())
}

/// Returns the exit code that an error means.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.chain().any(is_usage) { 2 } else { 1 }
}

fn is_usage(cause: &(dyn Error + 'static)) -> bool {
    fn is<E: Error + 'static>(cause: &(dyn Error + 'static), is_usage: fn(&E) -> bool) -> bool {
        cause.downcast_ref().is_some_and(is_usage)
    }
    is(cause, |_: &Usage| true)
        || is(cause, tapdeck_capture::Error::is_usage)
        || is(cause, tapdeck_capture::groups::Error::is_usage)
        || is(cause, tapdeck_capture::persist::Error::is_usage)
        || is(cause, tapdeck_capture::rules::Error::is_usage)
        || is(cause, |_: &tapdeck_packet::rules::image::Error| true)
        || is(cause, tapdeck_store::filter::Error::is_usage)
        || is(cause, tapdeck_evidence::Error::is_usage)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use tapdeck_capture::ring::GeometryError;
    use tapdeck_capture::rules::Error as Rules;
    use tapdeck_capture::{Error as Capture, Hook, groups::Error as Groups, interface};
    use tapdeck_packet::rules::image::Error as Image;

    use super::{Usage, exit_code, usage};
    use crate::standard_input::refuse_twice;

    fn name() -> String {
        "eth0".into()
    }

    fn failed() -> std::io::Error {
        std::io::ErrorKind::OutOfMemory.into()
    }

    /// The code is that of the error itself, and stays the same whatever is said around the error.
    fn ends_with(code: u8, error: impl std::error::Error + Send + Sync + 'static) {
        let shown = format!("{error:?}");
        let error = anyhow::Error::from(error);
        assert_eq!(exit_code(&error), code, "{shown}");
        let error = error.context("group ids").context("rules of monday");
        assert_eq!(exit_code(&error), code, "{shown} in a context");
    }

    #[test]
    fn what_this_crate_finds_is_usage() {
        ends_with(2, Usage("--hurst 2: it must be above 0.5 and below 1".into()));
        let refused = usage::<()>("where to?").context("record").expect_err("it is refused");
        assert_eq!(exit_code(&refused), 2);
        let stdin = std::path::Path::new("-");
        assert_eq!(exit_code(&refuse_twice([stdin, stdin]).expect_err("it is refused")), 2);
        refuse_twice([stdin, std::path::Path::new("a")]).expect("once is no fault");
        ends_with(1, failed());
        assert_eq!(exit_code(&anyhow::anyhow!("the output hangs")), 1);
    }

    #[test]
    fn of_a_capture_what_no_machine_can_do_is_usage() {
        ends_with(2, Capture::Geometry(GeometryError::Block(100_000)));
        ends_with(2, Capture::Filter { expression: "florb".into(), why: "syntax error".into() });
        ends_with(2, Capture::FixedFilter(Hook::Netfilter));
        ends_with(2, Capture::NoRules(Hook::Recv));
        ends_with(2, Capture::FixedRules(Hook::Netfilter));
        ends_with(2, Capture::Snaplen { asked: 0, most: 96 });
        ends_with(2, Capture::Deliver { hook: Hook::Recv, why: "cannot consume" });
        ends_with(2, Capture::Rules(Rules::Image(Image::TooLarge)));

        let none = interface::Error::None { name: name(), there: Vec::new() };
        ends_with(1, Capture::Interface(none));
        ends_with(1, Capture::Down(name()));
        ends_with(1, Capture::LinkType { name: name(), arphrd: 801 });
        ends_with(1, Capture::Memory { name: name(), available_mib: 1 });
        ends_with(1, Capture::Privilege { hook: Hook::Xdp, needed: "CAP_BPF" });
        ends_with(1, Capture::XdpBusy { name: name(), id: Some(7) });
        let why = "no driver".into();
        ends_with(1, Capture::Unsupported { name: name(), hook: Hook::Xdp, why });
        let (expression, why) = ("port 80".into(), "it is too large".into());
        ends_with(1, Capture::LargeFilter { expression, why });
        ends_with(1, Capture::Rules(Rules::Memory { rules: 1, mib: 1 }));
        ends_with(1, Capture::Kernel { name: name(), hook: Hook::Xdp, source: failed() });
    }

    #[test]
    fn of_rules_those_that_no_kernel_can_have_are_usage() {
        let group = Image::Group { rule: 0, name: "ids".into(), there: Vec::new() };
        ends_with(2, Rules::Image(group.clone()));
        ends_with(2, group);
        ends_with(2, Rules::TooLarge { rules: 9, mib: 99, most_mib: 32 });
        ends_with(1, Rules::Memory { rules: 1, mib: 1 });
        ends_with(1, Rules::Kernel { rules: 1, source: failed() });
    }

    #[test]
    fn of_groups_a_configuration_that_cannot_work_is_usage() {
        let (one, other, interface, hook) = (name(), name(), name(), Hook::Xdp);
        ends_with(2, Groups::Geometry(GeometryError::TooLarge(1 << 40)));
        ends_with(2, Groups::NoGroups);
        ends_with(2, Groups::TooManyGroups(99));
        ends_with(2, Groups::Twice(name()));
        ends_with(2, Groups::NoName);
        ends_with(2, Groups::NoInterface(name()));
        ends_with(2, Groups::InterfaceTwice { group: name(), interface: name() });
        ends_with(2, Groups::SocketHook { group: name(), hook: Hook::Recv });
        ends_with(2, Groups::Deliver { one, other, interface, hook });
        ends_with(2, Groups::Snaplen(name()));
        ends_with(2, Groups::SnaplenGrows { group: name(), snaplen: 2, most: 1 });
        ends_with(2, Groups::NoGroup { name: name(), there: Vec::new() });
        ends_with(2, Groups::FixedFilter { group: name(), hook: Hook::Netfilter });
        ends_with(2, Groups::Weight(name()));
        ends_with(2, Groups::Capture(Capture::NoRules(Hook::Recv)));
        ends_with(2, Groups::Rules(Rules::Image(Image::TooLarge)));
        ends_with(
            2,
            Groups::Filter { groups: name(), why: Box::new(Capture::NoRules(Hook::Recv)) },
        );

        ends_with(1, Groups::Filter { groups: name(), why: Box::new(Capture::Down(name())) });
        ends_with(1, Groups::GroupFull { group: name(), most: 1 });
        ends_with(1, Groups::Full(name()));
        ends_with(1, Groups::Memory { group: name(), needed_mib: 2, available_mib: 1 });
        ends_with(1, Groups::Kernel { what: "attach".into(), source: failed() });
        ends_with(1, Groups::Capture(Capture::Down(name())));
        ends_with(1, Groups::Rules(Rules::Memory { rules: 1, mib: 1 }));
    }
}
