/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Who speaks to whom in a packet?
 *
 * td_outer() finds the addresses, protocol and ports of the outermost IP packet: what rules judge.
 * It leaves behind where it stopped, and td_innermost() goes on from there through tunnels to the
 * innermost IP packet: what steering goes by.
 *
 * What most packets are (Ethernet, at most two tags, IP without options, not a fragment) td_outer()
 * reads inline and in place, and what most tunnels hold one function reads in the same way. All
 * else is walked by functions that the verifier looks at once each, for they are global: no path
 * through one multiplies the paths through the next. Their state is the tuple itself.
 *
 * Limits, so that every walk ends: TD_TAGS VLAN tags, TD_EXTENSIONS extension headers, TD_LABELS
 * labels, TD_TUNNELS tunnels (a label stack and PPPoE are tunnels). Behind more tags or labels no
 * IP packet is found; of more extension headers the protocol is the one where the walk ended;
 * behind more tunnels the packet found last counts. Lengths that headers state are not tested
 * against the frame's, so padding can be taken for ports, as libpcap's filters do.
 */
#ifndef TAPDECK_HEADERS_H
#define TAPDECK_HEADERS_H

#include "fields.h"
#include "tuple.h"
#include "fragments.h"
#include "tunnels.h"

static __always_inline void td_set_ipv4(struct td_tuple *t, const void *header)
{
	t->family = 4;
	t->protocol = td_byte(header + TD_IPV4_PROTOCOL);
	t->source_port = 0;
	t->destination_port = 0;
	t->fragment_id = 0;
	t->source[0] = *(const __u32 *)(header + TD_IPV4_SOURCE);
	t->source[1] = t->source[2] = t->source[3] = 0;
	t->destination[0] = *(const __u32 *)(header + TD_IPV4_DESTINATION);
	t->destination[1] = t->destination[2] = t->destination[3] = 0;
}

static __always_inline void td_set_ipv6(struct td_tuple *t, const void *header)
{
	t->family = 6;
	t->protocol = td_byte(header + TD_IPV6_NEXT_HEADER);
	t->source_port = 0;
	t->destination_port = 0;
	t->fragment_id = 0;
	for (int i = 0; i < 4; i++) {
		t->source[i] = *(const __u32 *)(header + TD_IPV6_SOURCE + 4 * i);
		t->destination[i] = *(const __u32 *)(header + TD_IPV6_DESTINATION + 4 * i);
	}
}

/*
 * The walk. A step reads what `next` says stands at `offset`, and puts there what it found, or
 * TD_NOTHING. Only an IP header that is whole changes the rest of the tuple.
 */

/* Any IP packet behind `tags` tags has enough bytes for a view of all the types. */
static __always_inline int td_read_link(enum context context, void *ctx, struct td_tuple *t,
					__u32 tags)
{
	__u8 buffer[24] __attribute__((aligned(8)));
	const void *types;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	types = td_view(context, ctx, at + TD_ETHERNET_TYPE, 20, buffer);
	if (!types)
		return 0;
	TD_UNROLL
	for (__u32 i = 0; i <= TD_TAGS; i++) {
		__u16 type = td_half(types + TD_VLAN_TAG_BYTES * i);

		if (!td_is_tag(type)) {
			t->next = td_of_ethertype(type);
			if (t->next == TD_ETHERNET)
				t->next = TD_NOTHING;
			t->offset = at + TD_ETHERNET_HEADER_BYTES + TD_VLAN_TAG_BYTES * i;
			return 0;
		}
		if (i >= tags)
			return 0;
	}
	return 0;
}

static __always_inline int td_read_ipv4(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[TD_IPV4_HEADER_BYTES + 4] __attribute__((aligned(8)));
	const void *header, *four;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	header = td_view(context, ctx, at, TD_IPV4_HEADER_BYTES + 4, buffer);
	four = header ? header + TD_IPV4_HEADER_BYTES : NULL;
	if (!header) {
		header = td_view(context, ctx, at, TD_IPV4_HEADER_BYTES, buffer);
		if (!header)
			return 0;
	}

	__u8 first = td_byte(header);
	__u32 length = (first & TD_IPV4_LENGTH_MASK) * 4;

	if (first >> 4 != 4 || length < TD_IPV4_HEADER_BYTES)
		return 0;

	__u16 fragment = td_half(header + TD_IPV4_FRAGMENT);

	t->flags &= TD_QUOTED;
	td_set_ipv4(t, header);
	if (fragment & (TD_IPV4_MORE_FRAGMENTS | TD_IPV4_OFFSET_MASK)) {
		t->fragment_id = *(const __u16 *)(header + TD_IPV4_IDENTIFICATION);
		t->flags |= fragment & TD_IPV4_OFFSET_MASK ? TD_LATER_FRAGMENT : TD_FIRST_FRAGMENT;
	}
	if (fragment & TD_IPV4_OFFSET_MASK) {
		td_recall(t);
		return 0;
	}
	if (length != TD_IPV4_HEADER_BYTES)
		four = td_view(context, ctx, at + length, 4, buffer);
	td_transport(t, t->protocol, four, at + length);
	if (fragment & TD_IPV4_MORE_FRAGMENTS)
		td_remember(t);
	return 0;
}

static __always_inline bool td_is_extension(__u8 protocol)
{
	return protocol == TD_PROTO_HOP_BY_HOP || protocol == TD_PROTO_ROUTING ||
	       protocol == TD_PROTO_FRAGMENT || protocol == TD_PROTO_AUTHENTICATION ||
	       protocol == TD_PROTO_DESTINATION_OPTIONS;
}

/* Passes the extension header of type `protocol` at `offset`. Not 0: there is no more to pass. */
static __always_inline int td_read_extension(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[TD_IPV6_FRAGMENT_HEADER_BYTES] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 1;

	__u8 kind = t->protocol;
	__u32 at = t->offset;

	if (kind == TD_PROTO_FRAGMENT) {
		header = td_view(context, ctx, at, TD_IPV6_FRAGMENT_HEADER_BYTES, buffer);
		if (!header)
			return 1;

		__u16 fragment = td_half(header + TD_IPV6_FRAGMENT_FRAGMENT);

		t->protocol = td_byte(header + TD_IPV6_EXTENSION_NEXT_HEADER);
		/* A packet that is its only fragment is none (RFC 6946). */
		if (fragment & (TD_IPV6_FRAGMENT_OFFSET_MASK | TD_IPV6_FRAGMENT_MORE_FRAGMENTS)) {
			t->fragment_id = *(const __u32 *)(header + TD_IPV6_FRAGMENT_IDENTIFICATION);
			t->flags |= fragment & TD_IPV6_FRAGMENT_OFFSET_MASK ? TD_LATER_FRAGMENT
									    : TD_FIRST_FRAGMENT;
		}
		t->offset = at + TD_IPV6_FRAGMENT_HEADER_BYTES;
		return fragment & TD_IPV6_FRAGMENT_OFFSET_MASK ? 1 : 0;
	}
	header = td_view(context, ctx, at, 4, buffer);
	if (!header)
		return 1;

	__u32 units = td_byte(header + TD_IPV6_EXTENSION_LENGTH);

	t->protocol = td_byte(header + TD_IPV6_EXTENSION_NEXT_HEADER);
	t->offset = at + 8 + (kind == TD_PROTO_AUTHENTICATION ? 4 : 8) * units;
	return 0;
}

/* Needs td_extension(), which the including file has for its hooks. */
#define TD_READ_IPV6(context, ctx, t, td_extension)                                          \
	({                                                                                   \
		if (td_begin_ipv6(context, ctx, t)) {                                        \
			for (int i = 0; i < TD_EXTENSIONS; i++)                              \
				if (!td_is_extension((t)->protocol) || td_extension(ctx, t)) \
					break;                                               \
			td_end_ipv6(context, ctx, t);                                        \
		}                                                                            \
		0;                                                                           \
	})

static __always_inline bool td_begin_ipv6(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[TD_IPV6_HEADER_BYTES] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return false;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	header = td_view(context, ctx, at, TD_IPV6_HEADER_BYTES, buffer);
	if (!header || td_byte(header) >> 4 != 6)
		return false;
	t->flags &= TD_QUOTED;
	td_set_ipv6(t, header);
	t->offset = at + TD_IPV6_HEADER_BYTES;
	return true;
}

static __always_inline void td_end_ipv6(enum context context, void *ctx, struct td_tuple *t)
{
	__u32 four __attribute__((aligned(8)));

	if (t->flags & TD_LATER_FRAGMENT) {
		td_recall(t);
		return;
	}
	if (!td_is_extension(t->protocol))
		td_transport(t, t->protocol, td_view(context, ctx, t->offset, 4, &four), t->offset);
	if (t->flags & TD_FIRST_FRAGMENT)
		td_remember(t);
}

/* An IP packet in the linear part that is not worth a walk: no options, no extension header, not a
 * fragment. */
static __always_inline bool td_read_plain_ip(struct td_tuple *t, const void *ip, const void *end,
					     __u16 type, __u32 at)
{
	if (type == TD_ETHERTYPE_IPV4) {
		if (ip + (TD_IPV4_HEADER_BYTES + 4) > end || td_byte(ip) != 0x45 ||
		    td_half(ip + TD_IPV4_FRAGMENT) & (TD_IPV4_MORE_FRAGMENTS | TD_IPV4_OFFSET_MASK))
			return false;
		t->flags = 0;
		td_set_ipv4(t, ip);
		td_transport(t, t->protocol, ip + TD_IPV4_HEADER_BYTES, at + TD_IPV4_HEADER_BYTES);
		return true;
	}
	if (type == TD_ETHERTYPE_IPV6) {
		if (ip + (TD_IPV6_HEADER_BYTES + 4) > end || td_byte(ip) >> 4 != 6 ||
		    td_is_extension(td_byte(ip + TD_IPV6_NEXT_HEADER)))
			return false;
		t->flags = 0;
		td_set_ipv6(t, ip);
		td_transport(t, t->protocol, ip + TD_IPV6_HEADER_BYTES, at + TD_IPV6_HEADER_BYTES);
		return true;
	}
	return false;
}

/* Where the outermost IP packet begins behind at most two tags, and its type; NULL: somebody has to
 * look closer. */
static __always_inline const void *td_find_plain(const void *data, const void *end, bool has_link,
						 __u16 *type)
{
	__u32 at = TD_ETHERNET_HEADER_BYTES;

	if (!has_link) {
		if (data + 1 > end)
			return NULL;
		*type = td_byte(data) >> 4 == 4 ? TD_ETHERTYPE_IPV4 : TD_ETHERTYPE_IPV6;
		return data;
	}
	/* No IPv4 packet with ports has less. */
	if (data + (TD_ETHERNET_HEADER_BYTES + TD_IPV4_HEADER_BYTES + 4) > end)
		return NULL;
	*type = td_half(data + TD_ETHERNET_TYPE);
	if (td_is_tag(*type)) {
		*type = td_half(data + TD_ETHERNET_TYPE + TD_VLAN_TAG_BYTES);
		at = TD_ETHERNET_HEADER_BYTES + TD_VLAN_TAG_BYTES;
		if (td_is_tag(*type)) {
			*type = td_half(data + TD_ETHERNET_TYPE + 2 * TD_VLAN_TAG_BYTES);
			at = TD_ETHERNET_HEADER_BYTES + 2 * TD_VLAN_TAG_BYTES;
		}
	}
	return data + at;
}

/* The outermost packet, where it is plain. False: somebody has to look closer. */
static __always_inline bool td_read_plain(struct td_tuple *t, const void *data, const void *end,
					  bool has_link)
{
	__u16 type;
	const void *ip = td_find_plain(data, end, has_link, &type);

	return ip && td_read_plain_ip(t, ip, end, type, ip - data);
}

/* Where TCP has the length of its header, and how long that is at least. */
#define TD_TCP_LENGTH 12
#define TD_TCP_HEADER_BYTES 20

/* How many bytes the headers of a frame have, to the end of TCP's, or of UDP's without a tunnel. 0:
 * somebody has to look closer. */
static __always_inline __u32 td_plain_headers_len(enum context context, void *ctx, bool has_link)
{
	const void *tcp, *end, *data = td_linear(context, ctx, &end);
	__u8 buffer[8] __attribute__((aligned(8)));
	struct td_tuple t = { .family = 0 };
	__u32 len;

	if (!data || !td_read_plain(&t, data, end, has_link) || t.next != TD_NOTHING)
		return 0;
	/* Behind it, as td_transport() says. */
	if (t.protocol == TD_PROTO_UDP)
		return t.offset;
	if (t.protocol != TD_PROTO_TCP)
		return 0;
	tcp = td_view(context, ctx, t.offset + TD_TCP_LENGTH, 1, buffer);
	len = tcp ? (td_byte(tcp) >> 4) * 4 : 0;
	return len < TD_TCP_HEADER_BYTES ? 0 : t.offset + len;
}

/* What most tunnels hold, as above. Writes `to` only where it is. */
static __always_inline bool td_read_plain_inside(enum context context, void *ctx,
						 const struct td_tuple *from, struct td_tuple *to)
{
	const void *end, *data = td_linear(context, ctx, &end);
	__u64 at = from->offset;
	__u16 type = 0;

	if (!data || at > TD_FARTHEST)
		return false;
	asm volatile("" : "+r"(at));

	const void *inside = data + at;

	switch (from->next) {
	case TD_VXLAN:
		if (inside + TD_VXLAN_HEADER_BYTES > end ||
		    !(td_byte(inside) & TD_VXLAN_HAS_NETWORK))
			return false;
		type = TD_ETHERTYPE_ETHERNET;
		at += TD_VXLAN_HEADER_BYTES;
		break;
	case TD_GENEVE:
		if (inside + TD_GENEVE_HEADER_BYTES > end ||
		    td_byte(inside) >> TD_GENEVE_VERSION_SHIFT)
			return false;
		type = td_half(inside + TD_GENEVE_TYPE);
		at += TD_GENEVE_HEADER_BYTES + (td_byte(inside) & TD_GENEVE_OPTIONS_MASK) * 4;
		break;
	case TD_GTP_U:
		if (inside + (TD_GTP_U_HEADER_BYTES + 1) > end ||
		    td_byte(inside) != (TD_GTP_U_VERSION_1 | TD_GTP_U_PROTOCOL_TYPE) ||
		    td_byte(inside + 1) != TD_GTP_U_USER_PACKET)
			return false;
		type = td_byte(inside + TD_GTP_U_HEADER_BYTES) >> 4 == 4 ? TD_ETHERTYPE_IPV4
									 : TD_ETHERTYPE_IPV6;
		at += TD_GTP_U_HEADER_BYTES;
		break;
	case TD_GRE:
		if (inside + TD_GRE_HEADER_BYTES > end || td_half(inside))
			return false;
		type = td_half(inside + TD_GRE_TYPE);
		at += TD_GRE_HEADER_BYTES;
		break;
	case TD_IPV4:
		type = TD_ETHERTYPE_IPV4;
		break;
	case TD_IPV6:
		type = TD_ETHERTYPE_IPV6;
		break;
	}
	inside = data + at;
	if (type == TD_ETHERTYPE_ETHERNET) {
		if (inside + TD_ETHERNET_HEADER_BYTES > end)
			return false;
		type = td_half(inside + TD_ETHERNET_TYPE);
		at += TD_ETHERNET_HEADER_BYTES;
		inside += TD_ETHERNET_HEADER_BYTES;
	}
	return td_read_plain_ip(to, inside, end, type, at);
}

/*
 * From here on a function for each step and hook. The functions are global, so the verifier takes
 * nothing for granted about the tuple and looks at each once; it wants their arguments tested for
 * NULL.
 */
#ifdef TD_USER
#define TD_GLOBAL static
#else
#define TD_GLOBAL __noinline
#endif

#define TD_WALK(HOOK, name, type)                                                                 \
	TD_GLOBAL int td_link_##name(type *ctx, struct td_tuple *t, __u32 tags)                   \
	{                                                                                         \
		return td_read_link(HOOK, ctx, t, tags);                                          \
	}                                                                                         \
	TD_GLOBAL int td_ipv4_##name(type *ctx, struct td_tuple *t)                               \
	{                                                                                         \
		return td_read_ipv4(HOOK, ctx, t);                                                \
	}                                                                                         \
	TD_GLOBAL int td_extension_##name(type *ctx, struct td_tuple *t)                          \
	{                                                                                         \
		return td_read_extension(HOOK, ctx, t);                                           \
	}                                                                                         \
	TD_GLOBAL int td_ipv6_##name(type *ctx, struct td_tuple *t)                               \
	{                                                                                         \
		return TD_READ_IPV6(HOOK, ctx, t, td_extension_##name);                           \
	}                                                                                         \
	TD_GLOBAL int td_gtp_u_##name(type *ctx, struct td_tuple *t)                              \
	{                                                                                         \
		return td_read_gtp_u(HOOK, ctx, t);                                               \
	}                                                                                         \
	TD_GLOBAL int td_mpls_##name(type *ctx, struct td_tuple *t)                               \
	{                                                                                         \
		return td_read_mpls(HOOK, ctx, t);                                                \
	}                                                                                         \
	TD_GLOBAL int td_gre_##name(type *ctx, struct td_tuple *t)                                \
	{                                                                                         \
		return td_read_gre(HOOK, ctx, t);                                                 \
	}                                                                                         \
	TD_GLOBAL int td_tunnel_##name(type *ctx, struct td_tuple *t)                             \
	{                                                                                         \
		return td_read_tunnel(HOOK, ctx, t);                                              \
	}                                                                                         \
	/* The outermost packet, if it is not one of those that td_outer() reads itself. */       \
	TD_GLOBAL int td_begin_##name(type *ctx, struct td_tuple *t, __u32 has_link, __u32 tags)  \
	{                                                                                         \
		if (!t)                                                                           \
			return 0;                                                                 \
		t->offset = 0;                                                                    \
		if (has_link)                                                                     \
			td_link_##name(ctx, t, tags);                                             \
		else                                                                              \
			t->next = td_raw(HOOK, ctx);                                              \
		if (t->next == TD_IPV4)                                                           \
			return td_ipv4_##name(ctx, t);                                            \
		if (t->next == TD_IPV6)                                                           \
			return td_ipv6_##name(ctx, t);                                            \
		return 0;                                                                         \
	}                                                                                         \
	/* Through tunnels to the innermost packet. */                                            \
	TD_GLOBAL int td_walk_##name(type *ctx, struct td_tuple *t)                               \
	{                                                                                         \
		if (!t)                                                                           \
			return 0;                                                                 \
                                                                                                  \
		__u8 is_first_fragment = t->flags & TD_FIRST_FRAGMENT && !(t->flags & TD_QUOTED); \
                                                                                                  \
		if (is_first_fragment)                                                            \
			td_enter_fragment(t);                                                     \
		for (int i = 0; i < TD_TUNNELS && t->next >= TD_IPV4; i++) {                      \
			if (t->next == TD_GRE)                                                    \
				td_gre_##name(ctx, t);                                            \
			else if (t->next == TD_GTP_U)                                             \
				td_gtp_u_##name(ctx, t);                                          \
			else if (t->next == TD_MPLS)                                              \
				td_mpls_##name(ctx, t);                                           \
			else if (t->next > TD_ETHERNET)                                           \
				td_tunnel_##name(ctx, t);                                         \
			if (t->next == TD_ETHERNET)                                               \
				td_link_##name(ctx, t, TD_TAGS);                                  \
			if (t->next == TD_IPV4)                                                   \
				td_ipv4_##name(ctx, t);                                           \
			else if (t->next == TD_IPV6)                                              \
				td_ipv6_##name(ctx, t);                                           \
		}                                                                                 \
		if (t->next >= TD_IPV4)                                                           \
			t->next = TD_NOTHING;                                                     \
		if (is_first_fragment)                                                            \
			td_leave_fragment(t);                                                     \
		return 0;                                                                         \
	}                                                                                         \
	/* The same from one tuple to another, if that is quick. */                               \
	TD_GLOBAL int td_inside_##name(type *ctx, struct td_tuple *from, struct td_tuple *to)     \
	{                                                                                         \
		if (!from || !to)                                                                 \
			return 0;                                                                 \
		if (!(from->flags & TD_FIRST_FRAGMENT) &&                                         \
		    td_read_plain_inside(HOOK, ctx, from, to) && to->next < TD_IPV4)              \
			return 0;                                                                 \
		__builtin_memcpy(to, from, sizeof(*to));                                          \
		return td_walk_##name(ctx, to);                                                   \
	}

static __always_inline __u8 td_raw(enum context context, void *ctx)
{
	__u8 buffer[8] __attribute__((aligned(8)));
	const void *first = td_view(context, ctx, 0, 1, buffer);

	return first ? td_of_version(td_byte(first)) : TD_NOTHING;
}

#ifdef TD_USER
TD_WALK(CONTEXT_USER, user, struct td_frame)
#define TD_CALL(step, context, p, ...) td_##step##_user((p)->ctx, ##__VA_ARGS__)
#else
TD_WALK(CONTEXT_XDP, xdp, struct xdp_md)
TD_WALK(CONTEXT_SKB, skb, struct __sk_buff)
TD_WALK(CONTEXT_NETFILTER, netfilter, struct bpf_nf_ctx)
#define TD_CALL(step, context, p, ...)                                       \
	({                                                                   \
		__typeof__(td_##step##_xdp((p)->ctx, ##__VA_ARGS__)) _r = 0; \
		switch (context) {                                           \
		case CONTEXT_XDP:                                            \
			_r = td_##step##_xdp((p)->ctx, ##__VA_ARGS__);       \
			break;                                               \
		case CONTEXT_SKB:                                            \
			_r = td_##step##_skb((p)->ctx, ##__VA_ARGS__);       \
			break;                                               \
		case CONTEXT_NETFILTER:                                      \
			_r = td_##step##_netfilter((p)->ctx, ##__VA_ARGS__); \
			break;                                               \
		}                                                            \
		_r;                                                          \
	})
#endif

/* The outermost IP packet. `t` need not be initialized. */
static __always_inline void td_outer(enum context context, struct packet *p, struct td_tuple *t)
{
	const void *end, *data = td_linear(context, p->ctx, &end);

	__builtin_memset(t, 0, sizeof(*t));
	if (data && td_read_plain(t, data, end, td_has_link(context, p)))
		return;
	TD_CALL(begin, context, p, t, td_has_link(context, p), p->tag ? TD_TAGS - 1 : TD_TAGS);
}

/* Is `outer`, as td_outer() left it, not the innermost packet too? */
static __always_inline bool td_has_inner(const struct td_tuple *outer)
{
	return outer->next >= TD_IPV4 || outer->flags & TD_LATER_FRAGMENT;
}

/* The innermost packet, where td_has_inner(). */
static __always_inline void td_innermost(enum context context, struct packet *p,
					 struct td_tuple *outer, struct td_tuple *t)
{
	if (outer->next >= TD_IPV4) {
		TD_CALL(inside, context, p, outer, t);
		return;
	}
	__builtin_memcpy(t, outer, sizeof(*t));
	td_recall_inner(t);
}

/*
 * Both, as far as somebody has asked for them: for programs in which several may. Set `have` to 0
 * for each packet. Most packets have one tuple, which is then read once and copied nowhere.
 */
struct td_headers {
	struct td_tuple outer;
	struct td_tuple innermost;
	__u32 have; /* enum td_have */
};

enum td_have { TD_HAVE_OUTER = 1, TD_HAVE_INNERMOST = 2, TD_ARE_TWO = 4 };

static __always_inline struct td_tuple *td_get_outer(enum context context, struct packet *p,
						     struct td_headers *h)
{
	if (!(h->have & TD_HAVE_OUTER)) {
		td_outer(context, p, &h->outer);
		h->have |= TD_HAVE_OUTER;
	}
	return &h->outer;
}

static __always_inline struct td_tuple *td_get_innermost(enum context context, struct packet *p,
							 struct td_headers *h)
{
	struct td_tuple *outer = td_get_outer(context, p, h);

	if (!(h->have & TD_HAVE_INNERMOST)) {
		h->have |= TD_HAVE_INNERMOST;
		if (td_has_inner(outer)) {
			td_innermost(context, p, outer, &h->innermost);
			h->have |= TD_ARE_TWO;
		}
	}
	return h->have & TD_ARE_TWO ? &h->innermost : outer;
}

#endif
