// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What hook programs are measured against: programs that do nothing, programs that read the frame
 * and drop it, and what the machine charges for the things that a hook program is made of. They
 * are run by BPF_PROG_RUN and attached nowhere.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SKB_DROP 2
#define NF_DROP 0

/* Keeps the compiler from leaving out what nobody uses. */
#define USE(value) asm volatile("" : : "r"(value))

/* Bytes that a frame is read in at once, as a copy of it would be. */
#define CHUNK 64
#define MOST_CHUNKS 160

static __always_inline void read_linear(const __u8 *data, const __u8 *end)
{
	__u64 sum = 0;

	for (int i = 0; i < MOST_CHUNKS; i++) {
		if (data + CHUNK > end)
			break;
#pragma unroll
		for (int at = 0; at < CHUNK; at += 8)
			sum += *(const __u64 *)(data + at);
		data += CHUNK;
	}
	for (int i = 0; i < CHUNK / 4; i++) {
		if (data + 4 > end)
			break;
		sum += *(const __u32 *)data;
		data += 4;
	}
	USE(sum);
}

SEC("xdp.frags")
int empty_xdp(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp.frags")
int read_xdp(struct xdp_md *ctx)
{
	read_linear((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	return XDP_DROP;
}

SEC("tc")
int empty_skb(struct __sk_buff *skb)
{
	return SKB_DROP;
}

SEC("tc")
int read_skb(struct __sk_buff *skb)
{
	read_linear((void *)(long)skb->data, (void *)(long)skb->data_end);
	return SKB_DROP;
}

SEC("netfilter")
int empty_netfilter(struct bpf_nf_ctx *ctx)
{
	return NF_DROP;
}

#define MOST_COPIED 16384

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, MOST_COPIED);
} copied SEC(".maps");

/* A netfilter program cannot look at the frame in place. */
SEC("netfilter")
int read_netfilter(struct bpf_nf_ctx *ctx)
{
	struct bpf_dynptr view;
	__u32 only = 0, len = ctx->skb->len;
	__u8 *to = bpf_map_lookup_elem(&copied, &only);

	if (!to || !len || len > MOST_COPIED)
		return NF_DROP;
	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &view))
		return NF_DROP;
	bpf_dynptr_read(to, len, &view, 0, 0);
	return NF_DROP;
}

/* How often a charge is taken in one run. */
#define TIMES 64

static __noinline int callee(int n)
{
	asm volatile("" : "+r"(n));
	return n;
}

SEC("xdp.frags")
int charge_call(struct xdp_md *ctx)
{
	int n = 0;

#pragma unroll
	for (int i = 0; i < TIMES; i++)
		n = callee(n);
	USE(n);
	return XDP_DROP;
}

SEC("xdp.frags")
int charge_helper(struct xdp_md *ctx)
{
#pragma unroll
	for (int i = 0; i < TIMES; i++)
		USE(bpf_xdp_get_buff_len(ctx));
	return XDP_DROP;
}

SEC("xdp.frags")
int charge_clock(struct xdp_md *ctx)
{
#pragma unroll
	for (int i = 0; i < TIMES; i++)
		USE(bpf_ktime_get_ns());
	return XDP_DROP;
}

__u64 counter SEC(".data.counter");

SEC("xdp.frags")
int charge_atomic(struct xdp_md *ctx)
{
#pragma unroll
	for (int i = 0; i < TIMES; i++)
		USE(__sync_fetch_and_add(&counter, 1));
	return XDP_DROP;
}
