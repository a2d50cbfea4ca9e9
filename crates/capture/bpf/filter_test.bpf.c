// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Runs filters at each hook and tells what they decided, for src/filter/tests.rs. Those of packet
 * sockets are in filter_socket_test.bpf.c. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "params.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile struct td_params params SEC(".rodata.params");

#include "filter.h"

struct {
	__u32 count; /* filters to run, from 0 on */
	__u32 tag;   /* that was taken off the frame */
	__u32 flags;
	__u32 reserved;
	__u8 accepted[256];
} asked SEC(".data.asked");

static __always_inline void ask(enum context context, struct packet *p)
{
	__u32 count = asked.count;

	p->tag = asked.tag;
	p->flags = asked.flags;
	for (__u32 n = 0; n < 256 && n < count; n++)
		asked.accepted[n] = td_filter_accepts(context, p, n);
}

#ifdef TD_SOCKET
SEC("socket")
int tapdeck_socket_judge(struct __sk_buff *skb)
{
	struct packet p = { .ctx = skb, .len = skb->len };

	ask(CONTEXT_SKB, &p);
	return 0;
}
#else
SEC("xdp.frags")
int tapdeck_xdp(struct xdp_md *ctx)
{
	struct packet p = { .ctx = ctx, .len = bpf_xdp_get_buff_len(ctx) };

	ask(CONTEXT_XDP, &p);
	return XDP_PASS;
}

SEC("tc")
int tapdeck_ingress(struct __sk_buff *skb)
{
	struct packet p = { .ctx = skb, .len = skb->len };

	ask(CONTEXT_SKB, &p);
	return 0;
}

SEC("netfilter")
int tapdeck_netfilter(struct bpf_nf_ctx *ctx)
{
	struct packet p = { .ctx = ctx, .len = ctx->skb->len, .link_len = 14 };

	ask(CONTEXT_NETFILTER, &p);
	return 1;
}
#endif
