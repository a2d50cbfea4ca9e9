//! What is a packet to a query, and who decides whether it is in the answer? A [`Matcher`], which
//! sees one packet at a time; the planner of keys is another ([`tapdeck_packet::key::Plan`]).

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng;
use tapdeck_packet::printable::counted;

/// A packet of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub time_ns: i64,
    /// The index of the packet's interface in [`super::Snapshot::interfaces`].
    pub interface: u32,
    pub link: LinkType,
    pub original_len: u32,
    pub frame: &'a [u8],
    /// The packet's flags, as `epb_flags` has them.
    pub flags: u32,
    /// Packets lost before it. In an answer: since the packet before it of the same interface in
    /// the answer, or since the span's beginning. To a [`Matcher`]: since the packet before it in
    /// the recording.
    pub dropped: u64,
    /// Bytes of the frame that were given up because a ring was nearly full.
    pub shed: u32,
}

impl Packet<'_> {
    /// Adds the packet to a pcapng file in memory, with words about what was lost before it and
    /// shed of it.
    pub fn write_block(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let len = pcapng::packet_len(self.frame.len(), self.flags, self.dropped);
        out.resize(start + len, 0);
        let (time_ns, frame) = (self.time_ns as u64, [self.frame, &[], &[]]);
        let Self { interface, original_len, flags, dropped, shed, .. } = *self;
        let block = &mut out[start..];
        pcapng::write_packet(block, interface, time_ns, frame, original_len, flags, dropped);
        if shed > 0 {
            pcapng::shed_packet(out, start, shed);
            let text =
                format!("shed: {} of this packet were not kept", counted(shed.into(), "byte"));
            pcapng::comment_packet(out, start, &text);
        }
        if dropped > 0 {
            let lost = counted(dropped, "packet");
            let text = format!("dropped before this one: {lost} of its interface");
            pcapng::comment_packet(out, start, &text);
        }
    }
}

/// Decides which packets are in the answer. A matcher must decide the same for the same packet
/// every time.
pub trait Matcher {
    fn matches(&self, packet: &Packet<'_>) -> bool;
}

impl<F: Fn(&Packet<'_>) -> bool> Matcher for F {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        self(packet)
    }
}
