//! How is a pcap file written? A header, and packets of one link type, in this machine's byte
//! order.

use crate::link::LinkType;
use crate::numbers::pcap_file;

/// Bytes of a packet's record before its frame.
const RECORD: usize = 16;

/// What times are told in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The oldest readers take nothing else.
    Microseconds,
    Nanoseconds,
}

/// Returns the header of a file.
pub fn header(link: LinkType, unit: Unit) -> [u8; 24] {
    let magic = match unit {
        Unit::Microseconds => pcap_file::MAGIC,
        Unit::Nanoseconds => pcap_file::MAGIC_NANOSECONDS,
    };
    let mut header = [0; 24];
    header[..4].copy_from_slice(&magic.to_ne_bytes());
    header[4..6].copy_from_slice(&pcap_file::MAJOR_VERSION.to_ne_bytes());
    header[6..8].copy_from_slice(&pcap_file::MINOR_VERSION.to_ne_bytes());
    header[16..20].copy_from_slice(&pcap_file::MAX_SNAPLEN.to_ne_bytes());
    header[20..24].copy_from_slice(&u32::from(link.0).to_ne_bytes());
    header
}

/// Returns how many bytes a packet takes.
pub fn packet_len(frame_len: usize) -> usize {
    RECORD + frame_len
}

/// Appends a packet.
pub fn packet(out: &mut Vec<u8>, unit: Unit, time_ns: u64, original_len: u32, frame: &[u8]) {
    let (seconds, ns) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let fraction = match unit {
        Unit::Microseconds => ns / 1000,
        Unit::Nanoseconds => ns,
    };
    for word in [seconds as u32, fraction as u32, frame.len() as u32, original_len] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(frame);
}

#[cfg(test)]
mod tests {
    use pcap_parser::traits::PcapReaderIterator as _;
    use pcap_parser::{LegacyPcapReader, PcapBlockOwned};

    use super::{Unit, header, packet, packet_len};
    use crate::link::LinkType;

    #[test]
    fn others_read_what_is_written() {
        for (unit, is_exact, fraction) in
            [(Unit::Microseconds, false, 123_456), (Unit::Nanoseconds, true, 123_456_789)]
        {
            let mut file = header(LinkType::ETHERNET, unit).to_vec();
            let before = file.len();
            packet(&mut file, unit, 1_700_000_000_123_456_789, 1500, b"frame");
            assert_eq!(file.len() - before, packet_len(5));
            let mut reader = LegacyPcapReader::new(1024, &file[..]).expect("a pcap file");
            let Ok((len, PcapBlockOwned::LegacyHeader(head))) = reader.next() else { panic!() };
            assert_eq!((head.is_nanosecond_precision(), head.network.0), (is_exact, 1));
            reader.consume(len);
            let Ok((_, PcapBlockOwned::Legacy(read))) = reader.next() else { panic!() };
            let times = (read.ts_sec, read.ts_usec, read.origlen, read.data);
            assert_eq!(times, (1_700_000_000, fraction, 1500, &b"frame"[..]));
        }
    }
}
