/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The ring: what the hook programs and user space agree on.
 *
 * A ring is an array of blocks, each a power of two in size. Producers reserve
 * space with one compare-and-swap on a single word and commit with one addition
 * to the counter of the block they wrote into. docs/ARCHITECTURE.md describes
 * the protocol; this header holds its arithmetic and its memory layout, and
 * nothing else, so that the BPF programs, the socket hooks and the model checker
 * all run the same lines.
 *
 * The reservation word:
 *
 *    63            32 31    24 23             0
 *   +----------------+--------+----------------+
 *   |  block number  | epoch  |  bytes reserved|
 *   +----------------+--------+----------------+
 *
 * Block numbers grow for ever and wrap at 2^32; block n lives in slot
 * n % nblocks. The epoch names the UTC offset that every packet of the block is
 * stamped with.
 */
#ifndef TAPDECK_RING_H
#define TAPDECK_RING_H

#include <linux/types.h>

/* The type of a pcapng block that only fills space, from the range for local use;
 * the smallest takes TD_TAIL bytes, and as much of every ring block stays free for it. */
#define TD_FILL 0x80007464u
#define TD_TAIL 12u

#define TD_MIN_BLOCK_SHIFT 16
#define TD_MAX_BLOCK_SHIFT 22
#define TD_MAX_RINGS 128
#define TD_EPOCHS 256

/*
 * A commit adds three numbers at once: bytes reserved (low 23 bits), bytes of
 * frame (23 bits), packets (18 bits). The counter is never reset. Over one use
 * of a block each sum stays below its field's width (TD_MAX_BLOCK_SHIFT), so the
 * difference of two readings, one use apart, holds all three exactly.
 */
#define TD_FRAME_SHIFT 23
#define TD_PACKET_SHIFT 46
#define TD_FIELD_MASK ((1u << TD_FRAME_SHIFT) - 1)

struct td_block {
	__u64 commit; /* see above; a block is complete when the low field reaches its size */
	__u32 used;   /* bytes of packets in it, valid once it is complete */
	__u32 epoch;  /* that its packets are stamped by, valid once it is complete */
};

/* Written by the kernel only. One for each ring, followed by its blocks' entries. */
struct td_ring {
	__u64 word;      /* the reservation word */
	__u64 lost;      /* packets dropped here, whatever the cause */
	__u64 told;      /* packets of `lost` that were announced in an epb_dropcount */
	__u64 contended; /* packets of `lost`: gave up after TD_TRIES compare-and-swaps */
	__u64 failed;    /* packets of `lost`: their bytes could not be read */
	__u64 filtered;  /* packets that the filter or the rules refused; not lost */
	__u64 reserved;
	__u32 shed_to;   /* bytes kept of each packet now, as td_shed_by_fill() says; 0: all */
	__u32 shed_told; /* other than 0: a packet has told that packets are shed */
	struct td_block block[];
};

/* Written by the kernel only. One for each ring, on a cache line of its own: what is left of flows
 * that have had their bytes (cutoff.h). */
struct td_cut {
	__u64 packets;
	__u64 bytes; /* of their frames */
	__u64 reserved[6];
};

/* Written by the reader only. One for each ring, on a cache line of its own. */
struct td_release {
	__u32 released; /* blocks below this number may be used again */
	__u32 awake;    /* other than 0: the reader looks by itself and is not to be woken */
	__u32 reserved[14];
};

/* Written by whoever owns the hooks; `abandoned` and `rests` by the programs, too. */
struct td_control {
	__u32 epoch; /* the epoch of blocks opened from now on */
	union {
		__u32 snaplen; /* of a recorder: bytes kept of packets, if there is room */
		__u32 rests;   /* of a daemon: 1 until a block's first packet, which wakes it */
	};
	__u64 deadline_ns; /* CLOCK_MONOTONIC; who lives moves it on, once a second */
	__u32 abandoned;   /* set by the programs that came behind the deadline */
	__u32 seed;        /* of the flows' hash (cutoff.h); nobody else is to know it */
	__s64 utc_offset_ns[TD_EPOCHS]; /* CLOCK_MONOTONIC + this = UTC */
};

/* How many packets like the one that makes it a claim is for, also where polls bring many, and how
 * long that packet may be in the ring. */
#define TD_CLAIM_PACKETS 16
#define TD_CLAIM_PACKETS_BUSY 64
#define TD_CLAIM_PACKET_BYTES 256

/* How often a reservation is tried again when other producers are faster. */
#define TD_TRIES 64

static inline __u32 td_word_block(__u64 word)
{
	return word >> 32;
}

static inline __u32 td_word_epoch(__u64 word)
{
	return (__u32)word >> 24;
}

static inline __u32 td_word_bytes(__u64 word)
{
	return (__u32)word & 0xffffff;
}

static inline __u64 td_word(__u32 block, __u32 epoch, __u32 bytes)
{
	return ((__u64)block << 32) | (__u32)(epoch << 24) | bytes;
}

/* Does a reservation of len bytes fit into the block that the word has open? */
static inline int td_fits(__u64 word, __u32 len, __u32 block_bytes)
{
	return td_word_bytes(word) + len <= block_bytes - TD_TAIL;
}

/* Does a claim with so much room left hold len bytes more? What it has no packets for must have
 * room for a block that fills it. */
static inline int td_claim_holds(__u32 room, __u32 len)
{
	return room == len || room >= len + TD_TAIL;
}

/* May the block after the open one be used, or does the reader still hold its slot?
 * The difference is negative where the word is stale and the reader has got past it;
 * the compare-and-swap that follows then fails and tells the present word. */
static inline int td_next_is_free(__u64 word, __u32 released, __u32 nblocks)
{
	return (__s32)(td_word_block(word) + 1 - released) < (__s32)nblocks;
}

/* The word that closes the open block and reserves len bytes of the next. */
static inline __u64 td_next_block(__u64 word, __u32 epoch, __u32 len)
{
	return td_word(td_word_block(word) + 1, epoch, len);
}

/* What a packet adds to the commit counter of its block. */
static inline __u64 td_commit(__u32 reserved, __u32 frame, __u32 packets)
{
	return (__u64)reserved | (__u64)frame << TD_FRAME_SHIFT | (__u64)packets << TD_PACKET_SHIFT;
}

/* Is a block complete whose commit counter has become this? Over each use of a block the low field
 * grows by the block's size, a power of two below the field's width: so the counter is a multiple
 * of that size when a use is over, and not before. */
static inline int td_is_complete(__u64 commit, __u32 block_bytes)
{
	return !(commit & (block_bytes - 1));
}

/* Is the reader to be woken for a block that has just become complete? One that sleeps has released
 * all blocks before the one that it waits for; one that is behind will find this block by itself.
 * So that this misses nobody, the producer has a full barrier between its commit and its load of
 * `released`, and the reader one between its store of that and its last look before it sleeps. */
static inline int td_wakes(__u32 block, __u32 released, __u32 awake)
{
	return block == released && !awake;
}

#endif
