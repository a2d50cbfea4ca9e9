//! Frames by the thousand: every header that the walk knows, around one another.

use tapdeck_testkit::SplitMix64;

/// Bytes, from one to one more than `most`.
fn some(random: &mut SplitMix64, most: usize) -> Vec<u8> {
    let n = 1 + random.below(most);
    random.bytes(n)
}

pub fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + payload.len() as u16).to_be_bytes();
    let header = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0];
    [&header[..], &source, &destination, payload].concat()
}

pub fn udp4(
    source: [u8; 4],
    destination: [u8; 4],
    source_port: u16,
    destination_port: u16,
) -> Vec<u8> {
    let (s, d) = (source_port.to_be_bytes(), destination_port.to_be_bytes());
    ipv4(
        source,
        destination,
        17,
        &[s[0], s[1], d[0], d[1], 0, 20, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    )
}

/// `tags`: type and TCI of each.
pub fn ethernet(tags: &[(u16, u16)], kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (kind, tci) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What an `EtherType` stands for, as far as this matters here.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ipv4,
    Ipv6,
    Mpls,
    Pppoe,
    Other,
}

impl Kind {
    fn ethertype(self, random: &mut SplitMix64) -> u16 {
        match self {
            Self::Ipv4 => 0x0800,
            Self::Ipv6 => 0x86dd,
            Self::Mpls => 0x8847,
            Self::Pppoe => 0x8864,
            Self::Other => [0x0806, 0x88cc, 0x0026, 0x6558][random.below(4) as usize],
        }
    }

    fn ppp(self) -> Option<u16> {
        match self {
            Self::Ipv4 => Some(0x0021),
            Self::Ipv6 => Some(0x0057),
            Self::Mpls => Some(0x0281),
            _ => None,
        }
    }
}

/// Makes one frame. With the same numbers and `is_reverse` set, it makes the frame of the other
/// direction.
pub struct Build<'a> {
    random: &'a mut SplitMix64,
    is_reverse: bool,
    tunnels: u64,
}

impl<'a> Build<'a> {
    pub fn new(random: &'a mut SplitMix64, is_reverse: bool) -> Self {
        let tunnels = [0, 0, 0, 1, 1, 2, 3, 6][random.below(8) as usize];
        Self { random, is_reverse, tunnels }
    }

    pub fn frame(&mut self, has_link: bool) -> Vec<u8> {
        if has_link {
            return self.ethernet();
        }
        if self.random.below(2) == 0 { self.ipv4() } else { self.ipv6() }
    }

    fn pair<const N: usize>(&mut self) -> ([u8; N], [u8; N]) {
        let (a, b) = (self.random.array(), self.random.array());
        if self.is_reverse { (b, a) } else { (a, b) }
    }

    fn ethernet(&mut self) -> Vec<u8> {
        let (destination, source) = self.pair::<6>();
        let mut frame = [destination, source].concat();
        let tags = [0, 0, 0, 1, 1, 2, 3, 4, 5][self.random.below(9) as usize];
        for _ in 0..tags {
            let kind = [0x8100_u16, 0x88a8, 0x9100][self.random.below(3) as usize];
            frame.extend(kind.to_be_bytes());
            frame.extend(self.random.array::<2>());
        }
        let (kind, payload) = self.network();
        frame.extend(kind.ethertype(self.random).to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// What may stand behind a type.
    fn network(&mut self) -> (Kind, Vec<u8>) {
        match self.random.below(12) {
            0..=5 => (Kind::Ipv4, self.ipv4()),
            6..=8 => (Kind::Ipv6, self.ipv6()),
            9 => (Kind::Mpls, self.mpls()),
            10 => (Kind::Pppoe, self.pppoe()),
            _ => (Kind::Other, some(self.random, 60)),
        }
    }

    fn ipv4(&mut self) -> Vec<u8> {
        let (source, destination) = self.pair::<4>();
        let options = [0, 0, 0, 1, 5, 10][self.random.below(6) as usize];
        let (protocol, payload) = self.transport(true);
        let mut header = vec![0x45 + options, 0];
        header.extend((20 + 4 * u16::from(options) + payload.len() as u16).to_be_bytes());
        header.extend(self.fragment().to_be_bytes());
        header.extend([64, protocol, 0, 0]);
        header.extend(source);
        header.extend(destination);
        header.extend((0..options * 4).map(|_| 1));
        [header, payload].concat()
    }

    /// Identification, flags and offset: mostly of no fragment.
    fn fragment(&mut self) -> u32 {
        let id = self.random.below(4) as u32 + 1;
        let flags = [0, 0x4000, 0, 0, 0x2000, 0x2007, 0x0009][self.random.below(7) as usize];
        id << 16 | flags
    }

    fn ipv6(&mut self) -> Vec<u8> {
        let (source, destination) = self.pair::<16>();
        let mut is_fragment = false;
        let (mut next, mut payload) = self.transport(false);
        let extensions = [0, 0, 0, 1, 2, 3, 8, 9][self.random.below(8) as usize];
        for _ in 0..extensions {
            let units = self.random.below(3) as u8;
            let kind = [0, 43, 60, 51, 44][self.random.below(5) as usize];
            if kind == 44 && is_fragment {
                continue;
            }
            let mut header = vec![next, units];
            let length = match kind {
                44 => {
                    is_fragment = true;
                    header.extend([0, [0, 1, 1, 9, 16][self.random.below(5) as usize]]);
                    header.extend([0, 0, 0, self.random.below(4) as u8]);
                    8
                }
                51 => 8 + 4 * usize::from(units),
                _ => 8 + 8 * usize::from(units),
            };
            header.resize(length, 0);
            payload = [header, payload].concat();
            next = kind;
        }
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([next, 64]);
        packet.extend(source);
        packet.extend(destination);
        packet.extend(payload);
        packet
    }

    fn transport(&mut self, is_ipv4: bool) -> (u8, Vec<u8>) {
        if self.tunnels > 0 {
            self.tunnels -= 1;
            return self.tunnel();
        }
        match self.random.below(10) {
            0 => {
                let (a, b) = ([3, 4, 5, 11, 12, 8], [1, 2, 3, 4, 128, 129]);
                let kind = if is_ipv4 { a } else { b }[self.random.below(6) as usize];
                let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
                // The other direction's errors quote the other direction.
                message.extend(if is_ipv4 { self.ipv4() } else { self.ipv6() });
                (if is_ipv4 { 1 } else { 58 }, message)
            }
            1 => ([50, 89, 59, 58, 1][self.random.below(5) as usize], some(self.random, 40)),
            _ => {
                let (source, destination) = self.pair::<2>();
                let protocol = [6, 6, 6, 17, 17, 132, 33, 136][self.random.below(8) as usize];
                (protocol, [&source[..], &destination, &[0; 16]].concat())
            }
        }
    }

    fn udp(&mut self, port: u16, header: &[u8], payload: &[u8]) -> (u8, Vec<u8>) {
        let source = self.random.array::<2>();
        (17, [&source[..], &port.to_be_bytes(), &[0, 0, 0, 0], header, payload].concat())
    }

    fn tunnel(&mut self) -> (u8, Vec<u8>) {
        match self.random.below(9) {
            0 => {
                let port = [4789, 8472][self.random.below(2) as usize];
                let flags = [8, 8, 8, 0x88, 0][self.random.below(5) as usize];
                let frame = self.ethernet();
                self.udp(port, &[flags, 0, 0, 0, 0, 0, 7, 0], &frame)
            }
            1 => self.geneve(),
            2 => self.gtp_u(),
            3 | 4 => (47, self.gre()),
            5 => (4, self.ipv4()),
            6 => (41, self.ipv6()),
            7 => (137, self.mpls()),
            _ => {
                let frame = self.ethernet();
                self.udp(4789, &[8, 0, 0, 0, 0, 0, 9, 0], &frame)
            }
        }
    }

    fn geneve(&mut self) -> (u8, Vec<u8>) {
        let words = self.random.below(3) as u8;
        let version = [0, 0, 0, 0x40][self.random.below(4) as usize];
        let (kind, payload) = if self.random.below(2) == 0 {
            (0x6558, self.ethernet())
        } else {
            let (kind, payload) = self.network();
            (kind.ethertype(self.random), payload)
        };
        let [high, low] = kind.to_be_bytes();
        let mut header = vec![version | words, 0, high, low, 0, 0, 1, 0];
        header.resize(8 + 4 * usize::from(words), 0xee);
        self.udp(6081, &header, &payload)
    }

    fn gtp_u(&mut self) -> (u8, Vec<u8>) {
        let flags = 0x30 | self.random.below(8) as u8;
        let kind = [255, 255, 255, 1][self.random.below(4) as usize];
        let mut header = vec![flags, kind, 0, 0, 0, 0, 0, 1];
        if flags & 7 != 0 {
            let extensions = if flags & 4 == 0 { 0 } else { self.random.below(4) };
            header.extend([0, 0, 0, if flags & 4 == 0 { 0xff } else { u8::from(extensions > 0) }]);
            for i in 1..=extensions {
                let units = 1 + self.random.below(3) as u8;
                header.push(units);
                header.resize(header.len() + usize::from(units) * 4 - 2, 0);
                header.push(u8::from(i < extensions));
            }
        }
        let payload = match self.random.below(5) {
            0..=2 => self.ipv4(),
            3 => self.ipv6(),
            _ => some(self.random, 30),
        };
        self.udp(2152, &header, &payload)
    }

    fn gre(&mut self) -> Vec<u8> {
        let version = u8::from(self.random.below(4) == 0);
        let flags = [0, 0x20, 0x10, 0x30, 0x80, 0xb0, 0x40][self.random.below(7) as usize];
        let has_acknowledgment = version == 1 && self.random.below(2) == 0;
        let mut header = vec![flags, version | u8::from(has_acknowledgment) << 7];
        let options = (flags & 0xb0).count_ones() as usize + usize::from(has_acknowledgment);
        let mut subheader = Vec::new();
        let (kind, payload) = match self.random.below(5) {
            0 => (0x6558, self.ethernet()),
            1 => {
                subheader.resize(if flags & 0x10 == 0 { 0 } else { 8 }, 0);
                (0x88be, self.ethernet())
            }
            2 => {
                let has_more = self.random.below(2) == 1;
                subheader.resize(11, 0);
                subheader.push(u8::from(has_more));
                subheader.resize(if has_more { 20 } else { 12 }, 0);
                (0x22eb, self.ethernet())
            }
            3 => {
                let (kind, payload) = self.network();
                let [high, low] = kind.ppp().unwrap_or(0xc021).to_be_bytes();
                if self.random.below(2) == 0 {
                    subheader.extend([0xff, 3]);
                }
                if high != 0 || self.random.below(2) == 0 {
                    subheader.push(high);
                }
                subheader.push(low);
                (0x880b, payload)
            }
            _ => {
                let (kind, payload) = self.network();
                (kind.ethertype(self.random), payload)
            }
        };
        header.extend(kind.to_be_bytes());
        header.resize(4 + 4 * options, 0x77);
        [header, subheader, payload].concat()
    }

    fn mpls(&mut self) -> Vec<u8> {
        let labels = [1, 1, 2, 3, 8, 9][self.random.below(6) as usize];
        let mut stack = Vec::new();
        for i in 1..=labels {
            stack.extend([self.random.draw() as u8, 0x10, u8::from(i == labels), 64]);
        }
        match self.random.below(4) {
            0 => stack.extend(self.ipv6()),
            1 => {
                stack.extend([0, 0, 0, 1]);
                stack.extend(self.ethernet());
            }
            _ => stack.extend(self.ipv4()),
        }
        stack
    }

    fn pppoe(&mut self) -> Vec<u8> {
        let code = [0, 0, 0, 9][self.random.below(4) as usize];
        let mut header = vec![0x11, code, 0, 1, 0, 0];
        let (kind, payload) = self.network();
        header.extend(kind.ppp().unwrap_or(0xc021).to_be_bytes());
        [header, payload].concat()
    }
}
