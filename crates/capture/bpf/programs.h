/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * One body, five programs: what each hook knows of a packet, handed to take(context, packet),
 * which the including file defines.
 */
#ifndef TAPDECK_PROGRAMS_H
#define TAPDECK_PROGRAMS_H

#include "packet.h"

static __always_inline __u32 ring_for(__u32 unit)
{
	return unit < params.nrings ? unit : unit % params.nrings;
}

/* In the driver one CPU at a time serves a queue; in the core any CPU may. */
static __always_inline __u32 xdp_ring(struct xdp_md *ctx)
{
	return ring_for(params.by_cpu ? bpf_get_smp_processor_id() : ctx->rx_queue_index);
}

#ifndef TAPDECK_PRODUCE_H
/* Where nothing is recorded, nobody is missed. */
static __always_inline bool is_abandoned(void)
{
	return false;
}
#endif

/* Takes a packet. Returns whether it ends here: no host is cut off by an owner that has died. */
static __always_inline bool ends_here(enum context context, struct packet *p)
{
	if (is_abandoned())
		return false;
	take(context, p);
	return params.consume;
}

/* Returns the VLAN tag of a frame that the stack handed to the far end of a veth: from the sk_buff,
 * if it came in one. bpf_xdp_metadata_rx_vlan_tag reads it there, too, but is called, which takes
 * several times as long. */
static __always_inline __u32 veth_tag(struct xdp_md *ctx)
{
	/* The driver may be a module, whose types no pointer can be cast to. So the word is read
	 * by a type of the kernel's own that begins with such a pointer. */
	const struct sk_buff_head *at =
		bpf_rdonly_cast(bpf_cast_to_kern_ctx(ctx) + params.veth_skb,
				bpf_core_type_id_kernel(struct sk_buff_head));
	__u32 all = at->next->vlan_all;

	return all ? vlan_tag(all, all >> 16) : 0;
}

SEC("xdp.frags")
int tapdeck_xdp(struct xdp_md *ctx)
{
	struct packet p = {
		.ctx = ctx,
		.len = xdp_len(ctx),
		.ring = xdp_ring(ctx),
	};

	if (params.veth_skb)
		p.tag = veth_tag(ctx);
	return ends_here(CONTEXT_XDP, &p) ? XDP_DROP : XDP_PASS;
}

/* Bound to its device, so that the driver's own metadata can be asked for. */
SEC("xdp.frags")
int tapdeck_xdp_metadata(struct xdp_md *ctx)
{
	struct packet p = {
		.ctx = ctx,
		.len = xdp_len(ctx),
		.ring = xdp_ring(ctx),
	};

	/* In blocks of their own, so that they share their place in the stack. */
	if (params.hardware_time) {
		__u64 ns = 0;

		if (!bpf_xdp_metadata_rx_timestamp(ctx, &ns))
			p.hardware_ns = ns;
	}
	if (params.veth_skb) {
		p.tag = veth_tag(ctx);
	} else if (params.hardware_vlan) {
		__u16 proto = 0, tci = 0;

		if (!bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci))
			p.tag = vlan_tag(proto, tci);
	}
	return ends_here(CONTEXT_XDP, &p) ? XDP_DROP : XDP_PASS;
}

/* TCX_NEXT and TC_ACT_UNSPEC are the same number, so are TCX_DROP and TC_ACT_SHOT. */
#define SKB_NEXT -1
#define SKB_DROP 2

static __always_inline int take_skb(struct __sk_buff *skb, __u32 direction)
{
	struct packet p = {
		.ctx = skb,
		.len = skb->len,
		.ring = ring_for(bpf_get_smp_processor_id()),
		.flags = direction,
	};

	if (skb->vlan_present)
		p.tag = vlan_tag(skb->vlan_proto, skb->vlan_tci);
	return ends_here(CONTEXT_SKB, &p) ? SKB_DROP : SKB_NEXT;
}

SEC("tc")
int tapdeck_ingress(struct __sk_buff *skb)
{
	return take_skb(skb, INBOUND);
}

SEC("tc")
int tapdeck_egress(struct __sk_buff *skb)
{
	return take_skb(skb, OUTBOUND);
}

#define NF_DROP 0
#define NF_ACCEPT 1

SEC("netfilter")
int tapdeck_netfilter(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;

	if ((__u32)ctx->state->in->ifindex != params.ifindex)
		return NF_ACCEPT;

	struct packet p = {
		.ctx = ctx,
		.len = skb->len,
		.ring = ring_for(bpf_get_smp_processor_id()),
	};

	if (params.link_header) {
		const unsigned char *link = skb->head + skb->mac_header;
		__u64 link_len = skb->data - link;

		if (link_len && link_len <= 32) {
			p.link = link;
			p.link_len = link_len;
		}
	}
	return ends_here(CONTEXT_NETFILTER, &p) ? NF_DROP : NF_ACCEPT;
}

#endif
