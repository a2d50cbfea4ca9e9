/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What src/groups/maps.rs believes of serve.h, so that a test can hold it against the truth. */
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
	offsetof(struct td_port, entry),
	sizeof(struct td_entry),
	sizeof(struct td_port),
	sizeof(struct td_counts),
	sizeof(struct td_taken),
	sizeof(struct td_flush_member),
};
