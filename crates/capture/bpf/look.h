/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Which rule of an image takes a packet? The same lines run in the hook programs and in user space.
 *
 * Rules with the same masks have one signature. A look-up masks the packet's tuple as the signature
 * says and asks one hash table for the result. Which signatures are worth it, the packet's
 * addresses say: each address leads, by tables, to a short list of the signatures of which some
 * rule's prefix covers it. Where lists would be long they are bitmaps, and what stands in those of
 * both addresses and of the ports' and protocol's is tried. `walk` tries all signatures instead,
 * each behind a Bloom filter (Gopalakrishnan 2011, section 5.1).
 *
 * The better rule has the lower priority number. Signatures are numbered by their best rule, and
 * each rule says from which signature on no better one can come.
 *
 * What is read at a place from the image is masked to the image's size and to the alignment of what
 * stands there, so that the verifier sees that nothing is read outside, whatever the bytes are.
 */
#ifndef TAPDECK_LOOK_H
#define TAPDECK_LOOK_H

#include "rules.h"

/* An image and its size - 1, a power of two - 1. */
struct td_image {
	__u8 *bytes;
	__u64 mask;
};

#define TD_AT(image, type, align, place) \
	((type *)((image)->bytes + ((place) & ((image)->mask & ~((align) - 1ull)))))
#define TD_U64(image, place) (*TD_AT(image, __u64, 8, place))
#define TD_U32(image, place) (*TD_AT(image, __u32, 4, place))

#ifdef __bpf__
#define td_loop(n, step, state) bpf_loop(n, step, state, 0)
#define TD_STEP static __noinline
#define TD_ROLLED _Pragma("clang loop unroll(disable)")
/* Keeps the compiler from knowing what it has read. */
#define TD_FORGET asm volatile("" : : : "memory")
/* Keeps the compiler from computing with what the verifier is to see as it is. */
#define TD_OPAQUE(x) asm volatile("" : "+r"(x))
#else
#define td_loop(n, step, state)                                        \
	do {                                                           \
		for (__u64 _i = 0; _i < (n) && !step(_i, state); _i++) \
			;                                              \
	} while (0)
#define TD_STEP static
#define TD_ROLLED
#define TD_FORGET
#define TD_OPAQUE(x)
#endif

/* A packet's tuple under way: what is compared, and the best rule so far. */
struct td_look {
	struct td_image image;
	const struct td_family *family;
	__u64 word[4]; /* IPv6: both addresses; IPv4: both in the first, the destination in the
			  third's high half */
	__u64 rest;
	__u32 limit; /* signatures from this number on hold nothing better */
	__u32 six;
	struct td_outcome best;
	union {
		/* An address under way, where it has come, and which of the two it is. */
		struct {
			__u64 high;
			__u32 place;
			__u32 side;
		};
		/* The rows of a look-up by bitmaps. */
		struct {
			__u32 row[2];
			__u32 types_row;
			__u32 word_number;
		};
	};
	union {
		__u64 list[2];
		/* What of the rows is not yet tried. */
		struct {
			__u64 words_left;
			__u64 bits_left;
		};
	};
};

static __always_inline const struct td_rules *td_head(const struct td_image *image)
{
	return (const struct td_rules *)image->bytes;
}

/* Nodes and chunks on an address's way, for both halves of it: no image has more. */
#define TD_STEPS 12

static __always_inline __u32 td_node_place(const struct td_image *image, const struct td_node *node,
					   __u64 key)
{
	__u64 offset = key - node->min;

	if (offset > node->span)
		return key < node->min ? node->below : node->above;
	return TD_U32(image, node->table + (offset >> (node->shift & 63)) * 4);
}

/* 1 if a < b, without a branch that could be guessed wrongly. */
static __always_inline __u32 td_less(__u64 a, __u64 b)
{
	return ((~a & b) | (~(a ^ b) & (a - b))) >> 63;
}

static __always_inline __u32 td_chunk_place(const struct td_image *image, __u32 at, __u64 key)
{
	const struct td_chunk *chunk = TD_AT(image, const struct td_chunk, 64, (__u64)at << 6);
	__u64 at_most = 5 - (td_less(key, chunk->from[0]) + td_less(key, chunk->from[1]) +
			     td_less(key, chunk->from[2]) + td_less(key, chunk->from[3]) +
			     td_less(key, chunk->from[4]));

	TD_OPAQUE(at_most);
	return chunk->place[at_most & 7];
}

/* One step of the look-up of an address that its first table did not end. */
TD_STEP long td_way_step(__u64 i, struct td_look *look)
{
	const struct td_image *image = &look->image;
	__u32 place = look->place;

	(void)i;
	switch (place >> TD_KIND_SHIFT) {
	case TD_CHUNK:
		look->place = td_chunk_place(image, place & ~(3u << TD_KIND_SHIFT), look->high);
		return 0;
	case TD_NODE:
		if (place & TD_LOW)
			look->high = look->word[look->side ? 3 : 1];
		look->place = td_node_place(
			image,
			TD_AT(image, const struct td_node, 32, (__u64)(place & (TD_LOW - 1)) << 5),
			look->high);
		return 0;
	default:
		return 1;
	}
}

/* Apart, for it is rare, and a loop takes stack. */
TD_STEP __u32 td_way(struct td_look *look)
{
	td_loop(TD_STEPS, td_way_step, look);
	return look->place;
}

/* The list or row of the signatures that the source (side 0) or the destination is covered by. */
static __always_inline __u32 td_place_of(struct td_look *look, int side)
{
	const struct td_family *family = look->family;
	__u64 high = look->word[side ? 2 : 0];
	__u32 place =
		td_node_place(&look->image, side ? &family->destination : &family->source, high);

	if (place < (__u32)TD_CHUNK << TD_KIND_SHIFT)
		return place;
	look->high = high;
	look->place = place;
	look->side = side;
	return td_way(look);
}

/* The list of a place, four lanes of 16 bits, or TD_LONG. */
static __always_inline __u64 td_list(const struct td_image *image, __u32 place)
{
	if (place >> TD_KIND_SHIFT == TD_LIST)
		return (place & 0x7fff) | (__u64)(place >> 15) << 16;
	return TD_U64(image, (__u64)(place & ~(3u << TD_KIND_SHIFT)) << 3);
}

#define TD_MIX_1 0x9e3779b97f4a7c15ull
#define TD_MIX_2 0xc2b2ae3d27d4eb4full
#define TD_MIX_3 0xd6e8feb86659fd93ull

static __always_inline __u64 td_finish(__u64 x)
{
	x ^= x >> 29;
	x *= TD_MIX_3;
	return x ^ x >> 32;
}

static __always_inline __u64 td_hash4(__u64 seed, __u64 addresses, __u64 rest)
{
	__u64 x = (addresses ^ seed) * TD_MIX_1;

	/* Short prefixes differ in high bits alone, as do signatures' numbers in `rest`: these must
	 * not cancel those. */
	x ^= x >> 32;
	return td_finish(x + rest * TD_MIX_2);
}

static __always_inline __u64 td_hash6(__u64 seed, const __u64 word[4], __u64 rest)
{
	__u64 source = (word[0] ^ seed) * TD_MIX_1 + (word[1] ^ seed >> 7) * TD_MIX_2;
	__u64 destination = (word[2] + seed) * TD_MIX_2 + word[3] * TD_MIX_3;

	source ^= source >> 31;
	destination ^= destination >> 33;
	return td_finish((source + rest * TD_MIX_2) * TD_MIX_1 + destination * TD_MIX_3);
}

static __always_inline int td_bloom_bit(const struct td_image *image, const struct td_rules *head,
					__u32 bits)
{
	__u64 bit = bits & head->bloom_mask;

	return TD_U64(image, head->bloom + (bit >> 6 << 3)) >> (bit & 63) & 1;
}

/* The other three bits; the first is in the hash's low half. */
static __always_inline int td_bloom_rest(const struct td_image *image, const struct td_rules *head,
					 __u64 hash)
{
	__u64 other = (hash ^ head->seed) * TD_MIX_2;

	other ^= other >> 32;
	return td_bloom_bit(image, head, hash >> 32) && td_bloom_bit(image, head, other) &&
	       td_bloom_bit(image, head, other >> 32);
}

/* Where the hash table has what hashes so, if it has it: no two of its entries share a slot. */
static __always_inline __u32 td_slot(const struct td_image *image, const struct td_family *family,
				     __u64 hash)
{
	__u32 at = family->displacements + ((__u32)hash & family->bucket_mask) * 2;
	__u32 displacement = *TD_AT(image, __u16, 2, at);

	return (__u32)((__u32)(hash >> 32) ^ displacement * 0x9e3779b1u) * 0x85ebca6bu >>
	       (family->slot_shift & 31);
}

static __always_inline void td_keep_better(struct td_look *look, const struct td_outcome *outcome)
{
	if (outcome->priority < look->best.priority) {
		look->best = *outcome;
		look->limit = outcome->stop;
	}
}

/* Whether the hash of a masked tuple passes the Bloom filter: all its bits, or one as a first look.
 */
static __always_inline int td_bloom(const struct td_image *image, const struct td_rules *head,
				    __u64 hash, int all)
{
	return td_bloom_bit(image, head, hash) && (!all || td_bloom_rest(image, head, hash));
}

static __always_inline void td_try4(struct td_look *look, __u32 number, int all)
{
	const struct td_image *image = &look->image;
	const struct td_rules *head = td_head(image);
	const struct td_family *family = look->family;
	const struct td_key4 *mask =
		TD_AT(image, const struct td_key4, 16, family->signatures + (__u64)number * 16);
	__u64 addresses = look->word[0] & mask->addresses;
	__u64 rest = (look->rest & mask->rest) | (__u64)number << TD_REST_SIGNATURE;
	__u64 hash = td_hash4(head->seed, addresses, rest);
	const struct td_entry4 *entry;

	if (!td_bloom(image, head, hash, all))
		return;
	entry = TD_AT(image, const struct td_entry4, 32,
		      family->entries + (__u64)td_slot(image, family, hash) * 32);
	if (entry->key.rest == rest && entry->key.addresses == addresses)
		td_keep_better(look, &entry->outcome);
}

static __always_inline void td_mask6(const struct td_look *look, const struct td_key6 *mask,
				     __u64 word[4])
{
	word[0] = look->word[0] & mask->source[0];
	word[1] = look->word[1] & mask->source[1];
	word[2] = look->word[2] & mask->destination[0];
	word[3] = look->word[3] & mask->destination[1];
}

static __always_inline void td_try6(struct td_look *look, __u32 number, int all)
{
	const struct td_image *image = &look->image;
	const struct td_rules *head = td_head(image);
	const struct td_family *family = look->family;
	const struct td_key6 *mask =
		TD_AT(image, const struct td_key6, 64, family->signatures + (__u64)number * 64);
	__u64 rest = (look->rest & mask->rest) | (__u64)number << TD_REST_SIGNATURE;
	const struct td_entry6 *entry;
	__u64 word[4], hash;

	td_mask6(look, mask, word);
	hash = td_hash6(head->seed, word, rest);
	if (!td_bloom(image, head, hash, all))
		return;
	entry = TD_AT(image, const struct td_entry6, 64,
		      family->entries + (__u64)td_slot(image, family, hash) * 64);
	if (entry->rest != rest)
		return;
	/* Masked anew: to keep them takes stack, of which programs have little. */
	TD_FORGET;
	td_mask6(look, mask, word);
	if (entry->source[0] == word[0] && entry->source[1] == word[1] &&
	    entry->destination[0] == word[2] && entry->destination[1] == word[3])
		td_keep_better(look, &entry->outcome);
}

/* Asks for the packet under one signature. */
static __always_inline void td_try(struct td_look *look, __u32 number, int six, int all)
{
	if (number >= look->limit)
		return;
	if (six)
		td_try6(look, number, all);
	else
		td_try4(look, number, all);
}

/* Apart, for it takes many registers. */
TD_STEP long td_try6_alone(struct td_look *look, __u32 number)
{
	td_try(look, number, 1, 0);
	return 0;
}

/* One signature of the walk. */
TD_STEP long td_walk4_step(__u64 number, struct td_look *look)
{
	td_try(look, number, 0, 1);
	return number >= look->limit;
}

TD_STEP long td_walk6_step(__u64 number, struct td_look *look)
{
	td_try(look, number, 1, 1);
	return number >= look->limit;
}

/* The number of the lowest bit that is set; x is not 0. BPF has no such instruction. */
static __always_inline __u32 td_lowest(const struct td_rules *head, __u64 x)
{
	return head->lowest[(x & -x) * TD_DE_BRUIJN >> 58];
}

/* One word or one signature of the look-up by bitmaps. */
static __always_inline long td_bitmap_step(struct td_look *look, int six)
{
	const struct td_image *image = &look->image;
	__u32 number;

	if (!look->bits_left) {
		__u64 word;

		if (!look->words_left)
			return 1;
		look->word_number = td_lowest(td_head(image), look->words_left);
		look->words_left &= look->words_left - 1;
		word = (__u64)look->word_number << 3;
		look->bits_left = TD_U64(image, look->row[0] + word) &
				  TD_U64(image, look->row[1] + word) &
				  TD_U64(image, look->types_row + word);
		if (!look->bits_left)
			return 0;
	}
	number = look->word_number << 6 | td_lowest(td_head(image), look->bits_left);
	look->bits_left &= look->bits_left - 1;
	td_try(look, number, six, 0);
	return number >= look->limit;
}

TD_STEP long td_bitmap4_step(__u64 i, struct td_look *look)
{
	(void)i;
	return td_bitmap_step(look, 0);
}

TD_STEP long td_bitmap6_step(__u64 i, struct td_look *look)
{
	(void)i;
	return td_bitmap_step(look, 1);
}

/* Loops, apart as td_way is. */
TD_STEP long td_bitmaps(struct td_look *look)
{
	if (look->six)
		td_loop(2 * TD_MAX_SIGNATURES, td_bitmap6_step, look);
	else
		td_loop(2 * TD_MAX_SIGNATURES, td_bitmap4_step, look);
	return 0;
}

TD_STEP long td_walk(struct td_look *look)
{
	if (look->six)
		td_loop(TD_MAX_SIGNATURES, td_walk6_step, look);
	else
		td_loop(TD_MAX_SIGNATURES, td_walk4_step, look);
	return 0;
}

static __always_inline __u32 td_used(const struct td_image *image, __u32 bitmap, __u32 value)
{
	return TD_U32(image, bitmap + (value >> 5 << 2)) >> (value & 31) & 1;
}

/* Which of source port, destination port and protocol some rule asks for: bits 0 to 2. */
static __always_inline __u32 td_types(const struct td_image *image, const struct td_rules *head,
				      __u64 rest)
{
	__u32 ports = rest >> 40 & 1;

	return (td_used(image, head->source_ports, rest >> 16 & 0xffff) & ports) |
	       (td_used(image, head->destination_ports, rest & 0xffff) & ports) << 1 |
	       td_used(image, head->protocols, rest >> 32 & 0xff) << 2;
}

/* Keeps the lanes of signatures that look at no source; those stand first. */
static __always_inline __u64 td_without_source(__u64 list)
{
	return list & (list >> 14 & 0x0001000100010001ull) * 0xffff;
}

/* Read anew each time: what one branch has shown of them would keep ways apart that the verifier
 * could take for one. */
#define TD_FLAGS(family) (*(const volatile __u32 *)&(family)->flags)

/* Tries what the addresses lead to, then what looks at no address. */
static __always_inline void td_candidates(struct td_look *look, const struct td_rules *head)
{
	const struct td_image *image = &look->image;
	const struct td_family *family = look->family;
	__u32 types = 0, place[2] = {}, both = 0;
	int i;

	if (TD_FLAGS(family) & TD_HAS_GENERIC || family->words)
		types = td_types(image, head, look->rest);
	if (TD_FLAGS(family) & TD_HAS_ADDRESSES) {
		__u64 list[2] = {};

		if (!(TD_FLAGS(family) & TD_HAS_DESTINATION_ONLY)) {
			place[0] = td_place_of(look, 0);
			list[0] = td_list(image, place[0]);
			both = list[0] == TD_LONG;
		}
		if (both || TD_FLAGS(family) & TD_HAS_DESTINATION_ONLY) {
			place[1] = td_place_of(look, 1);
			list[1] = td_list(image, place[1]);
			if (TD_FLAGS(family) & TD_HAS_SOURCE_ONLY || list[1] == TD_LONG) {
				if (!both) {
					place[0] = td_place_of(look, 0);
					list[0] = td_list(image, place[0]);
				}
				both = list[0] == TD_LONG || list[1] == TD_LONG;
				if (!both)
					list[1] = td_without_source(list[1]);
			} else {
				list[0] = 0;
				both = 0;
			}
		}
		if (both) {
			look->row[0] = (place[0] << 3) + 16;
			look->row[1] = (place[1] << 3) + 16;
			look->types_row = family->types + types * (8 + family->words * 8) + 8;
			look->words_left = TD_U64(image, look->row[0] - 8) &
					   TD_U64(image, look->row[1] - 8) &
					   TD_U64(image, look->types_row - 8);
			look->bits_left = 0;
			if (look->words_left)
				td_bitmaps(look);
			list[0] = list[1] = 0;
		}
		/* However they came about, the verifier is to see the same from here on. */
		look->list[0] = list[0] | head->zero;
		look->list[1] = list[1] | head->zero;
	}
	types |= head->zero;
	TD_ROLLED
	for (i = TD_FLAGS(family) & TD_HAS_ADDRESSES ? 0 : 2; i < 4; i++) {
		__u64 lanes;
		int j;

		if (i >= 2 && !(TD_FLAGS(family) & TD_HAS_GENERIC))
			break;
		lanes = i < 2 ? look->list[i & 1]
			      : TD_U64(image, family->generic + types * 16 + (i - 2) * 8);
		TD_ROLLED
		for (j = 0; j < 4 && lanes; j++, lanes >>= 16) {
			if (look->six)
				td_try6_alone(look, (lanes & TD_LANE_NUMBER) - 1);
			else
				td_try(look, (lanes & TD_LANE_NUMBER) - 1, 0, 0);
		}
	}
}

static __always_inline __u64 td_two_words(const __u32 *words)
{
	return (__u64)__builtin_bswap32(words[0]) << 32 | __builtin_bswap32(words[1]);
}

/* What the image's rules say of a packet, without counting it. */
static __always_inline void td_look_up(struct td_look *look, const struct td_tuple *tuple)
{
	const struct td_rules *head = td_head(&look->image);

	look->best = head->any;
	look->rest = tuple->destination_port | (__u64)tuple->source_port << 16 |
		     (__u64)tuple->protocol << 32 |
		     (tuple->flags & TD_HAS_PORTS ? TD_REST_PORTS : 0);
	if (tuple->family == 4) {
		look->word[0] = (__u64)__builtin_bswap32(tuple->source[0]) << 32 |
				__builtin_bswap32(tuple->destination[0]);
		look->word[2] = look->word[0] << 32;
		look->family = &head->four;
	} else if (tuple->family == 6) {
		look->word[0] = td_two_words(tuple->source);
		look->word[1] = td_two_words(tuple->source + 2);
		look->word[2] = td_two_words(tuple->destination);
		look->word[3] = td_two_words(tuple->destination + 2);
		look->family = &head->six;
		look->six = 1;
	} else {
		return;
	}
	look->limit = look->family->nsignatures;
	if (head->walk)
		td_walk(look);
	else
		td_candidates(look, head);
}

/* Adds the packet to its rule's counter. */
static __always_inline void td_count(const struct td_image *image, const struct td_rules *head,
				     __u32 rule, __u32 cpu)
{
	__u64 lane = (__u64)(cpu & head->lane_mask) * head->lane_bytes;
	__u64 *counter = TD_AT(image, __u64, 8, head->hits + lane + (__u64)rule * 8);

	if (head->lanes_shared)
		__sync_fetch_and_add(counter, 1);
	else
		*counter += 1;
}

/* Judges a packet and counts it. */
static __always_inline void td_judge_image(struct td_look *look, const struct td_tuple *tuple,
					   struct td_verdict *verdict, __u32 cpu)
{
	const struct td_rules *head = td_head(&look->image);
	__u32 value;

	td_look_up(look, tuple);
	value = look->best.value;
	verdict->action = look->best.action;
	verdict->rule = look->best.rule;
	verdict->snaplen = look->best.action == TD_SNAPLEN ? value : ~0u;
	verdict->group = look->best.action == TD_GROUP ? value : ~0u;
	verdict->cutoff = look->best.action == TD_CUT_OFF ? value : ~0u;
	td_count(&look->image, head, look->best.action == TD_NONE ? head->nrules : look->best.rule,
		 cpu);
}

#endif
