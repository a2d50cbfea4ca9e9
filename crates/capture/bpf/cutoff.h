/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Has a flow had its bytes?
 *
 * A flow is what packets between two ends have in common: addresses, ports and protocol of the
 * innermost IP packet, the same both ways. A table holds how many bytes of each flow have come, and
 * a packet is cut off where its flow has had as many as it may. What is in no table is kept, so a
 * table that overflows keeps more, never less.
 *
 * The table is an array of sets, each a cache line. A flow's hash says which set is its own, and
 * which entry there: the hash's high half stands in the entry beside the count, in one word. So
 * whatever changes is changed by one compare-and-swap, and counts are exact however many CPUs bring
 * packets of a flow: the packet that finds the count below the limit is kept, and no other. In a
 * set that is full the flow goes that has been silent for longest.
 *
 * Two flows are taken for one where set and high half are the same. With a table that is full that
 * happens to one new flow in TD_FLOW_WAYS to 2^32. A seed that nobody else knows keeps others from
 * choosing such flows.
 */
#ifndef TAPDECK_CUTOFF_H
#define TAPDECK_CUTOFF_H

#include "headers.h"

#define TD_FLOW_WAYS 6
/* A power of two: 8 MiB for 786432 flows. */
#define TD_FLOW_SETS 131072

/* Tries to change an entry while others change it. */
#define TD_FLOW_TRIES 4
/* Searches for a flow that others may be putting in its place. */
#define TD_FLOW_ROUNDS 2

/* An entry: the high half of the flow's hash, and the bytes that have come; 0 is free. */
struct td_flow_set {
	__u64 entry[TD_FLOW_WAYS];
	__u16 last[8]; /* when each entry's flow was last heard of, in td_flow_time() */
};

_Static_assert(sizeof(struct td_flow_set) == 64, "a set is a cache line");

#define TD_TCP_FIN 1
#define TD_TCP_SYN 2
#define TD_TCP_RST 4
#define TD_TCP_ACK 16
/* Where the flags stand in a TCP header. */
#define TD_TCP_FLAGS 13

#define TD_FLOW_NOW(word) (*(volatile __typeof__(word) *)&(word))

/* One end's part of the hash. Parts are added, so both directions have one hash; they must be well
 * mixed before, for 10.0.0.1 to 10.0.0.4 is not 10.0.0.2 to 10.0.0.3. */
static __always_inline __u64 td_flow_end(__u64 seed, __u8 family, const __u32 *address, __u16 port)
{
	__u64 x = ((__u64)address[0] << 16 | port) ^ seed;

	x *= 0x9e3779b97f4a7c15ull;
	if (family == 6) {
		x ^= x >> 32;
		x += (__u64)address[1] << 32 | address[2];
		x *= 0xbf58476d1ce4e5b9ull;
		x ^= x >> 29;
		x += address[3];
		x *= 0x94d049bb133111ebull;
	}
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 29;
}

static __always_inline __u64 td_flow_join(__u64 source, __u64 destination, __u8 protocol)
{
	__u64 x = ((source + destination) ^ protocol) * 0xc2b2ae3d27d4eb4full;

	return x ^ x >> 32;
}

static __always_inline __u64 td_flow_hash(const struct td_tuple *t, __u64 seed)
{
	return td_flow_join(td_flow_end(seed, t->family, t->source, t->source_port),
			    td_flow_end(seed, t->family, t->destination, t->destination_port),
			    t->protocol);
}

/* What is behind the IP header of a packet whose flow is read in place: TCP, or UDP that holds no
 * tunnel. */
static __always_inline bool td_flow_is_plain(const void *four, const void *end, __u8 protocol,
					     __u32 *tcp_flags)
{
	if (protocol == TD_PROTO_UDP) {
		*tcp_flags = 0;
		return td_of_udp_port(td_half(four + 2)) == TD_NOTHING;
	}
	if (protocol != TD_PROTO_TCP || four + TD_TCP_FLAGS + 1 > end)
		return false;
	*tcp_flags = td_byte(four + TD_TCP_FLAGS);
	return true;
}

/* The hash of most packets' flows and their TCP flags, read in place, for the walk through the
 * headers and its tuple would cost more than the table does. False: only the walk finds them. */
static __always_inline bool td_flow_of_plain(const void *data, const void *end, bool has_link,
					     __u64 seed, __u64 *hash, __u32 *tcp_flags)
{
	__u16 type;
	const void *four, *ip = td_find_plain(data, end, has_link, &type);

	if (!ip)
		return false;
	if (type == TD_ETHERTYPE_IPV4) {
		four = ip + TD_IPV4_HEADER_BYTES;
		if (four + 4 > end || td_byte(ip) != 0x45 ||
		    td_half(ip + TD_IPV4_FRAGMENT) &
			    (TD_IPV4_MORE_FRAGMENTS | TD_IPV4_OFFSET_MASK) ||
		    !td_flow_is_plain(four, end, td_byte(ip + TD_IPV4_PROTOCOL), tcp_flags))
			return false;
		*hash = td_flow_join(
			td_flow_end(seed, 4, ip + TD_IPV4_SOURCE, td_half(four)),
			td_flow_end(seed, 4, ip + TD_IPV4_DESTINATION, td_half(four + 2)),
			td_byte(ip + TD_IPV4_PROTOCOL));
		return true;
	}
	four = ip + TD_IPV6_HEADER_BYTES;
	if (type != TD_ETHERTYPE_IPV6 || four + 4 > end || td_byte(ip) >> 4 != 6 ||
	    !td_flow_is_plain(four, end, td_byte(ip + TD_IPV6_NEXT_HEADER), tcp_flags))
		return false;
	*hash = td_flow_join(td_flow_end(seed, 6, ip + TD_IPV6_SOURCE, td_half(four)),
			     td_flow_end(seed, 6, ip + TD_IPV6_DESTINATION, td_half(four + 2)),
			     td_byte(ip + TD_IPV6_NEXT_HEADER));
	return true;
}

/* The entry of a flow that has had so many bytes. */
static __always_inline __u64 td_flow_entry(__u64 hash, __u32 bytes)
{
	return (hash & ~0xffffffffull) | bytes;
}

/* Whether an entry is of a flow. */
static __always_inline bool td_flow_is(__u64 entry, __u64 hash)
{
	return entry >> 32 == hash >> 32;
}

/* The place of a flow in its set, or TD_FLOW_WAYS. Most flows have the first place of their set,
 * where a free one is taken first. Among the others there is no branch that could be guessed
 * wrongly. */
static __always_inline __u32 td_flow_find(struct td_flow_set *set, __u64 hash)
{
	__u64 at = TD_FLOW_WAYS;

	if (td_flow_is(TD_FLOW_NOW(set->entry[0]), hash))
		return 0;
	TD_UNROLL
	for (__u64 i = 1; i < TD_FLOW_WAYS; i++) {
		__u64 differs = TD_FLOW_NOW(set->entry[i]) >> 32 ^ hash >> 32;

		at ^= (at ^ i) & ((__s64)(differs - 1) >> 63);
	}
	return at;
}

/* The place of the first free entry, or of the flow that has been silent for longest. That is
 * looked for before a new flow is: two CPUs that have a packet of it each want one place then, and
 * one gets it. */
static __always_inline __u32 td_flow_oldest(struct td_flow_set *set, __u16 now)
{
	__u64 oldest = 0;

	TD_UNROLL
	for (__u64 i = 0; i < TD_FLOW_WAYS; i++) {
		__u64 age = (__u16)(now - TD_FLOW_NOW(set->last[i]));
		__u64 one =
			(TD_FLOW_NOW(set->entry[i]) ? age : 1 << 16) << 3 | (TD_FLOW_WAYS - 1 - i);

		if (one > oldest)
			oldest = one;
	}
	return TD_FLOW_WAYS - 1 - (oldest & 7);
}

/* Whether a packet of a connection begins it anew, whatever has come before: its ports are used
 * again. Of a connection of which one direction is seen that may be the answer. */
static __always_inline bool td_flow_begins(__u32 tcp_flags, bool is_over)
{
	return tcp_flags & TD_TCP_SYN && (is_over || !(tcp_flags & TD_TCP_ACK));
}

/*
 * Accounts for a packet of so many bytes. True: its flow has had `limit` bytes before, and the
 * packet does not begin or end a connection.
 */
static __always_inline bool td_flow_is_cut(struct td_flow_set *set, __u64 hash, __u32 len,
					   __u32 tcp_flags, __u32 limit, __u16 now)
{
	for (int round = 0; round < TD_FLOW_ROUNDS; round++) {
		__u32 at = td_flow_find(set, hash);
		__u64 entry, seen;

		if (at >= TD_FLOW_WAYS) {
			__u32 oldest = td_flow_oldest(set, now);

			if (oldest >= TD_FLOW_WAYS)
				return false;
			entry = TD_FLOW_NOW(set->entry[oldest]);
			at = td_flow_find(set, hash);
			if (at >= TD_FLOW_WAYS) {
				seen = __sync_val_compare_and_swap(&set->entry[oldest], entry,
								   td_flow_entry(hash, len));
				if (seen != entry)
					continue;
				TD_FLOW_NOW(set->last[oldest]) = now;
				return false;
			}
		}
		entry = TD_FLOW_NOW(set->entry[at]);
		if (TD_FLOW_NOW(set->last[at]) != now)
			TD_FLOW_NOW(set->last[at]) = now;
		for (int i = 0; i < TD_FLOW_TRIES && td_flow_is(entry, hash); i++) {
			bool is_over = (__u32)entry >= limit;
			__u64 next = entry + len;

			if (td_flow_begins(tcp_flags, is_over))
				next = td_flow_entry(hash, len);
			else if (is_over)
				return !(tcp_flags & (TD_TCP_FIN | TD_TCP_RST));
			seen = __sync_val_compare_and_swap(&set->entry[at], entry, next);
			if (seen == entry)
				return false;
			entry = seen;
		}
	}
	return false;
}

static __always_inline __u32 td_tcp_flags(enum context context, void *ctx, const struct td_tuple *t)
{
	__u8 buffer[8] __attribute__((aligned(8)));
	const void *flags;

	if (t->protocol != TD_PROTO_TCP || !(t->flags & TD_HAS_PORTS) ||
	    t->flags & TD_LATER_FRAGMENT)
		return 0;
	flags = td_view(context, ctx, t->offset + TD_TCP_FLAGS - 1, 2, buffer);
	return flags ? td_byte(flags + 1) : 0;
}

#ifndef TD_USER

/* The table is made when somebody first needs one. */
struct td_flow_sets {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* so that it begins at a page */
	__uint(max_entries, TD_FLOW_SETS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct td_flow_set));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, struct td_flow_sets);
} flows SEC(".maps");

/* About a second, or a quarter of one. */
static __always_inline __u16 td_flow_time(void)
{
	return bpf_jiffies64() >> 8;
}

/* What is asked of a packet. */
struct td_flow_question {
	__u32 tag;   /* as in struct packet */
	__u32 len;   /* bytes of its frame */
	__u32 limit; /* bytes that its flow may have */
	__u32 owner;
};

static __always_inline __u64 td_flow_seed(__u32 owner)
{
	return (__u64)TD_FLOW_NOW(control.seed) * 0x9e3779b97f4a7c15ull + owner;
}

/* Accounts for a packet of a flow with that hash, of which so many bytes are its own. */
static __always_inline int td_flow_count(__u64 hash, __u32 len, __u32 tcp_flags, __u32 limit)
{
	__u32 only = 0, number = hash & params.flow_mask;
	void *sets = bpf_map_lookup_elem(&flows, &only);
	struct td_flow_set *set = sets ? bpf_map_lookup_elem(sets, &number) : NULL;

	return set && td_flow_is_cut(set, hash, len, tcp_flags, limit, td_flow_time());
}

/*
 * Whether a packet is cut off, by the walk through its headers. What is counted for one `owner`
 * does not count for another. Two global functions, so that the verifier looks at the table's part
 * once, and not for each way through the headers.
 */
#define TD_CUT(HOOK, name, type)                                                                  \
	__noinline int td_count_##name(type *ctx, struct td_tuple *t, __u32 len, __u32 limit,     \
				       __u32 owner)                                               \
	{                                                                                         \
		if (!t || !t->family)                                                             \
			return 0;                                                                 \
                                                                                                  \
		return td_flow_count(td_flow_hash(t, td_flow_seed(owner)), len,                   \
				     td_tcp_flags(HOOK, ctx, t), limit);                          \
	}                                                                                         \
	__noinline int td_cut_##name(type *ctx, struct td_headers *h, struct td_flow_question *q) \
	{                                                                                         \
		if (!h || !q)                                                                     \
			return 0;                                                                 \
                                                                                                  \
		struct packet p = { .ctx = ctx, .tag = q->tag };                                  \
                                                                                                  \
		return td_count_##name(ctx, td_get_innermost(HOOK, &p, h), q->len, q->limit,      \
				       q->owner);                                                 \
	}

TD_CUT(CONTEXT_XDP, xdp, struct xdp_md)
TD_CUT(CONTEXT_SKB, skb, struct __sk_buff)
TD_CUT(CONTEXT_NETFILTER, netfilter, struct bpf_nf_ctx)

#endif
#endif
