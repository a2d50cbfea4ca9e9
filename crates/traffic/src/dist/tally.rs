//! Which packets of a capture count, and which are left out? A packet counts by the length of its
//! frame or of its IP packet.

use tapdeck_packet::link::LinkType;

use super::length::ip_length;
use super::{Counts, Error, Length};

/// Packets that were seen and not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Packets in which there is no IP packet, or none whose header was captured and can be right.
    pub not_ip: u64,
    /// Packets of no bytes or of more than 65,535: a capture on a sending host has segments before
    /// they are cut.
    pub no_size: u64,
}

impl LeftOut {
    pub fn packets(&self) -> u64 {
        self.not_ip + self.no_size
    }

    pub fn add(&mut self, other: &Self) {
        self.not_ip += other.not_ip;
        self.no_size += other.no_size;
    }
}

/// Counts packets as they come.
#[derive(Debug)]
pub struct Tally {
    pub length: Length,
    pub counts: Counts,
    pub left_out: LeftOut,
}

impl Tally {
    pub fn new(length: Length) -> Self {
        Self { length, counts: Counts::new(), left_out: LeftOut::default() }
    }

    /// Counts a packet of which `frame` was captured, or leaves it out.
    pub fn packet(&mut self, link: LinkType, original_len: u32, frame: &[u8]) -> Result<(), Error> {
        let length = match self.length {
            Length::Frame => Some(original_len),
            Length::Ip => ip_length(link, frame).map_err(|_| Error::LinkType(link))?,
        };
        match length.map(u16::try_from) {
            None => self.left_out.not_ip += 1,
            Some(Ok(size @ 1..)) => self.counts.add(size, 1)?,
            Some(_) => self.left_out.no_size += 1,
        }
        Ok(())
    }
}
