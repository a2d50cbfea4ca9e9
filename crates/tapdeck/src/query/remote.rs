//! `tapdeck query --remote`: packets of sensors elsewhere.
//!
//! Another program asks them, `tapdeck-remote`, so that this one links no HTTP and no TLS. It says
//! on standard error what the answer lacks, and gives pcapng; here that becomes what every query
//! gives. Which interfaces and which direction are asked for is decided here, and all else there.

use std::io::{Read, Write, stdout};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use tapdeck_packet::pcapng::{self, PacketBlock, Record};
use tapdeck_packet::trace::{self, PcapngBlocks};
use tapdeck_store::choice::Choice;
use tapdeck_store::query::{Described, Matcher, Packet};

use super::choice::wanted;
use super::output::Output;
use super::{comment, tell_absent, time};
use crate::flags;
use crate::interrupt::Interrupt;
use crate::place::{PROGRAM, program};
use crate::progress_line::say;
use crate::usage::usage;

/// The longest block: a packet as long as libpcap has any, with options.
const MOST: usize = 1 << 20;

pub fn run(flags: &flags::Query, interrupt: &Interrupt) -> Result<()> {
    let output = if flags.count { None } else { Some(Output::open(flags, None)?) };
    let mut asked =
        Asked(command(flags)?.spawn().with_context(|| format!("cannot run {PROGRAM}"))?);
    let stream = asked.0.stdout.take().context("no output of tapdeck-remote")?;
    let mut answer = Answer { flags, output, interfaces: Vec::new(), choice: None, packets: 0 };
    let end = answer.give(stream, interrupt)?;
    if flags.count && !interrupt.asked() {
        answer.tell_count()?;
    }
    match end {
        End::Limit => {
            say(
                "all packets that were asked for are there; whether sensors lack others is not told",
            );
            Ok(())
        }
        End::Whole => asked.verdict(interrupt),
        // Why it ended early, its exit code tells.
        End::Short(e) => {
            asked.verdict(interrupt)?;
            Err(anyhow::Error::from(e).context("what tapdeck-remote gave"))
        }
    }
}

/// How a stream ended.
enum End {
    Whole,
    /// The stream was left where there were as many packets as were asked for.
    Limit,
    Short(trace::Error),
}

/// Returns how the sensors are asked.
fn command(flags: &flags::Query) -> Result<Command> {
    let mut command = Command::new(program("--remote")?);
    command.args(["query", "--remote", &flags.remote.join(",")]);
    flags.shown.pass_to(&mut command);
    for (flag, time_ns) in [("--after", flags.after), ("--before", flags.before)] {
        if let Some(time_ns) = time_ns {
            command.args([flag, &time::show(time_ns)]);
        }
    }
    if let Some(limit) = flags.limit.filter(|_| !chooses_here(flags)) {
        command.args(["--limit", &limit.to_string()]);
    }
    if let Some(id) = flags.community_id {
        command.args(["--community-id", &id.to_string()]);
    }
    command.arg("--").arg(flags.expression.join(" "));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Returns whether not all packets that come are in the answer.
fn chooses_here(flags: &flags::Query) -> bool {
    !flags.interfaces.is_empty() || flags.direction.is_some()
}

/// The program that asks, which ends with this one.
struct Asked(Child);

impl Asked {
    fn verdict(mut self, interrupt: &Interrupt) -> Result<()> {
        let status = self.0.wait().context("cannot wait for tapdeck-remote")?;
        // Ctrl-C is for both.
        if interrupt.asked() {
            interrupt.heard();
            return Ok(());
        }
        match status.code() {
            Some(0) => Ok(()),
            Some(1) => bail!("the answer is not whole, as said above"),
            Some(2) => usage("sensors cannot be asked so, as said above"),
            _ => bail!("{PROGRAM} ended early ({status}), so the answer is not whole"),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Where it has ended there is nobody to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Answer<'a> {
    flags: &'a flags::Query,
    /// Where packets go; `None` where they are counted.
    output: Option<Output>,
    interfaces: Vec<Described>,
    /// What chooses among packets, if that is done here.
    choice: Option<Choice>,
    packets: u64,
}

impl Answer<'_> {
    /// Gives the packets of a stream.
    fn give(&mut self, stream: impl Read, interrupt: &Interrupt) -> Result<End> {
        let mut blocks = PcapngBlocks::new(stream, MOST);
        let limit = self.flags.limit.unwrap_or(u64::MAX);
        let cannot =
            self.output.as_ref().map_or_else(String::new, |o| format!("cannot write {}", o.name));
        if let Some(output) = &mut self.output {
            output.begin(&comment(self.flags), &[]).with_context(|| cannot.clone())?;
        }
        let mut has_packets = false;
        let end = loop {
            // Packets that came are shown before more are waited for.
            if !blocks.is_ready()
                && let Some(output) = &mut self.output
            {
                output.flush().with_context(|| cannot.clone())?;
            }
            let block = match blocks.next_block() {
                Ok(Some(block)) if !interrupt.asked() => block,
                Ok(_) => break End::Whole,
                Err(e) => break End::Short(e),
            };
            match block.record {
                Record::Interface(interface) => {
                    has_packets = false;
                    self.describe(interface, block.bytes).with_context(|| cannot.clone())?;
                }
                Record::Packet(packet) => {
                    if !std::mem::replace(&mut has_packets, true) {
                        self.choose()?;
                    }
                    self.packet(&packet).with_context(|| cannot.clone())?;
                    if self.packets == limit && chooses_here(self.flags) {
                        break End::Limit;
                    }
                }
                Record::Statistics(_) => {
                    if let Some(output) = &mut self.output {
                        output.copy(block.bytes).with_context(|| cannot.clone())?;
                    }
                }
                Record::Section(_) | Record::Other(_) => {}
            }
        };
        self.flush().with_context(|| cannot)?;
        Ok(end)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.as_mut().map_or(Ok(()), Output::flush)
    }

    fn describe(&mut self, interface: pcapng::Interface, block: &[u8]) -> std::io::Result<()> {
        let pcapng::Interface { link, name, description, .. } = interface;
        let described = Described {
            block: block.to_vec(),
            name: name.unwrap_or_default(),
            description: description.unwrap_or_default(),
            link,
        };
        if let Some(output) = &mut self.output {
            output.describe(std::slice::from_ref(&described))?;
        }
        self.interfaces.push(described);
        Ok(())
    }

    /// Resolves what is chosen here, among packets of the interfaces that are known.
    fn choose(&mut self) -> Result<()> {
        if chooses_here(self.flags) {
            tell_absent(self.flags, &self.interfaces);
            let flags = flags::Query {
                interfaces: self.flags.interfaces.clone(),
                direction: self.flags.direction,
                ..flags::Query::of(PathBuf::new())
            };
            self.choice = Some(Choice::new(&wanted(&flags), &self.interfaces)?);
        }
        Ok(())
    }

    fn packet(&mut self, packet: &PacketBlock<'_>) -> Result<()> {
        let Some(interface) = self.interfaces.get(packet.interface as usize) else {
            bail!("a packet of an interface that was not described");
        };
        let packet = Packet {
            time_ns: packet.timestamp as i64,
            interface: packet.interface,
            link: interface.link,
            original_len: packet.original_len,
            frame: packet.frame,
            flags: packet.flags,
            dropped: packet.dropped,
            shed: packet.shed,
        };
        if self.choice.as_ref().is_some_and(|choice| !choice.matches(&packet)) {
            return Ok(());
        }
        self.packets += 1;
        if let Some(output) = &mut self.output {
            output.packet(&interface.name, &packet)?;
        }
        Ok(())
    }

    fn tell_count(&self) -> Result<()> {
        let packets = self.packets;
        if self.flags.json {
            writeln!(stdout(), "{}", serde_json::json!({ "packets": packets }))?;
        } else {
            writeln!(stdout(), "{packets}")?;
        }
        Ok(())
    }
}
