//! The programs at a hook wake the reader that rests when a block is complete, and else nobody.

mod testbed;

use std::ops::Range;
use std::process::Command;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tapdeck_capture::persist::Persist;
use tapdeck_capture::{Capture, Clock, Config, Deliver, Hook, Overload, Stamps};
use tapdeck_packet::ring::Ring;
use tapdeck_testkit::{Cable, Mount, Net, Sender, wait_for};
use testbed::recorder::frame;

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];
/// Frames of 500 bytes that do not fill a block of 64 KiB, and as many as need several.
const FEW: u32 = 50;
const MANY: u32 = 2000;

fn config(hook: Hook) -> Config {
    Config {
        hook,
        deliver: Deliver::Pass,
        snaplen: 2000,
        ring_bytes: 8 << 20,
        block_bytes: 64 << 10,
        promiscuous: true,
        device_bound: true,
        overload: Overload::Drop,
        stamps: Stamps::Auto,
        filter: None,
        rules: None,
        cutoff: None,
    }
}

struct Scene<'a> {
    net: &'a Net,
    readers: Vec<Box<dyn Ring>>,
    sent: u32,
}

impl Scene<'_> {
    fn send(&mut self, frames: u32) {
        let numbers: Range<u32> = self.sent..self.sent + frames;
        self.net.a.inside(|| {
            let mut sender = Sender::on("va");
            numbers.for_each(|i| sender.send(&frame([2, 0, 0, 0, 0, 2], 500, i)));
        });
        self.sent += frames;
        wait_for("the packets", || {
            self.readers.iter().map(|ring| ring.unread()).sum::<u64>() >= u64::from(frames)
        });
    }

    fn rests(&mut self) -> bool {
        for ring in &self.readers {
            ring.waker().expect("programs that wake").clear();
        }
        self.readers.iter_mut().all(|ring| ring.rest())
    }

    fn is_woken(&self) -> bool {
        let waker = self.readers[0].waker().expect("programs that wake");
        let mut fds = [PollFd::from_borrowed_fd(waker.descriptor(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll works") > 0
    }

    fn take_all(&mut self, capture: &mut Capture) {
        capture.flush_all().expect("the rings are there");
        for ring in &mut self.readers {
            while ring.peek(0).is_some() {
                ring.release(1);
            }
        }
        assert!(self.readers.iter().all(|ring| ring.is_empty()));
    }

    fn goes_to_sleep_and_wakes(&mut self, capture: &mut Capture, hook: Hook) {
        self.take_all(capture);
        assert!(self.rests() && !self.is_woken(), "{hook}");
        self.send(FEW);
        assert!(!self.is_woken(), "{hook}: it was woken for a block that is not complete");
        self.send(MANY);
        wait_for("the wake-up", || self.is_woken());
        assert!(!self.rests(), "{hook}: it rests beside a complete block");
        self.take_all(capture);
        assert!(self.rests() && !self.is_woken(), "{hook}");
        self.readers.iter_mut().for_each(|ring| ring.rise());
        self.send(MANY);
        assert!(!self.is_woken(), "{hook}: it looks by itself, and was woken");
        self.take_all(capture);
    }
}

fn goes_to_sleep_and_wakes(net: &Net, mut capture: Capture, hook: Hook) {
    let readers = capture.readers().into_iter().map(|ring| Box::new(ring) as Box<dyn Ring>);
    let mut scene = Scene { net, readers: readers.collect(), sent: 0 };
    capture.start().expect("the interface is there");
    scene.goes_to_sleep_and_wakes(&mut capture, hook);
}

#[test]
fn a_complete_block_wakes_a_reader_that_rests() {
    for hook in HOOKS {
        let net = Net::with(Cable { queues: Some(2), ..Cable::default() });
        net.b.inside(|| {
            let clock = Arc::new(Clock::default());
            let capture = Capture::open("vb", &config(hook), 0, &clock).expect("the hook");
            goes_to_sleep_and_wakes(&net, capture, hook);
        });
    }
}

/// Where the test below has a BPF file system of its own.
const PINS: &str = "TAPDECK_PERSIST";

#[test]
fn programs_that_may_outlive_their_owner_wake_its_reader_as_well() {
    if std::env::var_os(PINS).is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let bpf = Mount::bpf(&dir.path().join("bpf"));
        let own = std::env::current_exe().expect("this program");
        let mut again = Command::new(own);
        again.args(["--exact", "programs_that_may_outlive_their_owner_wake_its_reader_as_well"]);
        let out = again.env(PINS, bpf.path().join("tapdeck")).output().expect("it runs again");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        return;
    }
    let net = Net::new();
    net.b.inside(|| {
        let hook = Hook::Xdp;
        let clock = Arc::new(Clock::default());
        let persist = Persist::open("waking", &[("vb", hook)]).expect("a place");
        let capture = Capture::open_lasting("vb", &config(hook), 0, &clock, (&persist, 0, false));
        goes_to_sleep_and_wakes(&net, capture.expect("the hook"), hook);
        persist.clean();
    });
}
