/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Overload: payload goes before packets. While a ring is nearly full, the hook programs keep only
 * the beginning of each packet (`--on-overload shed`), so that the ring holds many times as many of
 * them until the disk has caught up.
 *
 * How full a ring is, is looked at where a block is opened, which loads what the reader has
 * released anyway. Packets that are kept whole pay for one look at a word beside the reservation
 * word. While packets are shed each of them looks, so that they are whole again as soon as
 * the ring has emptied, however few come then.
 *
 * The arithmetic is compiled for user space, too (ring_user.c).
 */
#ifndef TAPDECK_SHED_H
#define TAPDECK_SHED_H

#include <linux/types.h>

/* Bytes that are kept of a packet when a ring is almost full, or the headers, where they are known
 * to be shorter. */
#define TD_SHED_LEAST 64
/* In place of a number of bytes: as few as that. */
#define TD_SHED_HEADERS 1

/* An option of an Enhanced Packet Block, from the range for local use: how many bytes of the packet
 * were shed, 32 bits. Without a value: all that the original length has and the block has not. */
#define TD_OPT_SHED 0xf464

/* What was shed at a ring. Written by the kernel only, one for each ring, on a cache line of its
 * own. */
struct td_shed {
	__u64 packets; /* packets in the ring of which less was kept than otherwise */
	__u64 bytes;   /* by how much */
	__u64 reserved[6];
};

/*
 * How many bytes are kept of a packet, 0: all, or TD_SHED_HEADERS. `used` of the ring's blocks are
 * open or not released, `most` is what is kept while packets are shed, and `now` whether they are.
 *
 * Above 3/4 packets are shed, above 7/8 to the least, and up to 1/2 they are whole again. A reader
 * that is in step leaves half of the ring free, even where a quarter is held for the index: so
 * shedding begins behind what jitter fills, and ends also where the index lags behind.
 */
static inline __u32 td_shed_by_fill(__u32 used, __u32 nblocks, __u32 most, __u32 now)
{
	/* The reader has got past a block number that was loaded before. */
	if ((__s32)used <= 0 || used * 2 <= nblocks)
		return 0;
	if (used * 8 > nblocks * 7)
		return TD_SHED_HEADERS;
	return now || used * 4 > nblocks * 3 ? most : 0;
}

/*
 * Whether a packet takes less room without what is to be shed of it: the option that tells of it
 * and the end of options take some, too.
 */
static inline __u32 td_shed_saves(__u32 whole, __u32 keep, __u32 option)
{
	return ((keep + 3) & ~3u) + option + 4 < ((whole + 3) & ~3u);
}

#endif
