//! What of a packet's time is the hook program's, as the kernel measures it, and what a filter and
//! steering add to that. The differences are small beside the time for a packet's sending, and
//! rates alone do not show them.

use crate::bed::{Bed, HookClock, Load, Sample, in_turns};
use crate::common::{Options, Spread, cell, range, row, table};
use crate::filters::{fifty_instructions, passes_fifty_instructions};
use crate::groups::{Way, serve};

/// All packets are of one flow, which has one member: what is added is finding it, and not the
/// rings of eight.
const STEERINGS: [&str; 7] = ["flow", "ip-pair", "src", "dst", "mac", "vlan", "queue"];

pub fn measure(options: &Options) {
    let _clock = match HookClock::start() {
        Ok(clock) => clock,
        Err(why) => return eprintln!("the time of hook programs is not measured: {why}"),
    };
    let load = passes_fifty_instructions(options);
    let mut names = vec!["record".to_owned(), "record, 50 instructions".into(), "1 member".into()];
    names.extend(STEERINGS.iter().map(|s| format!("8 members, {s}")));
    let fifty = fifty_instructions();
    let record = |filter: Option<&str>, load: &Load| {
        Bed::new(true).record("--hook xdp --deliver consume", filter, load)
    };
    let all = in_turns(options.runs, &names, |i| match i {
        0 => record(None, &load),
        1 => record(Some(&fifty), &load),
        2 => serve(&Way { groups: 1, members: 1, steering: "flow" }, &load),
        i => serve(&Way { groups: 1, members: 8, steering: STEERINGS[i - 3] }, &load),
    });
    println!("\n### The hook program's own time at xdp, 60-byte frames of one flow\n");
    table(&["", "ns", "min-max", "more than without", "lost, %"]);
    let ns = |i: usize| Spread::of(all[i].samples.iter().map(|s| s.hook_ns));
    for (i, series) in all.iter().enumerate() {
        let without = if i < 2 { 0 } else { 2 };
        row(&[
            series.name.clone(),
            cell(ns(i).median, 1),
            range(ns(i), 1.0, 1),
            cell(ns(i).median - ns(without).median, 1),
            cell(Spread::of(series.samples.iter().map(Sample::lost_percent)).median, 2),
        ]);
    }
}
