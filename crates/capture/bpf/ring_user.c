/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The ring's arithmetic as functions, for the socket hooks and the model checker. */
#include "params.h"
#include "ring.h"

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

/* What src/ring/memory.rs believes, so that a test can hold it against the truth. */
const __u32 tapdeck_layout[] = {
	sizeof(struct td_ring),
	__builtin_offsetof(struct td_ring, lost),
	__builtin_offsetof(struct td_ring, told),
	__builtin_offsetof(struct td_ring, contended),
	__builtin_offsetof(struct td_ring, failed),
	__builtin_offsetof(struct td_ring, filtered),
	sizeof(struct td_block),
	__builtin_offsetof(struct td_block, used),
	__builtin_offsetof(struct td_block, epoch),
	sizeof(struct td_release),
	sizeof(struct td_control),
	__builtin_offsetof(struct td_control, snaplen),
	__builtin_offsetof(struct td_control, utc_offset_ns),
	sizeof(struct td_params),
	TD_FRAME_SHIFT,
	TD_PACKET_SHIFT,
	TD_TAIL,
	TD_TRIES,
	TD_MIN_BLOCK_SHIFT,
	TD_MAX_BLOCK_SHIFT,
	TD_MAX_RINGS,
	TD_EPOCHS,
	TD_FILL,
};
