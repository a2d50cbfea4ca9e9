//! What it costs that a daemon shares an interface out: steering to members, copies, many groups.

use std::fmt::Write as _;

use crate::bed::{
    Bed, Load, Pair, Sample, cpu_ms, end, hook_ns, in_turns, last_object, print, words,
};
use crate::common::Options;

/// A way of sharing: groups, members in each, steering.
pub struct Way {
    pub groups: u32,
    pub members: u32,
    pub steering: &'static str,
}

const WAYS: [Way; 8] = [
    Way { groups: 1, members: 1, steering: "copy" },
    Way { groups: 1, members: 1, steering: "flow" },
    Way { groups: 1, members: 8, steering: "flow" },
    Way { groups: 1, members: 8, steering: "ip-pair" },
    Way { groups: 1, members: 8, steering: "round-robin" },
    Way { groups: 1, members: 2, steering: "copy" },
    Way { groups: 1, members: 8, steering: "copy" },
    Way { groups: 8, members: 1, steering: "flow" },
];

fn pairs() -> Vec<Pair> {
    (0u8..=255).map(|i| [10, 1, 0, i, 10, 2, 0, i.wrapping_mul(7)]).collect()
}

/// One run of a daemon whose members let their rings go by unread, but for what they count.
pub fn serve(way: &Way, load: &Load) -> Result<Sample, String> {
    let bed = Bed::new(true);
    let socket = bed.path("socket");
    let mut config = format!("[serve]\nsocket = {:?}\n", socket.display().to_string());
    for group in 0..way.groups {
        let _ = write!(
            config,
            "[[group]]\nname = \"g{group}\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\ndeliver = \"consume\"\nsteering = {:?}\n",
            way.steering
        );
    }
    let file = bed.path("serve.toml");
    std::fs::write(&file, config).map_err(|e| e.to_string())?;
    let stats = bed.path("stats.json");
    let line = format!("serve --config {} --stats-json {}", file.display(), stats.display());
    let daemon = bed.tapdeck(&words(&line))?;
    let mut members = Vec::new();
    for group in 0..way.groups {
        for _ in 0..way.members {
            let line = format!("record --group g{group} --socket {} --no-store", socket.display());
            members.push(bed.tapdeck(&words(&line))?);
        }
    }
    let cpu = || members.iter().map(|m| cpu_ms(m.0.id())).sum::<f64>() + cpu_ms(daemon.0.id());
    let before = cpu();
    let sent = bed.flood(load)?;
    std::thread::sleep(std::time::Duration::from_millis(200));
    let cpu_ms = cpu() - before;
    let hook_ns = hook_ns(daemon.0.id());
    for member in members {
        end(member)?;
    }
    end(daemon)?;
    let last = last_object(&stats)?;
    let groups = last["groups"].as_array().cloned().unwrap_or_default();
    let sum = |key: &str| groups.iter().map(|g| g[key].as_u64().unwrap_or(0)).sum::<u64>();
    // Of all copies, the share that was kept: as if there had been one.
    let copies = u64::from(if way.steering == "copy" { way.members } else { way.groups });
    Ok(Sample {
        sent,
        captured: (sum("captured") / copies).min(sent.packets),
        filtered: 0,
        cpu_ms,
        hook_ns,
    })
}

pub fn measure(options: &Options) {
    let load = Load { size: 60, packets: options.packets, pairs: pairs(), ..Load::default() };
    let mut names = vec!["record".to_owned()];
    names.extend(WAYS.iter().map(|w| {
        let plural = |n: u32, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        format!("{}, {}, {}", plural(w.groups, "group"), plural(w.members, "member"), w.steering)
    }));
    let all = in_turns(options.runs, &names, |i| match i {
        0 => Bed::new(true).record("--hook xdp --deliver consume", None, &load),
        i => serve(&WAYS[i - 1], &load),
    });
    print("Groups at xdp, 60-byte frames flat out, no store", &all, 0);
}
