/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The ring's arithmetic as functions, for the socket hooks and the model checker. */
#include <stddef.h>
#include "contexts.h"
#include "params.h"
#include "ring.h"
#include "shed.h"

int tapdeck_fits(__u64 word, __u32 len, __u32 block_bytes)
{
	return td_fits(word, len, block_bytes);
}

int tapdeck_next_is_free(__u64 word, __u32 released, __u32 nblocks)
{
	return td_next_is_free(word, released, nblocks);
}

__u64 tapdeck_next_block(__u64 word, __u32 epoch, __u32 len)
{
	return td_next_block(word, epoch, len);
}

__u64 tapdeck_word(__u32 block, __u32 epoch, __u32 bytes)
{
	return td_word(block, epoch, bytes);
}

__u32 tapdeck_word_block(__u64 word)
{
	return td_word_block(word);
}

__u32 tapdeck_word_epoch(__u64 word)
{
	return td_word_epoch(word);
}

__u32 tapdeck_word_bytes(__u64 word)
{
	return td_word_bytes(word);
}

__u64 tapdeck_commit(__u32 reserved, __u32 frame, __u32 packets)
{
	return td_commit(reserved, frame, packets);
}

int tapdeck_is_complete(__u64 commit, __u32 block_bytes)
{
	return td_is_complete(commit, block_bytes);
}

int tapdeck_wakes(__u32 block, __u32 released, __u32 awake)
{
	return td_wakes(block, released, awake);
}

__u32 tapdeck_shed_by_fill(__u32 used, __u32 nblocks, __u32 most, __u32 now)
{
	return td_shed_by_fill(used, nblocks, most, now);
}

__u32 tapdeck_shed_saves(__u32 whole, __u32 keep, __u32 option)
{
	return td_shed_saves(whole, keep, option);
}

/* Where C has what, in the order in which src/sys/layout.rs has it for Rust: a test compares them.
 */
const __u32 tapdeck_layout[] = {
	sizeof(struct td_ring),
	offsetof(struct td_ring, lost),
	offsetof(struct td_ring, told),
	offsetof(struct td_ring, contended),
	offsetof(struct td_ring, failed),
	offsetof(struct td_ring, filtered),
	sizeof(struct td_block),
	offsetof(struct td_block, used),
	offsetof(struct td_block, epoch),
	sizeof(struct td_cut),
	offsetof(struct td_cut, bytes),
	sizeof(struct td_release),
	offsetof(struct td_release, awake),
	sizeof(struct td_control),
	offsetof(struct td_control, snaplen),
	offsetof(struct td_control, rests),
	offsetof(struct td_control, deadline_ns),
	offsetof(struct td_control, abandoned),
	offsetof(struct td_control, seed),
	offsetof(struct td_control, utc_offset_ns),
	TD_FRAME_SHIFT,
	TD_PACKET_SHIFT,
	TD_TAIL,
	TD_TRIES,
	TD_MIN_BLOCK_SHIFT,
	TD_MAX_BLOCK_SHIFT,
	TD_MAX_RINGS,
	TD_EPOCHS,
	TD_FILL,
	sizeof(struct td_shed),
	offsetof(struct td_shed, bytes),
	TD_SHED_LEAST,
	TD_OPT_SHED,
};

const __u32 tapdeck_params_layout[] = {
	sizeof(struct td_params),
	offsetof(struct td_params, nrings),
	offsetof(struct td_params, block_shift),
	offsetof(struct td_params, block_bytes),
	offsetof(struct td_params, block_mask),
	offsetof(struct td_params, ring_mask),
	offsetof(struct td_params, snaplen),
	offsetof(struct td_params, len_mask),
	offsetof(struct td_params, len_mask2),
	offsetof(struct td_params, first_interface),
	offsetof(struct td_params, ifindex),
	offsetof(struct td_params, consume),
	offsetof(struct td_params, hardware_time),
	offsetof(struct td_params, hardware_vlan),
	offsetof(struct td_params, by_cpu),
	offsetof(struct td_params, link_header),
	offsetof(struct td_params, filtered),
	offsetof(struct td_params, clock_by_poll),
	offsetof(struct td_params, claims),
	offsetof(struct td_params, most_direct),
	offsetof(struct td_params, shed_to),
	offsetof(struct td_params, judged),
	offsetof(struct td_params, cutoff),
	offsetof(struct td_params, flow_mask),
	offsetof(struct td_params, veth_skb),
	sizeof(struct td_flush),
	offsetof(struct td_flush, ring),
	offsetof(struct td_flush, block),
	CONTEXT_XDP,
	CONTEXT_SKB,
	CONTEXT_NETFILTER,
};
