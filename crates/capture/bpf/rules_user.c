/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The judge of the hook programs as a function, so that it is tested without a kernel. */
#include <stddef.h>
#include "judged.h"
#include "look.h"

void tapdeck_judge_image(__u8 *image, __u64 mask, const struct td_tuple *tuple, __u32 cpu,
			 struct td_verdict *verdict)
{
	struct td_look look = { .image = { .bytes = image, .mask = mask } };

	td_judge_image(&look, tuple, verdict, cpu);
}

/* Whether the image's Bloom filter takes a masked tuple of IPv4 for one of its own. */
int tapdeck_bloom(__u8 *bytes, __u64 mask, __u64 addresses, __u64 rest)
{
	struct td_image image = { .bytes = bytes, .mask = mask };
	const struct td_rules *head = td_head(&image);
	__u64 hash = td_hash4(head->seed, addresses, rest);

	return td_bloom_bit(&image, head, hash) && td_bloom_rest(&image, head, hash);
}

/* Where C has what, in the order in which src/sys/rules.rs has it for Rust: a test compares them.
 */
const __u32 tapdeck_rules_layout[] = {
	sizeof(struct td_tuple),
	offsetof(struct td_tuple, family),
	offsetof(struct td_tuple, protocol),
	offsetof(struct td_tuple, flags),
	offsetof(struct td_tuple, pad),
	offsetof(struct td_tuple, source_port),
	offsetof(struct td_tuple, destination_port),
	offsetof(struct td_tuple, source),
	offsetof(struct td_tuple, destination),
	sizeof(struct td_verdict),
	offsetof(struct td_verdict, action),
	offsetof(struct td_verdict, snaplen),
	offsetof(struct td_verdict, group),
	offsetof(struct td_verdict, rule),
	offsetof(struct td_verdict, cutoff),
	TD_NONE,
	TD_ACCEPT,
	TD_DROP,
	TD_SNAPLEN,
	TD_GROUP,
	TD_CUT_OFF,
};
