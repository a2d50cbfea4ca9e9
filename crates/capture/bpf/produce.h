/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How a packet gets into a ring: reserve, write one finished pcapng Enhanced Packet
 * Block (draft-ietf-opsawg-pcapng, section 4.3), commit. docs/ARCHITECTURE.md
 * describes the protocol.
 *
 * The including file defines `params` and `control` before it includes this, and before or after:
 * - `place_of(member, index, place)`, which finds a ring and its blocks;
 * - `released_of(place)`: the number up to which the reader of that ring has released blocks. It is
 *   the reader's to write: whatever it is, nothing outside its ring is harmed;
 * - `completed(place, block)`, which is called once for each block, by the producer whose commit
 *   has made that block complete, after a full barrier;
 * - `began()`, which is called by the producer of each block's first packet, after that was
 *   committed, which was a full barrier.
 */
#ifndef TAPDECK_PRODUCE_H
#define TAPDECK_PRODUCE_H

#include "clock.h"
#include "packet.h"
#include "ring.h"

/* What a word is now, which others write. */
#define NOW(word) (*(volatile typeof(word) *)&(word))

/* A ring, and where its blocks are. */
struct place {
	struct td_ring *ring;
	__u8 *data;
	__u32 index;  /* the ring's number */
	__u32 member; /* whose ring it is, where there are several readers */
};

static __always_inline bool place_of(__u32 member, __u32 index, struct place *place);
static __always_inline __u32 released_of(const struct place *place);
static __always_inline void completed(const struct place *place, __u32 block);
static __always_inline void began(void);

struct epb {
	__u32 type;
	__u32 total_len;
	__u32 interface;
	__u32 time_high;
	__u32 time_low;
	__u32 captured_len;
	__u32 original_len;
};

/* For a packet that is not written: is the owner still there? If packets pass anyway, nobody waits
 * for it. */
static __always_inline void heed_deadline_unwritten(void)
{
	if (params.consume)
		td_now_roughly(td_clock_here());
}

#define EPB_TYPE 6
#define OPT_FLAGS (2 | 4 << 16)
#define OPT_DROPCOUNT (4 | 8 << 16)
#define NS_PER_S 1000000000ull

#include "overload.h"

/*
 * An addition whose result is used compiles to BPF_FETCH, which is a full
 * barrier; without, it has no ordering at all on weakly ordered machines.
 */
static __always_inline __u64 add_ordered(__u64 *counter, __u64 n)
{
	__u64 before = __sync_fetch_and_add(counter, n);

	asm volatile("" : : "r"(before));
	return before + n;
}

static __always_inline struct td_block *block_of(struct td_ring *ring, __u32 number)
{
	return &ring->block[number & params.block_mask];
}

/* Commits to the block of that number. */
static __always_inline void commit(const struct place *place, __u32 number, __u64 n)
{
	struct td_block *block = block_of(place->ring, number);

	if (td_is_complete(add_ordered(&block->commit, n), params.block_bytes))
		completed(place, number);
}

/* Returns where those bytes of a block are. */
static __always_inline __u8 *bytes_at(const struct place *place, __u32 block, __u32 at)
{
	__u32 offset = ((block & params.block_mask) << params.block_shift) |
		       (at & (params.block_bytes - 1));

	return place->data + (offset & params.ring_mask);
}

static __always_inline void close_block(const struct place *place, __u64 word)
{
	struct td_block *block = block_of(place->ring, td_word_block(word));
	__u32 used = td_word_bytes(word);

	block->used = used;
	block->epoch = td_word_epoch(word);
	commit(place, td_word_block(word), td_commit(params.block_bytes - used, 0, 0));
}

/* In place of the word that bytes were reserved at: a ring had no room for them. */
#define NOT_RESERVED ~0ull

/* A reservation that takes another block, or more than one try. */
struct reservation {
	struct place place;
	__u32 len;
	bool is_over; /* as `at` says, which is NOT_RESERVED where the ring is full */
	__u64 word;   /* the reservation word as it was last seen */
	__u64 at;
};

/* Tries once. Returns 1 where another try would be of no use. */
static long try_to_reserve(__u32 try, struct reservation *r)
{
	struct td_ring *ring = r->place.ring;
	__u64 word = r->word, next;
	bool fits = td_fits(word, r->len, params.block_bytes);
	__u32 released = 0;

	if (fits) {
		next = word + r->len;
	} else {
		released = released_of(&r->place);
		if (!td_next_is_free(word, released, params.block_mask + 1)) {
			r->is_over = true;
			return 1;
		}
		next = td_next_block(word, *(volatile __u32 *)&control.epoch & (TD_EPOCHS - 1),
				     r->len);
	}
	r->word = __sync_val_compare_and_swap(&ring->word, word, next);
	if (r->word != word)
		return 0;
	if (!fits) {
		look_at_fill(ring, td_word_block(next), released);
		close_block(&r->place, word);
	}
	r->at = fits ? word : next - r->len;
	r->is_over = true;
	return 1;
}

/* Reserves len bytes where reserve() has not. A global function, and a loop that the kernel runs:
 * the verifier looks at a try once, and not 64 times behind each way to it. */
__noinline __u64 reserve_with_tries(__u32 member, __u32 index, __u32 len)
{
	struct reservation r = { .len = len, .at = NOT_RESERVED };

	if (!place_of(member, index, &r.place))
		return NOT_RESERVED;
	r.word = *(volatile __u64 *)&r.place.ring->word;
	bpf_loop(TD_TRIES, try_to_reserve, &r, 0);
	if (!r.is_over)
		__sync_fetch_and_add(&r.place.ring->contended, 1);
	return r.at;
}

/* Reserves len bytes. Returns the word that they were reserved at, whose byte field is their place
 * in the block, or NOT_RESERVED where the ring is full or other producers were faster. */
static __always_inline __u64 reserve(const struct place *place, __u32 len)
{
	__u64 word = *(volatile __u64 *)&place->ring->word;

	if (td_fits(word, len, params.block_bytes)) {
		if (__sync_val_compare_and_swap(&place->ring->word, word, word + len) == word)
			return word;
	} else if (!td_next_is_free(word, released_of(place), params.block_mask + 1)) {
		/* Here, for under overload this is what becomes of most packets. */
		return NOT_RESERVED;
	}
	return reserve_with_tries(place->member, place->index, len);
}

/* The packet's time in UTC. A NIC's is taken if its clock is set to UTC, for which it need not be
 * known to more than a tick of the kernel what time it is. */
static __always_inline __u64 time_of(struct packet *p, struct td_clock *clock, __s64 utc_offset_ns)
{
	if (p->hardware_ns) {
		__u64 about = td_now_roughly(clock) + utc_offset_ns;

		if (p->hardware_ns - about + NS_PER_S < 2 * NS_PER_S)
			return p->hardware_ns;
	}
	if (!p->now)
		p->now = td_now(clock, p->flags == OUTBOUND);
	return p->now + utc_offset_ns;
}

/* Writes what stands in front of a packet's bytes. */
static __always_inline void put_head(struct epb *epb, __u32 total, __u32 interface, __u64 ns,
				     __u32 cap, __u32 len)
{
	epb->type = EPB_TYPE;
	epb->total_len = total;
	epb->interface = interface;
	epb->time_high = ns >> 32;
	epb->time_low = ns;
	epb->captured_len = cap;
	epb->original_len = len;
}

#ifdef TD_CLAIMS
#include "claim.h"
#else
static __always_inline struct td_clock *claimed(const struct place *place, __u32 len)
{
	return NULL;
}

static __always_inline void commit_to_claim(struct td_clock *clock, __u32 len, __u64 n)
{
}

static __always_inline void end_claim(struct td_clock *clock)
{
}
#endif

/* Writes the packet into a ring, as a packet of that pcapng interface, with at most snaplen
 * bytes of its frame. Returns how many bytes; 0 where the packet could not be written, which is
 * counted. */
static __always_inline __u32 put(enum context context, struct packet *p, const struct place *place,
				 __u32 snaplen, __u32 interface)
{
	struct td_ring *ring = place->ring;
	__u32 len = frame_len(p);
	__u32 whole = len < snaplen ? len : snaplen;
	__u64 kept = keep_of(context, p, place, whole, len);
	__u32 options = kept >> SHED_OPTIONS_SHIFT & SHED_OPTIONS_MASK;
	__u32 cap = kept & KEPT_MASK;

	if (!cap) {
		__sync_fetch_and_add(&ring->failed, 1);
		__sync_fetch_and_add(&ring->lost, 1);
		return 0;
	}

	__u32 padded = (cap + 3) & ~3u;
	__u32 total = sizeof(struct epb) + padded + 4;
	__u64 told = *(volatile __u64 *)&ring->told;
	__u64 lost = *(volatile __u64 *)&ring->lost;
	__u64 gap = 0;

	if (p->flags)
		total += 8;
	/* Rare: packets were dropped since the last one that was kept. Whoever moves
	 * `told` announces them. */
	if ((__s64)(lost - told) > 0 &&
	    __sync_val_compare_and_swap(&ring->told, told, lost) == told) {
		gap = lost - told;
		total += 12;
	}
	total += options;
	if (p->flags || gap || options)
		total += 4;

	struct td_clock *claim = params.claims ? claimed(place, total) : NULL;
	__u64 at = claim ? td_word(claim->block, claim->epoch, claim->at) : reserve(place, total);

	if (at == NOT_RESERVED) {
		if (gap)
			__sync_fetch_and_add(&ring->told, -gap);
		untell_shed(place, kept);
		__sync_fetch_and_add(&ring->lost, 1);
		td_now_roughly(td_clock_here());
		return 0;
	}

	__u64 ns = time_of(p, td_clock_here(), control.utc_offset_ns[td_word_epoch(at)]);

	__u8 *out = bytes_at(place, td_word_block(at), td_word_bytes(at));
	struct epb *epb = (struct epb *)out;
	__u8 *frame = out + sizeof(*epb);

	put_head(epb, total, interface, ns, cap, len);
	/* Zeroes the padding; where there is none, what follows overwrites it. */
	*(__u32 *)(frame + (cap & params.len_mask2)) = 0;

	__u32 commit_packets = 1;

	if (copy_frame(context, p, frame, cap)) {
		/* The space is taken; leave a block there that readers skip. */
		epb->type = TD_FILL;
		__sync_fetch_and_add(&ring->failed, 1);
		__sync_fetch_and_add(&ring->lost, 1);
		if (gap)
			__sync_fetch_and_add(&ring->told, -gap);
		untell_shed(place, kept);
		commit_packets = 0;
		cap = 0;
	} else {
		count_shed(place, kept);
	}

	__u32 *word = (__u32 *)(frame + (padded & params.len_mask2));

	if (kept >> SHED_OPTIONS_SHIFT) {
		put_shed_options((struct shed_room *)word, p->flags, gap, kept, total);
		goto written;
	}
	if (p->flags) {
		*word++ = OPT_FLAGS;
		*word++ = p->flags;
	}
	if (gap) {
		*word++ = OPT_DROPCOUNT;
		*word++ = gap;
		*word++ = gap >> 32;
	}
	if (p->flags || gap)
		*word++ = 0;
	*word = total;

	__u64 sums;

written:
	sums = td_commit(total, cap, commit_packets);
	if (claim)
		commit_to_claim(claim, total, sums);
	else
		commit(place, td_word_block(at), sums);
	if (!td_word_bytes(at))
		began();
	return cap;
}

/* Closes the block that user space has seen waiting, if it is still open and holds
 * something: one more producer, which reserves the rest of the block for nothing.
 * Returns 1 where it closed a block. */
static __always_inline int flush(const struct place *place, __u32 block)
{
	struct td_ring *ring = place->ring;
	__u64 word = *(volatile __u64 *)&ring->word;
	__u32 epoch = *(volatile __u32 *)&control.epoch & (TD_EPOCHS - 1);
	__u32 released;

	if (td_word_block(word) != block)
		return 0;
	if (!td_word_bytes(word)) {
		if (td_word_epoch(word) == epoch)
			return 0;
		__sync_val_compare_and_swap(&ring->word, word,
					    td_word(td_word_block(word), epoch, 0));
		return 0;
	}
	released = released_of(place);
	if (!td_next_is_free(word, released, params.block_mask + 1))
		return 0;
	for (int i = 0; i < TD_TRIES; i++) {
		__u64 seen = __sync_val_compare_and_swap(&ring->word, word,
							 td_next_block(word, epoch, 0));

		if (seen == word) {
			look_at_fill(ring, block + 1, released);
			close_block(place, word);
			return 1;
		}
		if (td_word_block(seen) != block)
			return 0;
		word = seen;
	}
	return 0;
}

#endif
