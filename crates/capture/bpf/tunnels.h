/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Steps of the header walk that lead into tunnels: see headers.h. */
#ifndef TAPDECK_TUNNELS_H
#define TAPDECK_TUNNELS_H

#include "tuple.h"

/* 3GPP TS 29.281, section 5. */
static __always_inline int td_read_gtp_u(enum hook hook, void *ctx, struct td_tuple *t)
{
	__u8 buffer[12] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	/* Behind any header stands an IP packet, so there are 12 bytes. */
	header = td_view(hook, ctx, at, 12, buffer);
	/* Version 1, not GTP', a user's packet. */
	if (!header || (td_byte(header) & 0xf0) != 0x30 || td_byte(header + 1) != 255)
		return 0;

	__u8 extension = td_byte(header) & 4 ? td_byte(header + 11) : 0;

	at += td_byte(header) & 7 ? 12 : 8;
	for (int i = 0; i < TD_EXTENSIONS && extension; i++) {
		/* In units of four bytes, the last of which is the type of the next. */
		header = td_view(hook, ctx, at, 1, buffer);
		if (!header || !td_byte(header))
			return 0;
		at += td_byte(header) * 4;
		header = td_view(hook, ctx, at - 1, 1, buffer);
		if (!header)
			return 0;
		extension = td_byte(header);
	}
	if (extension)
		return 0;
	header = td_view(hook, ctx, at, 1, buffer);
	if (!header)
		return 0;
	t->next = td_of_version(td_byte(header));
	t->offset = at;
	return 0;
}

/* RFC 3032. What the last label's packet is, only its ends know; its first bits are a good guess.
 */
static __always_inline int td_read_mpls(enum hook hook, void *ctx, struct td_tuple *t)
{
	__u8 buffer[4] __attribute__((aligned(8)));
	const void *entry;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	for (int i = 0; i < TD_LABELS; i++) {
		entry = td_view(hook, ctx, at, 4, buffer);
		if (!entry)
			return 0;
		at += 4;
		if (td_byte(entry + 2) & 1)
			goto bottom;
	}
	return 0;
bottom:
	entry = td_view(hook, ctx, at, 4, buffer);
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
static __always_inline int td_read_gre(enum hook hook, void *ctx, struct td_tuple *t)
{
	__u8 buffer[12] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 0;

	__u32 at = t->offset;

	t->next = TD_NOTHING;
	header = td_view(hook, ctx, at, 4, buffer);
	if (!header)
		return 0;

	__u16 flags = td_half(header);
	__u16 kind = td_half(header + 2);

	/* Source routes went out of use with RFC 1701. */
	if ((flags & 7) > 1 || flags & 0x4000)
		return 0;
	at += 4;
	/* Checksum, key, sequence number, and in version 1 an acknowledgement. */
	at += flags & 0x8000 ? 4 : 0;
	at += flags & 0x2000 ? 4 : 0;
	at += flags & 0x1000 ? 4 : 0;
	at += (flags & 0x0087) == 0x0081 ? 4 : 0;
	switch (kind) {
	case TD_ETHERTYPE_PPP: /* its ends may have agreed to leave bytes out (RFC 1661, section 6)
				*/
		header = td_view(hook, ctx, at, 4, buffer);
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
		t->offset = at + (flags & 0x1000 ? 8 : 0);
		return 0;
	case TD_ETHERTYPE_ERSPAN_3:
		header = td_view(hook, ctx, at, 12, buffer);
		if (!header)
			return 0;
		t->next = TD_ETHERNET;
		t->offset = at + 12 + (td_byte(header + 11) & 1 ? 8 : 0);
		return 0;
	}
	t->next = td_of_ethertype(kind);
	t->offset = at;
	return 0;
}

/* The tunnels whose headers are short work. */
static __always_inline int td_read_tunnel(enum hook hook, void *ctx, struct td_tuple *t)
{
	__u8 buffer[8] __attribute__((aligned(8)));
	const void *header;

	if (!t)
		return 0;

	__u32 at = t->offset;
	__u8 kind = t->next;

	t->next = TD_NOTHING;
	header = td_view(hook, ctx, at, 8, buffer);
	if (!header)
		return 0;
	t->offset = at + 8;
	switch (kind) {
	case TD_VXLAN: /* RFC 7348 */
		if (td_byte(header) & 8)
			t->next = TD_ETHERNET;
		break;
	case TD_GENEVE: /* RFC 8926, version 0 */
		if (td_byte(header) >> 6 == 0) {
			t->next = td_of_ethertype(td_half(header + 2));
			t->offset += (td_byte(header) & 0x3f) * 4;
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
