/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The kinds of context that hook programs are called with. What a packet is read by differs between
 * them: a switch over this names them all and has no default, so that the compiler asks for what is
 * missing where a kind is added. src/filter/splice.rs knows them by their numbers, which a test
 * compares.
 */
#ifndef TAPDECK_CONTEXTS_H
#define TAPDECK_CONTEXTS_H

enum context {
	CONTEXT_XDP,       /* struct xdp_md */
	CONTEXT_SKB,       /* struct __sk_buff: tcx and clsact */
	CONTEXT_NETFILTER, /* struct bpf_nf_ctx */
};

#endif
