// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The recorder's kernel half: one body, four hooks.
 *
 * For every packet: reserve space in the ring of this receive queue (XDP) or
 * this CPU (tcx, netfilter), write one finished pcapng Enhanced Packet Block
 * there (draft-ietf-opsawg-pcapng, section 4.3), commit. User space never
 * touches a packet.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "params.h"
#include "ring.h"
#include "shed.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* In a section of its own so that the loader can write it as one piece. */
const volatile struct td_params params SEC(".rodata.params");

struct td_control control SEC(".data.control");

#define TD_CLAIMS 1
#include "produce.h"
#include "filter.h"

/* The same that keeps less where that is asked for is record_less.bpf.c, and with rules, too,
 * record_rules.bpf.c. */
#ifdef TD_CUTOFF
#include "cutoff.h"
#endif
/* As params.judged says, but known to the compiler. */
#ifdef TD_RULES
#define IS_JUDGED 1
#define TD_IMAGES 1
#include "images.h"
#else
#define IS_JUDGED 0
#endif

/* Rings of which a reader that sleeps has a block to read. It matters neither which one nor whether
 * there was room to say so: any wakes it. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} wakes SEC(".maps");

/* Sizes are set by the loader; the values here only make the object valid. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 4096);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 4096);
} data SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct td_release));
} release SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct td_shed));
} shed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct td_cut));
} cuts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, TD_MAX_RINGS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

/* Packets that a filter has kept from the socket of each queue, on cache lines of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TD_MAX_RINGS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 64);
} refused SEC(".maps");

static __always_inline __u8 *blocks_of(__u32 ring)
{
	return bpf_map_lookup_elem(&data, &ring);
}

static __always_inline bool place_of(__u32 member, __u32 index, struct place *place)
{
	place->ring = bpf_map_lookup_elem(&rings, &index);
	place->data = blocks_of(index);
	place->index = index;
	place->member = member;
	return place->ring && place->data;
}

static __always_inline __u32 released_of(const struct place *place)
{
	__u32 ix = place->index;
	struct td_release *r = bpf_map_lookup_elem(&release, &ix);

	return r ? NOW(r->released) : 0;
}

#ifdef TD_SHED
static __always_inline struct td_shed *shed_of_ring(__u32 index)
{
	return bpf_map_lookup_elem(&shed, &index);
}
#endif

static __always_inline void completed(const struct place *place, __u32 block)
{
	__u32 ix = place->index;
	struct td_release *r = bpf_map_lookup_elem(&release, &ix);

	if (r && td_wakes(block, NOW(r->released), NOW(r->awake)))
		bpf_ringbuf_output(&wakes, &ix, sizeof(ix), BPF_RB_FORCE_WAKEUP);
}

/* Who reads the rings looks by itself. */
static __always_inline void began(void)
{
}

static __always_inline __u32 snaplen(void)
{
	__u32 now = *(volatile __u32 *)&control.snaplen;

	return now < params.snaplen ? now : params.snaplen;
}

/* What a packet's rule, or the recorder, says of it. */
struct terms {
	__u32 keep;  /* bytes of it */
	__u32 limit; /* bytes of its flow; NO_LIMIT: as many as come */
};

#define NO_LIMIT ~0u

static __always_inline __u32 limit(void)
{
#ifdef TD_CUTOFF
	return params.cutoff ? params.cutoff : NO_LIMIT;
#else
	return NO_LIMIT;
#endif
}

#ifdef TD_CUTOFF
/*
 * What is known of one packet, on the CPU it is on: no program of ours interrupts another. The
 * stack has no room for it: before Linux 6.13 all frames together have 512 bytes.
 */
struct scratch {
	struct td_headers headers;
	struct td_flow_question question;
#ifdef TD_RULES
	struct td_verdict verdict;
#endif
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");
#else
struct scratch;
#endif

/* Where what is known of a packet has room. */
static __always_inline struct scratch *begin(void)
{
#ifdef TD_CUTOFF
	__u32 only = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &only);

	if (s)
		s->headers.have = 0;
	return s;
#else
	return NULL;
#endif
}

/* Whether the rules take a packet; lowers what is kept of it, or of its flow, where one says so. */
static __always_inline bool rules_accept(enum context context, struct packet *p, struct scratch *s,
					 struct terms *terms)
{
#ifdef TD_RULES
	if (!s || !td_judge(0, td_get_outer(context, p, &s->headers), &s->verdict))
		return true;
	if (s->verdict.action == TD_SNAPLEN && s->verdict.snaplen < terms->keep)
		terms->keep = s->verdict.snaplen;
	if (s->verdict.action == TD_CUT_OFF && s->verdict.cutoff < terms->limit)
		terms->limit = s->verdict.cutoff;
	return s->verdict.action != TD_NONE && s->verdict.action != TD_DROP;
#else
	return true;
#endif
}

/* Whether the packet's flow has had its bytes before; such a packet is counted here. */
static __always_inline bool is_cut(enum context context, struct packet *p, struct scratch *s,
				   __u32 limit)
{
#ifdef TD_CUTOFF
	if ((!params.cutoff && !IS_JUDGED) || limit == NO_LIMIT)
		return false;

	const void *end, *data = td_linear(context, p->ctx, &end);
	__u32 len = frame_len(p), tcp_flags;
	__u64 hash;

	/* Where rules have looked, the headers are known. */
	if (!IS_JUDGED && data &&
	    td_flow_of_plain(data, end, td_has_link(context, p), td_flow_seed(0), &hash,
			     &tcp_flags)) {
		if (!td_flow_count(hash, len, tcp_flags, limit))
			return false;
	} else {
		if (!IS_JUDGED)
			s = begin();
		if (!s)
			return false;
		s->question.tag = p->tag;
		s->question.len = len;
		s->question.limit = limit;
		s->question.owner = 0;
		if (!TD_CALL(cut, context, p, &s->headers, &s->question))
			return false;
	}

	struct td_cut *cut = bpf_map_lookup_elem(&cuts, &p->ring);

	if (cut) {
		__sync_fetch_and_add(&cut->packets, 1);
		__sync_fetch_and_add(&cut->bytes, len);
	}
	return true;
#else
	return false;
#endif
}

static __always_inline __u32 interface_of(const struct packet *p)
{
	return params.first_interface + p->ring;
}

/* With rules it is a function of its own, so that what each needs of the stack is not added to what
 * the other needs. */
#ifdef TD_RULES
#define WRITE(name, context, type)                                                        \
	static __noinline __u32 td_write_##name(type *ctx, struct packet *p,              \
						const struct place *place, __u32 snaplen) \
	{                                                                                 \
		p->ctx = ctx;                                                             \
		return put(context, p, place, snaplen, interface_of(p));                  \
	}
WRITE(xdp, CONTEXT_XDP, struct xdp_md)
WRITE(skb, CONTEXT_SKB, struct __sk_buff)
WRITE(netfilter, CONTEXT_NETFILTER, struct bpf_nf_ctx)
#define write_packet(context, p, place, snaplen) TD_CALL(write, context, p, p, place, snaplen)
#else
#define write_packet(context, p, place, snaplen) put(context, p, place, snaplen, interface_of(p))
#endif

static __always_inline void take(enum context context, struct packet *p)
{
	struct scratch *s = IS_JUDGED ? begin() : NULL;
	struct terms terms = {
		.keep = snaplen(),
		.limit = limit(),
	};
	bool refused = (params.filtered && !td_filter_accepts(context, p, 0)) ||
		       !rules_accept(context, p, s, &terms);
	struct place place;

	if (!refused && is_cut(context, p, s, terms.limit)) {
		heed_deadline_unwritten();
		return;
	}
	if (!refused && params.claims && put_into_claim(context, p, terms.keep, interface_of(p)))
		return;
	if (!place_of(0, p->ring, &place))
		return;
	if (refused) {
		__sync_fetch_and_add(&place.ring->filtered, 1);
		heed_deadline_unwritten();
		return;
	}

	__u32 kept = write_packet(context, p, &place, terms.keep);

	/* Used: a function whose result is not used returns whatever is in the register, and the
	 * verifier lets none return a pointer into its stack. */
	asm volatile("" : : "r"(kept));
}

#include "programs.h"

/* AF_XDP: hands the packets of a queue that the filter takes to the socket bound to that queue. */
SEC("xdp.frags")
int tapdeck_redirect(struct xdp_md *ctx)
{
	struct packet p = { .ctx = ctx, .len = xdp_len(ctx) };
	__u32 queue = ctx->rx_queue_index;

	if (params.filtered && !td_filter_accepts(CONTEXT_XDP, &p, 0)) {
		__u64 *packets = bpf_map_lookup_elem(&refused, &queue);

		if (packets)
			__sync_fetch_and_add(packets, 1);
		return XDP_DROP;
	}
	return bpf_redirect_map(&sockets, queue, XDP_PASS);
}

/*
 * Closes part-filled blocks, so that the reader gets what is in them. User space
 * runs it when a packet has waited for as long as it may.
 */
SEC("syscall")
int tapdeck_flush(struct td_flush *args)
{
	__u32 ix = args->ring;
	struct place place = { .ring = bpf_map_lookup_elem(&rings, &ix), .index = ix };

	return place.ring ? flush(&place, args->block) : 0;
}
