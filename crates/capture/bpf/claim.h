/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A claim: space of a ring that is reserved at once for several packets of a NAPI poll, and
 * committed at once. Locked instructions on lines that are in no cache are the dearest part of
 * recording a short packet after the clock. The first packet of a poll reserves for itself alone,
 * so that one that comes by itself pays nothing for this. Where a claim was used by as many packets
 * as a first one is for, polls bring many: then claims are larger, and the first packet makes one,
 * too. When the poll has ended, what is left of a claim is given back, or filled where others have
 * reserved behind it, and then claims are small again.
 *
 * Each CPU has at most one claim, where its clock is. It is for hooks whose packets all come in
 * polls and whose programs nothing interrupts but what runs with interrupts off: a poll of
 * netpoll's, which must leave alone what is being written. So who works on a claim holds it.
 *
 * A part of produce.h for those who define TD_CLAIMS and have one reader; they define
 * blocks_of(ring), which finds the blocks of a ring.
 */
#ifndef TAPDECK_CLAIM_H
#define TAPDECK_CLAIM_H

static __always_inline __u8 *blocks_of(__u32 ring);

/* Bytes of the longest packet that is written into a claim without a look at its ring. */
#define TD_CLAIM_DIRECT 128

/* A claim is held while something of it is read or written: that stays between hold() and
 * let_go(). */
static __always_inline bool is_held(struct td_clock *clock)
{
	return NOW(clock->held);
}

static __always_inline void hold(struct td_clock *clock)
{
	NOW(clock->held) = 1;
	barrier();
}

static __always_inline void let_go(struct td_clock *clock)
{
	barrier();
	NOW(clock->held) = 0;
}

/* Commits what was written into a claim that is held, and ends it. */
static __noinline void settle(struct td_clock *clock)
{
	struct place place;
	__u32 at = clock->at, end = clock->end, block = clock->block;
	__u64 sums = clock->sums;
	__u16 busy = sums >> TD_PACKET_SHIFT >= TD_CLAIM_PACKETS;

	if (!place_of(0, clock->claimed - 1, &place))
		return;
	if (at != end) {
		__u64 whole = td_word(block, clock->epoch, end);

		if (__sync_val_compare_and_swap(&place.ring->word, whole,
						td_word(block, clock->epoch, at)) != whole) {
			__u32 *fill = (__u32 *)bytes_at(&place, block, at);

			fill[0] = TD_FILL;
			fill[1] = end - at;
			*(__u32 *)bytes_at(&place, block, end - 4) = end - at;
			sums += td_commit(end - at, 0, 0);
			busy = 0;
		}
	}
	commit(&place, block, sums);
	clock->busy = busy;
	clock->claimed = 0;
	clock->end = at;
}

/* Reserves the next len bytes of this CPU's claim on a ring. Returns NULL where there is none, and
 * none is made for a packet like this. */
static __always_inline struct td_clock *claimed(const struct place *place, __u32 len)
{
	struct td_clock *clock = td_clock_here();

	if (is_held(clock))
		return NULL;
	hold(clock);
	if (clock->claimed) {
		if (clock->claimed == place->index + 1 &&
		    td_claim_holds(clock->end - clock->at, len))
			return clock;
		settle(clock);
	}
	/* While payload is shed, no claim is made, and each packet is looked at. */
	if ((clock->left || clock->busy) && len <= TD_CLAIM_PACKET_BYTES &&
	    !(params.shed_to && NOW(place->ring->shed_to))) {
		__u64 word = NOW(place->ring->word);
		__u32 total = len * TD_CLAIM_PACKETS_BUSY;

		/* Near the end of a block there may be room for fewer. */
		if (!clock->busy || !td_fits(word, total, params.block_bytes))
			total = len * TD_CLAIM_PACKETS;
		if (td_fits(word, total, params.block_bytes) &&
		    __sync_val_compare_and_swap(&place->ring->word, word, word + total) == word) {
			clock->block = td_word_block(word);
			clock->epoch = td_word_epoch(word);
			clock->at = td_word_bytes(word);
			clock->end = clock->at + total;
			clock->base = (clock->block & params.block_mask) << params.block_shift;
			clock->utc_offset_ns = control.utc_offset_ns[clock->epoch];
			clock->sums = 0;
			clock->claimed = place->index + 1;
			return clock;
		}
	}
	let_go(clock);
	return NULL;
}

/* Hands over what was written into the next len bytes of a claim. */
static __always_inline void commit_to_claim(struct td_clock *clock, __u32 len, __u64 n)
{
	clock->sums += n;
	clock->at += len;
	if (clock->at == clock->end)
		settle(clock);
	let_go(clock);
}

/*
 * Writes a short packet into what is left of this CPU's claim, which is how most packets of a busy
 * ring go: nothing is looked at here but what this CPU alone has. Returns false where the claim
 * does not hold it, or there is more to say of the packet than its bytes; then put() has it. So
 * what was dropped, or is shed, meanwhile is told behind the claim.
 */
static __always_inline bool put_into_claim(enum context context, struct packet *p, __u32 snaplen,
					   __u32 interface)
{
	struct td_clock *clock = td_clock_here();
	const void *end, *from = td_linear(context, p->ctx, &end);
	__u32 len = p->len, cap = len < snaplen ? len : snaplen;
	__u32 padded = (cap + 3) & ~3u, total = sizeof(struct epb) + padded + 4;

	if (context != CONTEXT_XDP || p->flags || p->tag || cap < 16 || cap > TD_CLAIM_DIRECT)
		return false;
	/* Who interrupts this before the claim is held leaves one without room. */
	if (is_held(clock) || NOW(clock->claimed) != p->ring + 1)
		return false;

	__u8 *blocks = blocks_of(p->ring);

	if (!blocks)
		return false;
	hold(clock);

	__u32 at = clock->at;
	__u8 *out = blocks + ((clock->base + at) & params.ring_mask);
	__u8 *frame = out + sizeof(struct epb);

	if (!td_claim_holds(clock->end - at, total))
		goto not_here;
	if (cap & 3)
		*(__u32 *)(frame + (cap & 0xfc)) = 0;
	if (!copy_short(frame, from, end, cap))
		goto not_here;
	put_head((struct epb *)out, total, interface, time_of(p, clock, clock->utc_offset_ns), cap,
		 len);
	*(__u32 *)(frame + (padded & 0xfc)) = total;
	commit_to_claim(clock, total, td_commit(total, cap, 1));
	return true;

not_here:
	let_go(clock);
	return false;
}

/* A poll has ended. */
static __always_inline void end_claim(struct td_clock *clock)
{
	if (!params.claims || !clock->claimed || is_held(clock))
		return;
	hold(clock);
	settle(clock);
	let_go(clock);
}

#endif
