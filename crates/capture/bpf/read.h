/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Bytes of a packet, wherever they lie.
 *
 * td_view() gives `len` bytes of the frame from `offset` on: in place where the hook shows the
 * packet's linear part and they lie in it, else copied into the caller's buffer by a helper. What
 * it gives may lie on the stack, where the verifier wants aligned loads: so read fields at their
 * natural alignment, counted from `offset`.
 *
 * The twin for user space (TD_USER) reads a plain buffer, of which a first part is shown as linear.
 */
#ifndef TAPDECK_READ_H
#define TAPDECK_READ_H

#ifdef TD_USER
#define TD_UNROLL
#else
#define TD_UNROLL _Pragma("unroll")
#endif

/* Nobody looks for a header that begins further behind. The verifier wants a bound. */
#define TD_FARTHEST 0x7fffu

#ifdef TD_USER

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <linux/types.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

enum context { CONTEXT_USER };

struct td_frame {
	const __u8 *bytes;
	__u32 linear; /* as many of them are shown in place */
	__u32 len;
};

struct packet {
	struct td_frame *ctx;
	__u32 tag;
	__u32 queue;
	__u32 link_header;
};

static __always_inline const void *td_view(enum context context, const struct td_frame *frame,
					   __u32 offset, __u32 len, void *buffer)
{
	if (offset > TD_FARTHEST || offset + len > frame->len)
		return NULL;
	if (offset + len <= frame->linear)
		return frame->bytes + offset;
	memcpy(buffer, frame->bytes + offset, len);
	return buffer;
}

static __always_inline const void *td_linear(enum context context, const struct td_frame *frame,
					     const void **end)
{
	*end = frame->bytes + frame->linear;
	return frame->bytes;
}

static __always_inline bool td_has_link(enum context context, const struct packet *p)
{
	return p->link_header;
}

/* Destination and source address of the link layer, 12 bytes. */
static __always_inline const void *td_view_macs(enum context context, const struct packet *p,
						void *buffer)
{
	return p->link_header ? td_view(context, p->ctx, 0, 12, buffer) : NULL;
}

static __always_inline __u32 td_queue(enum context context, const struct packet *p)
{
	return p->queue;
}

#else

#include "packet.h"

#ifndef NULL
#define NULL ((void *)0)
#endif

/* In a frame of its own: the compiler would put something else where the dynptr was, and the
 * verifier minds. */
static __noinline long td_copy_netfilter(struct bpf_nf_ctx *ctx, __u32 at, void *buffer, __u32 len)
{
	struct packet p = { .ctx = ctx };

	return copy(CONTEXT_NETFILTER, &p, at, buffer, len);
}

static __always_inline const void *td_view(enum context context, void *ctx, __u32 offset, __u32 len,
					   void *buffer)
{
	__u64 at = offset;

	if (at > TD_FARTHEST)
		return NULL;
	/* The compiler knows now that `at` is small and would tell the verifier nothing. */
	asm volatile("" : "+r"(at));
	switch (context) {
	case CONTEXT_XDP: {
		struct xdp_md *xdp = ctx;
		const __u8 *bytes = (const __u8 *)(long)xdp->data + at;

		if (bytes + len <= (const __u8 *)(long)xdp->data_end)
			return bytes;
		return bpf_xdp_load_bytes(xdp, at, buffer, len) ? NULL : buffer;
	}
	case CONTEXT_SKB: {
		struct __sk_buff *skb = ctx;
		const __u8 *bytes = (const __u8 *)(long)skb->data + at;

		if (bytes + len <= (const __u8 *)(long)skb->data_end)
			return bytes;
		return bpf_skb_load_bytes(skb, at, buffer, len) ? NULL : buffer;
	}
	case CONTEXT_NETFILTER:
		break;
	}
	return td_copy_netfilter(ctx, at, buffer, len) ? NULL : buffer;
}

/* Does the frame, as td_view() shows it, begin with an Ethernet header? */
static __always_inline bool td_has_link(enum context context, const struct packet *p)
{
	switch (context) {
	case CONTEXT_XDP:
	case CONTEXT_SKB:
		return params.link_header;
	case CONTEXT_NETFILTER:
		return false;
	}
	return false;
}

/* Destination and source address of the link layer, 12 bytes. */
static __always_inline const void *td_view_macs(enum context context, const struct packet *p,
						void *buffer)
{
	switch (context) {
	case CONTEXT_XDP:
	case CONTEXT_SKB:
		return params.link_header ? td_view(context, p->ctx, 0, 12, buffer) : NULL;
	case CONTEXT_NETFILTER:
		return p->link_len < 12 || bpf_probe_read_kernel(buffer, 12, p->link) ? NULL
										      : buffer;
	}
	return NULL;
}

/* The receive queue; where a hook sees packets that are sent, the queue they will be sent by. */
static __always_inline __u32 td_queue(enum context context, const struct packet *p)
{
	__u32 mapping = 0;

	switch (context) {
	case CONTEXT_XDP:
		return ((struct xdp_md *)p->ctx)->rx_queue_index;
	case CONTEXT_SKB:
		mapping = ((struct __sk_buff *)p->ctx)->queue_mapping;
		break;
	case CONTEXT_NETFILTER:
		mapping = ((struct bpf_nf_ctx *)p->ctx)->skb->queue_mapping;
		break;
	}
	/* The kernel stores a receive queue as its number plus one. */
	return p->flags == 2 || !mapping ? mapping : mapping - 1;
}

#endif
#endif
