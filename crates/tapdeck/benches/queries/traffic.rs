//! What is sent: one frame over and over, at a pace or as fast as it goes, or what `tapdeck gen`
//! makes. Always from core 0.

use std::process::{Command, Stdio};
use std::time::Instant;

use pcap::Capture;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::{Drain, Flood};
use tapdeck_traffic::sent::Sent;

use super::process::Group;
use super::words;
use crate::common;
use tapdeck_testkit::{Namespace, Net};

/// Packets that came to the far end, and the time in which they were sent.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    pub packets: u64,
    pub seconds: f64,
}

#[derive(Clone, Debug)]
pub enum Traffic {
    /// Copies of a frame of `size` bytes, `gap_ns` apart (0: as fast as it goes); after each
    /// `burst` of them the generator takes 25 ms for itself.
    Copies { size: u32, gap_ns: u32, packets: u32, burst: u32 },
    /// As `tapdeck gen` with these flags.
    Generated(String),
}

impl Traffic {
    /// Sends it from `va` to `vb`.
    pub fn send(&self, net: &Net) -> Result<Came, String> {
        let before = counters(net);
        let seconds = match self {
            Self::Copies { size, gap_ns, packets, burst } => {
                flood(net, *size, *gap_ns, *packets, *burst)?
            }
            Self::Generated(flags) => generate(net, flags)?.elapsed_s,
        };
        Ok(Came { packets: counters(net) - before, seconds })
    }
}

/// Sends one packet for this port, which no generated packet has.
pub fn send_to_port(net: &Net, port: u16) -> Result<(), String> {
    let mut frame = common::frame(100, [2, 0x74, 0x64, 0, 0, 1], [2, 0x74, 0x64, 0, 0, 2]);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    net.a
        .inside(|| {
            let mut device = Capture::from_device("va").and_then(Capture::open)?;
            device.sendpacket(frame)
        })
        .map_err(|e| e.to_string())
}

/// Packets received so far by `vb`: what the generator could not send is not in it.
fn counters(net: &Net) -> u64 {
    interface(&net.b, "vb").counters.rx_packets
}

fn interface(at: &Namespace, name: &str) -> Interface {
    at.inside(|| Interface::find(name).expect("the test kit made it"))
}

fn flood(net: &Net, size: u32, gap_ns: u32, packets: u32, burst: u32) -> Result<f64, String> {
    let from = interface(&net.a, "va");
    let mac = |i: &Interface| i.mac.expect("veth has one");
    let frame = common::frame(size, mac(&from), mac(&interface(&net.b, "vb")));
    net.a.inside(|| {
        common::stay_on_core(0).map_err(|e| e.to_string())?;
        let flood = Flood::new(from.index, &frame, 42, gap_ns).map_err(|e| e.to_string())?;
        let begin = Instant::now();
        let mut left = packets;
        while left > 0 {
            let now = left.min(burst);
            flood.send(now).map_err(|e| e.to_string())?;
            left -= now;
        }
        Ok(begin.elapsed().as_secs_f64())
    })
}

/// The command that generates, but for its flags.
pub fn generator() -> String {
    format!("{} gen -i va --cpu 0 --json -", env!("CARGO_BIN_EXE_tapdeck"))
}

fn generating(net: &Net, flags: &str) -> Command {
    let mut command = net.a.command("taskset");
    command.args(["-c", "0"]).args(words(&generator())).args(words(flags)).stdin(Stdio::null());
    command
}

/// Generates until it is dropped.
pub fn endless(net: &Net, flags: &str) -> Result<Group, String> {
    Group::start(generating(net, flags).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn generate(net: &Net, flags: &str) -> Result<Sent, String> {
    let out = generating(net, flags).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(format!("tapdeck gen: {}", said.lines().next().unwrap_or_default()));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| format!("tapdeck gen: {e}"))
}

/// Packets a second that come if an XDP program does nothing but drop them.
pub fn ceiling_pps(net: &Net, traffic: &Traffic) -> Result<f64, String> {
    let to = interface(&net.b, "vb");
    let drain = net.b.inside(|| Drain::attach(to.index)).map_err(|e| e.to_string())?;
    let came = traffic.send(net)?;
    drop(drain);
    Ok(came.packets as f64 / came.seconds)
}
