// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Sends frames from inside the kernel: run with BPF_F_TEST_XDP_LIVE_FRAMES, it
 * numbers each frame and redirects it to an interface.
 */
#include "numbers.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "transmit.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile struct td_transmit params SEC(".rodata.params");

__u64 sequence SEC(".data.sequence");
__u64 due_ns SEC(".data.sequence");

#define MAX_PAIRS 4096
/* Where an IPv4 packet behind an Ethernet header has its two addresses. */
#define ADDRESSES_AT 26

/* Source and destination, as they lie in a frame. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PAIRS);
	__type(key, __u32);
	__type(value, __u64);
} pairs SEC(".maps");

/* Waits are spun away: the frames leave in batches of 64, the rate is exact over those. */
static __always_inline void pace(void)
{
	__u64 now = bpf_ktime_get_ns();

	/* After a pause the lost time is not made up for. */
	if (now > due_ns + 64 * (__u64)params.gap_ns)
		due_ns = now;
	for (int i = 0; i < 4096 && now < due_ns; i++)
		now = bpf_ktime_get_ns();
	due_ns += params.gap_ns;
}

SEC("xdp")
int tapdeck_transmit(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 at = params.sequence_at & 0xff;

	if (data + at + 8 > end)
		return XDP_ABORTED;
	if (params.gap_ns)
		pace();
	if (params.pairs) {
		__u32 ix = sequence & (params.pairs - 1);
		__u64 *pair = bpf_map_lookup_elem(&pairs, &ix);

		if (!pair || data + ADDRESSES_AT + sizeof(*pair) > end)
			return XDP_ABORTED;
		*(__u32 *)(data + ADDRESSES_AT) = *pair;
		*(__u32 *)(data + ADDRESSES_AT + 4) = *pair >> 32;
	}
	*(__u64 *)(data + at) = sequence++;
	return bpf_redirect(params.ifindex, 0);
}

/* The least that a receiver can do: what a hook costs is measured against it. */
SEC("xdp.frags")
int tapdeck_drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* Puts an 802.1ad tag beside every frame that leaves, as a VLAN device above this one would. */
SEC("tc")
int tapdeck_tag(struct __sk_buff *skb)
{
	bpf_skb_vlan_push(skb, __builtin_bswap16(TD_ETHERTYPE_SERVICE_VLAN), params.tag);
	return -1; /* TCX_NEXT */
}
