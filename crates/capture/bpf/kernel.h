/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The few kernel types and functions that the programs use, relocated at load
 * time to the running kernel's layout (CO-RE). */
#ifndef TAPDECK_KERNEL_H
#define TAPDECK_KERNEL_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff {
	unsigned int len;
	unsigned int data_len;
	unsigned char *head;
	unsigned char *data;
	__u16 mac_header;
	__u16 queue_mapping;
	__u32 vlan_all;
};

struct sk_buff_head {
	struct sk_buff *next;
};

struct net_device {
	int ifindex;
};

struct xdp_buff {
	__u32 flags;
};

struct nf_hook_state {
	struct net_device *in;
};

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};

#pragma clang attribute pop

/* Of the flags of struct xdp_buff: the frame goes on in fragments. */
#define XDP_HAS_FRAGS 1

/* Since 6.2. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;
extern void *bpf_rdonly_cast(const void *at, __u32 type) __ksym __weak;

/* Since 6.3, 6.4 and 6.8; only the programs that call them need them. */
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr) __ksym __weak;
extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __u16 *vlan_proto,
					__u16 *vlan_tci) __ksym __weak;

#endif
