//! A fault in any thread ends the whole process, with one line that says which thread and where.
//!
//! A recorder whose writer is gone still turns, answers and looks alive, while nothing is recorded.
//! A process that ends is started again by its service manager, and the next recorder mends the
//! segment that was being written.

use std::panic::PanicHookInfo;

use signal_hook::low_level::exit;

use crate::progress_line::say_last;

/// Ends the process, with exit code 1, as soon as any of its threads panics.
pub fn end_the_process() {
    std::panic::set_hook(Box::new(|info| {
        end_with(&line(info, std::thread::current().name()));
    }));
}

/// Ends the process with exit code 1, whatever its threads do, and says why.
pub fn end_with(why: &str) -> ! {
    say_last(why);
    exit(1)
}

fn line(info: &PanicHookInfo<'_>, thread: Option<&str>) -> String {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let what = what.unwrap_or("no reason was given");
    let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line()));
    format!(
        "the thread {} failed{}: {what}: this is a fault of tapdeck, please report it",
        thread.unwrap_or("without a name"),
        place.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Set for the process that is to fail, which is this test once more.
    const FAILS: &str = "TAPDECK_TEST_FAILS";

    #[test]
    fn a_thread_that_fails_ends_the_process_and_is_named() {
        if std::env::var_os(FAILS).is_some() {
            super::end_the_process();
            let fail = || panic!("a packet of {} bytes", -1);
            let thread = std::thread::Builder::new().name("tapdeck-writer".into()).spawn(fail);
            // The process ends while this waits.
            let _ = thread.expect("a thread can be had").join();
            std::process::exit(0);
        }
        let this = std::env::current_exe().expect("a test is a program");
        let name = "panics::tests::a_thread_that_fails_ends_the_process_and_is_named";
        let mut command = Command::new(this);
        command.args([name, "--exact", "--nocapture"]).env(FAILS, "1");
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let line = said.lines().find(|l| l.starts_with("tapdeck: ")).unwrap_or_default();
        assert!(line.starts_with("tapdeck: the thread tapdeck-writer failed ("), "{said}");
        assert!(line.contains("panics.rs:"), "{said}");
        assert!(
            line.ends_with(": a packet of -1 bytes: this is a fault of tapdeck, please report it"),
            "{said}"
        );
    }
}
