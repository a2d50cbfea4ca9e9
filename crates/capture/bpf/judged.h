/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What is judged of a tuple, for those who have no packet: user space, tests and benchmarks of the
 * judge alone. The hook programs have it from headers.h, by the same names. */
#ifndef TAPDECK_JUDGED_H
#define TAPDECK_JUDGED_H

#include <linux/types.h>

#define TD_HAS_PORTS 1

struct td_tuple {
	__u8 family;
	__u8 protocol;
	__u8 flags;
	__u8 pad;
	__u16 source_port;
	__u16 destination_port;
	__u32 source[4];
	__u32 destination[4];
};

_Static_assert(sizeof(struct td_tuple) == 40, "src/sys/rules.rs has the same");

#endif
