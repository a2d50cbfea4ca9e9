//! Packets of a flow stay with their member as long as nobody comes or goes, and members share
//! flows evenly.
//!
//! `TAPDECK_STEERED_PACKETS` says how many packets are sent; 200,000 if it says nothing.

mod testbed;

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use tapdeck_client::{Member, Next, Options};
use tapdeck_testkit::{Net, Running, Sender, wait_for};
use testbed::daemon::Daemon;
use testbed::recorder::{frame, number};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Addresses, protocol and ports of an IPv4 packet without options.
type Flow = [u8; 13];

fn flow(frame: &[u8]) -> Flow {
    let mut flow = [0; 13];
    flow[..8].copy_from_slice(&frame[26..34]);
    flow[8] = frame[23];
    flow[9..].copy_from_slice(&frame[34..38]);
    flow
}

/// The same for both directions.
fn both_ways(flow: Flow) -> Flow {
    let mut back = flow;
    back[..4].copy_from_slice(&flow[4..8]);
    back[4..8].copy_from_slice(&flow[..4]);
    back[9..11].copy_from_slice(&flow[11..]);
    back[11..].copy_from_slice(&flow[9..11]);
    flow.min(back)
}

/// Members of one group, and which of them has which flow.
struct Crew {
    members: Vec<Member>,
    owners: HashMap<Flow, usize>,
    packets: Vec<u64>,
    dropped: u64,
    /// Packets that came to another member than the first of their flow.
    strayed: u64,
}

impl Crew {
    fn join(daemon: &Daemon, group: &str, members: usize) -> Self {
        let options = Options { socket: daemon.socket(), ..Options::default() };
        let member = |_| Member::open(group, &options).expect("the group is there");
        Self {
            members: (0..members).map(member).collect(),
            owners: HashMap::new(),
            packets: vec![0; members],
            dropped: 0,
            strayed: 0,
        }
    }

    /// Takes what is there; false where there is nothing.
    fn read(&mut self) -> bool {
        let mut found = false;
        for (at, member) in self.members.iter_mut().enumerate() {
            while let Next::Got(batch) = member.next_batch(Some(Duration::ZERO)).expect("it works")
            {
                found = true;
                for packet in batch {
                    let packet = packet.expect("a packet");
                    let flow = both_ways(flow(packet.bytes));
                    let owner = *self.owners.entry(flow).or_insert(at);
                    self.strayed += u64::from(owner != at);
                    self.packets[at] += 1;
                    self.dropped += packet.dropped;
                }
            }
        }
        found
    }

    /// Reads until so many packets came or were dropped.
    fn read_all(&mut self, packets: u64) {
        wait_for("the packets", || {
            while self.read() {}
            let lost: u64 = self.members.iter().map(|member| member.counts().dropped).sum();
            self.packets.iter().sum::<u64>() + lost >= packets
        });
    }
}

fn config(group: &str) -> String {
    format!(
        "[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\nsnaplen = 256\n{group}\n"
    )
}

#[test]
fn no_flow_changes_its_member_and_ten_share_evenly() {
    let packets = match std::env::var("TAPDECK_STEERED_PACKETS") {
        Ok(n) => n.parse().expect("TAPDECK_STEERED_PACKETS is a number"),
        Err(_) => 200_000_u64,
    };
    let net = Net::new();
    let daemon = Daemon::start(&net, &config("steering = \"flow\""));
    let mut crew = Crew::join(&daemon, "g", 10);
    let mut send = net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    let flags = format!(
        "gen -i va --size 100 --rate 100kpps --count {packets} --flows 10000 --backend txring"
    );
    send.args(flags.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut sending = Running(send.spawn().expect("the program was built"));
    while sending.0.try_wait().expect("it runs").is_none() {
        if !crew.read() {
            std::thread::yield_now();
        }
    }
    crew.read_all(packets);
    assert_eq!(crew.strayed, 0, "of {packets} packets");
    assert_eq!(crew.owners.len(), 10_000);
    let group = daemon.group("g");
    assert_eq!(number(&group, "seen"), packets, "{group}");
    assert_eq!(number(&group, "no_member"), 0, "{group}");
    let mean = packets as f64 / 10.0;
    for member in group["members"].as_array().expect("members") {
        let share = number(member, "captured")
            + number(member, "dropped_ring")
            + number(member, "dropped_other");
        let off = (share as f64 - mean).abs() / mean;
        assert!(off < 0.05, "{:.1} % from its share: {group}", off * 100.0);
    }
    drop(crew);
    daemon.stop();
}

/// UDP from `n` to everybody and back.
fn conversation(n: u16) -> [Vec<u8>; 2] {
    let mut there = frame(MAC, 100, u32::from(n));
    there[26..30].copy_from_slice(&[10, 1, (n >> 8) as u8, n as u8]);
    there[34..36].copy_from_slice(&n.to_be_bytes());
    let mut back = there.clone();
    back[26..30].copy_from_slice(&there[30..34]);
    back[30..34].copy_from_slice(&there[26..30]);
    back[34..36].copy_from_slice(&there[36..38]);
    back[36..38].copy_from_slice(&there[34..36]);
    [there, back]
}

fn send(net: &Net, frames: impl Iterator<Item = Vec<u8>> + Send) -> u64 {
    net.a.inside(|| Sender::on("va").send_all(frames))
}

#[test]
fn both_directions_meet_and_a_newcomer_takes_only_its_share() {
    const FLOWS: u16 = 1000;
    let net = Net::new();
    let daemon = Daemon::start(&net, &config("steering = \"flow\""));
    let mut crew = Crew::join(&daemon, "g", 3);
    let sent = send(&net, (0..FLOWS).flat_map(conversation));
    crew.read_all(sent);
    assert_eq!((crew.strayed, crew.owners.len()), (0, usize::from(FLOWS)));

    // A fourth member gets a quarter; all else stays where it is.
    let options = Options { socket: daemon.socket(), ..Options::default() };
    crew.members.push(Member::open("g", &options).expect("the group is there"));
    crew.packets.push(0);
    let again = send(&net, (0..FLOWS).flat_map(conversation));
    crew.read_all(sent + again);
    assert_eq!(crew.strayed, crew.packets[3], "only to the newcomer");
    let share = crew.packets[3] as f64 / again as f64;
    assert!((0.2..0.3).contains(&share), "it gets {share}");
    drop(crew);
    daemon.stop();
}

#[test]
fn a_weight_is_a_share() {
    const FLOWS: u16 = 2000;
    let net = Net::new();
    let daemon = Daemon::start(&net, &config("steering = \"src\""));
    let mut crew = Crew::join(&daemon, "g", 1);
    let options = Options { socket: daemon.socket(), weight: 3 };
    crew.members.push(Member::open("g", &options).expect("the group is there"));
    crew.packets.push(0);
    let sent = send(&net, (0..FLOWS).map(|n| conversation(n)[0].clone()));
    crew.read_all(sent);
    let share = crew.packets[1] as f64 / sent as f64;
    assert!((0.7..0.8).contains(&share), "three of four parts: {share}");
    drop(crew);
    daemon.stop();
}
