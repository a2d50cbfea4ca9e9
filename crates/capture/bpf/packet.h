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

/* epb_flags, draft-ietf-opsawg-pcapng, section 4.3.1: 01 inbound, 10 outbound. */
#define INBOUND 1
#define OUTBOUND 2

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
	__u64 now;         /* CLOCK_MONOTONIC, 0: not read yet */
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

/* The linear part of a frame, where the hook shows it; else NULL. */
static __always_inline const void *td_linear(enum context context, void *ctx, const void **end)
{
	switch (context) {
	case CONTEXT_XDP:
		*end = (const void *)(long)((struct xdp_md *)ctx)->data_end;
		return (const void *)(long)((struct xdp_md *)ctx)->data;
	case CONTEXT_SKB:
		*end = (const void *)(long)((struct __sk_buff *)ctx)->data_end;
		return (const void *)(long)((struct __sk_buff *)ctx)->data;
	case CONTEXT_NETFILTER:
		break;
	}
	*end = NULL;
	return NULL;
}

/* Bytes of a frame, fragments included. */
static __always_inline __u32 xdp_len(struct xdp_md *ctx)
{
	__u64 end = ctx->data_end, begin = ctx->data;

	/* The difference of two numbers: the verifier minds that of pointers. */
	asm volatile("" : "+r"(end), "+r"(begin));
	if (bpf_ksym_exists(bpf_cast_to_kern_ctx)) {
		struct xdp_buff *frame = bpf_cast_to_kern_ctx(ctx);

		if (!(frame->flags & XDP_HAS_FRAGS))
			return end - begin;
	}
	return bpf_xdp_get_buff_len(ctx);
}

#define MOVE_8(at) *(__u64 *)(to + (at)) = *(const __u64 *)(from + (at))

static __always_inline void move_16(__u8 *to, const __u8 *from)
{
	MOVE_8(0);
	MOVE_8(8);
}

static __always_inline void move_32(__u8 *to, const __u8 *from)
{
	move_16(to, from);
	move_16(to + 16, from + 16);
}

static __always_inline void move_64(__u8 *to, const __u8 *from)
{
	move_32(to, from);
	move_32(to + 32, from + 32);
}

#define CHUNK 64
#define MOST_CHUNKS 24
#define MOST_DIRECT (CHUNK * MOST_CHUNKS)

/* Moves `half` to twice as many bytes as two halves, which overlap. The mask tells the verifier
 * what the compiler knows. */
#define MOVE_HALVES(half)                        \
	do {                                     \
		__u64 second = len - half;       \
                                                 \
		asm volatile("" : "+r"(second)); \
		second &= 2 * half - 1;          \
		if (from + half > end)           \
			return false;            \
		move_##half(to, from);           \
		from += second;                  \
		if (from + half > end)           \
			return false;            \
		move_##half(to + second, from);  \
		return true;                     \
	} while (0)

/* Copies 16 to 128 bytes of the linear part by loads and stores. False: they are not all there. */
static __always_inline bool copy_short(__u8 *to, const __u8 *from, const __u8 *end, __u32 len)
{
	if (len <= 32)
		MOVE_HALVES(16);
	if (len <= 64)
		MOVE_HALVES(32);
	MOVE_HALVES(64);
}

/* Copies bytes of the linear part by loads and stores. False: they are too few, too many, or not
 * all there. */
static __always_inline bool copy_directly(__u8 *to, const __u8 *from, const __u8 *end, __u32 len)
{
	if (len < 16 || len > MOST_DIRECT || len > params.most_direct)
		return false;
	if (len <= 128)
		return copy_short(to, from, end, len);

	const __u8 *chunk = from;
	__u8 *there = to;
	__u64 last = len - CHUNK;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MOST_CHUNKS; i++) {
		if ((i + 1) * CHUNK > len)
			break;
		if (chunk + CHUNK > end)
			return false;
		move_64(there, chunk);
		chunk += CHUNK;
		there += CHUNK;
	}
	asm volatile("" : "+r"(last));
	last &= 2047;
	from += last;
	if (from + CHUNK > end)
		return false;
	move_64(to + last, from);
	return true;
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

/* Copies a part of the frame, from a place that the compiler knows. */
static __always_inline long copy_part(enum context context, struct packet *p, __u32 from, __u8 *to,
				      __u32 len)
{
	const void *end, *linear = td_linear(context, p->ctx, &end);
	/* Before the looks at the length: where they contradict each other, the verifier of Linux
	 * 6.1 goes on with bounds that make no sense. */
	__u32 bounded = BOUNDED(len);

	if (linear && copy_directly(to, linear + from, end, len))
		return 0;
	return copy(context, p, from, to, bounded);
}

/* Copies the first cap bytes of the frame to `to`, with what was taken off it put back. */
static __always_inline long copy_frame(enum context context, struct packet *p, __u8 *to, __u32 cap)
{
	if (context == CONTEXT_NETFILTER && p->link_len) {
		__u32 link_len = ((p->link_len - 1) & 31) + 1;

		if (cap <= link_len)
			return bpf_probe_read_kernel(to, ((cap - 1) & 31) + 1, p->link);
		if (bpf_probe_read_kernel(to, link_len, p->link))
			return -1;
		return copy_part(context, p, 0, to + link_len, cap - link_len);
	}
	if (!p->tag || cap <= TAG_OFFSET)
		return copy_part(context, p, 0, to, cap);
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
	return copy_part(context, p, TAG_OFFSET, to + TAG_OFFSET + TAG_LEN,
			 cap - TAG_OFFSET - TAG_LEN);
}

static __always_inline __u32 frame_len(const struct packet *p)
{
	return p->len + (p->tag ? TAG_LEN : 0) + p->link_len;
}

#endif
