/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Steps of the header walk that lead into tunnels: see headers.h. */
#ifndef TAPDECK_TUNNELS_H
#define TAPDECK_TUNNELS_H

#include "fields.h"
#include "tuple.h"

/* 3GPP TS 29.281, section 5. */
static __always_inline int td_read_gtp_u(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[TD_GTP_U_LONG_HEADER_BYTES] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	/* Behind any header stands an IP packet, so there are 12 bytes. */
	header = td_view(context, ctx, at, TD_GTP_U_LONG_HEADER_BYTES, buffer);
	/* Version 1, not GTP', a user's packet. */
	if (!header ||
	    (td_byte(header) & (TD_GTP_U_VERSION_MASK | TD_GTP_U_PROTOCOL_TYPE)) !=
		    (TD_GTP_U_VERSION_1 | TD_GTP_U_PROTOCOL_TYPE) ||
	    td_byte(header + 1) != TD_GTP_U_USER_PACKET)
		return 0;

	__u8 extension = td_byte(header) & TD_GTP_U_HAS_EXTENSION
				 ? td_byte(header + TD_GTP_U_NEXT_EXTENSION)
				 : 0;

	at += td_byte(header) & TD_GTP_U_ANY_OPTION ? TD_GTP_U_LONG_HEADER_BYTES
						    : TD_GTP_U_HEADER_BYTES;
	for (int i = 0; i < TD_EXTENSIONS && extension; i++) {
		/* In units of four bytes, the last of which is the type of the next. */
		header = td_view(context, ctx, at, 1, buffer);
		if (!header || !td_byte(header))
			return 0;
		at += td_byte(header) * 4;
		header = td_view(context, ctx, at - 1, 1, buffer);
		if (!header)
			return 0;
		extension = td_byte(header);
	}
	if (extension)
		return 0;
	header = td_view(context, ctx, at, 1, buffer);
	if (!header)
		return 0;
	t->next = td_of_version(td_byte(header));
	t->offset = at;
	return 0;
}

/* RFC 3032. What the last label's packet is, only its ends know; its first bits are a good guess.
 */
static __always_inline int td_read_mpls(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[4] __attribute__((aligned(8)));
	const void *entry;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	for (int i = 0; i < TD_LABELS; i++) {
		entry = td_view(context, ctx, at, 4, buffer);
		if (!entry)
			return 0;
		at += 4;
		if (td_byte(entry + 2) & 1)
			goto bottom;
	}
	return 0;
bottom:
	entry = td_view(context, ctx, at, 4, buffer);
	if (!entry)
		return 0;
	t->next = td_of_version(td_byte(entry));
	if (!t->next) {
		t->next = TD_ETHERNET;
		/* The control word of an Ethernet pseudowire, RFC 4448. */
		if (!td_half(entry))
			at += 4;
	}
	t->offset = at;
	return 0;
}

static __always_inline __u8 td_of_ppp(__u16 protocol)
{
	switch (protocol) {
	case TD_PPP_IPV4:
		return TD_IPV4;
	case TD_PPP_IPV6:
		return TD_IPV6;
	case TD_PPP_MPLS:
	case TD_PPP_MPLS_MULTICAST:
		return TD_MPLS;
	default:
		return TD_NOTHING;
	}
}

/* RFC 2784 and 2890, and PPTP's (RFC 2637). */
static __always_inline int td_read_gre(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[TD_ERSPAN_TYPE_3_HEADER_BYTES] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	header = td_view(context, ctx, at, TD_GRE_HEADER_BYTES, buffer);
	if (!header)
		return 0;

	__u16 flags = td_half(header);
	__u16 kind = td_half(header + TD_GRE_TYPE);

	/* Source routes went out of use with RFC 1701. */
	if ((flags & TD_GRE_VERSION_MASK) > 1 || flags & TD_GRE_HAS_ROUTING)
		return 0;
	at += TD_GRE_HEADER_BYTES;
	/* Checksum, key, sequence number, and in version 1 an acknowledgement. */
	at += flags & TD_GRE_HAS_CHECKSUM ? TD_GRE_OPTION_BYTES : 0;
	at += flags & TD_GRE_HAS_KEY ? TD_GRE_OPTION_BYTES : 0;
	at += flags & TD_GRE_HAS_SEQUENCE ? TD_GRE_OPTION_BYTES : 0;
	at += (flags & (TD_GRE_HAS_ACKNOWLEDGMENT | TD_GRE_VERSION_MASK)) ==
			      (TD_GRE_HAS_ACKNOWLEDGMENT | 1)
		      ? TD_GRE_OPTION_BYTES
		      : 0;
	switch (kind) {
	case TD_ETHERTYPE_PPP: /* its ends may have agreed to leave bytes out (RFC 1661, section 6)
				*/
		header = td_view(context, ctx, at, 4, buffer);
		if (!header)
			return 0;

		__u16 protocol = td_half(header);

		if (protocol == TD_PPP_ADDRESS_AND_CONTROL) {
			protocol = td_half(header + 2);
			at += 2;
		}
		if (protocol >> 8 == TD_PPP_IPV4 || protocol >> 8 == TD_PPP_IPV6) {
			t->next = protocol >> 8 == TD_PPP_IPV4 ? TD_IPV4 : TD_IPV6;
			t->offset = at + 1;
		} else {
			t->next = td_of_ppp(protocol);
			t->offset = at + 2;
		}
		return 0;
	case TD_ETHERTYPE_ERSPAN: /* type I has no header of its own, and no sequence number either
				   */
		t->next = TD_ETHERNET;
		t->offset = at + (flags & TD_GRE_HAS_SEQUENCE ? TD_ERSPAN_TYPE_2_HEADER_BYTES : 0);
		return 0;
	case TD_ETHERTYPE_ERSPAN_3:
		header = td_view(context, ctx, at, TD_ERSPAN_TYPE_3_HEADER_BYTES, buffer);
		if (!header)
			return 0;
		t->next = TD_ETHERNET;
		t->offset = at + TD_ERSPAN_TYPE_3_HEADER_BYTES +
			    (td_byte(header + TD_ERSPAN_TYPE_3_FLAGS) & TD_ERSPAN_HAS_SUBHEADER
				     ? TD_ERSPAN_SUBHEADER_BYTES
				     : 0);
		return 0;
	}
	t->next = td_of_ethertype(kind);
	t->offset = at;
	return 0;
}

/* The tunnels whose headers are short work. */
static __always_inline int td_read_tunnel(enum context context, void *ctx, struct td_tuple *t)
{
	__u8 buffer[8] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 0;

	__u32 at = t->offset;
	__u8 kind = t->next;

	t->next = TD_NOTHING;
	header = td_view(context, ctx, at, 8, buffer);
	if (!header)
		return 0;
	t->offset = at + 8;
	switch (kind) {
	case TD_VXLAN: /* RFC 7348 */
		if (td_byte(header) & TD_VXLAN_HAS_NETWORK)
			t->next = TD_ETHERNET;
		break;
	case TD_GENEVE: /* RFC 8926, version 0 */
		if (td_byte(header) >> TD_GENEVE_VERSION_SHIFT == 0) {
			t->next = td_of_ethertype(td_half(header + TD_GENEVE_TYPE));
			t->offset += (td_byte(header) & TD_GENEVE_OPTIONS_MASK) * 4;
		}
		break;
	case TD_PPPOE: /* RFC 2516; its code is 0 in a session */
		if (!td_byte(header + 1))
			t->next = td_of_ppp(td_half(header + 6));
		break;
	}
	return 0;
}

#endif
