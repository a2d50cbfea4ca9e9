//! `tapdeck attach`: a member's packets as one pcapng stream, in the order of their times.
//!
//! The command shows how little a member needs: the daemon's socket, and no privilege beside the
//! right to connect to it. Every packet is copied on its way; `record --group` puts packets on disk
//! without a copy.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tapdeck_client::{Member, Next, Options, Packet};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcap::{self, Unit};
use tapdeck_packet::pcapng::{self, StatisticsBlock};
use tapdeck_store::query::{self, Matcher as _};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::listen::{self, Reader, Readers};
use crate::output_file::OutputFile;
use crate::progress_line::say;
use crate::standard_output;
use crate::units::{counted, show_count};
use crate::usage::usage;
use tapdeck_store::filter::Filter;

/// How often the command looks whether it is to end while no packet comes.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that gather before they are written. What has gathered is also written whenever there is
/// nothing more to read.
const BUFFER: usize = 256 << 10;

/// Writes packets until something ends it.
pub fn run(flags: &flags::Attach) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let Some(address) = flags.listen else { return pass_on(flags, "", &interrupt, None, say) };
    let readers = Readers::listen(address)?;
    while let Some(reader) = readers.next(&interrupt)? {
        say(&format!("{} reads", reader.name));
        pass_on(flags, "", &interrupt, Some(&reader), say)?;
    }
    Ok(())
}

/// Writes packets that match an expression, which is judged here, until something ends it. Nothing
/// is said but what goes wrong.
pub fn run_quietly(flags: &flags::Attach, expression: &str) -> Result<()> {
    pass_on(flags, expression, &Interrupt::listen()?, None, |_| ())
}

/// Passes packets on as a member, until something ends that.
fn pass_on(
    flags: &flags::Attach,
    expression: &str,
    interrupt: &Interrupt,
    reader: Option<&Reader>,
    say: impl Fn(&str),
) -> Result<()> {
    if reader.is_none() && flags.write.as_os_str() == "-" {
        standard_output::refuse_terminal()?;
    }
    let mut options = Options { weight: flags.weight, ..Options::default() };
    if let Some(socket) = &flags.socket {
        options.socket.clone_from(socket);
    }
    let mut member = Member::open(&flags.group, &options)?;
    say(&format!("member {} of group {}", member.id(), flags.group));
    let filter = Filter::for_links(expression, member.interfaces().iter().map(|i| i.link), false)?;
    let mut tape = match reader {
        None => Tape::begin(&flags.write, &member, filter)?,
        Some(reader) => Tape::over_tcp(reader, &member, filter)?,
    };
    let end = flags.duration.and_then(|d| Instant::now().checked_add(d));
    let most = flags.count.unwrap_or(u64::MAX);

    let (mut reader_left, mut daemon_has_ended) = (false, false);
    // Packets that have come are passed on before more are waited for, however steadily they come.
    let mut waits = false;
    while !interrupt.asked() && tape.packets < most {
        let look = if waits { LOOK } else { Duration::ZERO };
        let left = end.map_or(look, |end| end.saturating_duration_since(Instant::now()).min(look));
        match member.next_packet(Some(left))? {
            Next::Got(packet) => {
                waits = false;
                reader_left = !tape.write(&packet)?;
            }
            Next::Nothing => {
                waits = true;
                reader_left = !tape.flush()? || !listen::wait(tape.out.get_ref(), Duration::ZERO);
            }
            Next::End => {
                daemon_has_ended = true;
                break;
            }
        }
        if reader_left || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    // Packets that came before the end are still to be read. Leaving fails where the daemon has
    // gone, and then the membership has ended anyway.
    let _ = member.attachment().leave();
    while !reader_left && tape.packets < most {
        let Next::Got(packet) = member.next_packet(Some(Duration::ZERO))? else { break };
        reader_left = !tape.write(&packet)?;
    }
    let dropped = member.counts().dropped;
    if !reader_left {
        tape.end(dropped)?;
    }
    say(&format!("{}, {} dropped", counted(tape.packets, "packet"), show_count(dropped)));
    anyhow::ensure!(
        !daemon_has_ended,
        "the daemon has ended, and packets after that are not in {}: attach again when it is back, or record --group, which waits for it",
        tape.name
    );
    Ok(())
}

/// The stream that is written: pcapng, or over TCP pcap.
struct Tape {
    out: BufWriter<File>,
    name: String,
    /// The block that is written next.
    block: Vec<u8>,
    packets: u64,
    /// Packets of each interface that were written.
    counts: Vec<u64>,
    began_ns: u64,
    filter: Filter,
    links: Vec<LinkType>,
    is_pcap: bool,
}

impl Tape {
    fn begin(path: &Path, member: &Member, filter: Filter) -> Result<Self> {
        let (file, name) = if path.as_os_str() == "-" {
            (standard_output::open()?, standard_output::NAME.to_owned())
        } else {
            let name = path.display().to_string();
            let file = OutputFile::open(path)?.begin();
            (file.with_context(|| format!("cannot write {name}"))?, name)
        };
        let mut head = Vec::new();
        pcapng::section_header(
            &mut head,
            std::env::consts::OS,
            concat!("tapdeck ", env!("CARGO_PKG_VERSION")),
            None,
        );
        for interface in member.interfaces() {
            pcapng::interface_description(&mut head, interface);
        }
        Self::of(file, name, head, member, filter, false)
    }

    /// Begins a pcap file for a reader. Of each packet it tells time, lengths and bytes.
    fn over_tcp(reader: &Reader, member: &Member, filter: Filter) -> Result<Self> {
        let mut links = member.interfaces().iter().map(|interface| interface.link);
        let link = links.next().unwrap_or(LinkType::ETHERNET);
        if links.any(|other| other != link) {
            return usage(
                "--listen: a pcap file has one link type, and the group's interfaces have several",
            );
        }
        let (file, name) = (reader.stream.try_clone()?, reader.name.clone());
        Self::of(file, name, pcap::header(link, Unit::Microseconds).to_vec(), member, filter, true)
    }

    fn of(
        file: File,
        name: String,
        head: Vec<u8>,
        member: &Member,
        filter: Filter,
        is_pcap: bool,
    ) -> Result<Self> {
        let mut tape = Self {
            out: BufWriter::with_capacity(BUFFER, file),
            name,
            block: head,
            packets: 0,
            counts: vec![0; member.interfaces().len()],
            began_ns: now_ns(),
            filter,
            links: member.interfaces().iter().map(|interface| interface.link).collect(),
            is_pcap,
        };
        tape.put()?;
        tape.flush()?;
        Ok(tape)
    }

    /// Writes a packet. Returns false where nobody reads any more.
    fn write(&mut self, packet: &Packet<'_>) -> Result<bool> {
        if !self.takes(packet) {
            return Ok(true);
        }
        self.block.clear();
        let (time_ns, original_len) = (packet.timestamp_ns, packet.original_len);
        if self.is_pcap {
            pcap::packet(&mut self.block, Unit::Microseconds, time_ns, original_len, packet.bytes);
        } else {
            let len = pcapng::packet_len(packet.bytes.len(), packet.flags, packet.dropped);
            self.block.resize(len, 0);
            pcapng::write_packet(
                &mut self.block,
                packet.interface,
                time_ns,
                [packet.bytes, &[], &[]],
                original_len,
                packet.flags,
                packet.dropped,
            );
        }
        self.packets += 1;
        if let Some(count) = self.counts.get_mut(packet.interface as usize) {
            *count += 1;
        }
        self.put()
    }

    fn takes(&self, packet: &Packet<'_>) -> bool {
        let Some(&link) = self.links.get(packet.interface as usize) else { return false };
        self.filter.matches(&query::Packet {
            time_ns: packet.timestamp_ns as i64,
            interface: packet.interface,
            link,
            original_len: packet.original_len,
            frame: packet.bytes,
            flags: packet.flags,
            dropped: packet.dropped,
            // Payload is shed at hooks that a recorder has, not for groups.
            shed: 0,
        })
    }

    fn put(&mut self) -> Result<bool> {
        let written = self.out.write_all(&self.block);
        self.is_read(written)
    }

    fn flush(&mut self) -> Result<bool> {
        let flushed = self.out.flush();
        self.is_read(flushed)
    }

    fn is_read(&self, result: io::Result<()>) -> Result<bool> {
        match result.map_err(listen::as_of_pipe) {
            Ok(()) => Ok(true),
            // The reader has seen enough, which is no fault.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot write to {}", self.name)),
        }
    }

    /// Ends the stream with each interface's statistics. A member's drops are counted for its
    /// rings, which have no interface of their own: the first interface tells them.
    fn end(&mut self, dropped: u64) -> Result<()> {
        let now = now_ns();
        self.block.clear();
        if self.is_pcap {
            self.flush()?;
            return Ok(());
        }
        for (interface, &delivered) in self.counts.iter().enumerate() {
            let dropped = if interface == 0 { dropped } else { 0 };
            let span = (self.began_ns, now);
            let statistics =
                StatisticsBlock::of_packets(interface as u32, span, delivered, dropped);
            pcapng::statistics(&mut self.block, &statistics);
        }
        self.put()?;
        self.flush()?;
        Ok(())
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}
