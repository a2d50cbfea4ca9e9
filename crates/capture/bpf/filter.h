/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Filters: pcap-filter(7) expressions, compiled by libpcap to classic BPF and translated to eBPF
 * by the loader (src/filter/), which puts them in place of the functions td_filter_* here.
 *
 * A filter sees the frame as it is recorded, with the VLAN tag in it that was taken off it. For
 * such frames there is a translation of its own, for all behind the tag lies in another place. What
 * a filter reads where the frame lies before it, it reads itself; anything else it asks td_load_*
 * for.
 *
 * The including file defines `params` before it includes this, and TD_SOCKET if its programs are
 * those of packet sockets, which read the frame by instructions of their own.
 */
#ifndef TAPDECK_FILTER_H
#define TAPDECK_FILTER_H

#include "numbers.h"
#include "packet.h"

/* The functions that stand in for filters are known by these numbers (src/filter/splice.rs): the
 * kind of context is added to the first, and the last for those that judge frames whose tag was
 * taken off. */
#define TD_FILTER_MARK 0x7adf1170
#define TD_FILTER_SOCKET 3
#define TD_FILTER_STRIPPED 8

#ifdef TD_SOCKET
#define TD_FILTER_SKB TD_FILTER_SOCKET
#else
#define TD_FILTER_SKB CONTEXT_SKB
#endif

/* What a filter is told of a packet beside its frame: its length as it is recorded, its direction
 * (epb_flags), and how long the link layer header before the data is (netfilter). */
#define TD_ABOUT_FLAGS_SHIFT 32
#define TD_ABOUT_LINK_SHIFT 40

static __always_inline __u64 td_filter_about(const struct packet *p)
{
	return (__u64)frame_len(p) | (__u64)(p->flags & 3) << TD_ABOUT_FLAGS_SHIFT |
	       (__u64)(p->link_len & 63) << TD_ABOUT_LINK_SHIFT;
}

/* Loads from here on tell what the kernel knows of a packet (SKF_AD_* in linux/filter.h). */
#define TD_AD_PROTOCOL 0
#define TD_AD_PKTTYPE 4
#define TD_AD_IFINDEX 8
#define TD_AD_MARK 20
#define TD_AD_QUEUE 24
#define TD_AD_HATYPE 28
#define TD_AD_RXHASH 32
#define TD_AD_CPU 36
#define TD_AD_RANDOM 56

#define TD_PACKET_HOST 0
#define TD_PACKET_BROADCAST 1
#define TD_PACKET_MULTICAST 2
#define TD_PACKET_OUTGOING 4
#define TD_OUTBOUND 2

static __always_inline long td_copy(enum context context, void *ctx, __u64 about, __u32 from,
				    void *to, __u32 len)
{
	struct packet p = { .ctx = ctx };

	switch (context) {
	case CONTEXT_XDP:
	case CONTEXT_SKB:
		return copy(context, &p, from, to, len);
	case CONTEXT_NETFILTER:
		break;
	}

	struct sk_buff *skb = ((struct bpf_nf_ctx *)ctx)->skb;
	__u32 link_len = about >> TD_ABOUT_LINK_SHIFT & 63;

	/* The link layer header lies before the data, in the linear part with it. */
	if (from + len <= link_len + skb->len - skb->data_len)
		return bpf_probe_read_kernel(to, len, skb->data - link_len + from);
	if (from < link_len)
		return -1;
	return copy(context, &p, from - link_len, to, len);
}

/* 1 to 4 bytes at an offset of the frame as a number, or -1. */
static __always_inline __s64 td_read(enum context context, void *ctx, __u64 about, __u64 offset,
				     __u32 size)
{
	__u32 word = 0;

	if (offset > 0xffffff)
		return -1;
	/* The barrier keeps the compiler from folding the proof away. */
	size -= 1;
	asm volatile("" : "+r"(size));
	size = (size & 3) + 1;
	if (td_copy(context, ctx, about, offset, &word, size))
		return -1;
	return __builtin_bswap32(word) >> (32 - 8 * size);
}

/*
 * What a filter cannot see: size bytes at an offset of the frame or, where size is 0, what stands
 * beside it by that number. Less than 0 where there is no such thing. Where a tag is given, which
 * was taken off the frame, the offset is one of the frame with the tag in it. The frame is read in
 * one place, so that the compiler shares nothing between several that the verifier does not
 * understand.
 */
static __always_inline __s64 td_load(enum context context, void *ctx, __u64 offset, __u32 size,
				     __u64 about, __u32 tag)
{
	struct xdp_md *xdp = ctx;
	struct __sk_buff *skb = ctx;
	__u32 beside = size ? ~0u : offset;

	switch (beside) {
	case TD_AD_PROTOCOL:
		offset = params.link_header ? 12 : 0;
		size = params.link_header ? 2 : 1;
		break;
	case TD_AD_PKTTYPE:
		if ((about >> TD_ABOUT_FLAGS_SHIFT & 3) == TD_OUTBOUND)
			return TD_PACKET_OUTGOING;
		switch (context) {
		case CONTEXT_SKB:
			return skb->pkt_type;
		case CONTEXT_XDP:
		case CONTEXT_NETFILTER:
			break;
		}
		if (!params.link_header)
			return TD_PACKET_HOST;
		offset = 0;
		size = 4;
		break;
	case TD_AD_IFINDEX:
		switch (context) {
		case CONTEXT_XDP:
			return xdp->ingress_ifindex;
		case CONTEXT_SKB:
			return skb->ifindex;
		case CONTEXT_NETFILTER:
			return params.ifindex;
		}
		return 0;
	case TD_AD_MARK:
		switch (context) {
		case CONTEXT_SKB:
			return skb->mark;
		case CONTEXT_XDP:
		case CONTEXT_NETFILTER:
			return 0;
		}
		return 0;
	case TD_AD_QUEUE:
		switch (context) {
		case CONTEXT_XDP:
			return xdp->rx_queue_index;
		case CONTEXT_SKB:
			return skb->queue_mapping;
		case CONTEXT_NETFILTER:
			return 0;
		}
		return 0;
	case TD_AD_HATYPE:
		return params.link_header ? TD_ARPHRD_ETHER : TD_ARPHRD_NONE;
	case TD_AD_RXHASH:
		switch (context) {
		case CONTEXT_SKB:
			return skb->hash;
		case CONTEXT_XDP:
		case CONTEXT_NETFILTER:
			return 0;
		}
		return 0;
	case TD_AD_CPU:
		return bpf_get_smp_processor_id();
	case TD_AD_RANDOM:
		return bpf_get_prandom_u32();
	}

	/* How many of the bytes stand before the tag, in it and behind it. */
	__u32 before = size, within = 0, behind = 0, first = 0;

	if (tag && offset + size > TAG_OFFSET) {
		__u64 end = offset + size;

		first = offset > TAG_OFFSET ? offset : TAG_OFFSET;
		before = offset < TAG_OFFSET ? TAG_OFFSET - offset : 0;
		behind = offset >= TAG_END ? size : end > TAG_END ? end - TAG_END : 0;
		within = size - before - behind;
		if (!before)
			offset = within ? TAG_OFFSET : offset - TAG_LEN;
	}

	/* A load has 4 bytes at most, so there are none before the tag or none behind it. */
	__s64 value = before + behind ? td_read(context, ctx, about, offset, before + behind) : 0;

	if (value < 0)
		return value;
	if (within) {
		__u64 of_tag = __builtin_bswap32(tag) >> 8 * (TAG_END - first - within);

		of_tag &= (1ull << 8 * within) - 1;
		return before ? value << 8 * within | of_tag : of_tag << 8 * behind | value;
	}
	if (beside == TD_AD_PROTOCOL) {
		if (!params.link_header)
			return value >> 4 == 6 ? TD_ETHERTYPE_IPV6 : TD_ETHERTYPE_IPV4;
		/* IEEE 802.3 has a length there: ETH_P_802_2. */
		return value < TD_ETHERTYPE_FIRST ? 4 : value;
	}
	if (beside == TD_AD_PKTTYPE) {
		if (value == 0xffffffff)
			return TD_PACKET_BROADCAST;
		return value >> 24 & 1 ? TD_PACKET_MULTICAST : TD_PACKET_HOST;
	}
	return value;
}

#define TD_LOADER(name, context, type)                                                           \
	__noinline __s64 td_load_##name(struct type *ctx, __u64 offset, __u32 size, __u64 about, \
					__u32 tag)                                               \
	{                                                                                        \
		return td_load(context, ctx, offset, size, about, tag);                          \
	}

/* The loader takes this out and puts filters in, which use all the arguments and call td_load_*. */
#define TD_FILTER(name, loader, type, kind)                                                \
	__noinline int td_filter_##name(struct type *ctx, __u32 n, __u32 tag, __u64 about) \
	{                                                                                  \
		int mark;                                                                  \
                                                                                           \
		asm volatile("%0 = %1"                                                     \
			     : "=r"(mark)                                                  \
			     : "i"(TD_FILTER_MARK + (kind)), "r"(ctx), "r"(n), "r"(tag),   \
			       "r"(about));                                                \
		return td_load_##loader(ctx, mark, 1, about, tag) >= 0;                    \
	}

TD_LOADER(xdp, CONTEXT_XDP, xdp_md)
TD_LOADER(skb, CONTEXT_SKB, __sk_buff)
TD_LOADER(netfilter, CONTEXT_NETFILTER, bpf_nf_ctx)

TD_FILTER(xdp, xdp, xdp_md, CONTEXT_XDP)
TD_FILTER(skb, skb, __sk_buff, TD_FILTER_SKB)
TD_FILTER(netfilter, netfilter, bpf_nf_ctx, CONTEXT_NETFILTER)

/* The same for frames whose tag was taken off. */
TD_FILTER(xdp_stripped, xdp, xdp_md, CONTEXT_XDP + TD_FILTER_STRIPPED)
TD_FILTER(skb_stripped, skb, __sk_buff, TD_FILTER_SKB + TD_FILTER_STRIPPED)

/* Does filter number n take the packet? Where a hook has whole frames alone, the compiler leaves
 * out what judges others. */
static __always_inline bool td_filter_accepts(enum context context, struct packet *p, __u32 n)
{
	__u64 about = td_filter_about(p);

	switch (context) {
	case CONTEXT_XDP:
		return p->tag ? td_filter_xdp_stripped(p->ctx, n, p->tag, about)
			      : td_filter_xdp(p->ctx, n, 0, about);
	case CONTEXT_SKB:
		return p->tag ? td_filter_skb_stripped(p->ctx, n, p->tag, about)
			      : td_filter_skb(p->ctx, n, 0, about);
	case CONTEXT_NETFILTER:
		return td_filter_netfilter(p->ctx, n, 0, about);
	}
	return false;
}

#endif
