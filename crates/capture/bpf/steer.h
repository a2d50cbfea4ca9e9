/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Which member of a group does a packet go to?
 *
 * Steering is two steps. td_steer_hash() makes a number of the packet, by what the group wants kept
 * together. A table of the group, which user space fills, makes a member of the number:
 *
 *   - of a hash (flow to vlan) its highest bits are the number of a slot: slots[hash >> shift]. A
 * member has as many slots as its weight wants, anywhere in the table. When it leaves, only its
 * slots change hands, so nothing else moves.
 *   - of a turn (round robin, queue) the remainder: order[turn % entries]. There is nothing to be
 * kept in its place.
 *
 * A packet's two ends are added before they are multiplied, so both directions have one hash. The
 * hashes are linear: multiples of odd constants that have no small common structure (Knuth, TAOCP
 * volume 3, section 6.4), whose high bits spread ranges of addresses and ports more evenly than
 * chance would, and anything else as evenly. The hashes keep no secret: who chooses addresses and
 * ports at will can choose a member, as with a network card's own hash.
 *
 * What is not IP has no addresses; those of its Ethernet header stand in for them.
 */
#ifndef TAPDECK_STEER_H
#define TAPDECK_STEER_H

#include "headers.h"

enum td_steering {
	TD_FLOW,    /* addresses, ports and protocol of the innermost packet, the same both ways */
	TD_IP_PAIR, /* its addresses, the same both ways */
	TD_SOURCE,  /* its source address */
	TD_DESTINATION, /* its destination address */
	TD_BOTH_ENDS,   /* the owner of its source, and that of its destination: two numbers */
	TD_MAC,         /* the frame's Ethernet addresses, the same both ways */
	TD_VLAN,        /* the outermost tag's VLAN, 0 without a tag */
	TD_ROUND_ROBIN, /* a turn: members one after the other */
	TD_QUEUE,       /* a turn: the receive queue */
	TD_COPY,        /* no number: all members */
};

/* Does it need the packet's headers, as td_innermost() finds them? */
static __always_inline bool td_needs_headers(__u32 steering)
{
	return steering <= TD_BOTH_ENDS;
}

/* Is a number that td_steer() gives for it a hash? Else it is a turn. */
static __always_inline bool td_is_hash(__u32 steering)
{
	return steering <= TD_VLAN;
}

#define TD_WORD_0 0x9e3779b97f4a7c15ull
#define TD_WORD_1 0xbf58476d1ce4e5b9ull
#define TD_WORD_2 0x94d049bb133111ebull
#define TD_WORD_3 0xd6e8feb86659fd93ull
#define TD_PORTS 0xc2b2ae3d27d4eb4full
#define TD_PROTOCOL 0xa0761d6478bd642full

static __always_inline __u64 td_host(__u32 word)
{
	return __builtin_bswap32(word);
}

/* The hash of an address; the owner of a host is the same whichever end of a packet it is. */
static __always_inline __u64 td_hash_address(__u8 family, const __u32 *address)
{
	__u64 hash = td_host(address[0]) * TD_WORD_0;

	if (family == 6) {
		hash += td_host(address[1]) * TD_WORD_1;
		hash += td_host(address[2]) * TD_WORD_2;
		hash += td_host(address[3]) * TD_WORD_3;
	}
	return hash;
}

static __always_inline __u32 td_hash_source(const struct td_tuple *t)
{
	return td_hash_address(t->family, t->source) >> 32;
}

static __always_inline __u32 td_hash_destination(const struct td_tuple *t)
{
	return td_hash_address(t->family, t->destination) >> 32;
}

static __always_inline __u64 td_sum_addresses(const struct td_tuple *t)
{
	__u64 hash = (td_host(t->source[0]) + td_host(t->destination[0])) * TD_WORD_0;

	if (t->family == 6) {
		hash += (td_host(t->source[1]) + td_host(t->destination[1])) * TD_WORD_1;
		hash += (td_host(t->source[2]) + td_host(t->destination[2])) * TD_WORD_2;
		hash += (td_host(t->source[3]) + td_host(t->destination[3])) * TD_WORD_3;
	}
	return hash;
}

static __always_inline __u32 td_hash_ip_pair(const struct td_tuple *t)
{
	return td_sum_addresses(t) >> 32;
}

static __always_inline __u32 td_hash_flow(const struct td_tuple *t)
{
	__u64 ports = (__u64)t->source_port + t->destination_port;

	return (td_sum_addresses(t) + ports * TD_PORTS + t->protocol * TD_PROTOCOL) >> 32;
}

static __always_inline __u64 td_mac(const __u16 *mac)
{
	return (__u64)__builtin_bswap16(mac[0]) << 32 | (__u64)__builtin_bswap16(mac[1]) << 16 |
	       __builtin_bswap16(mac[2]);
}

/* `macs`: destination and source; NULL where frames have none. */
static __always_inline __u32 td_hash_macs(__u32 steering, const __u16 *macs, __u32 *second)
{
	__u64 destination = macs ? td_mac(macs) * TD_WORD_0 : 0;
	__u64 source = macs ? td_mac(macs + 3) * TD_WORD_0 : 0;

	switch (steering) {
	case TD_BOTH_ENDS:
		*second = destination >> 32;
		return source >> 32;
	case TD_SOURCE:
		return source >> 32;
	case TD_DESTINATION:
		return destination >> 32;
	default:
		return (source + destination) >> 32;
	}
}

static __always_inline __u32 td_hash_vlan(__u16 vlan)
{
	return vlan * TD_WORD_0 >> 32;
}

/* The outermost tag's VLAN, whether the tag was stripped or not; 0 without. */
static __always_inline __u16 td_vlan(enum context context, struct packet *p)
{
	__u8 buffer[8] __attribute__((aligned(8)));
	const void *types;

	if (p->tag)
		return td_half((__u8 *)&p->tag + 2) & 0xfff;
	types = td_has_link(context, p) ? td_view(context, p->ctx, 12, 4, buffer) : NULL;
	return types && td_is_tag(td_half(types)) ? td_half(types + 2) & 0xfff : 0;
}

/* An ICMP error goes where the conversation goes that it is about. */
#define TD_STEER_QUOTE(name, type)                                                         \
	TD_GLOBAL int td_steer_quote_##name(type *ctx, struct td_tuple *t, __u32 steering) \
	{                                                                                  \
		struct td_scratch *scratch = td_scratch();                                 \
                                                                                           \
		if (!scratch || !t)                                                        \
			return 0;                                                          \
		__builtin_memcpy(&scratch->quoted, t, sizeof(*t));                         \
		scratch->quoted.next = t->next == TD_QUOTE_IPV4 ? TD_IPV4 : TD_IPV6;       \
		scratch->quoted.flags = TD_QUOTED;                                         \
		td_walk_##name(ctx, &scratch->quoted);                                     \
		return steering == TD_FLOW ? td_hash_flow(&scratch->quoted)                \
					   : td_hash_ip_pair(&scratch->quoted);            \
	}

#ifdef TD_USER
TD_STEER_QUOTE(user, struct td_frame)
#else
TD_STEER_QUOTE(xdp, struct xdp_md)
TD_STEER_QUOTE(skb, struct __sk_buff)
TD_STEER_QUOTE(netfilter, struct bpf_nf_ctx)
#endif

#ifdef TD_USER

static __always_inline __u32 td_turn(__u32 group)
{
	return group;
}

#else

#ifndef TD_MAX_GROUPS
#define TD_MAX_GROUPS 256
#endif

/* Each CPU takes turns by itself, beginning with another member. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TD_MAX_GROUPS);
	__type(key, __u32);
	__type(value, __u32);
} td_turns SEC(".maps");

static __always_inline __u32 td_turn(__u32 group)
{
	__u32 *turn = bpf_map_lookup_elem(&td_turns, &group);

	return turn ? (*turn)++ + bpf_get_smp_processor_id() : 0;
}

#endif

/* The hash of an IP packet. `t` is what td_innermost() left. */
static __always_inline __u32 td_hash_tuple(enum context context, struct packet *p,
					   struct td_tuple *t, __u32 steering, __u32 *second)
{
	switch (steering) {
	case TD_BOTH_ENDS:
		*second = td_hash_destination(t);
		return td_hash_source(t);
	case TD_SOURCE:
		return td_hash_source(t);
	case TD_DESTINATION:
		return td_hash_destination(t);
	}
	if (t->next == TD_QUOTE_IPV4 || t->next == TD_QUOTE_IPV6)
		return TD_CALL(steer_quote, context, p, t, steering);
	return steering == TD_FLOW ? td_hash_flow(t) : td_hash_ip_pair(t);
}

/*
 * The packet's number, and with TD_BOTH_ENDS a second one: a hash, or where td_is_hash() says no, a
 * turn. `headers` is what is known of the packet so far: see there. With TD_COPY nobody asks for
 * one.
 */
static __always_inline __u32 td_steer_hash(enum context context, struct packet *p,
					   struct td_headers *headers, __u32 steering, __u32 group,
					   __u32 *second)
{
	__u16 macs[6] __attribute__((aligned(8)));

	switch (steering) {
	case TD_ROUND_ROBIN:
		return td_turn(group);
	case TD_QUEUE:
		return td_queue(context, p);
	case TD_VLAN:
		return td_hash_vlan(td_vlan(context, p));
	}
	if (td_needs_headers(steering)) {
		struct td_tuple *t = td_get_innermost(context, p, headers);

		if (t->family)
			return td_hash_tuple(context, p, t, steering, second);
	}
	return td_hash_macs(steering, td_view_macs(context, p, macs), second);
}

#endif
