/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* headers.h, steer.h and the flows of cutoff.h over a plain buffer, for whoever wants to know what
 * the hook programs find, and for tests. */
#define TD_USER
#include "headers_found.h"
#include "cutoff.h"

/* In place of the kernel's maps: the fragments that this thread has seen, the oldest being
 * overwritten. */
#define SLOTS 64

static __thread __u64 now_ns;

static __thread struct {
	struct td_fragment_key key;
	struct td_fragment fragment;
	bool is_used;
} fragments[SLOTS];

static __thread struct {
	struct td_fragment_key key;
	struct td_inner_fragment fragment;
	bool is_used;
} inner[SLOTS];

static __thread __u32 next_fragment, next_inner;

#define FIND(table, wanted)                                                                      \
	({                                                                                       \
		int at = -1;                                                                     \
		for (int i = 0; i < SLOTS; i++)                                                  \
			if (table[i].is_used && !memcmp(&table[i].key, wanted, sizeof(*wanted))) \
				at = i;                                                          \
		at;                                                                              \
	})

#define KEEP(table, next, wanted, value)      \
	({                                    \
		int at = FIND(table, wanted); \
		if (at < 0)                   \
			at = next++ % SLOTS;  \
		table[at].key = *wanted;      \
		table[at].fragment = *value;  \
		table[at].is_used = true;     \
	})

static struct td_scratch *td_scratch(void)
{
	static __thread struct td_scratch scratch;

	return &scratch;
}

static __u64 td_now_ns(void)
{
	return now_ns;
}

static struct td_fragment *td_find(const struct td_fragment_key *key)
{
	int at = FIND(fragments, key);

	return at < 0 ? NULL : &fragments[at].fragment;
}

static struct td_inner_fragment *td_find_inner(const struct td_fragment_key *key)
{
	int at = FIND(inner, key);

	return at < 0 ? NULL : &inner[at].fragment;
}

static void td_keep(const struct td_fragment_key *key, const struct td_fragment *fragment)
{
	KEEP(fragments, next_fragment, key, fragment);
}

static void td_keep_inner(const struct td_fragment_key *key,
			  const struct td_inner_fragment *fragment)
{
	KEEP(inner, next_inner, key, fragment);
}

void tapdeck_headers_forget(void)
{
	memset(fragments, 0, sizeof(fragments));
	memset(inner, 0, sizeof(inner));
}

void tapdeck_headers_find(const __u8 *bytes, __u32 linear, __u32 len, __u32 has_link, __u32 tag,
			  __u64 ns, struct td_found *found)
{
	struct td_frame frame = { .bytes = bytes, .linear = linear, .len = len };
	struct packet p = { .ctx = &frame, .tag = tag, .link_header = has_link };

	now_ns = ns;
	memset(found, 0, sizeof(*found));
	td_find_all(CONTEXT_USER, &p, found);
}

/* A packet's flow, as found by the walk, and in place where that is possible. */
struct td_flow_found {
	__u64 hash;
	__u64 plain_hash;
	__u32 tcp_flags;
	__u32 plain_tcp_flags;
	__u32 is_ip;
	__u32 is_plain;
};

void tapdeck_flow_find(const __u8 *bytes, __u32 linear, __u32 len, __u32 has_link, __u32 tag,
		       __u64 seed, struct td_flow_found *found)
{
	struct td_frame frame = { .bytes = bytes, .linear = linear, .len = len };
	struct packet p = { .ctx = &frame, .tag = tag, .link_header = has_link };
	struct td_headers headers = { .have = 0 };
	const struct td_tuple *t = td_get_innermost(CONTEXT_USER, &p, &headers);

	memset(found, 0, sizeof(*found));
	found->is_ip = t->family != 0;
	found->hash = td_flow_hash(t, seed);
	found->tcp_flags = td_tcp_flags(CONTEXT_USER, &frame, t);
	found->is_plain = td_flow_of_plain(bytes, bytes + linear, has_link, seed,
					   &found->plain_hash, &found->plain_tcp_flags);
}

__u32 tapdeck_plain_headers_len(const __u8 *bytes, __u32 len, __u32 has_link)
{
	struct td_frame frame = { .bytes = bytes, .linear = len, .len = len };

	return td_plain_headers_len(CONTEXT_USER, &frame, has_link);
}

/* Where C has what, in the order in which src/sys/headers.rs has it for Rust: a test compares them.
 */
const __u32 tapdeck_headers_layout[] = {
	sizeof(struct td_tuple),
	offsetof(struct td_tuple, family),
	offsetof(struct td_tuple, protocol),
	offsetof(struct td_tuple, flags),
	offsetof(struct td_tuple, next),
	offsetof(struct td_tuple, source_port),
	offsetof(struct td_tuple, destination_port),
	offsetof(struct td_tuple, fragment_id),
	offsetof(struct td_tuple, offset),
	offsetof(struct td_tuple, source),
	offsetof(struct td_tuple, destination),
	sizeof(struct td_found),
	offsetof(struct td_found, headers.outer),
	offsetof(struct td_found, headers.innermost),
	offsetof(struct td_found, headers.have),
	offsetof(struct td_found, number),
	offsetof(struct td_found, second),
	sizeof(struct td_flow_found),
	offsetof(struct td_flow_found, hash),
	offsetof(struct td_flow_found, plain_hash),
	offsetof(struct td_flow_found, tcp_flags),
	offsetof(struct td_flow_found, plain_tcp_flags),
	offsetof(struct td_flow_found, is_ip),
	offsetof(struct td_flow_found, is_plain),
};
