/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a datagram's first fragment said, for its later ones.
 *
 * Only the first fragment of a datagram has its ports, and what lies inside of its tunnel. Later
 * ones look it up by addresses, identification and (IPv4) protocol. Who comes before its first
 * fragment, or so late that the kernel would no longer wait for it, has no ports, and belongs to
 * its addresses and protocol alone: a flow's whole packets and first fragments never move because
 * of it.
 */
#ifndef TAPDECK_FRAGMENTS_H
#define TAPDECK_FRAGMENTS_H

#include "tuple.h"

/* Datagrams remembered at once, the least recently used being forgotten first. */
#ifndef TD_FRAGMENTS
#define TD_FRAGMENTS 8192
#endif

/* As long as Linux waits for a datagram's fragments (net.ipv4.ipfrag_time). */
#define TD_FRAGMENT_LIFE_NS 30000000000ull

struct td_fragment_key {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;
	__u8 family;
	__u8 protocol; /* IPv4's; in IPv6, fragments of one datagram may say different things */
	__u16 zero;
};

struct td_fragment {
	__u64 since_ns;
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 has_ports;
	__u16 zero;
};

struct td_inner_fragment {
	__u64 since_ns;
	struct td_tuple tuple;
};

/* What the rare paths need and the stack has no room for. */
struct td_scratch {
	struct td_fragment_key outer;
	struct td_fragment_key key;
	struct td_fragment fragment;
	struct td_inner_fragment inner;
	struct td_tuple quoted;
};

static __always_inline void td_fragment_key(struct td_fragment_key *key, const struct td_tuple *t)
{
	for (int i = 0; i < 4; i++) {
		key->source[i] = t->source[i];
		key->destination[i] = t->destination[i];
	}
	key->id = t->fragment_id;
	key->family = t->family;
	key->protocol = t->family == 4 ? t->protocol : 0;
	key->zero = 0;
}

#ifdef TD_USER

#define TD_GLOBAL_ALONE static

static struct td_scratch *td_scratch(void);
static __u64 td_now_ns(void);
static struct td_fragment *td_find(const struct td_fragment_key *key);
static struct td_inner_fragment *td_find_inner(const struct td_fragment_key *key);
static void td_keep(const struct td_fragment_key *key, const struct td_fragment *fragment);
static void td_keep_inner(const struct td_fragment_key *key,
			  const struct td_inner_fragment *fragment);

#else

#define TD_GLOBAL_ALONE __noinline

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TD_FRAGMENTS);
	__type(key, struct td_fragment_key);
	__type(value, struct td_fragment);
} td_fragments SEC(".maps");

/* The fragments of datagrams that are tunnels. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TD_FRAGMENTS);
	__type(key, struct td_fragment_key);
	__type(value, struct td_inner_fragment);
} td_inner_fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct td_scratch);
} td_scratches SEC(".maps");

/* No hook program interrupts another on its CPU. */
static __always_inline struct td_scratch *td_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&td_scratches, &zero);
}

#define td_now_ns() bpf_ktime_get_ns()
#define td_find(key) ((struct td_fragment *)bpf_map_lookup_elem(&td_fragments, key))
#define td_find_inner(key) \
	((struct td_inner_fragment *)bpf_map_lookup_elem(&td_inner_fragments, key))
#define td_keep(key, fragment) bpf_map_update_elem(&td_fragments, key, fragment, BPF_ANY)
#define td_keep_inner(key, fragment) \
	bpf_map_update_elem(&td_inner_fragments, key, fragment, BPF_ANY)

#endif

/* From a first fragment. */
TD_GLOBAL_ALONE int td_remember(struct td_tuple *t)
{
	struct td_scratch *scratch = td_scratch();

	/* An error's quote says the same as the fragment did, if at all. Without ports IPv4's later
	 * fragments miss nothing. */
	if (!scratch || !t || t->flags & TD_QUOTED ||
	    (t->family == 4 && !(t->flags & TD_HAS_PORTS)))
		return 0;
	scratch->fragment.since_ns = td_now_ns();
	scratch->fragment.source_port = t->source_port;
	scratch->fragment.destination_port = t->destination_port;
	scratch->fragment.protocol = t->protocol;
	scratch->fragment.has_ports = t->flags & TD_HAS_PORTS;
	td_fragment_key(&scratch->key, t);
	td_keep(&scratch->key, &scratch->fragment);
	return 0;
}

/* For a later fragment. */
TD_GLOBAL_ALONE int td_recall(struct td_tuple *t)
{
	struct td_scratch *scratch = td_scratch();
	struct td_fragment *fragment;

	if (!scratch || !t)
		return 0;
	td_fragment_key(&scratch->key, t);
	fragment = td_find(&scratch->key);
	if (!fragment || td_now_ns() - fragment->since_ns > TD_FRAGMENT_LIFE_NS)
		return 0;
	t->protocol = fragment->protocol;
	if (fragment->has_ports) {
		t->source_port = fragment->source_port;
		t->destination_port = fragment->destination_port;
		t->flags |= TD_HAS_PORTS;
	}
	return 0;
}

/* Notes which datagram a first fragment begins, before the walk goes on inside of it. */
TD_GLOBAL_ALONE int td_enter_fragment(struct td_tuple *t)
{
	struct td_scratch *scratch = td_scratch();

	if (scratch && t)
		td_fragment_key(&scratch->outer, t);
	return 0;
}

/* What the walk found inside. */
TD_GLOBAL_ALONE int td_leave_fragment(struct td_tuple *t)
{
	struct td_scratch *scratch = td_scratch();

	if (!scratch || !t)
		return 0;
	scratch->inner.since_ns = td_now_ns();
	__builtin_memcpy(&scratch->inner.tuple, t, sizeof(*t));
	td_keep_inner(&scratch->outer, &scratch->inner);
	return 0;
}

/* For a later fragment of a datagram that may be a tunnel. */
TD_GLOBAL_ALONE int td_recall_inner(struct td_tuple *t)
{
	struct td_scratch *scratch = td_scratch();
	struct td_inner_fragment *inner;

	if (!scratch || !t)
		return 0;
	td_fragment_key(&scratch->key, t);
	inner = td_find_inner(&scratch->key);
	if (!inner || td_now_ns() - inner->since_ns > TD_FRAGMENT_LIFE_NS)
		return 0;
	__builtin_memcpy(t, &inner->tuple, sizeof(*t));
	t->flags |= TD_LATER_FRAGMENT;
	/* What the first fragment quoted lies in the first fragment. */
	t->next = TD_NOTHING;
	return 0;
}

#endif
