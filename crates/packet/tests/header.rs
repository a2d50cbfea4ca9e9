//! The keys of packets: exactly those of every header, at any depth, of packets built here; and
//! never fewer than libpcap's programs could find, however a packet is cut and mangled.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tapdeck_packet::header::{inner_packets, keys};
use tapdeck_packet::key::{Class, Keys};
use tapdeck_packet::link::LinkType;

type Key = (Class, u128);

#[derive(Default)]
struct Found(BTreeSet<Key>);

impl Keys for Found {
    fn key(&mut self, class: Class, key: u128) {
        assert_eq!(key.checked_shr(8 * class.width() as u32).unwrap_or(0), 0, "{class:?} {key:x}");
        self.0.insert((class, key));
    }
}

/// The keys, and whether they are all.
fn found(link: LinkType, frame: &[u8]) -> (BTreeSet<Key>, bool) {
    let mut found = Found::default();
    let is_all = keys(link, frame, &mut found);
    (found.0, is_all)
}

fn found_inner(link: LinkType, frame: &[u8]) -> Vec<(LinkType, Vec<u8>)> {
    let mut inner = Vec::new();
    inner_packets(link, frame, &mut |link, frame: &[u8]| inner.push((link, frame.to_vec())));
    inner
}

/// A packet, and what must be found of it.
#[derive(Clone, Default)]
struct Packet {
    bytes: Vec<u8>,
    keys: BTreeSet<Key>,
    inner: Vec<(LinkType, Vec<u8>)>,
}

impl Packet {
    fn behind(mut self, header: &[u8], keys: &[Key]) -> Self {
        self.bytes.splice(0..0, header.iter().copied());
        self.keys.extend(keys);
        self
    }

    fn with(self, class: Class, key: u128) -> Self {
        self.behind(&[], &[(class, key)])
    }

    fn frame_inside(mut self) -> Self {
        self.inner.insert(0, (LinkType::ETHERNET, self.bytes.clone()));
        self
    }

    fn ip_inside(mut self) -> Self {
        self.inner.insert(0, (LinkType::RAW, self.bytes.clone()));
        self
    }
}

fn bytes(bytes: &[u8]) -> Packet {
    Packet::default().behind(bytes, &[])
}

fn tcp() -> Packet {
    let keys = [(Class::SourcePort, 40_000), (Class::DestinationPort, 443)];
    bytes(&[7; 16]).behind(&[0x9c, 0x40, 0x01, 0xbb], &keys)
}

fn udp(destination: u16, payload: Packet) -> Packet {
    let [high, low] = destination.to_be_bytes();
    let keys = [(Class::SourcePort, 5000), (Class::DestinationPort, destination.into())];
    payload.behind(&[0x13, 0x88, high, low, 0, 0, 0, 0], &keys)
}

/// `first` is version and header length, `offset` of a fragment is in units of 8 bytes, `n` is in
/// all addresses.
fn ipv4_with(n: u8, first: u8, offset: u8, protocol: u8, payload: Packet) -> Packet {
    let keys = [
        (Class::Protocol, protocol.into()),
        (Class::SourceIpv4, 0x0a00_0000 | u128::from(n)),
        (Class::DestinationIpv4, 0x0a01_0000 | u128::from(n)),
    ];
    let options = vec![1; (usize::from(first & 15) * 4).saturating_sub(20)];
    let header = [first, 0, 0, 0, 0, 0, 0x20, offset, 64, protocol, 0, 0, 10, 0, 0, n, 10, 1, 0, n];
    payload.behind(&options, &[]).behind(&header, &keys)
}

fn ipv4(n: u8, protocol: u8, payload: Packet) -> Packet {
    ipv4_with(n, 0x45, 0, protocol, payload)
}

fn ipv6(n: u8, next: u8, payload: Packet) -> Packet {
    let source: u128 = 0x2001_0db8_0000_0001_0000_0002_0000_0100 | u128::from(n);
    let destination: u128 = 0x2001_0db8_0000_0003_0000_0004_0000_0200 | u128::from(n);
    let keys = [
        (Class::Protocol, next.into()),
        (Class::SourceIpv6, source),
        (Class::DestinationIpv6, destination),
    ];
    let header =
        [&[0x60, 0, 0, 0, 0, 0, next, 64][..], &source.to_be_bytes(), &destination.to_be_bytes()]
            .concat();
    payload.behind(&header, &keys)
}

/// An extension header of IPv6.
fn extension(next: u8, rest: &[u8], payload: Packet) -> Packet {
    payload.behind(rest, &[]).behind(&[next], &[(Class::Protocol, next.into())])
}

/// A type and what follows.
fn typed(kind: u16, payload: Packet) -> Packet {
    payload.behind(&kind.to_be_bytes(), &[(Class::EtherType, kind.into())])
}

fn ether(n: u8, kind: u16, payload: Packet) -> Packet {
    let keys = [
        (Class::DestinationMac, 0x0200_0000_0000 | u128::from(n)),
        (Class::SourceMac, 0x0211_0000_0000 | u128::from(n)),
    ];
    typed(kind, payload).behind(&[2, 0, 0, 0, 0, n, 2, 0x11, 0, 0, 0, n], &keys)
}

fn tag(id: u16, kind: u16, payload: Packet) -> Packet {
    typed(kind, payload).behind(&(0xa000 | id).to_be_bytes(), &[(Class::Vlan, id.into())])
}

fn label(label: u32, is_last: bool, payload: Packet) -> Packet {
    let entry = label << 12 | u32::from(is_last) << 8 | 64;
    payload.behind(&entry.to_be_bytes(), &[(Class::Mpls, label.into())])
}

fn pppoe(protocol: u16, payload: Packet) -> Packet {
    typed(protocol, payload).behind(&[0x11, 0, 0, 9, 0, 0], &[])
}

fn gre(flags: u16, kind: u16, options: usize, payload: Packet) -> Packet {
    typed(kind, payload.behind(&vec![3; options], &[])).behind(&flags.to_be_bytes(), &[])
}

fn geneve(option_words: u8, kind: u16, payload: Packet) -> Packet {
    let options = vec![5; usize::from(option_words) * 4];
    typed(kind, payload.behind(&options, &[]).behind(&[0, 0, 9, 0], &[]))
        .behind(&[option_words, 0], &[])
}

fn vxlan(payload: Packet) -> Packet {
    payload.behind(&[8, 0, 0, 0, 0, 0, 9, 0], &[])
}

fn gtp_u(flags: u8, options: &[u8], payload: Packet) -> Packet {
    payload.behind(options, &[]).behind(&[flags, 255, 0, 0, 0, 0, 0, 1], &[])
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

fn inner_ip() -> Packet {
    ipv4(9, 6, tcp()).ip_inside()
}

fn inner_frame() -> Packet {
    ether(9, IPV4, ipv4(9, 6, tcp())).frame_inside()
}

fn plain() -> Vec<(&'static str, Packet)> {
    let later = bytes(&[0x9c, 0x40, 0x01, 0xbb]);
    let arp = bytes(&[9; 4])
        .behind(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2], &[])
        .behind(&[0xff; 14], &[])
        .with(Class::SourceIpv4, 0x0a00_0001)
        .with(Class::DestinationIpv4, 0x0a00_0002);
    let header_in_itself =
        bytes(&[0x40, 80, 1, 0xbb, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x13, 0x88])
            .with(Class::Protocol, 6)
            .with(Class::SourceIpv4, 0x0a00_0001)
            .with(Class::DestinationIpv4, 0x0a00_0002)
            .with(Class::SourcePort, 0x4050)
            .with(Class::DestinationPort, 0x01bb);
    let snap = bytes(&[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b, 1]).with(Class::EtherType, 0x809b);
    vec![
        ("tcp over IPv4", ether(1, IPV4, ipv4(1, 6, tcp()))),
        ("udp over IPv4", ether(1, IPV4, ipv4(1, 17, udp(53, bytes(&[1; 9]))))),
        ("sctp over IPv4", ether(1, IPV4, ipv4(1, 132, tcp()))),
        ("icmp has no ports", ether(1, IPV4, ipv4(1, 1, bytes(&[8; 12])))),
        ("options", ether(1, IPV4, ipv4_with(1, 0x4f, 0, 6, tcp()))),
        ("the version is not looked at", ether(1, IPV4, ipv4_with(1, 0x95, 0, 6, tcp()))),
        ("ports inside the header", ether(1, IPV4, header_in_itself)),
        ("a later fragment", ether(1, IPV4, ipv4_with(1, 0x45, 1, 6, later.clone()))),
        ("tcp over IPv6", ether(1, IPV6, ipv6(1, 6, tcp()))),
        ("udp over IPv6", ether(1, IPV6, ipv6(1, 17, udp(53, bytes(&[1; 9]))))),
        ("sctp over IPv6", ether(1, IPV6, ipv6(1, 132, tcp()))),
        ("hop by hop, routing, authentication, destination options, mobility", {
            let mobility = extension(6, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], tcp());
            let destination = extension(135, &[0; 7], mobility);
            // Its length is in units of 4 bytes.
            let authentication = extension(60, &[[4].as_slice(), &[0; 22]].concat(), destination);
            let routing = extension(51, &[0; 7], authentication);
            ether(1, IPV6, ipv6(1, 0, extension(43, &[0; 7], routing)))
        }),
        ("a first fragment", {
            ether(1, IPV6, ipv6(1, 44, extension(6, &[0, 0, 1, 0, 0, 0, 1], tcp())))
        }),
        ("a later fragment of IPv6", {
            ether(1, IPV6, ipv6(1, 44, extension(6, &[0, 0, 8, 0, 0, 0, 1], later)))
        }),
        ("no next header", ether(1, IPV6, ipv6(1, 59, bytes(&[1; 20])))),
        ("arp, of any lengths", ether(1, 0x0806, arp.clone())),
        ("rarp", ether(1, 0x8035, arp)),
        ("a tag", ether(1, 0x8100, tag(5, IPV4, ipv4(1, 6, tcp())))),
        ("three tags", {
            let inner = tag(4095, 0x8100, tag(0, IPV6, ipv6(1, 6, tcp())));
            ether(1, 0x88a8, tag(7, 0x9100, inner))
        }),
        ("an unknown type", ether(1, 0x88b5, bytes(&[0x45; 60]))),
        ("a length and SNAP", ether(1, 9, snap.clone())),
        ("a tag, a length and SNAP", ether(1, 0x8100, tag(1, 9, snap))),
        ("a length and LLC", ether(1, 40, bytes(&[0x42, 0x42, 3, 0, 0, 0, 0, 0, 8, 0]))),
    ]
}

fn tunneled() -> Vec<(&'static str, Packet)> {
    let v4 = |protocol, payload| ether(1, IPV4, ipv4(1, protocol, payload));
    let ip6 = || ipv6(9, 6, tcp()).ip_inside();
    let labelled = |payload| ether(1, 0x8847, label(0xf_ffff, false, label(16, true, payload)));
    let mut nested = inner_ip();
    for n in 2..9 {
        nested = ipv4(n, 4, nested).ip_inside();
    }
    vec![
        ("mpls, IPv4", labelled(inner_ip()).with(Class::EtherType, 0x0800)),
        ("mpls, IPv6", labelled(ip6()).with(Class::EtherType, 0x86dd)),
        ("mpls, pseudowire", labelled(inner_frame())),
        ("mpls, pseudowire with control word", {
            labelled(inner_frame().behind(&[0, 0, 0, 1], &[]))
        }),
        ("multicast mpls", {
            ether(1, 0x8848, label(3, true, inner_ip())).with(Class::EtherType, 0x0800)
        }),
        ("pppoe, IPv4", ether(1, 0x8864, pppoe(0x21, inner_ip())).with(Class::EtherType, 0x0800)),
        ("pppoe, IPv6", ether(1, 0x8864, pppoe(0x57, ip6())).with(Class::EtherType, 0x86dd)),
        ("pppoe, AppleTalk", {
            ether(1, 0x8864, pppoe(0x29, bytes(&[1; 9]))).with(Class::EtherType, 0x809b)
        }),
        ("pppoe, mpls", {
            ether(1, 0x8864, pppoe(0x281, label(3, true, inner_ip())))
                .with(Class::EtherType, 0x8847)
                .with(Class::EtherType, 0x0800)
        }),
        ("vxlan", v4(17, udp(4789, vxlan(inner_frame())))),
        ("vxlan of Linux over IPv6", ether(1, IPV6, ipv6(1, 17, udp(8472, vxlan(inner_frame()))))),
        ("vxlan behind an extension header", {
            let vxlan = udp(4789, vxlan(inner_frame()));
            ether(1, IPV6, ipv6(1, 60, extension(17, &[0; 7], vxlan)))
        }),
        ("vxlan without its flag", v4(17, udp(4789, bytes(&[2; 40])))),
        ("geneve, Ethernet", v4(17, udp(6081, geneve(63, 0x6558, inner_frame())))),
        ("geneve, IPv4", v4(17, udp(6081, geneve(0, IPV4, inner_ip())))),
        ("geneve, IPv6", v4(17, udp(6081, geneve(1, IPV6, ip6())))),
        ("geneve, version 1", v4(17, udp(6081, bytes(&[0x40; 30])))),
        ("gtp-u", v4(17, udp(2152, gtp_u(0x30, &[], inner_ip()))).with(Class::EtherType, 0x0800)),
        ("gtp-u, extensions", {
            let options = [0, 1, 0, 0x85, 2, 0, 0, 0, 0, 0, 0, 0xc0, 1, 0, 0, 0];
            v4(17, udp(2152, gtp_u(0x34, &options, ip6()))).with(Class::EtherType, 0x86dd)
        }),
        ("gtp-u, sequence number", {
            v4(17, udp(2152, gtp_u(0x32, &[0, 1, 0, 9], inner_ip()))).with(Class::EtherType, 0x0800)
        }),
        ("gtp-u, echo", v4(17, udp(2152, bytes(&[0x32, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0])))),
        ("gre, IPv4", v4(47, gre(0, IPV4, 0, inner_ip()))),
        ("gre, all options, IPv6", v4(47, gre(0xb000, IPV6, 12, ip6()))),
        ("gre, nvgre", v4(47, gre(0x2000, 0x6558, 4, inner_frame()))),
        ("gre, mpls", {
            v4(47, gre(0, 0x8847, 0, label(3, true, inner_ip()))).with(Class::EtherType, 0x0800)
        }),
        ("gre, source route", v4(47, gre(0x4000, IPV4, 0, bytes(&[0x45; 40])))),
        ("gre, erspan I", v4(47, gre(0, 0x88be, 0, inner_frame()))),
        ("gre, erspan II", {
            v4(47, gre(0x1000, 0x88be, 4, inner_frame().behind(&[0x10; 8], &[])))
        }),
        ("gre, erspan III", {
            v4(47, gre(0x1000, 0x22eb, 4, inner_frame().behind(&[0x20; 12], &[])))
        }),
        ("gre, erspan III, subheader", {
            v4(47, gre(0x1000, 0x22eb, 4, inner_frame().behind(&[0x21; 20], &[])))
        }),
        ("pptp", {
            let ppp = typed(0x21, inner_ip()).behind(&[0xff, 3], &[]);
            v4(47, gre(0x3081, 0x880b, 12, ppp)).with(Class::EtherType, 0x0800)
        }),
        ("pptp, short protocol", {
            v4(47, gre(0x3001, 0x880b, 8, ip6().behind(&[0x57], &[])))
                .with(Class::EtherType, 0x86dd)
        }),
        ("IPv4 in IPv4", v4(4, inner_ip())),
        ("IPv6 in IPv4", v4(41, ip6()).with(Class::EtherType, 0x86dd)),
        ("IPv4 in IPv6", { ether(1, IPV6, ipv6(1, 4, inner_ip())).with(Class::EtherType, 0x0800) }),
        ("mpls in IP", v4(137, label(3, true, inner_ip()))),
        ("eight tunnels", ether(1, IPV4, ipv4(1, 4, nested))),
        ("tunnels of several kinds", {
            let vxlan = udp(
                4789,
                vxlan(
                    ether(
                        2,
                        0x8100,
                        tag(5, IPV6, ipv6(3, 47, gre(0x2000, 0x6558, 4, inner_frame()))),
                    )
                    .frame_inside(),
                ),
            );
            ether(1, 0x8864, pppoe(0x21, ipv4(1, 17, vxlan).ip_inside()))
                .with(Class::EtherType, 0x0800)
        }),
        ("what says another version has no packet inside", {
            v4(47, gre(0, IPV4, 0, ipv4_with(9, 0x65, 0, 6, tcp())))
        }),
    ]
}

fn linked() -> Vec<(&'static str, LinkType, Packet)> {
    let v4 = || ipv4(1, 6, tcp()).with(Class::EtherType, IPV4.into());
    let v6 = || ipv6(1, 6, tcp()).with(Class::EtherType, IPV6.into());
    let cooked = |payload: Packet| {
        let address = [2, 0x11, 0, 0, 0, 1, 0, 0];
        payload
            .behind(&address, &[(Class::SourceMac, 0x0211_0000_0001)])
            .behind(&[0, 4, 0, 1, 0, 6], &[])
    };
    let loopback = |family: [u8; 4], packet: Packet| packet.behind(&family, &[]);
    let cooked_2 = v4()
        .behind(&[0x08, 0, 0, 0, 0, 0, 0, 1, 0, 1, 4, 6, 2, 0x11, 0, 0, 0, 1, 0, 0], &[])
        .with(Class::SourceMac, 0x0211_0000_0001);
    vec![
        ("raw", LinkType::RAW, v4()),
        ("raw", LinkType(12), v6()),
        ("raw", LinkType(14), v6()),
        ("raw, of neither version", LinkType::RAW, bytes(&[0x55; 60])),
        ("IPv4", LinkType(228), v4()),
        ("IPv4, whatever it says", LinkType(228), {
            ipv4_with(1, 0x65, 0, 6, tcp()).with(Class::EtherType, IPV4.into())
        }),
        ("IPv6", LinkType(229), v6()),
        ("null, little-endian", LinkType(0), loopback([2, 0, 0, 0], v4())),
        ("null, big-endian", LinkType(0), loopback([0, 0, 0, 30], v6())),
        ("loop", LinkType(108), loopback([0, 0, 0, 10], v6())),
        ("loop, unknown family", LinkType(108), bytes(&[0, 0, 0, 9, 0x45, 0, 0, 0])),
        ("cooked", LinkType(113), cooked(typed(IPV4, ipv4(1, 6, tcp())))),
        ("cooked, SNAP", LinkType(113), {
            let snap = bytes(&[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b]).with(Class::EtherType, 0x809b);
            cooked(typed(4, snap))
        }),
        ("cooked 2", LinkType(276), cooked_2),
        ("ppp, IPv4", LinkType(9), typed(0x21, v4()).behind(&[0xff, 3], &[])),
        ("ppp, IPv6", LinkType(9), typed(0x57, v6()).behind(&[0x0f, 0], &[])),
    ]
}

fn samples() -> Vec<(&'static str, LinkType, Packet)> {
    let on_ethernet = plain().into_iter().chain(tunneled());
    on_ethernet.map(|(name, packet)| (name, LinkType::ETHERNET, packet)).chain(linked()).collect()
}

#[test]
fn each_header_gives_its_keys_and_no_others() {
    for (name, link, packet) in samples() {
        let expected = (packet.keys, true);
        assert_eq!(found(link, &packet.bytes), expected, "{name}, {link:?}: {:02x?}", packet.bytes);
    }
}

#[test]
fn packets_inside_tunnels_are_shown_from_the_outermost() {
    for (name, link, packet) in samples() {
        assert_eq!(found_inner(link, &packet.bytes), packet.inner, "{name}, {link:?}");
    }
}

/// A key that a cut packet may have because `whole` is one of the whole packet.
fn is_cut_of(key: Key, whole: Key) -> bool {
    let is_ipv6 = matches!(key.0, Class::SourceIpv6 | Class::DestinationIpv6);
    let words = [32, 64, 96].map(|bits| whole.1 >> bits << bits);
    key == whole || key.0 == whole.0 && is_ipv6 && words.contains(&key.1)
}

#[test]
fn a_cut_packet_has_keys_of_the_whole_and_loses_them_one_by_one() {
    for (name, link, packet) in samples() {
        let mut before = 0;
        for length in 0..=packet.bytes.len() {
            let (keys, _) = found(link, &packet.bytes[..length]);
            for &key in &keys {
                let is_known = packet.keys.iter().any(|&whole| is_cut_of(key, whole));
                assert!(is_known, "{name}, {link:?}, cut to {length}: {key:x?}");
            }
            assert!(keys.len() >= before, "{name}, {link:?}: a byte more, a key less at {length}");
            before = keys.len();
            found_inner(link, &packet.bytes[..length]);
        }
    }
}

#[test]
fn each_key_is_there_as_soon_as_its_own_bytes_are() {
    let v4 = ether(1, 0x8100, tag(5, IPV4, ipv4(1, 6, tcp()))).bytes;
    let v6 = ether(1, 0x8100, tag(5, IPV6, ipv6(1, 6, tcp()))).bytes;
    let first_at = |frame: &[u8], class: Class| {
        (0..=frame.len()).find(|&length| {
            found(LinkType::ETHERNET, &frame[..length]).0.iter().any(|key| key.0 == class)
        })
    };
    let ends = [
        (&v4, Class::DestinationMac, 6),
        (&v4, Class::SourceMac, 12),
        (&v4, Class::EtherType, 14),
        (&v4, Class::Vlan, 16),
        (&v4, Class::Protocol, 28),
        (&v4, Class::SourceIpv4, 34),
        (&v4, Class::DestinationIpv4, 38),
        (&v4, Class::SourcePort, 40),
        (&v4, Class::DestinationPort, 42),
        (&v6, Class::Protocol, 25),
        (&v6, Class::SourceIpv6, 30),
        (&v6, Class::DestinationIpv6, 46),
        (&v6, Class::SourcePort, 60),
    ];
    for (frame, class, end) in ends {
        assert_eq!(first_at(frame, class), Some(end), "{class:?}");
    }
    // 12 of the 16 bytes.
    let (cut, _) = found(LinkType::ETHERNET, &v6[..54]);
    assert!(
        cut.contains(&(Class::DestinationIpv6, 0x2001_0db8_0000_0003_0000_0004 << 32)),
        "{cut:x?}"
    );
}

#[test]
fn what_is_not_followed_to_its_end_is_opaque() {
    let tags = |count: u16| {
        (0..count).fold(typed(IPV4, ipv4(1, 6, tcp())), |inner, n| {
            typed(0x8100, inner.behind(&n.to_be_bytes(), &[]))
        })
    };
    let labels = |count: u32| {
        (1..count).fold(label(1, true, ipv4(1, 6, tcp())), |inner, n| label(n, false, inner))
    };
    let tunnels = |count: u8| (0..count).fold(ipv4(1, 6, tcp()), |inner, n| ipv4(n, 4, inner));
    let macs = [2; 12];
    let mpls = [&macs[..], &[0x88, 0x47]].concat();
    let ip = [&macs[..], &[0x08, 0x00]].concat();
    let geneve = ether(1, IPV4, ipv4(1, 17, udp(6081, geneve(0, 0x8100, bytes(&[1; 40])))));
    let followed = [
        (LinkType::ETHERNET, tags(64).behind(&macs, &[]), true),
        (LinkType::ETHERNET, tags(65).behind(&macs, &[]), false),
        (LinkType::ETHERNET, labels(64).behind(&mpls, &[]), true),
        (LinkType::ETHERNET, labels(65).behind(&mpls, &[]), false),
        (LinkType::ETHERNET, tunnels(8).behind(&ip, &[]), true),
        (LinkType::ETHERNET, tunnels(9).behind(&ip, &[]), false),
        (LinkType::ETHERNET, geneve, false),
        (LinkType(105), bytes(&[1; 60]), false),
    ];
    for (i, (link, packet, is_followed)) in followed.into_iter().enumerate() {
        let (keys, is_all) = found(link, &packet.bytes);
        assert_eq!(is_all, is_followed, "{i}");
        if is_followed {
            assert!(keys.contains(&(Class::SourcePort, 40_000)), "{i}");
        }
    }
}

/// What programs that libpcap 1.10 makes for Ethernet read, written down from `tcpdump -d`: where a
/// load fails, a packet is not accepted.
struct Programs<'a> {
    frame: &'a [u8],
    accepted: Vec<Key>,
}

/// Where the words `vlan`, `mpls`, `pppoes` and `geneve` have moved the offsets to.
#[derive(Clone, Copy)]
struct Offsets {
    link: Link,
    net: usize,
}

#[derive(Clone, Copy)]
enum Link {
    /// A type stands here.
    Type(usize),
    /// PPP's protocol stands here.
    Ppp(usize),
    /// The last label's third byte stands here.
    Label(usize),
}

impl Programs<'_> {
    fn ldb(&self, at: usize) -> Option<u128> {
        self.frame.get(at).map(|&b| b.into())
    }

    fn ldh(&self, at: usize) -> Option<u128> {
        Some(self.ldb(at)? << 8 | self.ldb(at + 1)?)
    }

    fn ld(&self, at: usize) -> Option<u128> {
        Some(self.ldh(at)? << 16 | self.ldh(at + 2)?)
    }

    fn accept(&mut self, class: Class, key: Option<u128>) {
        self.accepted.extend(key.map(|key| (class, key)));
    }

    fn is_type(&self, o: Offsets, kind: u16) -> bool {
        let is = |at, number: u16| self.ldh(at) == Some(number.into());
        match (o.link, kind) {
            (Link::Ppp(at), IPV4) => is(at, 0x21),
            (Link::Ppp(at), IPV6) => is(at, 0x57),
            (Link::Ppp(at), 0x8847) => is(at, 0x281),
            (Link::Type(at) | Link::Ppp(at), _) => is(at, kind),
            (Link::Label(at), _) => {
                let nibble = self.ldb(o.net).map(|b| b & 0xf0);
                let is_last = self.ldb(at).is_some_and(|b| b & 1 == 1);
                let is_version =
                    kind == IPV4 && nibble == Some(0x40) || kind == IPV6 && nibble == Some(0x60);
                is_last && is_version
            }
        }
    }

    /// The offset of the transport header, where the programs for `port` look for one.
    fn transport(&self, o: Offsets) -> Option<(u128, usize)> {
        if self.is_type(o, IPV6) {
            return Some((self.ldb(o.net + 6)?, o.net + 40));
        }
        let offset = self.ldh(o.net + 6)?;
        let header = usize::from(*self.frame.get(o.net)? & 0xf) * 4;
        let is_first = self.is_type(o, IPV4) && offset.trailing_zeros() >= 13;
        is_first.then_some((self.ldb(o.net + 9)?, o.net + header))
    }

    fn primitives(&mut self, o: Offsets) {
        for kind in [IPV4, IPV6, 0x0806, 0x8035, 0x8100, 0x88a8, 0x9100, 0x8847, 0x8864, 0x88cc] {
            if self.is_type(o, kind) {
                self.accept(Class::EtherType, Some(kind.into()));
            }
        }
        if self.is_type(o, IPV4) {
            self.accept(Class::Protocol, self.ldb(o.net + 9));
            self.accept(Class::SourceIpv4, self.ld(o.net + 12));
            self.accept(Class::DestinationIpv4, self.ld(o.net + 16));
        }
        if self.is_type(o, 0x0806) || self.is_type(o, 0x8035) {
            self.accept(Class::SourceIpv4, self.ld(o.net + 14));
            self.accept(Class::DestinationIpv4, self.ld(o.net + 24));
        }
        if self.is_type(o, IPV6) {
            self.accept(Class::Protocol, self.ldb(o.net + 6));
            if self.ldb(o.net + 6) == Some(44) {
                self.accept(Class::Protocol, self.ldb(o.net + 40));
            }
            for (class, at) in [(Class::SourceIpv6, 8), (Class::DestinationIpv6, 24)] {
                let words = [0, 4, 8, 12].map(|word| self.ld(o.net + at + word));
                let address =
                    words.iter().try_fold(0, |address, &word| Some(address << 32 | word?));
                self.accept(class, address);
            }
        }
        if let Some((6 | 17 | 132, at)) = self.transport(o) {
            self.accept(Class::SourcePort, self.ldh(at));
            self.accept(Class::DestinationPort, self.ldh(at + 2));
        }
    }

    /// The primitives here, and behind each word that moves the offsets.
    fn run(&mut self, o: Offsets, words: u8) {
        self.primitives(o);
        if words == 0 {
            return;
        }
        if let Link::Type(at) = o.link
            && [0x8100, 0x88a8, 0x9100].into_iter().any(|kind| self.is_type(o, kind))
        {
            self.accept(Class::Vlan, self.ldh(o.net).map(|tag| tag & 0xfff));
            self.run(Offsets { link: Link::Type(at + 4), net: o.net + 4 }, words - 1);
        }
        let is_mpls = match o.link {
            Link::Label(at) => self.ldb(at).is_some_and(|b| b & 1 == 0),
            _ => self.is_type(o, 0x8847),
        };
        if is_mpls {
            self.accept(Class::Mpls, self.ld(o.net).map(|entry| entry >> 12));
            self.run(Offsets { link: Link::Label(o.net + 2), net: o.net + 4 }, words - 1);
        }
        if self.is_type(o, 0x8864) {
            self.run(Offsets { link: Link::Ppp(o.net + 6), net: o.net + 8 }, words - 1);
        }
        self.run_geneve(o, words - 1);
    }

    fn run_geneve(&mut self, o: Offsets, words: u8) {
        let Some((17, udp)) = self.transport(o) else { return };
        let (Some(6081), Some(first @ 0..0x40)) = (self.ldh(udp + 2), self.ldb(udp + 8)) else {
            return;
        };
        let payload = udp + 16 + 4 * first as usize;
        if self.ldh(udp + 10) != Some(0x6558) {
            return self.run(Offsets { link: Link::Type(udp + 10), net: payload }, words);
        }
        self.macs(payload);
        self.run(Offsets { link: Link::Type(payload + 12), net: payload + 14 }, words);
    }

    fn macs(&mut self, at: usize) {
        for (class, at) in [(Class::DestinationMac, at), (Class::SourceMac, at + 6)] {
            self.accept(class, self.ld(at + 2).and_then(|low| Some(self.ldh(at)? << 32 | low)));
        }
    }
}

fn accepted(frame: &[u8]) -> Vec<Key> {
    let mut programs = Programs { frame, accepted: Vec::new() };
    programs.macs(0);
    programs.run(Offsets { link: Link::Type(12), net: 14 }, 5);
    programs.accepted
}

/// Frames that were right once: bytes changed, mostly to such as mean something, and the end cut or
/// filled.
fn awkward() -> impl Strategy<Value = (LinkType, Vec<u8>)> {
    let meaning = prop::sample::select(vec![
        0, 1, 4, 6, 17, 29, 41, 44, 47, 51, 60, 0x08, 0x40, 0x41, 0x44, 0x45, 0x4f, 0x60, 0x65,
        0x81, 0x86, 0x88, 0xdd, 0x47, 0x64, 0xff,
    ]);
    let change = (any::<prop::sample::Index>(), prop_oneof![3 => meaning, 1 => any::<u8>()]);
    let cut = prop_oneof![Just(None), any::<prop::sample::Index>().prop_map(Some)];
    let changes = prop::collection::vec(change, 0..6);
    (prop::sample::select(samples_bytes()), changes, cut).prop_map(
        |((link, mut frame), changes, cut)| {
            for (index, value) in changes {
                // Headers are at the front, and that is where a change tells.
                let front = frame.len().min(80);
                frame[index.index(front)] = value;
            }
            if let Some(cut) = cut {
                frame.truncate(cut.index(frame.len() + 1));
            }
            (link, frame)
        },
    )
}

fn samples_bytes() -> Vec<(LinkType, Vec<u8>)> {
    samples().into_iter().map(|(_, link, packet)| (link, packet.bytes)).collect()
}

#[test]
fn the_programs_read_what_was_built() {
    // Else the comparison below would compare nothing.
    let (name, packet) = &plain()[0];
    let keys: BTreeSet<Key> = accepted(&packet.bytes).into_iter().collect();
    assert_eq!(keys, packet.keys, "{name}");
    for word in [
        "mpls, IPv4",
        "mpls, IPv6",
        "pppoe, IPv4",
        "geneve, Ethernet",
        "geneve, IPv4",
        "pppoe, mpls",
    ] {
        let (_, packet) = tunneled().into_iter().find(|(name, _)| *name == word).unwrap();
        assert!(accepted(&packet.bytes).contains(&(Class::SourcePort, 40_000)), "{word}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn what_libpcap_finds_is_among_the_keys((_, frame) in awkward()) {
        let (keys, is_all) = found(LinkType::ETHERNET, &frame);
        for key in accepted(&frame) {
            prop_assert!(!is_all || keys.contains(&key), "{key:x?} of {frame:02x?}");
        }
    }

    #[test]
    fn keys_of_inner_packets_are_keys_of_the_whole((link, frame) in awkward()) {
        let (keys, is_all) = found(link, &frame);
        for (link, inner) in found_inner(link, &frame) {
            let (inner, _) = found(link, &inner);
            prop_assert!(!is_all || inner.is_subset(&keys), "{inner:x?} of {frame:02x?}");
        }
    }

    #[test]
    fn no_bytes_panic(link in 0..300u16, frame in prop::collection::vec(any::<u8>(), 0..200)) {
        found(LinkType(link), &frame);
        found_inner(LinkType(link), &frame);
    }
}
