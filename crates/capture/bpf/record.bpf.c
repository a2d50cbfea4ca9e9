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
#include "kernel.h"
#include "ring.h"
#include "params.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* In a section of its own so that the loader can write it as one piece. */
const volatile struct td_params params SEC(".rodata.params");

struct td_control control SEC(".data.control");

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
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, TD_MAX_RINGS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

enum hook { HOOK_XDP, HOOK_SKB, HOOK_NETFILTER };

/* What a hook knows of a packet before it is copied. */
struct packet {
	void *ctx;
	__u32 len;           /* of the frame, without a stripped tag */
	__u32 ring;
	__u32 flags;         /* epb_flags; 0: no option is spent on it */
	__u32 link_len;      /* netfilter: bytes of link layer header before the data */
	const void *link;    /* netfilter: where they are */
	__u64 hardware_ns;   /* from the NIC, 0: none */
	__u32 tag;           /* a stripped VLAN tag, protocol and TCI in network order, 0: none */
};

struct epb {
	__u32 type;
	__u32 total_len;
	__u32 interface;
	__u32 time_high;
	__u32 time_low;
	__u32 captured_len;
	__u32 original_len;
};

#define EPB_TYPE 6
#define OPT_FLAGS (2 | 4 << 16)
#define OPT_DROPCOUNT (4 | 8 << 16)
#define NS_PER_S 1000000000ull
#define TAG_OFFSET 12
#define TAG_LEN 4

/*
 * An addition whose result is used compiles to BPF_FETCH, which is a full
 * barrier; without, it has no ordering at all on weakly ordered machines.
 */
static __always_inline void add_ordered(__u64 *counter, __u64 n)
{
	__u64 before = __sync_fetch_and_add(counter, n);

	asm volatile("" : : "r"(before));
}

static __always_inline struct td_ring *ring_of(__u32 ix)
{
	return bpf_map_lookup_elem(&rings, &ix);
}

static __always_inline struct td_block *block_of(struct td_ring *ring, __u32 number)
{
	return &ring->block[number & params.block_mask];
}

static __always_inline __u32 released_of(__u32 ix)
{
	struct td_release *r = bpf_map_lookup_elem(&release, &ix);

	return r ? *(volatile __u32 *)&r->released : 0;
}

static __always_inline void close_block(struct td_ring *ring, __u64 word)
{
	struct td_block *block = block_of(ring, td_word_block(word));
	__u32 used = td_word_bytes(word);

	block->used = used;
	block->epoch = td_word_epoch(word);
	add_ordered(&block->commit, td_commit(params.block_bytes - used, 0, 0));
}

/* Reserves len bytes and gives back the word they were reserved at, its byte
 * field being their place in the block. */
static __always_inline bool reserve(struct td_ring *ring, __u32 ix, __u32 len, __u64 *at)
{
	__u64 word = *(volatile __u64 *)&ring->word;

	for (int i = 0; i < TD_TRIES; i++) {
		bool fits = td_fits(word, len, params.block_bytes);
		__u64 next, seen;

		if (fits) {
			next = word + len;
		} else {
			if (!td_next_is_free(word, released_of(ix), params.block_mask + 1))
				return false;
			next = td_next_block(word, *(volatile __u32 *)&control.epoch & (TD_EPOCHS - 1), len);
		}
		seen = __sync_val_compare_and_swap(&ring->word, word, next);
		if (seen == word) {
			if (!fits)
				close_block(ring, word);
			*at = fits ? word : next - len;
			return true;
		}
		word = seen;
	}
	__sync_fetch_and_add(&ring->contended, 1);
	return false;
}

static __always_inline long copy(enum hook hook, struct packet *p, __u32 from, void *to, __u32 len)
{
	if (hook == HOOK_XDP)
		return bpf_xdp_load_bytes(p->ctx, from, to, len);
	if (hook == HOOK_SKB)
		return bpf_skb_load_bytes(p->ctx, from, to, len);

	struct bpf_dynptr view;
	struct bpf_nf_ctx *nf = p->ctx;

	if (bpf_dynptr_from_skb((struct __sk_buff *)nf->skb, 0, &view))
		return -1;
	return bpf_dynptr_read(to, len, &view, from, 0);
}

/* The verifier wants to see that a length is at least 1 and at most len_mask + 1;
 * the barrier keeps the compiler from folding the proof away. */
#define BOUNDED(len)                                                                               \
	({                                                                                         \
		__u32 _l = (len)-1;                                                                \
		asm volatile("" : "+r"(_l));                                                       \
		(_l & params.len_mask) + 1;                                                            \
	})

/* Copies the first cap bytes of the frame to `to`, with what was taken off it put back. */
static __always_inline long copy_frame(enum hook hook, struct packet *p, __u8 *to, __u32 cap)
{
	if (hook == HOOK_NETFILTER && p->link_len) {
		__u32 link_len = ((p->link_len - 1) & 31) + 1;

		if (cap <= link_len)
			return bpf_probe_read_kernel(to, ((cap - 1) & 31) + 1, p->link);
		if (bpf_probe_read_kernel(to, link_len, p->link))
			return -1;
		return copy(hook, p, 0, to + link_len, BOUNDED(cap - link_len));
	}
	if (!p->tag || cap <= TAG_OFFSET)
		return copy(hook, p, 0, to, BOUNDED(cap));
	if (copy(hook, p, 0, to, TAG_OFFSET))
		return -1;
	if (cap < TAG_OFFSET + TAG_LEN) {
		/* A part of the tag: the rest of the word stays padding. */
		*(__u32 *)(to + TAG_OFFSET) =
			p->tag & __builtin_bswap32(~0u << 8 * (TAG_OFFSET + TAG_LEN - cap));
		return 0;
	}
	*(__u32 *)(to + TAG_OFFSET) = p->tag;
	if (cap == TAG_OFFSET + TAG_LEN)
		return 0;
	return copy(hook, p, TAG_OFFSET, to + TAG_OFFSET + TAG_LEN,
		    BOUNDED(cap - TAG_OFFSET - TAG_LEN));
}

static __always_inline void record(enum hook hook, struct packet *p)
{
	struct td_ring *ring = ring_of(p->ring);
	struct { __u8 bytes[1]; } *base = bpf_map_lookup_elem(&data, &p->ring);

	if (!ring || !base)
		return;

	__u32 len = p->len + (p->tag ? TAG_LEN : 0) + p->link_len;
	__u32 cap = len < params.snaplen ? len : params.snaplen;

	if (!cap) {
		__sync_fetch_and_add(&ring->failed, 1);
		__sync_fetch_and_add(&ring->lost, 1);
		return;
	}

	__u32 padded = (cap + 3) & ~3u;
	__u32 total = sizeof(struct epb) + padded + 4;
	__u64 told = *(volatile __u64 *)&ring->told;
	__u64 lost = *(volatile __u64 *)&ring->lost;
	__u64 gap = 0;

	if (p->flags)
		total += 8;
	/* Rare: packets were dropped since the last one that was kept. Whoever moves
	 * `told` announces them. */
	if ((__s64)(lost - told) > 0 && __sync_val_compare_and_swap(&ring->told, told, lost) == told) {
		gap = lost - told;
		total += 12;
	}
	if (p->flags || gap)
		total += 4;

	__u64 at;

	if (!reserve(ring, p->ring, total, &at)) {
		if (gap)
			__sync_fetch_and_add(&ring->told, -gap);
		__sync_fetch_and_add(&ring->lost, 1);
		return;
	}

	__u64 ns = bpf_ktime_get_ns() + control.utc_offset_ns[td_word_epoch(at)];

	/* A NIC whose clock is not set to UTC is not believed. */
	if (p->hardware_ns && p->hardware_ns - ns + NS_PER_S < 2 * NS_PER_S)
		ns = p->hardware_ns;

	__u32 place = ((td_word_block(at) & params.block_mask) << params.block_shift) |
		      (td_word_bytes(at) & (params.block_bytes - 1));
	__u8 *out = base->bytes + (place & params.ring_mask);
	struct epb *epb = (struct epb *)out;
	__u8 *frame = out + sizeof(*epb);

	epb->type = EPB_TYPE;
	epb->total_len = total;
	epb->interface = params.first_interface + p->ring;
	epb->time_high = ns >> 32;
	epb->time_low = ns;
	epb->captured_len = cap;
	epb->original_len = len;
	/* Zeroes the padding; where there is none, what follows overwrites it. */
	*(__u32 *)(frame + (cap & params.len_mask2)) = 0;

	__u32 commit_packets = 1;

	if (copy_frame(hook, p, frame, cap)) {
		/* The space is taken; leave a block there that readers skip. */
		epb->type = TD_FILL;
		__sync_fetch_and_add(&ring->failed, 1);
		__sync_fetch_and_add(&ring->lost, 1);
		if (gap)
			__sync_fetch_and_add(&ring->told, -gap);
		commit_packets = 0;
		cap = 0;
	}

	__u32 *word = (__u32 *)(frame + (padded & params.len_mask2));

	if (p->flags) {
		*word++ = OPT_FLAGS;
		*word++ = p->flags;
	}
	if (gap) {
		*word++ = OPT_DROPCOUNT;
		*word++ = gap;
		*word++ = gap >> 32;
	}
	if (p->flags || gap)
		*word++ = 0;
	*word = total;

	add_ordered(&block_of(ring, td_word_block(at))->commit, td_commit(total, cap, commit_packets));
}

static __always_inline __u32 ring_for(__u32 unit)
{
	return unit < params.nrings ? unit : unit % params.nrings;
}

/* In the driver one CPU at a time serves a queue; in the core any CPU may. */
static __always_inline __u32 xdp_ring(struct xdp_md *ctx)
{
	return ring_for(params.by_cpu ? bpf_get_smp_processor_id() : ctx->rx_queue_index);
}

static __always_inline __u32 vlan_tag(__u16 proto_be, __u16 tci)
{
	return (__u32)proto_be | (__u32)__builtin_bswap16(tci) << 16;
}

static __always_inline int xdp_verdict(void)
{
	return params.consume ? XDP_DROP : XDP_PASS;
}

SEC("xdp.frags")
int tapdeck_xdp(struct xdp_md *ctx)
{
	struct packet p = {
		.ctx = ctx,
		.len = bpf_xdp_get_buff_len(ctx),
		.ring = xdp_ring(ctx),
	};

	record(HOOK_XDP, &p);
	return xdp_verdict();
}

/* Bound to its device, so that the driver's own metadata can be asked for. */
SEC("xdp.frags")
int tapdeck_xdp_metadata(struct xdp_md *ctx)
{
	struct packet p = {
		.ctx = ctx,
		.len = bpf_xdp_get_buff_len(ctx),
		.ring = xdp_ring(ctx),
	};
	__u64 ns = 0;
	__u16 proto = 0, tci = 0;

	if (params.hardware_time && !bpf_xdp_metadata_rx_timestamp(ctx, &ns))
		p.hardware_ns = ns;
	if (params.hardware_vlan && !bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci))
		p.tag = vlan_tag(proto, tci);
	record(HOOK_XDP, &p);
	return xdp_verdict();
}

static __always_inline void record_skb(struct __sk_buff *skb, __u32 direction)
{
	struct packet p = {
		.ctx = skb,
		.len = skb->len,
		.ring = ring_for(bpf_get_smp_processor_id()),
		.flags = direction,
	};

	if (skb->vlan_present)
		p.tag = vlan_tag(skb->vlan_proto, skb->vlan_tci);
	record(HOOK_SKB, &p);
}

/* draft-ietf-opsawg-pcapng, section 4.3.1: 01 inbound, 10 outbound. */
#define INBOUND 1
#define OUTBOUND 2

/* TCX_NEXT and TC_ACT_UNSPEC are the same number, so are TCX_DROP and TC_ACT_SHOT. */
#define SKB_NEXT -1
#define SKB_DROP 2

SEC("tc")
int tapdeck_ingress(struct __sk_buff *skb)
{
	record_skb(skb, INBOUND);
	return params.consume ? SKB_DROP : SKB_NEXT;
}

SEC("tc")
int tapdeck_egress(struct __sk_buff *skb)
{
	record_skb(skb, OUTBOUND);
	return params.consume ? SKB_DROP : SKB_NEXT;
}

#define NF_DROP 0
#define NF_ACCEPT 1

SEC("netfilter")
int tapdeck_netfilter(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;

	if ((__u32)ctx->state->in->ifindex != params.ifindex)
		return NF_ACCEPT;

	struct packet p = {
		.ctx = ctx,
		.len = skb->len,
		.ring = ring_for(bpf_get_smp_processor_id()),
	};

	if (params.link_header) {
		const unsigned char *link = skb->head + skb->mac_header;
		__u64 link_len = skb->data - link;

		if (link_len && link_len <= 32) {
			p.link = link;
			p.link_len = link_len;
		}
	}
	record(HOOK_NETFILTER, &p);
	return params.consume ? NF_DROP : NF_ACCEPT;
}

/* AF_XDP: hands every packet of a queue to the socket bound to that queue. */
SEC("xdp.frags")
int tapdeck_redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

/*
 * Closes part-filled blocks, so that the reader gets what is in them. User space
 * runs it when a packet has waited for as long as it may; it is one more
 * producer, which reserves the rest of the block for nothing.
 */
SEC("syscall")
int tapdeck_flush(struct td_flush *args)
{
	__u32 ix = args->ring;
	struct td_ring *ring = ring_of(ix);

	if (!ring)
		return 0;

	__u64 word = *(volatile __u64 *)&ring->word;
	__u32 epoch = *(volatile __u32 *)&control.epoch & (TD_EPOCHS - 1);

	/* Only the block that user space has seen waiting. */
	if (td_word_block(word) != args->block)
		return 0;
	if (!td_word_bytes(word)) {
		if (td_word_epoch(word) == epoch)
			return 0;
		__sync_val_compare_and_swap(&ring->word, word, td_word(td_word_block(word), epoch, 0));
		return 0;
	}
	if (!td_next_is_free(word, released_of(ix), params.block_mask + 1))
		return 0;
	for (int i = 0; i < TD_TRIES; i++) {
		__u64 seen = __sync_val_compare_and_swap(&ring->word, word, td_next_block(word, epoch, 0));

		if (seen == word) {
			close_block(ring, word);
			return 1;
		}
		if (td_word_block(seen) != args->block)
			return 0;
		word = seen;
	}
	return 0;
}
