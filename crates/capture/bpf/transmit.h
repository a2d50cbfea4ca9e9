/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What transmit.bpf.c is told before it is verified. src/sys/generate.rs has the same structure,
 * and a test there compares them field by field. */
#ifndef TAPDECK_TRANSMIT_H
#define TAPDECK_TRANSMIT_H

#include <linux/types.h>

struct td_transmit {
	__u32 ifindex;
	__u32 sequence_at; /* where in the frame 8 bytes of sequence number go, 14 to 255 */
	__u32 tag;         /* a VLAN's TCI */
	__u32 gap_ns;      /* from one frame to the next; 0: as fast as it goes */
	__u32 pairs; /* pairs of addresses that the frames take in turn, a power of two; 0: the
			frame has its own */
};

#endif
