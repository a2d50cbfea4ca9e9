//! Filter expressions, pcap-filter(7): libpcap compiles them, the kernel runs them at the socket.
//!
//! They are compiled on a live handle of the interface, as tcpdump does. Only then does libpcap use what
//! the kernel alone can tell (`inbound`, and VLAN tags that stand beside the packet instead of in
//! it); a program compiled for a file would look for those in the bytes and miss them.

use std::io;

use libc::sock_filter;
use pcap::{Active, Capture, Linktype};
use tapdeck_packet::link::LinkType;

use crate::capture::explain;
use crate::interface::Interface;
use crate::{Config, Error};

/// `BPF_RET | BPF_K`: accept as many bytes of the packet as the constant says, 0 refuses it.
const RETURN: u16 = 0x06;
/// What libpcap takes at most (`MAXIMUM_SNAPLEN`).
const MAX_SNAPLEN: u32 = 262_144;

/// A program that refuses every packet.
pub(crate) const REFUSE_ALL: [sock_filter; 1] = [returning(0)];

const fn returning(bytes: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: bytes }
}

/// The socket filter for what `config` asks: its expression, or else everything, cut to its snaplen.
pub(crate) fn compile(interface: &Interface, config: &Config) -> Result<Vec<sock_filter>, Error> {
    let keep = returning(config.snaplen.clamp(1, MAX_SNAPLEN));
    let Some(expression) = &config.filter else {
        return Ok(vec![keep]);
    };
    let live = open(interface).map_err(|e| explain(interface, config.hook, e))?;
    let wanted = datalink(interface.link.unwrap_or(LinkType::ETHERNET));
    // Where libpcap would read the interface in another form than this crate does, its live
    // programs would look at the wrong bytes.
    let compiled = if live.get_datalink() == wanted {
        live.compile(expression, true)
    } else {
        Capture::dead(wanted).and_then(|dead| dead.compile(expression, true))
    };
    let program =
        compiled.map_err(|e| Error::Filter { expression: expression.clone(), why: message(&e) })?;
    let instructions = program.get_instructions().iter().map(|i| match parse(&i.to_string()) {
        Some(i) if i.code == RETURN && i.k != 0 => Ok(keep),
        Some(i) => Ok(i),
        None => Err(Error::Filter {
            expression: expression.clone(),
            why: format!("libpcap made of it the unknown instruction {i}"),
        }),
    });
    instructions.collect()
}

fn open(interface: &Interface) -> io::Result<Capture<Active>> {
    Capture::from_device(interface.name.as_str())
        .and_then(|inactive| inactive.promisc(false).open())
        .map_err(|e| io::Error::other(message(&e)))
}

/// The `DLT_` value of a link type, which differs from that in files for bare IP.
fn datalink(link: LinkType) -> Linktype {
    const DLT_RAW: i32 = 12;
    Linktype(if link == LinkType::RAW { DLT_RAW } else { i32::from(link.0) })
}

/// An instruction's fields, which the `pcap` crate keeps private but prints as `tcpdump -ddd` does.
fn parse(text: &str) -> Option<sock_filter> {
    let mut fields = text.split(' ');
    let instruction = sock_filter {
        code: fields.next()?.parse().ok()?,
        jt: fields.next()?.parse().ok()?,
        jf: fields.next()?.parse().ok()?,
        k: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some(instruction)
}

/// What libpcap says, without the crate's words around it.
fn message(e: &pcap::Error) -> String {
    match e {
        pcap::Error::PcapError(text) => text.clone(),
        other => other.to_string(),
    }
}
