// SPDX-License-Identifier: GPL-2.0 OR MIT
/* headers.h and steer.h at every hook, for tests/headers.rs: what they find in one packet. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "params.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile struct td_params params SEC(".rodata.params");

#include "headers_found.h"

struct td_found found SEC(".data.found");

static __always_inline void take(enum context context, struct packet *p)
{
	td_find_all(context, p, &found);
}

#include "programs.h"
