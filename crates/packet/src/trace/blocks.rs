//! pcapng block by block, of any size and from anything that can be read: for who needs more of it
//! than its packets, and cannot have all of it in memory.

use std::io::Read;

use super::error::Error;
use super::window::Window;
use crate::pcapng::{Blocks, HEAD, Record};

/// Reads the blocks of pcapng one after the other.
///
/// Memory is the window of 256 KiB, or the longest block that is let in.
pub struct PcapngBlocks<R> {
    window: Window<R>,
    blocks: Blocks,
    /// The longest block that is let in, in bytes.
    most: usize,
    failed: bool,
}

/// A block, and its bytes as they stand in the source.
#[derive(Debug)]
pub struct PcapngBlock<'a> {
    pub record: Record<'a>,
    pub bytes: &'a [u8],
}

impl<R: Read> PcapngBlocks<R> {
    /// Reads nothing yet. `source` needs no buffer of its own.
    pub fn new(source: R, most: usize) -> Self {
        Self { window: Window::new(source), blocks: Blocks::default(), most, failed: false }
    }

    /// Returns whether the next block lies in memory, so that nothing has to be waited for.
    pub fn is_ready(&self) -> bool {
        let bytes = self.window.bytes();
        self.failed || self.blocks.len(bytes).is_some_and(|len| len <= bytes.len())
    }

    /// Returns the next block; `None` where the source ends behind a whole one.
    ///
    /// # Errors
    /// A fault of the source, once and after all blocks before it. Every later call returns `None`.
    pub fn next_block(&mut self) -> Result<Option<PcapngBlock<'_>>, Error> {
        if self.failed {
            return Ok(None);
        }
        self.failed = true;
        if !self.window.fill(HEAD)? {
            let ended = self.window.bytes().is_empty();
            return if ended { Ok(None) } else { Err(self.window.short(HEAD)) };
        }
        let at = self.window.taken();
        let Some(head) = self.window.bytes().first_chunk() else {
            return Err(self.window.short(HEAD));
        };
        let (kind, total) = self.blocks.head(at, head)?;
        if total > self.most {
            return Err(Error::Damaged { at, what: "a block that is longer than any packet" });
        }
        if !self.window.fill(total)? {
            return Err(self.window.short(total));
        }
        let bytes = self.window.take(total);
        let (body, tail) = bytes[8..].split_at(total - 12);
        self.blocks.tail(at, total, tail)?;
        let record = self.blocks.record(kind, body).map_err(|what| Error::Damaged { at, what })?;
        self.failed = false;
        Ok(Some(PcapngBlock { record, bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, PcapngBlocks};
    use crate::link::LinkType;
    use crate::pcapng::{
        InterfaceDescription, Reader, comment, interface_description, packet_len, section_header,
        write_packet,
    };

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl std::io::Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let len = self.0.len().min(out.len()).min(1);
            let (now, later) = self.0.split_at(len);
            out[..len].copy_from_slice(now);
            self.0 = later;
            Ok(len)
        }
    }

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        section_header(&mut file, "os", "test", Some("a comment"));
        let interface = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 0,
            name: "eth0".into(),
            description: String::new(),
            filter: None,
            hardware: None,
            mac: None,
        };
        interface_description(&mut file, &interface);
        for time_ns in 1..9 {
            let start = file.len();
            file.resize(start + packet_len(61, 1, time_ns), 0);
            let frame = [&[7; 61][..], &[], &[]];
            write_packet(&mut file[start..], 0, time_ns, frame, 99, 1, time_ns);
        }
        comment(&mut file, 0, 9, "complete");
        file
    }

    #[test]
    fn a_source_has_the_same_blocks_as_memory_has() {
        let file = file();
        let mut blocks = PcapngBlocks::new(Slow(&file), 1 << 20);
        let mut bytes = Vec::new();
        assert!(!blocks.is_ready(), "nothing was read yet");
        for record in Reader::new(&file) {
            let block = blocks.next_block().expect("it is whole").expect("there is one more");
            assert_eq!(block.record, record.expect("it is whole"));
            bytes.extend_from_slice(block.bytes);
        }
        assert!(blocks.next_block().expect("it is whole").is_none());
        assert_eq!(bytes, file);
        let mut whole = PcapngBlocks::new(&file[..], 1 << 20);
        whole.next_block().expect("it is whole");
        assert!(whole.is_ready(), "all of it was read at once");
    }

    #[test]
    fn a_fault_ends_the_reading_and_nothing_long_is_let_in() {
        let file = file();
        let mut short = PcapngBlocks::new(&file[..file.len() - 1], 1 << 20);
        let error = loop {
            match short.next_block() {
                Ok(block) => assert!(block.is_some(), "it ended without a word"),
                Err(e) => break e,
            }
        };
        assert!(matches!(error, Error::CutShort { .. }), "{error}");
        assert!(short.next_block().expect("it was told").is_none());
        let mut long = PcapngBlocks::new(&file[..], 100);
        while let Ok(block) = long.next_block() {
            assert!(block.expect("it is refused before").bytes.len() <= 100);
        }
    }
}
