// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Groups: one program on an interface, many programs behind it.
 *
 * A packet goes to every group that takes it, and in each to the member that steering picks: into
 * that member's rings, as one finished pcapng Enhanced Packet Block (produce.h). Each program
 * serves one interface at one hook (a port), with the list of its groups as a constant; all
 * programs share the maps.
 *
 * A member maps its rings and reads them by itself. It writes one word for each ring, the number of
 * blocks that it has released; whatever stands there is used for a comparison only, and places in
 * the rings are masked, so a member that writes nonsense loses its own packets and nobody else's.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "params.h"
#include "ring.h"
#include "serve.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* In sections of their own so that the loader can write each as one piece. */
const volatile struct td_params params SEC(".rodata.params");
const volatile struct td_port port SEC(".rodata.port");

struct td_control control SEC(".data.control");

#include "produce.h"
#include "filter.h"
#include "steer.h"
#include "cutoff.h"

#define TD_IMAGES TD_MAX_GROUPS
#include "images.h"

/* Sizes, and what the maps inside of maps are like, are set by the loader. */
#define MAP_OF_MEMBERS(name)                              \
	struct {                                          \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); \
		__uint(max_entries, TD_MAX_MEMBERS);      \
		__uint(key_size, sizeof(__u32));          \
		__uint(value_size, sizeof(__u32));        \
	} name SEC(".maps")

MAP_OF_MEMBERS(rings);
MAP_OF_MEMBERS(data);
MAP_OF_MEMBERS(release);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct td_group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct td_slots);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct td_counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TD_MAX_MEMBERS);
	__type(key, __u32);
	__type(value, struct td_taken);
} taken SEC(".maps");

/* Numbers of members that wait for a block which has become complete, and TD_DAEMON. Where there is
 * no room, the daemon's next reminder wakes the member, and the next block the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 10);
} wakes SEC(".maps");

/* What a member's copy of a packet is made from. */
struct member_copy {
	__u32 len; /* this field and those up to `tag` are as in struct packet */
	__u32 ring;
	__u32 flags;
	__u32 link_len;
	__u64 link;
	__u64 hardware_ns;
	__u32 tag;
	__u32 snaplen;
	__u32 interface;
	__u32 copies; /* made in the present group */
	__u64 now;    /* as in struct packet: all copies have one time */
};

/* What is known of one packet, on the CPU it is on: no program of ours interrupts another. The
 * stack has no room for it, and the verifier must not follow the count of copies. */
struct scratch {
	struct member_copy member_copy;
	struct td_headers headers;        /* looked for once, for all groups that ask */
	struct td_verdict verdict;        /* what the rules of the present group say */
	struct td_flow_question question; /* asked for the present group */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline struct td_release *release_of(const struct place *place)
{
	__u32 member = place->member, ix = place->index;
	void *inner = bpf_map_lookup_elem(&release, &member);

	return inner ? bpf_map_lookup_elem(inner, &ix) : NULL;
}

static __always_inline __u32 released_of(const struct place *place)
{
	struct td_release *r = release_of(place);

	return r ? NOW(r->released) : 0;
}

static __always_inline void completed(const struct place *place, __u32 block)
{
	struct td_release *r = release_of(place);
	__u32 member = place->member;

	if (r && td_wakes(block, NOW(r->released), NOW(r->awake)))
		bpf_ringbuf_output(&wakes, &member, sizeof(member), 0);
}

/* A daemon that rests is to close the block when its packets have waited. */
static __always_inline void began(void)
{
	__u32 daemon = TD_DAEMON;

	if (NOW(control.rests) && __sync_val_compare_and_swap(&control.rests, 1, 0) == 1 &&
	    bpf_ringbuf_output(&wakes, &daemon, sizeof(daemon), 0))
		NOW(control.rests) = 1;
}

static __always_inline bool place_of(__u32 member, __u32 ix, struct place *place)
{
	void *its_rings = bpf_map_lookup_elem(&rings, &member);
	void *its_data = bpf_map_lookup_elem(&data, &member);

	if (!its_rings || !its_data)
		return false;
	place->ring = bpf_map_lookup_elem(its_rings, &ix);
	place->data = bpf_map_lookup_elem(its_data, &ix);
	place->index = ix;
	place->member = member;
	return place->ring && place->data;
}

/* No more than the rings were made for. */
static __always_inline __u32 snaplen(__u32 wanted)
{
	return wanted < params.snaplen ? wanted : params.snaplen;
}

/* Writes the packet into a member's ring; `owner` is a slot's value. */
static __always_inline void deliver(enum context context, void *ctx,
				    struct member_copy *member_copy, __u32 owner)
{
	__u32 member = owner - 1;
	struct place place;
	struct packet p = {
		.ctx = ctx,
		.len = member_copy->len,
		.ring = member_copy->ring,
		.flags = member_copy->flags,
		.link_len = member_copy->link_len,
		.link = (const void *)member_copy->link,
		.hardware_ns = member_copy->hardware_ns,
		.tag = member_copy->tag,
		.now = member_copy->now,
	};

	if (!owner || !place_of(member, p.ring, &place))
		return;
	member_copy->copies++;

	__u32 kept =
		put(context, &p, &place, snaplen(member_copy->snaplen), member_copy->interface);

	member_copy->now = p.now;

	struct td_taken *t = kept ? bpf_map_lookup_elem(&taken, &member) : NULL;

	if (t) {
		t->packets++;
		t->bytes += kept;
	}
}

/* One packet on its way through the groups of a port. */
struct way {
	struct packet *packet;
	struct scratch *scratch;
	struct td_slots *slots; /* the slots of the group that the packet is at */
};

/* A global function: the verifier looks at it once, and not wherever it is called from. */
#define DELIVER(name, context, type)                                                           \
	__noinline int deliver_##name(type *ctx, struct member_copy *member_copy, __u32 owner) \
	{                                                                                      \
		if (member_copy)                                                               \
			deliver(context, ctx, member_copy, owner);                             \
		return 0;                                                                      \
	}                                                                                      \
	static long copy_##name(__u32 i, struct way *way)                                      \
	{                                                                                      \
		__u32 owner = NOW(way->slots->slot[i & (TD_SLOTS - 1)]);                       \
                                                                                               \
		deliver_##name(way->packet->ctx, &way->scratch->member_copy, owner);           \
		return 0;                                                                      \
	}

DELIVER(xdp, CONTEXT_XDP, struct xdp_md)
DELIVER(skb, CONTEXT_SKB, struct __sk_buff)
DELIVER(netfilter, CONTEXT_NETFILTER, struct bpf_nf_ctx)

/* Calls the function of this kind of context. */
#define BY_CONTEXT(context, call, ...)                 \
	do {                                           \
		switch (context) {                     \
		case CONTEXT_XDP:                      \
			call##_xdp(__VA_ARGS__);       \
			break;                         \
		case CONTEXT_SKB:                      \
			call##_skb(__VA_ARGS__);       \
			break;                         \
		case CONTEXT_NETFILTER:                \
			call##_netfilter(__VA_ARGS__); \
			break;                         \
		}                                      \
	} while (0)

static __always_inline void copy_to_all(enum context context, struct way *way, __u32 listed)
{
	switch (context) {
	case CONTEXT_XDP:
		bpf_loop(listed, copy_xdp, way, 0);
		break;
	case CONTEXT_SKB:
		bpf_loop(listed, copy_skb, way, 0);
		break;
	case CONTEXT_NETFILTER:
		bpf_loop(listed, copy_netfilter, way, 0);
		break;
	}
}

static __always_inline void deliver_to(enum context context, struct way *way, __u32 owner)
{
	BY_CONTEXT(context, deliver, way->packet->ctx, &way->scratch->member_copy, owner);
}

/* To the member or, of both ends, the two members that the packet belongs to. */
static __always_inline void steer(enum context context, struct way *way, __u32 group_number)
{
	struct td_group *group = bpf_map_lookup_elem(&groups, &group_number);

	if (!group)
		return;

	__u32 steering = NOW(group->steering), listed = NOW(group->listed);
	__u32 second = 0;
	__u32 number = td_steer_hash(context, way->packet, &way->scratch->headers, steering,
				     group_number, &second);
	__u32 slot = td_is_hash(steering) ? number >> (32 - TD_SLOT_BITS)
		     : listed             ? number % listed
					  : 0;
	__u32 owner = NOW(way->slots->slot[slot & (TD_SLOTS - 1)]);

	deliver_to(context, way, owner);
	if (steering == TD_BOTH_ENDS) {
		__u32 other = NOW(way->slots->slot[second >> (32 - TD_SLOT_BITS)]);

		if (other != owner)
			deliver_to(context, way, other);
	}
}

/* Functions of their own, so that what they need of the stack is not added to what the others need.
 */
#define STEER(name, context)                                                    \
	static __noinline int steer_##name(struct way *way, __u32 group_number) \
	{                                                                       \
		steer(context, way, group_number);                              \
		return 0;                                                       \
	}

STEER(xdp, CONTEXT_XDP)
STEER(skb, CONTEXT_SKB)
STEER(netfilter, CONTEXT_NETFILTER)

/* Do the rules of a group let it have the packet? Rules may shorten what the group keeps. */
static __always_inline bool rules_accept(enum context context, struct way *way, __u32 group_number)
{
	struct td_verdict *verdict = &way->scratch->verdict;
	struct member_copy *member_copy = &way->scratch->member_copy;
	struct td_tuple *outer = td_get_outer(context, way->packet, &way->scratch->headers);

	if (!td_judge(group_number, outer, verdict))
		return true;
	switch (verdict->action) {
	case TD_ACCEPT:
		return true;
	case TD_SNAPLEN:
		if (verdict->snaplen < member_copy->snaplen)
			member_copy->snaplen = verdict->snaplen;
		return true;
	case TD_GROUP:
		return verdict->group == group_number;
	case TD_CUT_OFF:
		way->scratch->question.limit = verdict->cutoff;
		return true;
	default:
		return false;
	}
}

#define NO_LIMIT ~0u

/* Has the packet's flow had its bytes in this group before? */
static __always_inline bool is_cut(enum context context, struct way *way, __u32 group_number)
{
	struct scratch *scratch = way->scratch;

	scratch->question.tag = way->packet->tag;
	scratch->question.len = frame_len(way->packet);
	scratch->question.owner = group_number;
	return TD_CALL(cut, context, way->packet, &scratch->headers, &scratch->question);
}

/* Brings the packet to one group. */
static __always_inline void visit(enum context context, struct way *way, __u32 ix)
{
	__u32 at = ix & (TD_MAX_GROUPS - 1);
	__u32 number = port.entry[at].group, count = port.counts + port.entry[at].count;
	struct td_group *group = bpf_map_lookup_elem(&groups, &number);
	struct td_slots *its_slots = bpf_map_lookup_elem(&slots, &number);
	struct td_counts *its_counts = bpf_map_lookup_elem(&counts, &count);

	if (!group || !its_slots || !its_counts || NOW(group->paused)) {
		heed_deadline_unwritten();
		return;
	}
	its_counts->seen++;

	__u32 filter = port.entry[at].filter;

	if (params.filtered && filter && !td_filter_accepts(context, way->packet, filter - 1)) {
		its_counts->filtered++;
		heed_deadline_unwritten();
		return;
	}

	struct member_copy *member_copy = &way->scratch->member_copy;

	way->slots = its_slots;
	member_copy->snaplen = NOW(group->snaplen);
	member_copy->interface = port.entry[at].interface;
	member_copy->copies = 0;
	way->scratch->question.limit = NO_LIMIT;
	if (NOW(group->rules) && !rules_accept(context, way, number)) {
		its_counts->filtered++;
		heed_deadline_unwritten();
		return;
	}
	if (way->scratch->question.limit != NO_LIMIT && is_cut(context, way, number)) {
		its_counts->cutoff++;
		heed_deadline_unwritten();
		return;
	}

	__u32 sole = NOW(group->sole);

	if (sole)
		deliver_to(context, way, sole);
	else if (NOW(group->steering) == TD_COPY)
		copy_to_all(context, way, NOW(group->listed));
	else
		BY_CONTEXT(context, steer, way, number);
	if (!member_copy->copies) {
		its_counts->no_member++;
		heed_deadline_unwritten();
	} else {
		its_counts->extra += member_copy->copies - 1;
	}
}

#define VISIT(name, context)                                \
	static long visit_##name(__u32 ix, struct way *way) \
	{                                                   \
		visit(context, way, ix);                    \
		return 0;                                   \
	}

VISIT(xdp, CONTEXT_XDP)
VISIT(skb, CONTEXT_SKB)
VISIT(netfilter, CONTEXT_NETFILTER)

static __always_inline void take(enum context context, struct packet *p)
{
	__u32 own = port.port, only = 0;
	struct td_counts *all = bpf_map_lookup_elem(&counts, &own);
	struct way way = { .packet = p, .scratch = bpf_map_lookup_elem(&scratch, &only) };

	if (!all || !way.scratch)
		return;

	struct member_copy *member_copy = &way.scratch->member_copy;

	member_copy->len = p->len;
	member_copy->ring = p->ring;
	member_copy->flags = p->flags;
	member_copy->link_len = p->link_len;
	member_copy->link = (__u64)p->link;
	member_copy->hardware_ns = p->hardware_ns;
	member_copy->tag = p->tag;
	member_copy->now = 0;
	way.scratch->headers.have = 0;
	all->seen++;
	switch (context) {
	case CONTEXT_XDP:
		bpf_loop(port.entries, visit_xdp, &way, 0);
		break;
	case CONTEXT_SKB:
		bpf_loop(port.entries, visit_skb, &way, 0);
		break;
	case CONTEXT_NETFILTER:
		bpf_loop(port.entries, visit_netfilter, &way, 0);
		break;
	}
}

#include "programs.h"

/* Closes a part-filled block of a member's ring. User space runs it when a packet has waited for
 * as long as it may. */
SEC("syscall")
int tapdeck_flush(struct td_flush_member *args)
{
	struct place place;

	return place_of(args->member, args->ring, &place) ? flush(&place, args->block) : 0;
}
