/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Where C has what, in the order in which src/groups/maps.rs has it for Rust: a test compares them.
 */
#include <stddef.h>
#include "serve.h"

const __u32 tapdeck_serve_layout[] = {
	TD_MAX_GROUPS,
	TD_MAX_MEMBERS,
	TD_SLOTS,
	sizeof(struct td_slots),
	sizeof(struct td_group),
	offsetof(struct td_group, steering),
	offsetof(struct td_group, snaplen),
	offsetof(struct td_group, paused),
	offsetof(struct td_group, sole),
	offsetof(struct td_group, listed),
	offsetof(struct td_group, rules),
	sizeof(struct td_port),
	offsetof(struct td_port, port),
	offsetof(struct td_port, counts),
	offsetof(struct td_port, entries),
	offsetof(struct td_port, entry),
	sizeof(struct td_entry),
	offsetof(struct td_entry, group),
	offsetof(struct td_entry, interface),
	offsetof(struct td_entry, filter),
	offsetof(struct td_entry, count),
	sizeof(struct td_counts),
	offsetof(struct td_counts, seen),
	offsetof(struct td_counts, filtered),
	offsetof(struct td_counts, cutoff),
	offsetof(struct td_counts, no_member),
	offsetof(struct td_counts, extra),
	sizeof(struct td_taken),
	offsetof(struct td_taken, packets),
	offsetof(struct td_taken, bytes),
	sizeof(struct td_flush_member),
	offsetof(struct td_flush_member, member),
	offsetof(struct td_flush_member, ring),
	offsetof(struct td_flush_member, block),
};
