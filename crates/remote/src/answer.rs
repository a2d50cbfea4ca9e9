//! The answer of one sensor, packet by packet, up to its end.
//!
//! A gateway's answer ends with a block whose comment says how whole it is (docs/GATEWAY.md). One
//! that ends without, or with another number of packets than came, is not whole, whatever came.

use tapdeck_packet::pcapng::{
    self, InterfaceDescription, PacketBlock, Record, Statistics, StatisticsBlock,
};
use tapdeck_packet::printable::counted;
use tapdeck_packet::trace::{Error, PcapngBlocks};

use crate::ask::Stream;

/// The longest block that a gateway may send: a packet as long as libpcap has any, with options.
const MOST: usize = 1 << 20;
/// Interfaces of a sensor. Each has to be remembered.
const INTERFACES: usize = 4096;

/// The answer of a sensor.
pub struct Answer {
    blocks: PcapngBlocks<Stream>,
    state: State,
    /// Why there is no more, where the answer did not end by itself.
    failure: Option<String>,
}

/// What is kept of an answer.
#[derive(Default)]
struct State {
    sensor: String,
    /// The interfaces of the present section.
    interfaces: Vec<Interface>,
    /// Interfaces of all sections.
    described: usize,
    is_begun: bool,
    /// The packet that was found last.
    packet: Packet,
    packets: u64,
    end: Option<End>,
}

/// An interface of a sensor, by its number among all, and how it counts time.
struct Interface {
    number: u32,
    described: pcapng::Interface,
}

/// A packet, out of the stream.
#[derive(Default)]
pub struct Packet {
    pub time_ns: i64,
    /// The interface's number among those of all sensors.
    pub interface: u32,
    pub original_len: u32,
    pub frame: Vec<u8>,
    pub flags: u32,
    pub dropped: u64,
    pub shed: u32,
}

/// What a gateway says at the end of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Whether a limit ended the answer.
    pub is_limited: bool,
    pub packets: u64,
    pub dropped: u64,
    pub unseen: u64,
    /// What the answer lacks, a sentence each.
    pub faults: Vec<String>,
    pub is_incomplete: bool,
}

impl End {
    /// Reads the comment of a last block.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(": ")?;
        let (is_limited, is_incomplete) = match word {
            "complete" => (false, false),
            "limited" => (true, false),
            "incomplete" => (false, true),
            _ => return None,
        };
        let mut parts = rest.split("; ");
        let counts = parts.next()?;
        let mut numbers = counts.split(", ");
        let mut number = |unit: &str| -> Option<u64> {
            numbers.next()?.strip_suffix(unit)?.trim_end().parse().ok()
        };
        let (packets, dropped, unseen) =
            (number("packets")?, number("dropped")?, number("unseen")?);
        let faults = parts.map(str::to_owned).collect();
        Some(Self { is_limited, packets, dropped, unseen, faults, is_incomplete })
    }
}

/// Taker of what stands in an answer beside packets.
pub trait Taker {
    /// Takes an interface, and returns its number.
    fn interface(&mut self, described: &InterfaceDescription) -> u32;
    fn statistics(&mut self, statistics: &StatisticsBlock);
}

impl Answer {
    /// Reads nothing yet.
    pub fn new(sensor: String, stream: Stream) -> Self {
        let state = State { sensor, ..State::default() };
        Self { blocks: PcapngBlocks::new(stream, MOST), state, failure: None }
    }

    pub fn sensor(&self) -> &str {
        &self.state.sensor
    }

    /// Returns whether the next packet may be found without waiting.
    pub fn is_ready(&self) -> bool {
        self.failure.is_some() || self.blocks.is_ready()
    }

    /// Finds the next packet. Returns its time; `None` where there is no more.
    pub fn find_next(&mut self, taker: &mut impl Taker) -> Option<i64> {
        if self.failure.is_some() {
            return None;
        }
        self.find(taker).unwrap_or_else(|why| {
            self.failure = Some(why);
            None
        })
    }

    /// Returns the packet that was found last.
    pub fn packet(&self) -> &Packet {
        &self.state.packet
    }

    /// Returns what the sensor says at the end, or why it says nothing.
    pub fn end(&self) -> Result<&End, String> {
        let came = || match self.state.packets {
            0 => String::new(),
            packets => format!(" after {}", counted(packets, "packet")),
        };
        match (&self.failure, &self.state.end) {
            (Some(why), _) => Err(format!("{why}{}", came())),
            (None, Some(end)) => Ok(end),
            (None, None) => Err(format!("the answer was not read to its end{}", came())),
        }
    }

    fn find(&mut self, taker: &mut impl Taker) -> Result<Option<i64>, String> {
        while let Some(block) = self.blocks.next_block().map_err(|e| told(&e))? {
            if self.state.take(block.record, taker)? {
                return Ok(Some(self.state.packet.time_ns));
            }
        }
        let came = self.state.packets;
        match &self.state.end {
            Some(end) if end.packets == came => Ok(None),
            Some(end) => {
                let sent = counted(end.packets, "packet");
                Err(format!("it says that it sent {sent}, and not all came"))
            }
            None => Err("the answer does not say how whole it is".into()),
        }
    }
}

fn told(e: &Error) -> String {
    match e {
        Error::Io(e) => e.to_string(),
        e => format!("the answer makes no sense: {e}"),
    }
}

impl State {
    /// Takes in what a block says. Returns whether that is a packet.
    fn take(&mut self, record: Record<'_>, taker: &mut impl Taker) -> Result<bool, String> {
        if self.end.is_some() {
            return Err("the answer goes on behind its end".into());
        }
        match record {
            Record::Section(section) => {
                self.interfaces.clear();
                // The first section says what was asked, and one behind it may be the end.
                if std::mem::replace(&mut self.is_begun, true) {
                    self.end = section.comment.as_deref().and_then(End::parse);
                }
            }
            Record::Interface(interface) => self.describe(interface, taker)?,
            Record::Packet(packet) => {
                self.packet(&packet)?;
                return Ok(true);
            }
            Record::Statistics(statistics) => {
                self.end = statistics.comment.as_deref().and_then(End::parse);
                if self.end.is_none() {
                    taker.statistics(&self.statistics(statistics)?);
                }
            }
            Record::Other(_) => {}
        }
        Ok(false)
    }

    fn describe(
        &mut self,
        interface: pcapng::Interface,
        taker: &mut impl Taker,
    ) -> Result<(), String> {
        self.described += 1;
        if self.described > INTERFACES {
            return Err(format!("the answer has more than {INTERFACES} interfaces"));
        }
        let name = interface.name.as_deref().filter(|name| !name.is_empty()).unwrap_or("-");
        let description = interface.description.as_deref().unwrap_or_default();
        let comma = if description.is_empty() { "" } else { ", " };
        let number = taker.interface(&InterfaceDescription {
            link: interface.link,
            snaplen: 0,
            name: format!("{}/{name}", self.sensor),
            description: format!("{description}{comma}sensor {}", self.sensor),
            filter: interface.filter.clone(),
            hardware: interface.hardware.clone(),
            mac: None,
        });
        self.interfaces.push(Interface { number, described: interface });
        Ok(())
    }

    fn interface(&self, number: u32) -> Result<&Interface, String> {
        let interface = self.interfaces.get(number as usize);
        interface.ok_or_else(|| "the answer has an interface that is not described".into())
    }

    fn packet(&mut self, packet: &PacketBlock<'_>) -> Result<(), String> {
        let Interface { number, described } = self.interface(packet.interface)?;
        let (number, time_ns) = (*number, described.nanoseconds(packet.timestamp));
        let time_ns = time_ns.ok_or("the answer has a packet from no time")?;
        let mut frame = std::mem::take(&mut self.packet.frame);
        frame.clear();
        frame.extend_from_slice(packet.frame);
        let &PacketBlock { original_len, flags, dropped, shed, .. } = packet;
        self.packet =
            Packet { time_ns, interface: number, original_len, frame, flags, dropped, shed };
        self.packets += 1;
        Ok(())
    }

    /// Returns statistics as they stand among those of all sensors.
    fn statistics(&self, told: Statistics) -> Result<StatisticsBlock, String> {
        let Interface { number, described } = self.interface(told.interface)?;
        let ns = |raw: u64| described.nanoseconds(raw).map_or(0, |ns| ns as u64);
        let time_ns = ns(told.timestamp);
        Ok(StatisticsBlock {
            interface: *number,
            time_ns,
            start_ns: told.start.map_or(time_ns, ns),
            end_ns: told.end.map_or(time_ns, ns),
            received: told.received.unwrap_or(0),
            accepted: told.accepted.unwrap_or(0),
            dropped: told.dropped.unwrap_or(0),
            delivered: told.delivered.unwrap_or(0),
            unseen: told.interface_dropped.unwrap_or(0),
            comment: told.comment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::End;

    #[test]
    fn an_end_says_how_whole_an_answer_is() {
        let end = End::parse("complete: 80 packets, 2 dropped, 1 unseen").expect("it is one");
        assert_eq!((end.packets, end.dropped, end.unseen), (80, 2, 1));
        assert!(!end.is_limited && !end.is_incomplete && end.faults.is_empty());
        let end = End::parse("incomplete: 7 packets, 0 dropped, 0 unseen; this; and that");
        let end = end.expect("it is one");
        assert!(end.is_incomplete && end.faults == ["this", "and that"]);
        assert!(
            End::parse("limited: 1 packets, 0 dropped, 0 unseen").is_some_and(|e| e.is_limited)
        );
        for other in
            ["unseen: 7 packets, it was gone", "complete", "complete: 80 packets", "from edge, udp"]
        {
            assert_eq!(End::parse(other), None, "{other}");
        }
    }
}
