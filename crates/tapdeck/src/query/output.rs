//! What becomes of the packets of an answer: a pcapng file, lines of text or of JSON.
//!
//! Output is written by whole blocks or lines, so that a file is valid at any moment.

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcap::{self, Unit};
use tapdeck_packet::summary::details::{Arp, Details, Icmp, Mac, Tcp};
use tapdeck_packet::summary::dns::Dns;
use tapdeck_packet::summary::{Protocol, Summary};
use tapdeck_packet::{pcapng, printable};
use tapdeck_store::query::{Described, Missing, Packet};
use tapdeck_store::{SegmentName, UnseenSpan};

use super::time;
use crate::flags;
use crate::listen::{self, Reader};
use crate::output_file::OutputFile;
use crate::standard_output;
use crate::usage::usage;

const APPLICATION: &str = concat!("tapdeck ", env!("CARGO_PKG_VERSION"));
/// Bytes that gather before they are written.
const BUFFER: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Pcapng,
    Pcap,
    Text,
    Json,
}

/// What is open for writing.
enum To {
    /// A file that nothing was written to.
    Waiting(OutputFile),
    Begun(File),
}

/// Where the packets of an answer go.
pub struct Output {
    form: Form,
    to: To,
    pub name: String,
    /// Whole blocks or lines that are not written yet.
    pending: Vec<u8>,
    /// The link type of a pcap file, which has one.
    link: Option<LinkType>,
    /// Packets of other link types, which such a file cannot have.
    pub left_out: u64,
}

impl Output {
    /// Opens the output. An old file keeps its contents until [`Output::begin`].
    pub fn open(flags: &flags::Query, reader: Option<&Reader>) -> Result<Self> {
        let form = match (&flags.write, flags.json) {
            (Some(_), _) => Form::Pcapng,
            (None, true) => Form::Json,
            (None, false) => Form::Text,
        };
        let pending = Vec::with_capacity(BUFFER + (64 << 10));
        let (link, left_out) = (None, 0);
        if let Some(reader) = reader {
            let to = To::Begun(reader.stream.try_clone()?);
            return Ok(Self {
                form: Form::Pcap,
                to,
                name: reader.name.clone(),
                pending,
                link,
                left_out,
            });
        }
        if let Some(path) = flags.write.as_deref().filter(|p| p.as_os_str() != "-") {
            refuse_segments(path)?;
            let file = OutputFile::open(path)?;
            let (name, to) = (file.name(), To::Waiting(file));
            return Ok(Self { form, to, name, pending, link, left_out });
        }
        if form == Form::Pcapng {
            standard_output::refuse_terminal()?;
        }
        Ok(Self {
            form,
            to: To::Begun(standard_output::open()?),
            name: standard_output::NAME.into(),
            pending,
            link,
            left_out,
        })
    }

    /// Empties the file and writes what stands before the packets.
    pub fn begin(&mut self, comment: &str, interfaces: &[Described]) -> io::Result<()> {
        if let (Form::Pcap, Some(first)) = (self.form, interfaces.first()) {
            self.begin_pcap(first.link);
            return self.flush();
        }
        if self.form != Form::Pcapng {
            return Ok(());
        }
        let os = std::env::consts::OS;
        pcapng::section_header(&mut self.pending, os, APPLICATION, Some(comment));
        self.describe(interfaces)
    }

    /// Writes the descriptions of interfaces that come to those that were described.
    pub fn describe(&mut self, interfaces: &[Described]) -> io::Result<()> {
        if self.form == Form::Pcapng {
            for interface in interfaces {
                self.pending.extend_from_slice(&interface.block);
            }
        }
        self.flush()
    }

    /// Waits for some time, but not longer than there is somebody who reads. Returns whether
    /// somebody does, as far as can be known.
    pub fn wait(&self, time: Duration) -> bool {
        let To::Begun(file) = &self.to else {
            std::thread::sleep(time);
            return true;
        };
        listen::wait(file, time)
    }

    /// Writes a pcapng block that somebody else made.
    pub fn copy(&mut self, block: &[u8]) -> io::Result<()> {
        if self.form == Form::Pcapng {
            self.pending.extend_from_slice(block);
        }
        if self.pending.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    /// Tells in the file that packets went unseen.
    pub fn unseen(&mut self, missing: &Missing) -> io::Result<()> {
        if self.form != Form::Pcapng {
            return Ok(());
        }
        pcapng::statistics(&mut self.pending, &UnseenSpan::from(missing).block());
        if self.pending.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    pub fn packet(&mut self, interface: &str, packet: &Packet<'_>) -> io::Result<()> {
        match self.form {
            Form::Pcapng => packet.write_block(&mut self.pending),
            Form::Pcap => self.pcap(packet),
            Form::Text => self.line(interface, packet)?,
            Form::Json => self.object(interface, packet)?,
        }
        if self.pending.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    /// Writes everything that has gathered.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let To::Waiting(file) = &mut self.to {
            self.to = To::Begun(file.begin()?);
        }
        if let To::Begun(file) = &mut self.to {
            file.write_all(&self.pending).map_err(listen::as_of_pipe)?;
        }
        self.pending.clear();
        Ok(())
    }

    fn begin_pcap(&mut self, link: LinkType) {
        self.pending.extend(pcap::header(link, Unit::Microseconds));
        self.link = Some(link);
    }

    fn pcap(&mut self, p: &Packet<'_>) {
        if self.link.is_none() {
            self.begin_pcap(p.link);
        }
        if self.link == Some(p.link) {
            pcap::packet(
                &mut self.pending,
                Unit::Microseconds,
                p.time_ns as u64,
                p.original_len,
                p.frame,
            );
        } else {
            self.left_out += 1;
        }
    }

    fn line(&mut self, interface: &str, p: &Packet<'_>) -> io::Result<()> {
        let s = Summary::of(p.link, p.frame);
        let out = &mut self.pending;
        write!(out, "{} {}", time::show(p.time_ns), printable::name(interface))?;
        if let Some(direction) = direction(p.flags) {
            write!(out, " {direction}")?;
        }
        for vlan in &s.vlans {
            write!(out, " vlan {vlan}")?;
        }
        for label in &s.labels {
            write!(out, " mpls {label}")?;
        }
        if let Some(protocol) = s.protocol {
            write!(out, " {protocol}")?;
        }
        if let (Some(src), Some(dst)) = (s.src, s.dst) {
            write!(out, " {} > {}", endpoint(src, s.sport), endpoint(dst, s.dport))?;
        } else if let (Some(src), Some(dst)) = (s.mac_src, s.mac_dst) {
            write!(out, " {src} > {dst}")?;
        }
        if let Some(details) = &s.details {
            write!(out, " {details}")?;
        }
        write!(out, " length {}", p.original_len)?;
        if p.dropped > 0 {
            write!(out, " ({} dropped before it)", p.dropped)?;
        }
        if p.shed > 0 {
            write!(out, " ({} bytes shed)", p.shed)?;
        }
        writeln!(out)
    }

    fn object(&mut self, interface: &str, p: &Packet<'_>) -> io::Result<()> {
        let s = Summary::of(p.link, p.frame);
        let object = Object {
            time: time::show(p.time_ns),
            interface,
            direction: direction(p.flags),
            mac_src: s.mac_src,
            mac_dst: s.mac_dst,
            vlan: s.vlans,
            mpls: s.labels,
            src: s.src,
            dst: s.dst,
            sport: s.sport,
            dport: s.dport,
            protocol: s.protocol.as_ref().map(Protocol::to_string),
            community_id: CommunityId::of_packet(p.link, p.frame).map(|id| id.to_string()),
            length: p.original_len,
            dropped: p.dropped,
            shed: u64::from(p.shed),
            info: s.details.as_ref().map(Details::to_string),
            tcp: match &s.details {
                Some(Details::Tcp(tcp)) => Some(tcp),
                _ => None,
            },
            icmp: match &s.details {
                Some(Details::Icmp(icmp)) => Some(icmp),
                _ => None,
            },
            arp: match &s.details {
                Some(Details::Arp(arp)) => Some(arp),
                _ => None,
            },
            dns: match &s.details {
                Some(Details::Dns(dns)) => Some(dns),
                _ => None,
            },
        };
        let text = serde_json::to_string(&object)?;
        self.pending.extend_from_slice(printable::json(&text).as_bytes());
        self.pending.push(b'\n');
        Ok(())
    }
}

/// A packet in JSON. A key whose value the packet does not have is `null`.
#[derive(Serialize)]
struct Object<'a> {
    time: String,
    interface: &'a str,
    /// `in` or `out`, where the recording tells.
    direction: Option<&'static str>,
    mac_src: Option<Mac>,
    mac_dst: Option<Mac>,
    /// The key is left out where there is no tag.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vlan: Vec<u16>,
    /// The key is left out where there is no label.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mpls: Vec<u32>,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    sport: Option<u16>,
    dport: Option<u16>,
    protocol: Option<String>,
    community_id: Option<String>,
    length: u32,
    /// Packets lost before this one; the key is left out where there were none.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
    /// Bytes of the packet that were not kept because a ring was nearly full; the key is left out
    /// where it was kept as usual.
    #[serde(skip_serializing_if = "is_zero")]
    shed: u64,
    /// What the packet says, as in a line of text; and its parts, under the name of the protocol.
    info: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<&'a Tcp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp: Option<&'a Icmp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arp: Option<&'a Arp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<&'a Dns>,
}

/// Returns the direction that a packet's flags tell.
fn direction(flags: u32) -> Option<&'static str> {
    match flags & 3 {
        pcapng::FLAG_INBOUND => Some("in"),
        pcapng::FLAG_OUTBOUND => Some("out"),
        _ => None,
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn endpoint(address: IpAddr, port: Option<u16>) -> String {
    match (address, port) {
        (_, None) => address.to_string(),
        (IpAddr::V4(v4), Some(port)) => format!("{v4}:{port}"),
        (IpAddr::V6(v6), Some(port)) => format!("[{v6}]:{port}"),
    }
}

/// Refuses the name of a segment, so that no slip of a hand destroys a store.
fn refuse_segments(path: &Path) -> Result<()> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().and_then(|name| name.to_str());
    if name.and_then(SegmentName::parse).is_some() {
        let path = path.display();
        return usage(format!("-w {path} has the name of a segment: take another name"));
    }
    Ok(())
}
