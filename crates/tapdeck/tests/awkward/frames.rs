//! Frames of every kind that pcap-filter(7) knows and of some that it does not.
//!
//! A frame is put together from the outside in: each layer asks for what it is to carry and stands
//! before it. So anything may carry anything, to a depth of a few tunnels. Then some are cut,
//! damaged or padded.
//!
//! Traffic comes in **stretches**: for a while only a few kinds of layers are sent between a few
//! hosts, and mostly whole. If all kinds were mixed evenly, every piece of a store would hold a bit
//! of everything, and an index would have nothing to leave out.

use super::{IPV4, IPV6, LABELS, MACS, PORTS, PROTOCOLS, SESSIONS, VLANS, VNIS};
use tapdeck_testkit::SplitMix64;

/// Tunnels in tunnels end at this depth.
const DEEPEST: usize = 5;

/// What stands behind a MAC header, a tag or a GRE header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    Arp,
    Rarp,
    Tags,
    Mpls,
    Session,
    Discovery,
    Llc,
    Snap,
    Unknown,
}

const NETWORKS: [Network; 11] = [
    Network::Ipv4,
    Network::Ipv6,
    Network::Arp,
    Network::Rarp,
    Network::Tags,
    Network::Mpls,
    Network::Session,
    Network::Discovery,
    Network::Llc,
    Network::Snap,
    Network::Unknown,
];

/// What stands behind an IP header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Igmp,
    Esp,
    Ah,
    Gre,
    Ipv4,
    Ipv6,
    Vxlan,
    Geneve,
    Gtp,
    Other,
}

const TRANSPORTS: [Transport; 14] = [
    Transport::Tcp,
    Transport::Udp,
    Transport::Sctp,
    Transport::Icmp,
    Transport::Igmp,
    Transport::Esp,
    Transport::Ah,
    Transport::Gre,
    Transport::Ipv4,
    Transport::Ipv6,
    Transport::Vxlan,
    Transport::Geneve,
    Transport::Gtp,
    Transport::Other,
];

/// A frame as it was captured.
pub struct Captured {
    pub frame: Vec<u8>,
    /// Bytes on the wire.
    pub original_len: u32,
}

/// Makes the frames of one stretch.
pub struct Stretch {
    networks: Vec<Network>,
    transports: Vec<Transport>,
    /// The draw's part of the pools: this many values from this one on.
    first: usize,
    values: usize,
    /// Of a hundred frames, so many are cut or damaged.
    mangled: usize,
    /// Payloads have fewer bytes.
    payload: usize,
}

impl Stretch {
    pub fn new(rng: &mut SplitMix64) -> Self {
        let mut networks = vec![rng.one(&[Network::Ipv4, Network::Ipv4, Network::Ipv6])];
        networks.extend((0..rng.below(3)).map(|_| rng.one(&NETWORKS)));
        let mut transports = vec![rng.one(&[Transport::Tcp, Transport::Udp])];
        transports.extend((0..rng.below(4)).map(|_| rng.one(&TRANSPORTS)));
        Self {
            networks,
            transports,
            first: rng.below(60),
            values: 1 + rng.below(4),
            mangled: rng.one(&[0, 0, 3, 60]),
            payload: rng.one(&[20, 100, 1400, 1400]),
        }
    }

    pub fn frame(&self, rng: &mut SplitMix64) -> Captured {
        let frame = self.ethernet(rng, 0);
        let whole = Captured { original_len: frame.len() as u32, frame };
        if rng.percent(self.mangled) { mangle(rng, whole) } else { whole }
    }

    /// One of this stretch's values, and seldom another one.
    fn of<T: Copy>(&self, rng: &mut SplitMix64, pool: &[T]) -> T {
        if rng.percent(2) {
            return rng.one(pool);
        }
        pool[(self.first + rng.below(self.values)) % pool.len()]
    }

    fn payload(&self, rng: &mut SplitMix64) -> Vec<u8> {
        let n = rng.below(self.payload);
        rng.bytes(n)
    }

    fn ethernet(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let mut frame = self.of(rng, &MACS).to_vec();
        frame.extend(self.of(rng, &MACS));
        frame.extend(self.typed(rng, depth));
        if depth == 0 && frame.len() < 60 && rng.percent(50) {
            frame.resize(60, 0);
        }
        frame
    }

    fn network(&self, rng: &mut SplitMix64, depth: usize) -> Network {
        if depth >= DEEPEST {
            return rng.one(&[Network::Ipv4, Network::Ipv6]);
        }
        let all = depth > 0 && rng.percent(20);
        if all { rng.one(&NETWORKS) } else { rng.one(&self.networks) }
    }

    /// An EtherType, or in its place a length, and what follows.
    fn typed(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let network = self.network(rng, depth);
        let (kind, carried) = match network {
            Network::Ipv4 => (0x0800, self.ipv4(rng, depth + 1)),
            Network::Ipv6 => (0x86dd, self.ipv6(rng, depth + 1)),
            Network::Arp => (0x0806, self.arp(rng)),
            Network::Rarp => (0x8035, self.arp(rng)),
            Network::Tags => {
                let tag = self.tag(rng, depth + 1);
                (rng.one(&[0x8100, 0x8100, 0x8100, 0x88a8, 0x9100, 0x9200]), tag)
            }
            Network::Mpls => (rng.one(&[0x8847, 0x8847, 0x8848]), self.mpls(rng, depth + 1)),
            Network::Session => (0x8864, self.session(rng, depth + 1)),
            Network::Discovery => (0x8863, self.discovery(rng)),
            Network::Llc | Network::Snap => {
                let llc = self.llc(rng, network == Network::Snap, depth + 1);
                (llc.len() as u16, llc)
            }
            Network::Unknown => {
                let kind =
                    rng.one(&[0x88cc, 0x9000, 0x88b5, 0x8137, 0x809b, 0x6000, 0x0600, 0x05ff]);
                (kind, self.payload(rng))
            }
        };
        [&kind.to_be_bytes()[..], &carried].concat()
    }

    /// The rest of a tag behind its type. Tags come in stacks, of types that may differ.
    fn tag(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let bits = (rng.below(16) as u16) << 12;
        let mut tag = (bits | self.of(rng, &VLANS)).to_be_bytes().to_vec();
        if depth <= 3 && rng.percent(30) {
            tag.extend(rng.one(&[0x8100_u16, 0x8100, 0x88a8, 0x9100]).to_be_bytes());
            tag.extend(self.tag(rng, depth + 1));
        } else {
            tag.extend(self.typed(rng, depth));
        }
        tag
    }

    fn mpls(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let mut stack = Vec::new();
        let entries = rng.one(&[1, 1, 2, 2, 3, 6]);
        for i in 1..=entries {
            let bottom = u32::from(i == entries && !rng.percent(2)) << 8;
            let entry = self.of(rng, &LABELS) << 12 | (rng.below(8) as u32) << 9 | bottom | 64;
            stack.extend(entry.to_be_bytes());
        }
        let carried = match rng.below(10) {
            // A pseudowire, with and without its control word (RFC 4448).
            0 => [vec![0; 4], self.ethernet(rng, depth)].concat(),
            1 => self.ethernet(rng, depth),
            2..5 => self.ipv6(rng, depth),
            _ => self.ipv4(rng, depth),
        };
        stack.extend(carried);
        stack
    }

    /// PPPoE (RFC 2516) with PPP inside.
    fn session(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let carried = match rng.below(8) {
            0 => [&[0xc0, 0x21, 1, 1, 0, 4][..], &rng.bytes(3)].concat(),
            // PPP's protocol field compressed to one byte.
            1 => [&[0x21][..], &self.ipv4(rng, depth)].concat(),
            2..5 => [&[0, 0x57][..], &self.ipv6(rng, depth)].concat(),
            _ => [&[0, 0x21][..], &self.ipv4(rng, depth)].concat(),
        };
        let mut out = vec![rng.one(&[0x11, 0x11, 0x11, 0x21]), 0];
        out.extend(self.of(rng, &SESSIONS).to_be_bytes());
        out.extend((carried.len() as u16).to_be_bytes());
        out.extend(carried);
        out
    }

    fn discovery(&self, rng: &mut SplitMix64) -> Vec<u8> {
        let mut out = vec![0x11, rng.one(&[9, 7, 0x19, 0x65, 0xa7])];
        out.extend(self.of(rng, &SESSIONS).to_be_bytes());
        out.extend([0, 4, 1, 1, 0, 0]);
        out
    }

    /// IEEE 802.2, as SNAP (RFC 1042) or with the service access points of the protocols that
    /// pcap-filter(7) names.
    fn llc(&self, rng: &mut SplitMix64, snap: bool, depth: usize) -> Vec<u8> {
        if snap {
            let oui = rng.one(&[[0; 3], [0; 3], [0, 0, 0x0c], [8, 0, 7], [0, 0, 0xf8]]);
            return [&[0xaa, 0xaa, 3], &oui[..], &self.typed(rng, depth)].concat();
        }
        let point = rng.one(&[0x42, 0xfe, 0xe0, 0xf0, 0x06, 0xff, 0xaa]);
        let mut llc = vec![point, point, rng.one(&[3, 3, 1, 0, 0x7f, 0xe3])];
        // With ISO's, what follows names the protocol: CLNP, ES-IS, IS-IS.
        llc.push(rng.one(&[0x81, 0x82, 0x83, 0]));
        llc.extend(self.payload(rng));
        llc
    }

    /// ARP or RARP, sometimes of other lengths than those of Ethernet and IPv4.
    fn arp(&self, rng: &mut SplitMix64) -> Vec<u8> {
        let (hardware, protocol) =
            rng.one(&[(6, 4), (6, 4), (6, 4), (6, 4), (8, 4), (6, 16), (0, 0)]);
        let mut arp = vec![0, 1, 8, 0, hardware, protocol, 0, rng.one(&[1, 2, 3, 4, 9])];
        for _ in 0..2 {
            arp.extend(self.of(rng, &MACS).iter().chain(&[0; 2]).take(usize::from(hardware)));
            match protocol {
                16 => arp.extend(self.of(rng, &IPV6).octets()),
                4 => arp.extend(self.of(rng, &IPV4).octets()),
                _ => {}
            }
        }
        arp
    }

    fn ipv4(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let (protocol, carried) = self.transport(rng, true, depth);
        let options = if rng.percent(15) { 4 * (1 + rng.below(10)) } else { 0 };
        let words = (20 + options) / 4;
        let total = (20 + options + carried.len()) as u16;
        // Header lengths and versions that cannot be, and lengths that are not.
        let first = match rng.below(60) {
            0 => 0x44,
            1 => 0x4f,
            2 => 0x40,
            3 => 0x60 | words as u8,
            4 => 0x50 | words as u8,
            _ => 0x40 | words as u8,
        };
        let length = if rng.percent(3) { rng.one(&[0, 19, total / 2, 0xffff]) } else { total };
        let fragment = match rng.below(24) {
            0 => 0x2000,
            1 => 0x2000 | rng.one(&[1, 185]),
            2 => rng.one(&[1, 3, 0x1fff]),
            3 => 0x8000,
            4..12 => 0x4000,
            _ => 0,
        };
        let mut out = vec![first, rng.one(&[0, 0, 0xb8])];
        out.extend(length.to_be_bytes());
        out.extend(rng.bytes(2));
        out.extend(u16::to_be_bytes(fragment));
        out.extend([rng.one(&[64, 64, 1, 255]), protocol]);
        out.extend(rng.bytes(2));
        out.extend(self.of(rng, &IPV4).octets());
        out.extend(self.of(rng, &IPV4).octets());
        out.extend(rng.bytes(options));
        out.extend(carried);
        out
    }

    /// An IPv6 header with none, some or all extension headers (RFC 8200), in any order.
    fn ipv6(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let (mut next, mut carried) = self.transport(rng, false, depth);
        let extensions = if rng.percent(30) { 1 + rng.below(5) } else { 0 };
        for _ in 0..extensions {
            let header = rng.one(&[0, 43, 44, 60, 51, 135, 139, 140, 59]);
            carried = [extension(rng, header, next), carried].concat();
            next = header;
        }
        let length = if rng.percent(3) { rng.one(&[0, 7, 0xffff]) } else { carried.len() as u16 };
        let version = if rng.percent(2) { rng.one(&[0x40, 0x50, 0]) } else { 0x60 };
        let mut out = vec![version, 0, 0, rng.one(&[0, 0, 9])];
        out.extend(length.to_be_bytes());
        out.extend([next, rng.one(&[64, 255])]);
        out.extend(self.of(rng, &IPV6).octets());
        out.extend(self.of(rng, &IPV6).octets());
        out.extend(carried);
        out
    }

    /// An IP protocol number and what it is of.
    fn transport(&self, rng: &mut SplitMix64, v4: bool, depth: usize) -> (u8, Vec<u8>) {
        let mut transport = rng.one(&self.transports);
        if depth >= DEEPEST {
            transport = rng.one(&[Transport::Tcp, Transport::Udp]);
        }
        let ports = [self.of(rng, &PORTS), self.of(rng, &PORTS)];
        let below = depth + 1;
        match transport {
            Transport::Tcp => (6, self.tcp(rng, ports)),
            Transport::Udp => (17, udp(ports, &self.payload(rng))),
            Transport::Sctp => {
                (132, [&joined(ports), &rng.bytes(8)[..], &self.payload(rng)].concat())
            }
            Transport::Icmp => (if v4 { 1 } else { 58 }, self.icmp(rng, v4, below)),
            Transport::Igmp => (2, [vec![rng.one(&[0x11, 0x16, 0x22])], rng.bytes(7)].concat()),
            Transport::Esp => (50, [rng.bytes(8), self.payload(rng)].concat()),
            Transport::Ah => {
                let (next, carried) = self.transport(rng, v4, below);
                (51, [extension(rng, 51, next), carried].concat())
            }
            Transport::Gre => (47, self.gre(rng, below)),
            Transport::Ipv4 => (4, self.ipv4(rng, below)),
            Transport::Ipv6 => (41, self.ipv6(rng, below)),
            Transport::Vxlan => (17, udp([ports[0], 4789], &self.vxlan(rng, below))),
            Transport::Geneve => (17, udp([ports[0], 6081], &self.geneve(rng, below))),
            Transport::Gtp => (17, udp([ports[0], 2152], &self.gtp(rng, below))),
            Transport::Other => (rng.one(&[103, 112, 9, 89, 0, 255, 115]), self.payload(rng)),
        }
    }

    fn tcp(&self, rng: &mut SplitMix64, ports: [u16; 2]) -> Vec<u8> {
        let options = 4 * rng.one(&[0, 0, 3, 5, 10]);
        let words = if rng.percent(2) { rng.below(16) } else { (20 + options) / 4 };
        let mut out = joined(ports).to_vec();
        out.extend(rng.bytes(8));
        out.extend([(words << 4) as u8, rng.one(&[2, 0x12, 0x10, 0x18, 0x11, 4, 0])]);
        out.extend(rng.bytes(6 + options));
        out.extend(self.payload(rng));
        out
    }

    /// An echo, or an error with the packet that it is about.
    fn icmp(&self, rng: &mut SplitMix64, v4: bool, depth: usize) -> Vec<u8> {
        let error = rng.percent(30);
        let kind = match (v4, error) {
            (true, true) => rng.one(&[3, 5, 11]),
            (true, false) => rng.one(&[8, 0, 13]),
            (false, true) => rng.one(&[1, 2, 3]),
            (false, false) => rng.one(&[128, 129, 135, 136]),
        };
        let about = match (error, v4) {
            (true, true) => self.ipv4(rng, depth),
            (true, false) => self.ipv6(rng, depth),
            _ => self.payload(rng),
        };
        [vec![kind, rng.one(&[0, 1, 4])], rng.bytes(6), about].concat()
    }

    /// GRE (RFC 2784, 2890) with any of checksum, key and sequence number; now and then another
    /// version.
    fn gre(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let flags = rng.one(&[0, 0, 0x80, 0x20, 0x10, 0xb0, 0x40]);
        let fields = [0x80, 0x20, 0x10].iter().filter(|f| flags & **f != 0).count();
        let mut out = vec![flags, u8::from(rng.percent(3))];
        let carried = if rng.percent(40) {
            // Transparent Ethernet bridging.
            [&[0x65, 0x58][..], &self.ethernet(rng, depth)].concat()
        } else {
            self.typed(rng, depth)
        };
        out.extend(&carried[..2]);
        out.extend(rng.bytes(4 * fields));
        out.extend(&carried[2..]);
        out
    }

    fn vxlan(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let mut out = vec![rng.one(&[8, 8, 8, 0]), 0, 0, 0];
        out.extend((self.of(rng, &VNIS) << 8).to_be_bytes());
        out.extend(self.ethernet(rng, depth));
        out
    }

    /// GENEVE (RFC 8926) with options, and with frames or bare packets inside.
    fn geneve(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let options = rng.one(&[0, 0, 1, 3, 63]);
        let version = if rng.percent(2) { 0x40 } else { 0 };
        let (kind, carried) = match rng.below(4) {
            0 => (0x0800_u16, self.ipv4(rng, depth)),
            1 => (0x86dd, self.ipv6(rng, depth)),
            _ => (0x6558, self.ethernet(rng, depth)),
        };
        let mut out = vec![version | options, rng.one(&[0, 0x40, 0x80])];
        out.extend(kind.to_be_bytes());
        out.extend((self.of(rng, &VNIS) << 8).to_be_bytes());
        out.extend(rng.bytes(4 * usize::from(options)));
        out.extend(carried);
        out
    }

    /// GTP-U (3GPP TS 29.281), with a sequence number and extension headers, or a message that
    /// carries no packet.
    fn gtp(&self, rng: &mut SplitMix64, depth: usize) -> Vec<u8> {
        let flags = rng.one(&[0x30, 0x30, 0x32, 0x34, 0x36]);
        let kind = rng.one(&[255, 255, 255, 1, 26]);
        let mut rest = Vec::new();
        if flags & 7 != 0 {
            rest.extend(rng.bytes(3));
            match flags & 4 {
                0 => rest.push(0),
                // A PDU session container.
                _ => rest.extend([0x85, 1, 0, 9, 0]),
            }
        }
        rest.extend(if rng.percent(60) { self.ipv4(rng, depth) } else { self.ipv6(rng, depth) });
        let mut out = vec![flags, kind];
        out.extend((rest.len() as u16).to_be_bytes());
        out.extend(rng.bytes(4));
        out.extend(rest);
        out
    }
}

fn joined([source, destination]: [u16; 2]) -> [u8; 4] {
    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
    [a, b, c, d]
}

fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    [&joined(ports), &length.to_be_bytes()[..], &[0; 2], payload].concat()
}

/// An extension header of IPv6, of which the authentication header counts its length in another
/// unit.
fn extension(rng: &mut SplitMix64, header: u8, next: u8) -> Vec<u8> {
    let next = if rng.percent(2) { rng.one(&PROTOCOLS) } else { next };
    match header {
        44 => {
            let fragment = rng.one(&[0_u16, 1, 1, 8, 0xfff8, 0x00b9]);
            [&[next, 0][..], &fragment.to_be_bytes(), &rng.bytes(4)].concat()
        }
        51 => {
            let words = rng.one(&[1, 4, 4, 2]);
            [vec![next, words], rng.bytes(4 * usize::from(words + 2) - 2)].concat()
        }
        _ => {
            let units = rng.one(&[0, 0, 1, 3]);
            [vec![next, units], rng.bytes(8 * usize::from(units + 1) - 2)].concat()
        }
    }
}

/// Cuts it as a recorder does, or makes it what a broken sender or wire does.
fn mangle(rng: &mut SplitMix64, whole: Captured) -> Captured {
    let Captured { mut frame, original_len } = whole;
    match rng.below(10) {
        0..3 => frame.truncate(54),
        3..5 => frame.truncate(rng.below(frame.len() + 1)),
        5 => {
            // It was as short on the wire.
            frame.truncate(1 + rng.below(frame.len()));
            return Captured { original_len: frame.len() as u32, frame };
        }
        6 | 7 => {
            for _ in 0..=rng.below(4) {
                let at = rng.below(frame.len().min(90));
                frame[at] ^= 1 << rng.below(8);
            }
        }
        8 => {
            let more = 1 + rng.below(40);
            frame.extend(rng.bytes(more));
            return Captured { original_len: frame.len() as u32, frame };
        }
        _ => {
            let few = 1 + rng.below(20);
            frame = rng.bytes(few);
            return Captured { original_len: frame.len() as u32, frame };
        }
    }
    Captured { frame, original_len }
}
