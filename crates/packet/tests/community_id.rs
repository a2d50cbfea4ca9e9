//! Community IDs: those that PyPI's `communityid` 1.5.0 has for the same flows, and of packets.

use std::net::IpAddr;

use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::link::LinkType;

type Flow = (u8, &'static str, &'static str, Option<(u16, u16)>, &'static str);

/// Protocol, addresses, ports or type and code, and what `communityid` makes of them.
#[rustfmt::skip]
const FLOWS: &[Flow] = &[
    (6, "128.232.110.120", "66.35.250.204", Some((34855, 80)), "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
    (6, "66.35.250.204", "128.232.110.120", Some((80, 34855)), "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
    (6, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((1032, 1024)), "1:IMhQDLbP3hWae9uqwB589XrbYR4="),
    (6, "10.0.0.1", "10.0.0.1", Some((5, 4)), "1:gLmjZuaRsMk4vbmk5HxV9Jb1iQg="),
    (6, "10.0.0.1", "10.0.0.1", Some((4, 5)), "1:gLmjZuaRsMk4vbmk5HxV9Jb1iQg="),
    (6, "::1", "::1", Some((7, 7)), "1:jMH/T/vJYLte3SUtM5O8rRl2LWg="),
    (6, "9.255.255.255", "10.0.0.1", Some((0, 65535)), "1:y/cgne281OoNtbhuqukQUbMiVPE="),
    (17, "128.232.110.120", "66.35.250.204", Some((34855, 80)), "1:tHtj5b89ms4XrWRUtWPadGMkYIM="),
    (17, "66.35.250.204", "128.232.110.120", Some((80, 34855)), "1:tHtj5b89ms4XrWRUtWPadGMkYIM="),
    (17, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((1032, 1024)), "1:L+zORpuCDSJw8DKihrF7qozy+aw="),
    (17, "10.0.0.1", "10.0.0.1", Some((5, 4)), "1:PbXEucXIxDu5UoupZ1rj7ybZ6vc="),
    (17, "10.0.0.1", "10.0.0.1", Some((4, 5)), "1:PbXEucXIxDu5UoupZ1rj7ybZ6vc="),
    (17, "::1", "::1", Some((7, 7)), "1:BHt84soOvksQBMLEy/Dqy/mZEd0="),
    (17, "9.255.255.255", "10.0.0.1", Some((0, 65535)), "1:I80JmSq+S4e/iVPvcKCFd7zitsY="),
    (132, "128.232.110.120", "66.35.250.204", Some((34855, 80)), "1:xOhPa0OTklQ8cuLC01oAIpRffgQ="),
    (132, "66.35.250.204", "128.232.110.120", Some((80, 34855)), "1:xOhPa0OTklQ8cuLC01oAIpRffgQ="),
    (132, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((1032, 1024)), "1:DzM0zYrHSxw1TvOW6oMywqmq58E="),
    (132, "10.0.0.1", "10.0.0.1", Some((5, 4)), "1:sH7emIP/yhiNrNn9fBNhSQ5x9gQ="),
    (132, "10.0.0.1", "10.0.0.1", Some((4, 5)), "1:sH7emIP/yhiNrNn9fBNhSQ5x9gQ="),
    (132, "::1", "::1", Some((7, 7)), "1:X8sW7QqGKRFdGQ6qvgWcQuQPch4="),
    (132, "9.255.255.255", "10.0.0.1", Some((0, 65535)), "1:S56NBRWXhODbYzI80KJIaph7e7Q="),
    (1, "128.232.110.120", "66.35.250.204", Some((0, 0)), "1:PAE85ZfR4SbNXl5URZwWYyDehwU="),
    (1, "128.232.110.120", "66.35.250.204", Some((3, 0)), "1:qCMX0AtfF76ipKrKd18GjlgtImE="),
    (1, "128.232.110.120", "66.35.250.204", Some((4, 0)), "1:3kKJlcYTrApnpffIOdu/9t9tFQs="),
    (1, "128.232.110.120", "66.35.250.204", Some((5, 0)), "1:RRwr1TJMY+csYpdLOdBifapXz8g="),
    (1, "128.232.110.120", "66.35.250.204", Some((8, 0)), "1:46Jwgg+8nrGay2E7JcQU/fbhUmk="),
    (1, "128.232.110.120", "66.35.250.204", Some((9, 0)), "1:6uNQwSUymp182JSNkkDGlXwsZhc="),
    (1, "128.232.110.120", "66.35.250.204", Some((10, 0)), "1:L8wnzpmRHIESLqLBy+zTqW3Pmqs="),
    (1, "128.232.110.120", "66.35.250.204", Some((11, 0)), "1:HlowUpKoARpyQoo/CLhgUu5S84k="),
    (1, "128.232.110.120", "66.35.250.204", Some((12, 0)), "1:/JYaMSY1O5LtvoCR9+lHrX09WaU="),
    (1, "128.232.110.120", "66.35.250.204", Some((13, 0)), "1:OBg2i6/tVPKDa/z42IRB+rMuH3g="),
    (1, "128.232.110.120", "66.35.250.204", Some((14, 0)), "1:krr8e8X01s2DdCbkgQnV5ORR1qo="),
    (1, "128.232.110.120", "66.35.250.204", Some((15, 0)), "1:Lfugm9xcPCFkBM3kxogNvbDNZcE="),
    (1, "128.232.110.120", "66.35.250.204", Some((16, 0)), "1:7p6wsMgZPpgvtlUSANC3fvw1GWo="),
    (1, "128.232.110.120", "66.35.250.204", Some((17, 0)), "1:qc5+w0NXsfXDgw2zlvNlur5fOpg="),
    (1, "128.232.110.120", "66.35.250.204", Some((18, 0)), "1:vKVq2x2usXRQaOlIgDDdJ3nzBKA="),
    (1, "128.232.110.120", "66.35.250.204", Some((30, 0)), "1:GrQCYwaqTlU5LtmJTJDChh5x4SA="),
    (1, "66.35.250.204", "128.232.110.120", Some((0, 0)), "1:46Jwgg+8nrGay2E7JcQU/fbhUmk="),
    (1, "66.35.250.204", "128.232.110.120", Some((8, 0)), "1:PAE85ZfR4SbNXl5URZwWYyDehwU="),
    (1, "128.232.110.120", "66.35.250.204", Some((3, 1)), "1:ddGciZWcxnjetakYiL1NCL7FDEs="),
    (1, "66.35.250.204", "128.232.110.120", Some((3, 1)), "1:Wg/xu3owxpIzE54NYUsQZJvQ9Yo="),
    (1, "10.0.0.1", "10.0.0.1", Some((8, 0)), "1:Q2R99S5FzFXN21OqJRTsA4EVBTo="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((1, 0)), "1:TW33L3/E/EMIeXyeXwCA6Qs3IbQ="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((2, 0)), "1:PWuP7KbeJtskIEV6s6B0CBVg+GI="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((3, 0)), "1:eVTYsbhjYrpjym6zCITAinpoG/A="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((4, 0)), "1:h5tMqklvXk7z6ugrmFomuV46PXk="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((128, 0)), "1:QrVnZEjGihSsEkRF1XxqheQ1Za8="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((129, 0)), "1:0v7671U6aMFvKQtpE4ZMYXnSVjQ="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((130, 0)), "1:AqqGbwQfzV0erxPUVV+XZ02Zm5M="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((131, 0)), "1:EWeX0N02fv6kiZ4mtVIrNsLkom4="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((132, 0)), "1:48tsW54u2+nzqe1e9XPglbrVWoY="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((133, 0)), "1:MxMeSyWe6OTpBt36dIzrtH7OcS8="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((134, 0)), "1:QpYRAQH404PdAphcvVTflGzHNos="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((135, 0)), "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((136, 0)), "1:zavyT/cezQr1fmImYCwYnMXbgck="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((137, 0)), "1:KAwF9EkljGcWl9SKSjiiJXYlGE4="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((139, 0)), "1:5M4clpPt0fX67/4bIqQT4gA26Dw="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((140, 0)), "1:cOJwEcSbkW1UEpyFTXIP4GMDabo="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((143, 0)), "1:u29u/40f5pp+Flrmr8QOASz7JG4="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((144, 0)), "1:m49RyQ8yIT9LBEoGoI5SnZktCdQ="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((145, 0)), "1:XQq303/ZTbnZhBfoQdmuW8MWAfU="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((200, 0)), "1:2aW4zpzADhxBygczsZnpkolBXJc="),
    (58, "fe80::260:97ff:fe07:69ea", "fe80::200:86ff:fe05:80da", Some((129, 0)), "1:QrVnZEjGihSsEkRF1XxqheQ1Za8="),
    (58, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", Some((1, 4)), "1:JFKLai0Yy5jldt/ku5XTzXROz0Q="),
    (58, "fe80::260:97ff:fe07:69ea", "fe80::200:86ff:fe05:80da", Some((1, 4)), "1:7fO1NoMmOlnn29+Lz7gg3xJHO+k="),
    (58, "::1", "::1", Some((128, 0)), "1:gwUCjL48AExQFC0IDZx6AU/nkEk="),
    (0, "128.232.110.120", "66.35.250.204", None, "1:gdbK2nUewg7hgYiI4gwn5136jIQ="),
    (0, "66.35.250.204", "128.232.110.120", None, "1:gdbK2nUewg7hgYiI4gwn5136jIQ="),
    (0, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:ThHV1c275Z71nrOYd7+wAhEP08s="),
    (2, "128.232.110.120", "66.35.250.204", None, "1:D3t8Q1aFA6Ev0A/AO4i9PnU3AeI="),
    (2, "66.35.250.204", "128.232.110.120", None, "1:D3t8Q1aFA6Ev0A/AO4i9PnU3AeI="),
    (2, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:I5YsOUS+B/joSgMnAjMSCsCtIVE="),
    (46, "128.232.110.120", "66.35.250.204", None, "1:MQoS2w4Afb97NijB7rSX8VbB6UA="),
    (46, "66.35.250.204", "128.232.110.120", None, "1:MQoS2w4Afb97NijB7rSX8VbB6UA="),
    (46, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:3zv+1/TNAPGvwGcPCLsKISbn4jM="),
    (47, "128.232.110.120", "66.35.250.204", None, "1:RxLtASjhrOt4fvvE0fxIVdV4HlM="),
    (47, "66.35.250.204", "128.232.110.120", None, "1:RxLtASjhrOt4fvvE0fxIVdV4HlM="),
    (47, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:92h+fq8ECSZkvAsENsuE85rNZ68="),
    (50, "128.232.110.120", "66.35.250.204", None, "1:fxL/GcUBkFfRG1ECV84UX8Mcd5I="),
    (50, "66.35.250.204", "128.232.110.120", None, "1:fxL/GcUBkFfRG1ECV84UX8Mcd5I="),
    (50, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:1Zll8nj8/lG0iQHhD9jh9TAkadw="),
    (51, "128.232.110.120", "66.35.250.204", None, "1:GCTtCUQKVLpnsnNRGc0vhAuo/PU="),
    (51, "66.35.250.204", "128.232.110.120", None, "1:GCTtCUQKVLpnsnNRGc0vhAuo/PU="),
    (51, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:YVVu6bTyviGWEWX8Ba0dcOluh+U="),
    (89, "128.232.110.120", "66.35.250.204", None, "1:gU9deLs8gHsb/adJSIwWcz3XDfE="),
    (89, "66.35.250.204", "128.232.110.120", None, "1:gU9deLs8gHsb/adJSIwWcz3XDfE="),
    (89, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:FzoxpMDhnmM3u3cAup8jZ9crjv8="),
    (136, "128.232.110.120", "66.35.250.204", None, "1:c9j7msVjWWmRKLyUYGXP2d/+L20="),
    (136, "66.35.250.204", "128.232.110.120", None, "1:c9j7msVjWWmRKLyUYGXP2d/+L20="),
    (136, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:wEkOvKsDuhnymKOArroXrEKONrI="),
    (33, "128.232.110.120", "66.35.250.204", None, "1:PmaonFwWlxFD2okQ+BZAfKini/o="),
    (33, "66.35.250.204", "128.232.110.120", None, "1:PmaonFwWlxFD2okQ+BZAfKini/o="),
    (33, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:60ns9S7wwogt/sSLf52fnn1724Y="),
    (255, "128.232.110.120", "66.35.250.204", None, "1:tP9MU+Gfdd1xzhSshQOrQ+TXS0Q="),
    (255, "66.35.250.204", "128.232.110.120", None, "1:tP9MU+Gfdd1xzhSshQOrQ+TXS0Q="),
    (255, "fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", None, "1:fLqqySDqFbopaG2JlRcnrAM7Ry4="),
];

fn of_flow(flow: &Flow) -> Option<CommunityId> {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    CommunityId::of_flow(address(flow.1), address(flow.2), flow.0, flow.3)
}

/// An Ethernet frame with a VLAN tag and a packet of the flow, of which the protocol's header is
/// the first so many bytes.
fn frame(flow: &Flow, header: usize) -> Vec<u8> {
    let (from, to) = (flow.1.parse().expect("an address"), flow.2.parse().expect("an address"));
    let mut frame = vec![2; 12];
    frame.extend([0x81, 0, 0, 42]);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([8, 0, 0x46, 0, 0, 60, 0, 0, 0, 0, 64, flow.0, 0, 0]);
            frame.extend([from.octets(), to.octets(), [1; 4]].concat());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 9, 60, 64]);
            frame.extend([from.octets(), to.octets()].concat());
            // Destination options.
            frame.extend([flow.0, 0, 1, 4, 0, 0, 0, 0]);
        }
        _ => panic!("{flow:?}"),
    }
    let (first, second) = flow.3.unwrap_or((0x0102, 0x0304));
    let payload = match flow.0 {
        1 | 58 => vec![first as u8, second as u8, 9, 9, 9, 9, 9, 9],
        _ => [first.to_be_bytes(), second.to_be_bytes(), [9; 2], [9; 2]].concat(),
    };
    frame.extend(&payload[..header]);
    frame
}

#[test]
fn flows_have_the_names_that_others_give_them() {
    for flow in FLOWS {
        let id = of_flow(flow).expect("it has one");
        assert_eq!(id.to_string(), flow.4, "{flow:?}");
        assert_eq!(flow.4.parse(), Ok(id));
    }
}

#[test]
fn packets_have_the_names_of_their_flows() {
    for flow in FLOWS {
        // What is an extension header of IPv6 is no packet's protocol.
        if flow.1.contains(':') && [0, 50, 51].contains(&flow.0) {
            continue;
        }
        let id = CommunityId::of_packet(LinkType::ETHERNET, &frame(flow, 8));
        assert_eq!(id, of_flow(flow), "{flow:?}");
        let cut = CommunityId::of_packet(LinkType::ETHERNET, &frame(flow, 1));
        assert_eq!(cut.is_none(), flow.3.is_some(), "{flow:?}");
    }
    let mut later_fragment = frame(&FLOWS[0], 8);
    later_fragment[25] = 1;
    assert_eq!(CommunityId::of_packet(LinkType::ETHERNET, &later_fragment), None);
    assert_eq!(CommunityId::of_packet(LinkType::ETHERNET, &[2; 60]), None);
}

#[test]
fn what_is_no_name_is_refused() {
    for text in
        ["", "1:", "2:LQU9qZlK+B5F3KDmev6m5PMibrg=", "1:LQU9qZlK+B5F3KDmev6m5PMibrg", "1:AAAA"]
    {
        assert!(text.parse::<CommunityId>().is_err(), "{text}");
    }
}
