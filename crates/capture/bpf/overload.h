/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a hook program does where its ring is nearly full (shed.h says when that is): it keeps less
 * of a packet, tells so in the packet's options, and counts it.
 *
 * produce.h includes this. An object that defines TD_SHED has `shed_of_ring(index)`, which finds
 * where is counted what a ring lost, and its programs shed where `params.shed_to` is not 0; in
 * others there is none of it. What
 * is done only while packets are shed stands in global functions: the verifier looks at each once,
 * and does not follow what they return, so the paths through them do not multiply the others.
 */
#ifndef TAPDECK_OVERLOAD_H
#define TAPDECK_OVERLOAD_H

#include "shed.h"

#ifdef TD_SHED

#include "headers.h"

static __always_inline struct td_shed *shed_of_ring(__u32 index);

#define OPT_SHED (TD_OPT_SHED | 4 << 16)
#define OPT_SHED_LEN 8
/* Without a value. */
#define OPT_SHED_REST TD_OPT_SHED
#define OPT_SHED_REST_LEN 4

/* For who reads packet by packet. Lengths are multiples of 4. */
#define SHED_BEGINS "shed: packets are cut short from here on: the ring is nearly full   "
#define SHED_ENDS "shed: packets are whole from here on"
#define TEXT_LEN(text) (sizeof(text) - 1)
#define OPT_COMMENT(text) (1 | TEXT_LEN(text) << 16)

/* Flags, drops, what was shed, the longer comment, the end: recovery knows how much that is
 * (OPTIONS in crates/store/src/reading/recover/resync.rs). */
_Static_assert(8 + 12 + OPT_SHED_LEN + 4 + TEXT_LEN(SHED_BEGINS) + 4 == 104, "as recovery knows");
_Static_assert(TEXT_LEN(SHED_BEGINS) % 4 == 0 && TEXT_LEN(SHED_ENDS) % 4 == 0, "whole words");

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define WORD_OF(t) ((__u32)(t)[0] | (__u32)(t)[1] << 8 | (__u32)(t)[2] << 16 | (__u32)(t)[3] << 24)
#else
#define WORD_OF(t) ((__u32)(t)[3] | (__u32)(t)[2] << 8 | (__u32)(t)[1] << 16 | (__u32)(t)[0] << 24)
#endif

/* Writes a comment, as constants in the code. */
#define PUT_COMMENT(word, text)                                                            \
	do {                                                                               \
		*(word)++ = OPT_COMMENT(text);                                             \
		_Pragma("unroll") for (int i = 0; i < TEXT_LEN(text); i += 4) * (word)++ = \
			WORD_OF(&(text)[i]);                                               \
	} while (0)

/*
 * What becomes of a packet, in one word, since the stack has no room for more: how many bytes of it
 * are kept (20 bits), how many are shed (20 bits), how many bytes of options tell of that (8 bits),
 * and these. A snaplen has 19 bits.
 */
#define KEPT_BITS 20
#define KEPT_MASK ((1u << KEPT_BITS) - 1)
#define SHED_OPTIONS_SHIFT (2 * KEPT_BITS)
#define SHED_OPTIONS_MASK 0xff
#define SHED_IS_FIRST (1ull << 48) /* it is the first of its ring that is shed */
#define SHED_IS_OVER (1ull << 49)  /* from it on packets are whole again */
#define SHED_IS_REST (1ull << 50)  /* all that is not there of it was shed */

/* What may stand behind a packet's bytes. */
struct shed_room {
	__u32 words[44];
};

/* Decides how much is kept of packets from now on, when a block of that number is open. */
static __always_inline void look_at_fill(struct td_ring *ring, __u32 block, __u32 released)
{
	volatile __u32 *shed_to = &ring->shed_to;
	__u32 now, next;

	if (!params.shed_to)
		return;
	now = *shed_to;
	next = td_shed_by_fill(block + 1 - released, params.block_mask + 1, params.shed_to, now);
	if (next != now)
		*shed_to = next;
}

__noinline __u32 headers_len_xdp(struct xdp_md *ctx)
{
	return td_plain_headers_len(CONTEXT_XDP, ctx, params.link_header);
}

__noinline __u32 headers_len_skb(struct __sk_buff *ctx)
{
	return td_plain_headers_len(CONTEXT_SKB, ctx, params.link_header);
}

/* As many bytes as are needed of a frame of which no more than the least is kept. */
static __always_inline __u32 headers_len(enum context context, struct packet *p)
{
	__u32 len = 0;

	switch (context) {
	case CONTEXT_XDP:
		len = headers_len_xdp(p->ctx);
		break;
	case CONTEXT_SKB:
		len = headers_len_skb(p->ctx);
		break;
	case CONTEXT_NETFILTER:
		break;
	}
	if (len && p->tag)
		len += TAG_LEN;
	return len && len < TD_SHED_LEAST ? len : TD_SHED_LEAST;
}

/* Says what becomes of a packet of `len` bytes, of which `whole` would be kept otherwise and
 * `headers` are needed. */
__noinline __u64 shed_some(struct td_ring *ring, __u32 index, __u32 whole, __u32 len, __u32 headers)
{
	struct place place = { .ring = ring, .index = index };
	__u64 keep, more;
	__u32 told, option = OPT_SHED_LEN;

	if (!ring)
		return whole;
	keep = *(volatile __u32 *)&ring->shed_to;
	told = *(volatile __u32 *)&ring->shed_told;
	if (keep) {
		__u64 word = *(volatile __u64 *)&ring->word;

		look_at_fill(ring, td_word_block(word), released_of(&place));
		keep = *(volatile __u32 *)&ring->shed_to;
	}
	/* Whoever moves `shed_told` tells. */
	if (!keep) {
		if (told && __sync_val_compare_and_swap(&ring->shed_told, told, 0) == told)
			return whole | SHED_IS_OVER |
			       (4 + TEXT_LEN(SHED_ENDS)) << SHED_OPTIONS_SHIFT;
		return whole;
	}
	if (keep == TD_SHED_HEADERS)
		keep = headers;
	if (whole == len)
		option = OPT_SHED_REST_LEN;
	if (!td_shed_saves(whole, keep, option))
		return whole;
	more = whole == len ? SHED_IS_REST : 0;
	if (!told && !__sync_val_compare_and_swap(&ring->shed_told, 0, 1)) {
		more |= SHED_IS_FIRST;
		option += 4 + TEXT_LEN(SHED_BEGINS);
	}
	return keep | (__u64)(whole - keep) << KEPT_BITS | (__u64)option << SHED_OPTIONS_SHIFT |
	       more;
}

/* The same for any packet. Of most rings nothing is shed, which one look tells. */
static __always_inline __u64 keep_of(enum context context, struct packet *p,
				     const struct place *place, __u32 whole, __u32 len)
{
	struct td_ring *ring = place->ring;
	__u32 keep, headers = TD_SHED_LEAST;

	if (!params.shed_to)
		return whole;
	keep = *(volatile __u32 *)&ring->shed_to;
	if (!(keep | *(volatile __u32 *)&ring->shed_told))
		return whole;
	if (keep == TD_SHED_HEADERS)
		headers = headers_len(context, p);
	return shed_some(ring, place->index, whole, len, headers);
}

/* Takes back what a packet was to tell that could not be written. */
static __always_inline void untell_shed(const struct place *place, __u64 kept)
{
	volatile __u32 *told = &place->ring->shed_told;

	if (kept & SHED_IS_FIRST)
		*told = 0;
	if (kept & SHED_IS_OVER)
		*told = 1;
}

/* How many bytes of a packet are shed. */
static __always_inline __u32 shed_of(__u64 kept)
{
	return kept >> KEPT_BITS & KEPT_MASK;
}

/* Counts what was shed of a packet. */
static __always_inline void count_shed(const struct place *place, __u64 kept)
{
	__u32 bytes = shed_of(kept);
	struct td_shed *count = bytes ? shed_of_ring(place->index) : NULL;

	if (!count)
		return;
	__sync_fetch_and_add(&count->packets, 1);
	__sync_fetch_and_add(&count->bytes, bytes);
}

/* Writes what stands behind the bytes of a packet that tells: all its options, and the length of
 * its block. */
__noinline int put_shed_options(struct shed_room *room, __u32 flags, __u64 gap, __u64 kept,
				__u32 total)
{
	__u32 bytes = shed_of(kept);
	__u32 *word;

	if (!room)
		return 0;
	word = room->words;
	if (flags) {
		*word++ = OPT_FLAGS;
		*word++ = flags;
	}
	if (gap) {
		*word++ = OPT_DROPCOUNT;
		*word++ = gap;
		*word++ = gap >> 32;
	}
	if (kept & SHED_IS_REST) {
		*word++ = OPT_SHED_REST;
	} else if (bytes) {
		*word++ = OPT_SHED;
		*word++ = bytes;
	}
	if (kept & SHED_IS_FIRST)
		PUT_COMMENT(word, SHED_BEGINS);
	if (kept & SHED_IS_OVER)
		PUT_COMMENT(word, SHED_ENDS);
	*word++ = 0;
	*word = total;
	return 0;
}

#else

#define KEPT_MASK ~0u
#define SHED_OPTIONS_SHIFT 32
#define SHED_OPTIONS_MASK 0

struct shed_room {
	__u32 words[1];
};

static __always_inline void look_at_fill(struct td_ring *ring, __u32 block, __u32 released)
{
}

static __always_inline __u64 keep_of(enum context context, struct packet *p,
				     const struct place *place, __u32 whole, __u32 len)
{
	return whole;
}

static __always_inline void untell_shed(const struct place *place, __u64 kept)
{
}

static __always_inline void count_shed(const struct place *place, __u64 kept)
{
}

static __always_inline int put_shed_options(struct shed_room *room, __u32 flags, __u64 gap,
					    __u64 kept, __u32 total)
{
	return 0;
}

#endif
#endif
