// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The filter of a packet socket, in two programs: the one that the socket has only calls the other
 * that judges. What a socket has is charged to the little memory that it may have beside its
 * buffers (net.core.optmem_max); what a program calls is not. So a filter may be as long as at any
 * hook.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "params.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile struct td_params params SEC(".rodata.params");

#define TD_SOCKET 1
#include "filter.h"

/* Packets that the filter has refused. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} refused SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} judges SEC(".maps");

SEC("socket")
int tapdeck_socket(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &judges, 0);
	return 0;
}

/* Returns how many bytes of the packet the socket keeps. */
SEC("socket")
int tapdeck_socket_judge(struct __sk_buff *skb)
{
	struct packet p = { .ctx = skb, .len = skb->len };
	__u32 only = 0;

	if (skb->vlan_present)
		p.tag = vlan_tag(skb->vlan_proto, skb->vlan_tci);
	if (td_filter_accepts(CONTEXT_SKB, &p, 0))
		return params.snaplen;

	__u64 *packets = bpf_map_lookup_elem(&refused, &only);

	if (packets)
		__sync_fetch_and_add(packets, 1);
	return 0;
}
