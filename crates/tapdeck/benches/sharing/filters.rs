//! What a filter costs that every packet passes after fifty instructions (Schneider 2005, figure
//! 6.5), and one that refuses every packet.

use std::fmt::Write as _;

use crate::bed::{Bed, Load, in_turns, print};
use crate::common::{Options, Spread};

/// Figure 6.5. Its `ip dst 990.99.12.23` is no address; 198.51.100.23 stands for it.
pub fn fifty_instructions() -> String {
    let mut text = "ether[6:4]=0x00000000 and ether[10]=0x00 and not tcp".to_owned();
    for (i, tens) in (1..20).enumerate() {
        let _ = write!(text, " and not ip src {tens}0.11.12.{}", 13 + i);
    }
    for (i, tens) in (1..20).enumerate() {
        let first = if tens == 11 { "198.51.100".into() } else { format!("{tens}0.99.12") };
        let _ = write!(text, " and not ip dst {first}.{}", 13 + i);
    }
    text
}

/// What [`fifty_instructions`] lets pass, and looks through to its end.
pub fn passes_fifty_instructions(options: &Options) -> Load {
    Load {
        size: 60,
        packets: options.packets,
        pairs: vec![[192, 168, 10, 100, 192, 168, 10, 12]],
        source_mac: Some([0; 6]),
        ..Load::default()
    }
}

pub fn measure(options: &Options) {
    let load = passes_fifty_instructions(options);
    for hook in ["xdp", "tcx"] {
        let record = |filter: Option<&str>| {
            let flags = format!("--hook {hook} --deliver consume");
            Bed::new(hook == "xdp").record(&flags, filter, &load)
        };
        let fifty = fifty_instructions();
        let names = ["no filter", "50 instructions, all pass", "all refused", "XDP_DROP alone"];
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let all = in_turns(options.runs, &names, |i| match i {
            0 => record(None),
            1 => record(Some(&fifty)),
            2 => record(Some("tcp port 9")),
            _ => Bed::new(true).drop_all(&load),
        });
        print(&format!("Filters at {hook}, 60-byte frames flat out, no store"), &all, 0);
        if hook == "xdp" {
            let ns = |i: usize| Spread::of(all[i].samples.iter().map(|s| 1e9 / s.rate())).median;
            println!("\nRefusing all costs {:.1} ns a packet above XDP_DROP.", ns(2) - ns(3));
        }
    }
}
