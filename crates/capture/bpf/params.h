/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the loader tells the programs before they are verified. src/sys/params.rs has the
 * same structures, and a test there compares them field by field. */
#ifndef TAPDECK_PARAMS_H
#define TAPDECK_PARAMS_H

#include <linux/types.h>

struct td_params {
	__u32 nrings;
	__u32 block_shift;
	__u32 block_bytes; /* 1 << block_shift */
	__u32 block_mask;  /* blocks in a ring, minus one; a power of two, minus one */
	__u32 ring_mask;   /* bytes in a ring, minus one */
	__u32 snaplen;
	/* No copy is longer than len_mask + 1 bytes (a power of two, at least snaplen)
	 * and none begins further behind its block's header than len_mask2 (twice as
	 * much, a multiple of 4). The map has slack for that behind the ring, so that
	 * the verifier sees that nothing is written past its end. */
	__u32 len_mask;
	__u32 len_mask2;
	__u32 first_interface; /* pcapng interface id of ring 0 */
	__u32 ifindex;
	__u32 consume;
	__u32 hardware_time;
	__u32 hardware_vlan;
	__u32 by_cpu;        /* XDP: a ring for each CPU, and not for each receive queue */
	__u32 link_header;   /* frames of this interface begin with a link layer header */
	__u32 filtered;      /* a filter has been put in (filter.h) */
	__u32 clock_by_poll; /* the clock is read for each poll, and not for each packet (clock.h)
			      */
	__u32 claims;        /* space is reserved for several packets of a poll at once (claim.h) */
	__u32 most_direct;   /* frames of at most so many bytes are copied by loads and stores */
	__u32 shed_to;   /* bytes kept of a packet while its ring is nearly full; 0: all (shed.h) */
	__u32 judged;    /* there may be rules: set for record_rules.bpf.c alone */
	__u32 cutoff;    /* bytes that each flow may have; 0: as many as come */
	__u32 flow_mask; /* sets of the table of flows, minus one; a power of two, minus one */
	__u32 veth_skb;  /* XDP at a veth: where the frame's sk_buff is named; 0: nowhere */
};

/* CPUs that have a clock of their own in clock.h; a power of two. */
#define TD_CLOCKS 1024

struct td_flush {
	__u32 ring;
	__u32 block;
};

#endif
