// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The judge alone, over tuples that user space leaves in a map: for tests and for its benchmark. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "judged.h"

#define TD_IMAGES 2
#include "images.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define TUPLES (1 << 16)

struct td_judged {
	struct td_tuple tuple;
	struct td_verdict verdict;
	__u32 is_judged;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, TUPLES * sizeof(struct td_judged));
} judged SEC(".maps");

struct td_run {
	__u32 number; /* the number of the rule set */
	__u32 mask;   /* tuples - 1, a power of two less one */
	__u32 count;  /* how many judgements */
	__u32 quiet;  /* judge nothing: what the loop costs */
	__u64 ns;
};

struct td_pass {
	struct td_judged *judged;
	__u32 number;
	__u32 mask;
	__u32 quiet;
};

static long step(__u64 i, struct td_pass *pass)
{
	struct td_judged *at = pass->judged + (i & pass->mask & (TUPLES - 1));
	struct td_tuple tuple = at->tuple;
	struct td_verdict verdict = {};

	if (pass->quiet)
		at->is_judged = tuple.family;
	else
		at->is_judged = td_judge(pass->number, &tuple, &verdict);
	at->verdict = verdict;
	return 0;
}

SEC("syscall")
int tapdeck_judge(struct td_run *run)
{
	__u32 zero = 0;
	struct td_pass pass = {
		.judged = bpf_map_lookup_elem(&judged, &zero),
		.number = run->number,
		.mask = run->mask,
		.quiet = run->quiet,
	};
	__u64 begin = bpf_ktime_get_ns();

	if (!pass.judged)
		return 1;
	bpf_loop(run->count, step, &pass, 0);
	run->ns = bpf_ktime_get_ns() - begin;
	return 0;
}
