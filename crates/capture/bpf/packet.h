/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A packet as a hook sees it, and how its frame is copied out.
 *
 * The including file defines `params` (struct td_params) before it includes this.
 */
#ifndef TAPDECK_PACKET_H
#define TAPDECK_PACKET_H

#include "contexts.h"
#include "kernel.h"
#include "params.h"

/* What a hook knows of a packet before it is copied. */
struct packet {
	void *ctx;
	__u32 len; /* bytes of the frame, without a stripped tag */
	__u32 ring;
	__u32 flags;       /* epb_flags; 0: no option is spent on it */
	__u32 link_len;    /* netfilter: bytes of link layer header before the data */
	const void *link;  /* netfilter: where they are */
	__u64 hardware_ns; /* from the NIC, 0: none */
	__u32 tag;         /* a stripped VLAN tag, protocol and TCI in network order, 0: none */
};

#define TAG_OFFSET 12
#define TAG_LEN 4
#define TAG_END (TAG_OFFSET + TAG_LEN)

/* A tag as it stands in a frame. */
static __always_inline __u32 vlan_tag(__u16 proto_be, __u16 tci)
{
	return (__u32)proto_be | (__u32)__builtin_bswap16(tci) << 16;
}

static __always_inline long copy_skb_of(struct bpf_nf_ctx *nf, __u32 from, void *to, __u32 len)
{
	struct bpf_dynptr view;

	if (bpf_dynptr_from_skb((struct __sk_buff *)nf->skb, 0, &view))
		return -1;
	return bpf_dynptr_read(to, len, &view, from, 0);
}

static __always_inline long copy(enum context context, struct packet *p, __u32 from, void *to,
				 __u32 len)
{
	switch (context) {
	case CONTEXT_XDP:
		return bpf_xdp_load_bytes(p->ctx, from, to, len);
	case CONTEXT_SKB:
		return bpf_skb_load_bytes(p->ctx, from, to, len);
	case CONTEXT_NETFILTER:
		return copy_skb_of(p->ctx, from, to, len);
	}
	return -1;
}

/* The verifier wants to see that a length is at least 1 and at most len_mask + 1;
 * the barrier keeps the compiler from folding the proof away. */
#define BOUNDED(len)                         \
	({                                   \
		__u32 _l = (len) - 1;        \
		asm volatile("" : "+r"(_l)); \
		(_l & params.len_mask) + 1;  \
	})

/* Copies the first cap bytes of the frame to `to`, with what was taken off it put back. */
static __always_inline long copy_frame(enum context context, struct packet *p, __u8 *to, __u32 cap)
{
	if (context == CONTEXT_NETFILTER && p->link_len) {
		__u32 link_len = ((p->link_len - 1) & 31) + 1;

		if (cap <= link_len)
			return bpf_probe_read_kernel(to, ((cap - 1) & 31) + 1, p->link);
		if (bpf_probe_read_kernel(to, link_len, p->link))
			return -1;
		return copy(context, p, 0, to + link_len, BOUNDED(cap - link_len));
	}
	if (!p->tag || cap <= TAG_OFFSET)
		return copy(context, p, 0, to, BOUNDED(cap));
	if (copy(context, p, 0, to, TAG_OFFSET))
		return -1;
	if (cap < TAG_OFFSET + TAG_LEN) {
		/* A part of the tag: the rest of the word stays padding. */
		*(__u32 *)(to + TAG_OFFSET) =
			p->tag & __builtin_bswap32(~0u << 8 * (TAG_OFFSET + TAG_LEN - cap));
		return 0;
	}
	*(__u32 *)(to + TAG_OFFSET) = p->tag;
	if (cap == TAG_OFFSET + TAG_LEN)
		return 0;
	return copy(context, p, TAG_OFFSET, to + TAG_OFFSET + TAG_LEN,
		    BOUNDED(cap - TAG_OFFSET - TAG_LEN));
}

static __always_inline __u32 frame_len(const struct packet *p)
{
	return p->len + (p->tag ? TAG_LEN : 0) + p->link_len;
}

#endif
