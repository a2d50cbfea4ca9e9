/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What time is it? Reading the clock is the dearest part of recording a short packet, and the
 * packets of one NAPI poll have waited for it together. So the programs may read the clock for the
 * first packet of a poll and then for every TD_CLOCK_PACKETS; those between are a nanosecond apart.
 * A tracepoint tells that a poll has ended. Packets that come one by one each have a poll, and so a
 * reading, to themselves.
 *
 * The including file defines `params` and `control` before it includes this.
 */
#ifndef TAPDECK_CLOCK_H
#define TAPDECK_CLOCK_H

#include "contexts.h"
#include "params.h"
#include "ring.h"

#define TD_CLOCK_PACKETS 16

/* A CPU's clock as it was last read there. The programs of a CPU follow one another. */
struct td_clock {
	__u64 now;
	__u64 tick; /* of the kernel, when the clock was read */
	__u32 left; /* packets that may go without a reading */

	/* This CPU's claim on a ring (claim.h). */
	__u32 base;    /* where in the ring the block is */
	__u32 held;    /* something of the claim is being written or changed */
	__u32 claimed; /* the ring's number, plus one; 0: there is no claim */
	__u32 block;
	__u16 epoch;
	__u16 busy; /* what comes fills claims: they are for many, and a first packet makes one */
	__u32 at;   /* where in the block the next packet goes */
	__u32 end;
	__u64 sums;          /* what is to be added to the block's commit counter */
	__s64 utc_offset_ns; /* of the epoch */
};
_Static_assert(sizeof(struct td_clock) == 64, "a cache line");

struct td_clock clocks[TD_CLOCKS] SEC(".data.clocks");

static __always_inline struct td_clock *td_clock_here(void)
{
	struct td_clock *clock = &clocks[bpf_get_smp_processor_id() & (TD_CLOCKS - 1)];

	/* Otherwise the compiler reckons this out anew for each word of it. */
	asm volatile("" : "+r"(clock));
	return clock;
}

/* Is there nobody any more who owns the hooks? Then they take no packets and let all pass. */
static __always_inline bool is_abandoned(void)
{
	return *(volatile __u32 *)&control.abandoned;
}

/* Reads CLOCK_MONOTONIC. Takes note where the time has passed by which the owner should have been
 * heard of: the packet that finds this out is dealt with as those before it. */
static __always_inline __u64 td_read_clock(void)
{
	__u64 now = bpf_ktime_get_ns();

	if (now > *(volatile __u64 *)&control.deadline_ns)
		*(volatile __u32 *)&control.abandoned = 1;
	return now;
}

/* CLOCK_MONOTONIC for a packet. One that is sent comes in no poll, as a rule. */
static __always_inline __u64 td_now(struct td_clock *clock, bool is_sent)
{
	if (!params.clock_by_poll)
		return td_read_clock();

	__u64 tick = bpf_jiffies64();
	__u32 left = clock->left;

	/* Whoever brings packets outside of polls is not off by more than a tick. */
	if (left && clock->tick == tick && !is_sent) {
		clock->left = left - 1;
		return ++clock->now;
	}
	clock->now = td_read_clock();
	clock->tick = tick;
	clock->left = is_sent ? 0 : TD_CLOCK_PACKETS - 1;
	return clock->now;
}

/* CLOCK_MONOTONIC to a tick of the kernel, for what asks no more. */
static __always_inline __u64 td_now_roughly(struct td_clock *clock)
{
	__u64 tick = bpf_jiffies64();

	if (clock->tick != tick) {
		clock->now = td_read_clock();
		clock->tick = tick;
		clock->left = 0;
	}
	return clock->now;
}

static __always_inline void end_claim(struct td_clock *clock);

/* A poll has ended: the next packet needs a reading. What the kernel gathered (GRO) in a poll that
 * used all it might comes to tcx after this, so the first packets of the poll behind it may share
 * the reading of these; it is of the same tick. */
SEC("raw_tp/napi_poll")
int tapdeck_poll(void *ctx)
{
	struct td_clock *clock = td_clock_here();

	clock->left = 0;
	end_claim(clock);
	return 0;
}

#endif
