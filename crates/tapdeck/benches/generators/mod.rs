//! The generators that are compared: how each is told what to send, what it says of itself
//! afterwards, and one run of it into a veth pair of its own.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::Drain;
use tapdeck_traffic::sent::Sent;

use crate::common;
use arrivals::{Arrivals, counter, watch};
use tapdeck_testkit::{Net, Running};

mod arrivals;

/// What peers send for "imix": seven of 60 bytes to four of 590 to one of 1514, as `gen --size
/// imix` draws.
pub const IMIX: [u32; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];
pub const IMIX_MEAN: f64 = 4294.0 / 12.0;
pub const SMALL: [u32; 1] = [64];
const TRAFGEN_CONF: &str = "frames.cfg";
const TCPREPLAY_PCAP: &str = "frames.pcap";
/// So many that beginning anew costs nothing that shows; a multiple of the mix.
const PCAP_FRAMES: usize = 1200;
/// As `gen` has them; they are nobody's, so the far end's stack looks no further.
const FROM: [u8; 6] = [2, 0x74, 0x64, 0, 0, 1];
const TO: [u8; 6] = [2, 0x74, 0x64, 0, 0, 2];

#[derive(Clone, Debug)]
pub enum Tool {
    /// With the flags that say what is sent.
    Tapdeck(String),
    /// With the flags for the rate.
    Trafgen(String),
    Tcpreplay(String),
    XdpTrafficgen,
}

/// What happens to packets at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// An XDP program drops them, the least that a receiver can do.
    Drain,
    /// GRO and the network stack get them, and find that they are for another host.
    Stack,
}

/// A row of a table: one generator, and what it is to send.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub tool: Tool,
    pub packets: u64,
    /// The lengths that a peer sends, over and over.
    pub sizes: &'static [u32],
    pub far_end: FarEnd,
}

impl Row {
    pub fn new(name: &str, tool: Tool, packets: u64) -> Self {
        Self { name: name.to_owned(), tool, packets, sizes: &SMALL, far_end: FarEnd::Drain }
    }

    pub fn tapdeck(name: &str, flags: &str, packets: u64) -> Self {
        Self::new(name, Tool::Tapdeck(flags.to_owned()), packets)
    }

    /// The command, whose files are in `dir`.
    pub fn command(&self, dir: &Path) -> String {
        let file = |name: &str| dir.join(name).display().to_string();
        let packets = self.packets;
        match &self.tool {
            Tool::Tapdeck(flags) => {
                let tapdeck = env!("CARGO_BIN_EXE_tapdeck");
                format!("{tapdeck} gen -i va --cpu 0 --count {packets} --json - {flags}")
            }
            Tool::Trafgen(rate) => {
                let conf = file(TRAFGEN_CONF);
                format!("trafgen --dev va --conf {conf} --cpus 1 --num {packets} {rate}")
            }
            Tool::Tcpreplay(rate) => {
                let loops = packets.div_ceil(PCAP_FRAMES as u64);
                format!(
                    "tcpreplay -i va --preload-pcap --no-flow-stats {rate} --loop {loops} --limit {packets} {}",
                    file(TCPREPLAY_PCAP)
                )
            }
            Tool::XdpTrafficgen => {
                format!("xdp-trafficgen udp -m 02:74:64:00:00:02 -t 1 -n {packets} va")
            }
        }
    }

    /// Puts into `dir` what the command reads.
    fn write_files(&self, dir: &Path) -> io::Result<()> {
        let frames = self.sizes.iter().map(|size| common::frame(*size, FROM, TO));
        match self.tool {
            Tool::Trafgen(_) => {
                let packets: Vec<String> = frames.map(|f| format!("{{ {} }}", hex(&f))).collect();
                fs::write(dir.join(TRAFGEN_CONF), packets.join("\n"))
            }
            Tool::Tcpreplay(_) => {
                let frames: Vec<Vec<u8>> = frames.collect();
                fs::write(dir.join(TCPREPLAY_PCAP), pcap(frames.iter().cycle().take(PCAP_FRAMES)))
            }
            Tool::Tapdeck(_) | Tool::XdpTrafficgen => Ok(()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:#04x}")).collect::<Vec<_>>().join(", ")
}

fn pcap<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    // Version 2.4, 64 KiB at most, Ethernet.
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for frame in frames {
        file.extend(words(&[1, 0, frame.len() as u32, frame.len() as u32]));
        file.extend(frame);
    }
    file
}

/// One run.
#[derive(Debug)]
pub struct Sample {
    pub arrivals: Arrivals,
    pub said: Option<Said>,
    /// In the mean, without check sequence.
    pub bytes_per_packet: f64,
    /// Most of the generator's memory that was resident.
    pub resident_mib: f64,
}

impl Sample {
    /// Packets that the generator says it sent and that did not arrive, in percent.
    pub fn lost(&self) -> f64 {
        let arrived = self.arrivals.total() as f64;
        self.said.as_ref().map_or(f64::NAN, |s| 100.0 * (1.0 - arrived / s.packets as f64))
    }

    pub fn said_pps(&self) -> f64 {
        self.said.as_ref().map_or(f64::NAN, |s| s.pps)
    }

    pub fn record(&self) -> Option<&Sent> {
        self.said.as_ref()?.record.as_ref()
    }
}

/// What a generator says of itself.
#[derive(Debug)]
pub struct Said {
    packets: u64,
    pps: f64,
    /// Of tapdeck.
    record: Option<Sent>,
}

impl Said {
    fn of(tool: &Tool, text: &str) -> Option<Self> {
        let number = |text: &str, before: &str| -> Option<f64> {
            let at = text.find(before)?;
            text[..at].split_whitespace().last()?.parse().ok()
        };
        match tool {
            Tool::Tapdeck(_) => {
                let record: Sent = serde_json::from_str(text).ok()?;
                Some(Self { packets: record.sent, pps: record.rate.pps, record: Some(record) })
            }
            Tool::Trafgen(_) => {
                let packets = number(text, " packets outgoing")?;
                let seconds = number(text, " sec,")? + number(text, " usec on")? / 1e6;
                Some(Self { packets: packets as u64, pps: packets / seconds, record: None })
            }
            Tool::Tcpreplay(_) => {
                let packets = number(text, " packets (")?;
                let pps = packets / number(text, " seconds")?;
                Some(Self { packets: packets as u64, pps, record: None })
            }
            // It speaks of intervals only.
            Tool::XdpTrafficgen => None,
        }
    }
}

/// One run of a row, in namespaces that are gone afterwards.
pub fn measure(row: &Row) -> Result<Sample, String> {
    let net = Net::new();
    let _drain = match row.far_end {
        FarEnd::Drain => {
            let attach = || Drain::attach(Interface::find("vb").expect("made above").index);
            Some(net.b.inside(attach).map_err(|e| e.to_string())?)
        }
        FarEnd::Stack => {
            net.b.run("ethtool -K vb gro on");
            None
        }
    };
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (said, complained) = (dir.path().join("said"), dir.path().join("complained"));
    row.write_files(dir.path()).map_err(|e| e.to_string())?;
    let mut command = net.a.command("taskset");
    command.args(["-c", "0"]).args(row.command(dir.path()).split_whitespace());
    command.stdout(File::create(&said).map_err(|e| e.to_string())?);
    command.stderr(File::create(&complained).map_err(|e| e.to_string())?);
    let begin = net.b.inside(counter)?;
    let generator = Running(command.spawn().map_err(|e| e.to_string())?);
    let watched = net.b.inside(|| watch(generator, begin));
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (said, complained) = (read(&said), read(&complained));
    let (arrivals, resident_mib) = watched.map_err(|e| format!("{e}: {}", gist(&complained)))?;
    if arrivals.total() == 0 {
        return Err(format!("no packet arrived: {}", gist(&complained)));
    }
    let text = match row.tool {
        Tool::Tapdeck(_) => said,
        _ => said + &complained,
    };
    let said = Said::of(&row.tool, &text);
    let bytes_per_packet = match said.as_ref().and_then(|s| s.record.as_ref()) {
        Some(record) => record.bytes as f64 / (record.sent + record.refused) as f64,
        None => f64::from(row.sizes.iter().sum::<u32>()) / row.sizes.len() as f64,
    };
    Ok(Sample { arrivals, said, bytes_per_packet, resident_mib })
}

/// The first and the last line of what a program complained of.
fn gist(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    match (lines.next(), lines.next_back()) {
        (Some(first), Some(last)) => format!("{first} ... {last}"),
        (Some(only), None) => only.to_owned(),
        _ => "it did not say why".to_owned(),
    }
}
