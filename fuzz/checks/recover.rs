//! What holds when any bytes at all are a segment that a recorder left. Shared by the fuzz target
//! and by `crates/store/tests/recover_mutations.rs`, which runs it on the stable compiler.

use std::fs;
use std::path::Path;

use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_store::io::Disk;
use tapdeck_store::{Action, ClosedScope, Scope, Store};

const LIVE: &str = "tapdeck-00000001-20260102T030405Z.pcapng.live";
const CLOSED: &str = "tapdeck-00000001-20260102T030405Z.pcapng";

/// Recovers `data` in a directory that is empty before and after. What is recovered is whole, holds
/// as many packets as was said, and needs no second recovery. Returns the number of packets, if
/// there was a segment.
///
/// # Panics
/// If one of these does not hold.
pub fn check(dir: &Path, data: &[u8]) -> Option<u64> {
    fs::write(dir.join(LIVE), data).expect("a file");
    let scope = Scope { closed: ClosedScope::All, index: false };
    let recover = || {
        let mut found = Vec::new();
        let mut store = Store::open(dir).expect("nobody else has it");
        let mended = store.recover(&Disk::new(false), scope, |finding| {
            let action = match finding.action {
                Action::None => "none",
                Action::Close => "close",
                Action::SetAside => "set aside",
                Action::Fail(_) => "fail",
            };
            found.push((action, finding.packets_before, finding.packets));
        });
        mended.expect("the directory is there");
        found
    };
    let first = recover();
    let second = recover();
    let packets = match first[..] {
        [("close", before, packets)] => {
            assert!(before <= packets, "{before} packets, and {packets} afterwards");
            let bytes = fs::read(dir.join(CLOSED)).expect("it has its name");
            let records = Reader::new(&bytes).map(|record| record.expect("a whole segment"));
            let have = records.filter(|record| matches!(record, Record::Packet(_))).count();
            assert_eq!(have as u64, packets, "packets in the segment");
            assert!(matches!(second[..], [("none", _, n)] if n == packets), "{second:?}");
            Some(packets)
        }
        // What another program wrote is none of its business.
        [] | [("set aside" | "fail", ..)] => None,
        _ => panic!("{first:?}"),
    };
    for entry in fs::read_dir(dir).expect("it is there").flatten() {
        fs::remove_file(entry.path()).expect("it is ours");
    }
    packets
}
