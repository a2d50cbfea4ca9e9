/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* All that is found in a packet, for tests in the kernel and in user space. */
#ifndef TAPDECK_HEADERS_FOUND_H
#define TAPDECK_HEADERS_FOUND_H

#include "steer.h"

struct td_found {
	struct td_headers headers;
	__u32 number[TD_COPY];
	__u32 second; /* the other end's number, for TD_BOTH_ENDS */
};

static __always_inline void td_find_all(enum context context, struct packet *p,
					struct td_found *found)
{
	found->headers.have = 0;
	td_get_innermost(context, p, &found->headers);
	for (__u32 steering = 0; steering < TD_COPY; steering++)
		found->number[steering] =
			td_steer_hash(context, p, &found->headers, steering, 0, &found->second);
}

#endif
