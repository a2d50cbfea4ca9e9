//! What holds when any bytes at all are read as pcapng. Shared by the fuzz target and by
//! `crates/packet/tests/pcapng_mutations.rs`, which runs it on the stable compiler.

use tapdeck_packet::pcapng::{Error, Reader, Record};

/// Reads `data` to its end or to its first fault. Returns how many blocks were good, and the fault.
///
/// # Panics
/// If the reader breaks one of its promises.
pub fn check(data: &[u8]) -> (usize, Option<Error>) {
    let mut reader = Reader::new(data);
    let mut good = 0;
    loop {
        let start = reader.offset() as usize;
        let Some(record) = reader.next() else {
            assert_eq!(start, data.len(), "reading ended before the data did");
            return (good, None);
        };
        let end = reader.offset() as usize;
        match record {
            Ok(record) => {
                assert!(end >= start + 12 && end <= data.len(), "a block from {start} to {end}");
                assert!(end.is_multiple_of(4), "a block ends at {end}");
                if let Record::Packet(packet) = record {
                    assert_within(packet.frame, &data[start + 8..end - 4]);
                }
                good += 1;
            }
            Err(error) => {
                assert_eq!(end, start, "a fault moved the reader");
                assert_fault(&error, start, data.len());
                assert!(reader.next().is_none(), "reading went on after a fault");
                assert_same_start(&data[..start], good);
                return (good, Some(error));
            }
        }
    }
}

fn assert_within(frame: &[u8], body: &[u8]) {
    let (frame, body) = (frame.as_ptr_range(), body.as_ptr_range());
    assert!(frame.start >= body.start && frame.end <= body.end, "a frame outside its block");
}

fn assert_fault(error: &Error, start: usize, len: usize) {
    match *error {
        Error::NotPcapng => assert_eq!(start, 0, "a file that began stopped being pcapng"),
        Error::CutShort { at, needed, have } => {
            assert_eq!((at, have), (start as u64, (len - start) as u64));
            assert!(needed > have, "{needed} bytes needed, {have} there");
        }
        Error::Damaged { at, .. } => assert_eq!(at, start as u64),
    }
}

/// What stands before a fault is a good file by itself.
fn assert_same_start(data: &[u8], good: usize) {
    let again: Vec<_> = Reader::new(data).collect();
    assert!(again.iter().all(Result::is_ok), "a fault before the fault");
    assert_eq!(again.len(), good);
}
