//! What filters, rules and groups cost, and eight programs on one interface, in one run: `make
//! bench`, or `cargo bench -p tapdeck --bench sharing -- --runs 5 --parts
//! filters,rules,groups,hook,programs`.
//!
//! A generator on core 0 floods one end of a veth pair; what captures sits on core 1. The receiving
//! end's driver, and with it the hook program, runs on the generator's core, so a rate is one over
//! the time for one packet's sending *and* its hook. Methods take turns, so that what else the
//! machine does hits all alike. Prints medians and spreads as Markdown tables. It measures and
//! asserts nothing.

#[path = "sharing/bed.rs"]
mod bed;
mod common;
#[path = "sharing/filters.rs"]
mod filters;
#[path = "sharing/groups.rs"]
mod groups;
#[path = "sharing/hook.rs"]
mod hook;
#[path = "sharing/programs.rs"]
mod programs;
#[path = "sharing/rules.rs"]
mod rules;

use common::Options;

fn main() {
    let options = Options::new(3_000_000);
    tapdeck_testkit::kernel::need_root();
    if !options.tiny {
        common::print_machine(&["tcpdump"]);
    }
    if options.wants("--parts", "filters") {
        filters::measure(&options);
    }
    if options.wants("--parts", "rules") {
        rules::measure(&options);
    }
    if options.wants("--parts", "groups") {
        groups::measure(&options);
    }
    if options.wants("--parts", "hook") {
        hook::measure(&options);
    }
    if options.wants("--parts", "programs") {
        programs::measure(&options);
    }
}
