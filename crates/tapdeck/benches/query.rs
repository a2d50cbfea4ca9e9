//! Indexed recording and queries, held against the peers, in one run: `make bench`, or
//! `cargo bench -p tapdeck --bench query -- --runs 5`.
//!
//! Four questions, each a table or two; `--only indexed,queries,freshness,disturbance` asks some of
//! them:
//! - `indexed`: what the index costs while recording, in CPU, memory, disk and packets lost;
//! - `queries`: how soon stores of several sizes (`--gigabytes 1,4,16`) answer with nothing in the
//!   page cache, and what is read for it;
//! - `freshness`: how long after a packet came a query gives it;
//! - `disturbance`: what queries and exports without end take from a recorder at 80 % of what it
//!   can.
//!
//! `--packets N` is for a run of `indexed`, `--seconds N` for one of `disturbance`. The largest
//! store exists twice for a while, as each recorder writes it. Prints medians and spreads as
//! Markdown tables. It measures and asserts nothing, but for `--test`, which asserts that what was
//! sent was stored and is what the answers hold.

mod common;
mod queries;

use common::Options;

fn main() {
    type Case = (&'static str, fn(&Options));
    let options = Options::new(3_000_000);
    tapdeck_testkit::kernel::need_root();
    if !options.tiny {
        common::print_machine(&["stenographer", "tcpdump", "tshark", "libpcap0.8", "curl"]);
    }
    let cases: [Case; 4] = [
        ("indexed", queries::indexed::run),
        ("queries", queries::asking::run),
        ("freshness", queries::freshness::run),
        ("disturbance", queries::disturbance::run),
    ];
    for (_, case) in cases.iter().filter(|(name, _)| options.wants("--only", name)) {
        case(&options);
    }
}
