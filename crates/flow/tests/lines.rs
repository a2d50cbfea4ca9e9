//! Rows as lines: what tells that slices are of one flow.

use std::net::Ipv4Addr;

use tapdeck_flow::{FlowTable, LineFile, LineForm};
use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::ip_protocol::ICMP;
use tapdeck_testkit::frame::{IPV4, ethernet, ipv4};

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn icmp(from: u8, to: u8, kind: u8, code: u8) -> Vec<u8> {
    let packet = ipv4(host(from), host(to), ICMP, &[kind, code, 0, 0, 0, 1, 0, 1]);
    ethernet([2; 6], [4; 6], &[], IPV4, &packet)
}

/// Returns the lines of a slice with these packets.
fn lines(form: LineForm, frames: &[Vec<u8>]) -> Vec<String> {
    let mut table = FlowTable::new(false);
    for (at, frame) in (0..).zip(frames) {
        table.packet(LinkType::ETHERNET, frame, frame.len() as u32, at);
    }
    table.end_granule(0..4096, 0);
    let mut file = LineFile::new(Vec::new(), form, "here", "segment").expect("memory");
    file.write(&table.finish().rows).expect("memory");
    let text = String::from_utf8(file.finish().expect("memory")).expect("text");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Returns a field of a line of JSON, or nothing where the line has none of that name.
fn field(line: &str, name: &str) -> String {
    let rest = line.split_once(&format!("\"{name}\":")).map_or("", |(_, rest)| rest);
    rest.split([',', '}']).next().unwrap_or_default().trim_matches('"').to_owned()
}

#[test]
fn slices_of_an_icmp_flow_have_one_name() {
    let (asked, answered) = (icmp(9, 2, 8, 0), icmp(2, 9, 0, 0));
    let slices = [vec![asked.clone(), answered.clone()], vec![asked], vec![answered]];
    let id = CommunityId::of_flow(host(9).into(), host(2).into(), ICMP, Some((8, 0)));
    let id = id.expect("it has one").to_string();
    for (form, names) in [
        (LineForm::ZeekJson, ["uid", "id.orig_h", "id.orig_p", "id.resp_p", "community_id"]),
        (LineForm::Eve, ["flow_id", "src_ip", "dest_ip", "proto", "community_id"]),
    ] {
        let all = slices.each_ref().map(|frames| {
            let lines = lines(form, frames);
            assert_eq!(lines.len(), 1);
            names.map(|name| field(&lines[0], name))
        });
        assert_eq!((&all[0][1][..], &all[0][4][..]), ("10.0.0.9", &id[..]));
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    }
    let zeek = lines(LineForm::ZeekJson, &slices[2]);
    assert_eq!(["id.orig_p", "id.resp_p"].map(|name| field(&zeek[0], name)), ["8", "0"]);
    // The message is the one that was seen, and whose it is is said.
    let eve = slices.each_ref().map(|frames| lines(LineForm::Eve, frames).remove(0));
    let said = |line: &str| ["icmp_type", "response_icmp_type"].map(|name| field(line, name));
    assert_eq!(eve.each_ref().map(|line| said(line)), [["8", ""], ["8", ""], ["", "0"]]);
}

#[test]
fn icmp_messages_that_nothing_answers_are_flows_of_their_own() {
    // A code may be the same number as the type.
    let of_codes = [13, 3].map(|code| [icmp(9, 2, 3, code), icmp(2, 9, 3, code)]);
    let frames = of_codes.concat();
    for (form, names) in [
        (LineForm::ZeekJson, ["uid", "community_id"]),
        (LineForm::Eve, ["flow_id", "community_id"]),
    ] {
        let lines = lines(form, &frames);
        assert_eq!(lines.len(), 4);
        for name in names {
            let mut all: Vec<String> = lines.iter().map(|line| field(line, name)).collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 4, "{name}: {lines:#?}");
        }
    }
}
