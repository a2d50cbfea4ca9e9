/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A claim: space of a ring that is reserved at once for several packets of a NAPI poll, and
 * committed at once. Locked instructions on lines that are in no cache are the dearest part of
 * recording a short packet after the clock. The first packet of a poll reserves for itself alone,
 * so that one that comes by itself pays nothing for this. When the poll has ended, what is left of
 * a claim is given back, or filled where others have reserved behind it.
 *
 * Each CPU has at most one claim, where its clock is. It is for hooks whose packets all come in
 * polls and whose programs nothing interrupts but what runs with interrupts off: a poll of
 * netpoll's, whose end must leave alone what is being written.
 *
 * A part of produce.h for those who define TD_CLAIMS and have one reader.
 */
#ifndef TAPDECK_CLAIM_H
#define TAPDECK_CLAIM_H

/* Commits what was written into a claim, and ends it. */
static __noinline void settle(struct td_clock *clock)
{
	struct place place;
	__u32 at = clock->at, end = clock->end, block = clock->block;
	__u64 sums = clock->sums;

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
		}
	}
	commit(&place, block, sums);
	clock->claimed = 0;
}

/* Reserves the next len bytes of this CPU's claim on a ring. Returns NULL where there is none, and
 * none is made for a packet like this. */
static __always_inline struct td_clock *claimed(const struct place *place, __u32 len)
{
	struct td_clock *clock = td_clock_here();
	__u32 total = len * TD_CLAIM_PACKETS;

	if (clock->busy)
		return NULL;
	*(volatile __u32 *)&clock->busy = 1;
	if (clock->claimed) {
		if (clock->claimed == place->index + 1 &&
		    td_claim_holds(clock->end - clock->at, len))
			return clock;
		settle(clock);
	}
	if (clock->left && total <= TD_CLAIM_BYTES) {
		__u64 word = *(volatile __u64 *)&place->ring->word;

		if (td_fits(word, total, params.block_bytes) &&
		    __sync_val_compare_and_swap(&place->ring->word, word, word + total) == word) {
			clock->block = td_word_block(word);
			clock->epoch = td_word_epoch(word);
			clock->at = td_word_bytes(word);
			clock->end = clock->at + total;
			clock->sums = 0;
			clock->claimed = place->index + 1;
			return clock;
		}
	}
	*(volatile __u32 *)&clock->busy = 0;
	return NULL;
}

/* Hands over what was written into the next len bytes of a claim. */
static __always_inline void commit_to_claim(struct td_clock *clock, __u32 len, __u64 n)
{
	clock->sums += n;
	clock->at += len;
	if (clock->at == clock->end)
		settle(clock);
	*(volatile __u32 *)&clock->busy = 0;
}

/* A poll has ended. */
static __always_inline void end_claim(struct td_clock *clock)
{
	if (params.claims && clock->claimed && !*(volatile __u32 *)&clock->busy)
		settle(clock);
}

#endif
