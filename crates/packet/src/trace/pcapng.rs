//! pcapng, block by block out of a window. This keeps which interfaces the section has, and passes
//! over blocks without packets. What a block says is read by [`crate::pcapng`].

use std::io::Read;

use super::error::Error;
use super::found::{Found, MAX_LEN, without_fcs};
use super::window::Window;
use crate::link::LinkType;
use crate::pcapng::{
    Blocks, ENHANCED_PACKET, HEAD, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, OBSOLETE_PACKET,
    PacketBlock, Record, SECTION_HEADER, SIMPLE_PACKET, nanoseconds,
};

/// The most interfaces that a section can have. Each has to be remembered, and no machine has so
/// many; a section that has more is damaged.
const MAX_INTERFACES: usize = 1 << 16;

/// Where the frame begins in a simple packet block.
const SIMPLE_FRAME: usize = 12;
/// Where the frame begins in any other packet block.
const FRAME: usize = 28;

/// What is needed of an interface to read its packets.
struct Interface {
    link: LinkType,
    resolution: u8,
    offset_s: i64,
    fcs: u32,
}

#[derive(Default)]
pub(super) struct Pcapng {
    blocks: Blocks,
    /// The interfaces of the present section.
    interfaces: Vec<Interface>,
    /// Number of interfaces that the sections before the present one had.
    before: u32,
}

impl Pcapng {
    pub(super) fn next<R: Read>(&mut self, window: &mut Window<R>) -> Result<Option<Found>, Error> {
        loop {
            if !window.fill(HEAD)? {
                let ended = window.bytes().is_empty();
                return if ended { Ok(None) } else { Err(window.short(HEAD)) };
            }
            let at = window.taken();
            let Some(head) = window.bytes().first_chunk() else {
                return Err(window.short(HEAD));
            };
            let (kind, total) = self.blocks.head(at, head)?;
            if !is_read(kind) {
                self.pass(window, total)?;
                continue;
            }
            if total > MAX_LEN {
                return Err(Error::Damaged { at, what: "a block of more than 16 MiB" });
            }
            if !window.fill(total)? {
                return Err(window.short(total));
            }
            let (body, tail) = window.bytes()[8..total].split_at(total - 12);
            self.blocks.tail(at, total, tail)?;
            let found = self.block(kind, body).map_err(|what| Error::Damaged { at, what })?;
            if found.is_some() {
                return Ok(found);
            }
            window.take(total);
        }
    }

    /// Passes over a block that may be larger than the window.
    fn pass<R: Read>(&self, window: &mut Window<R>, total: usize) -> Result<(), Error> {
        if !window.skip(total - 4)? || !window.fill(4)? {
            return Err(window.short(total));
        }
        self.blocks.tail(window.taken(), total, &window.bytes()[..4])?;
        window.take(4);
        Ok(())
    }

    /// Keeps what a block says about its section, and returns the packet if it holds one.
    fn block(&mut self, kind: u32, body: &[u8]) -> Result<Option<Found>, &'static str> {
        let record = match kind {
            OBSOLETE_PACKET => Record::Packet(self.blocks.obsolete(body)?),
            _ => self.blocks.record(kind, body)?,
        };
        match record {
            Record::Packet(packet) => return self.packet(kind, body.len() + 12, &packet).map(Some),
            Record::Section(_) => {
                self.before = self.before.saturating_add(self.interfaces.len() as u32);
                self.interfaces.clear();
            }
            Record::Interface(_) if self.interfaces.len() == MAX_INTERFACES => {
                return Err("a section of more than 65536 interfaces");
            }
            Record::Interface(interface) => self.interfaces.push(Interface {
                link: interface.link,
                resolution: interface.resolution,
                offset_s: interface.offset_s,
                fcs: self.blocks.fcs_len(body),
            }),
            Record::Statistics(_) | Record::Other(_) => {}
        }
        Ok(None)
    }

    /// Returns the packet in a block of `len` bytes.
    fn packet(
        &self,
        kind: u32,
        len: usize,
        packet: &PacketBlock<'_>,
    ) -> Result<Found, &'static str> {
        let Some(interface) = self.interfaces.get(packet.interface as usize) else {
            return Err("a packet of an interface that was not described");
        };
        // Bits 5 to 8 of the flags are the length of the FCS. Where they are 0, the interface's
        // length holds.
        let fcs = match (packet.flags >> 5) & 0xf {
            0 => interface.fcs,
            bytes => bytes,
        };
        let (kept, original_len) = without_fcs(packet.frame.len(), packet.original_len, fcs);
        let begin = if kind == SIMPLE_PACKET { SIMPLE_FRAME } else { FRAME };
        let time_ns = match kind {
            SIMPLE_PACKET => None,
            _ => nanoseconds(interface.resolution, interface.offset_s, packet.timestamp),
        };
        Ok(Found {
            len,
            frame: begin..begin + kept,
            time_ns,
            link: interface.link,
            original_len,
            interface: self.before.saturating_add(packet.interface),
            flags: packet.flags,
            dropped: packet.dropped,
            shed: packet.shed,
        })
    }
}

/// Returns whether the contents of a block of this type are read. Statistics matter to no packet,
/// but are read so that this reader finds the same files damaged as [`crate::pcapng::Reader`] does.
fn is_read(kind: u32) -> bool {
    matches!(
        kind,
        SECTION_HEADER
            | INTERFACE_DESCRIPTION
            | OBSOLETE_PACKET
            | SIMPLE_PACKET
            | INTERFACE_STATISTICS
            | ENHANCED_PACKET
    )
}
