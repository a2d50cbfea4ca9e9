// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Generates packets inside the kernel: run with BPF_F_TEST_XDP_LIVE_FRAMES, it
 * makes each frame of tables that user space filled in, waits until it is due,
 * and redirects it to an interface.
 *
 * What a packet is stands in docs/FORMAT.md, "Generated packets"; user space makes the
 * same ones, byte for byte (crates/traffic/src/frame.rs).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "numbers.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#include "generate.h"

#define TAG_BYTES 18
#define SHORT_TAG_BYTES 6
#define SEQUENCE_BITS 40
#define PART_BITS 20 /* bits of a nanosecond's fraction in a due time */
#define SPINS 4096
#define LATE_NS 10000000ull /* how long after its end a run may still send what was due before */

const volatile struct td_generate params SEC(".rodata.params");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct column);
} shares SEC(".maps"), sizes SEC(".maps");

/* Four sizes in an element. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sequence SEC(".maps");

/* Written by user space while the program runs. */
__u32 stop SEC(".data.control");

struct td_generate_state state SEC(".data.state");

struct {
	__u8 filler[FILLER_BYTES + MAX_FRAME];
	__u16 sums[(FILLER_BYTES + MAX_FRAME) / 2 + 4];
	__u64 made[MAX_FRAME]; /* by length */
	__u64 gaps[BUCKETS];
	__u64 jitters[BUCKETS];
} tables; /* in .bss */

static __always_inline __u64 mix(__u64 z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static __always_inline __u64 draw(void)
{
	state.random += 0x9e3779b97f4a7c15ull;
	return mix(state.random);
}

static __always_inline __u32 pick(void *map, __u32 columns, __u64 random)
{
	__u32 i = (random & 0xffffffff) * columns >> 32;
	struct column *c = bpf_map_lookup_elem(map, &i);

	if (!c)
		return 0;
	return (__u32)(random >> 32) < c->threshold ? c->own : c->other;
}

static __always_inline __u32 size(__u64 random, __u64 turn)
{
	__u32 i;
	__u64 *four;

	if (params.sizes)
		return pick(&sizes, params.sizes, random);
	i = (params.first + turn * params.step) % params.sequence;
	turn = i % 4 * 16;
	i /= 4;
	four = bpf_map_lookup_elem(&sequence, &i);
	return four ? *four >> turn & 0xffff : 0;
}

/* Sixty-four buckets for each power of two: which one a time belongs to. */
static __always_inline __u32 bucket(__u64 ns)
{
	__u32 log = 0;

	if (ns < 64)
		return ns;
	if (ns >> 32)
		log += 32;
	if (ns >> log >> 16)
		log += 16;
	if (ns >> log >> 8)
		log += 8;
	if (ns >> log >> 4)
		log += 4;
	if (ns >> log >> 2)
		log += 2;
	if (ns >> log >> 1)
		log += 1;
	return ((log - 5) * 64 + (ns >> (log - 6) & 63)) & (BUCKETS - 1);
}

static __always_inline void put16(void *at, __u16 value)
{
	*(__be16 *)at = bpf_htons(value);
}

static __always_inline void put32(void *at, __u32 value)
{
	*(__be32 *)at = bpf_htonl(value);
}

static __always_inline void put64(void *at, __u64 value)
{
	*(__be64 *)at = bpf_cpu_to_be64(value);
}

/* Ones' complement sums are of words in this machine's order (RFC 1071, section 2 (B)). */
static __always_inline __u32 sum32(__u32 value)
{
	return (value & 0xffff) + (value >> 16);
}

static __always_inline __u32 sum64(__u64 value)
{
	return sum32(value) + sum32(value >> 32);
}

static __always_inline __u16 checksum(__u32 sum)
{
	return ~sum32(sum32(sum));
}

static __always_inline void ipv4(void *ip, __u32 sum, __u16 len, __u16 identification)
{
	put16(ip + 2, len);
	put16(ip + 4, identification);
	*(__u16 *)(ip + 10) = checksum(sum + bpf_htons(len) + bpf_htons(identification));
}

static __always_inline void tunnel(void *data, const struct flow *f, __u32 len)
{
	void *ip = data + params.outer_ip_at;
	__u32 ip_len = len - params.outer_ip_at;

	ipv4(ip, params.outer_sum, ip_len, f->next);
	if (params.tunnel == TUNNEL_VXLAN) {
		*(__be16 *)(ip + 20) = f->tunnel_port;
		put16(ip + 24, ip_len - 20);
	}
}

static __always_inline __u8 number(__u16 transport)
{
	if (transport == UDP)
		return TD_PROTO_UDP;
	if (transport == TCP)
		return TD_PROTO_TCP;
	return params.ipv6 ? TD_PROTO_ICMPV6 : TD_PROTO_ICMP;
}

static __always_inline void network(void *data, const struct flow *f, __u32 len)
{
	void *ip = data + params.ip_at;
	__u32 ip_len = len - params.ip_at;

	if (params.ipv6) {
		put16(ip + 4, ip_len - 40);
		*(__u8 *)(ip + 6) = number(f->transport);
		__builtin_memcpy(ip + 8, f->source, 16);
		__builtin_memcpy(ip + 24, f->destination, 16);
	} else {
		*(__u8 *)(ip + 9) = number(f->transport);
		__builtin_memcpy(ip + 12, f->source, 4);
		__builtin_memcpy(ip + 16, f->destination, 4);
		ipv4(ip, f->header_sum, ip_len, f->next);
	}
}

/* Everything but the payload, whose sum is zero. */
static __always_inline void transport(void *head, const struct flow *f, __u16 len)
{
	__u32 sum = f->transport_sum;
	__u16 check;

	if (f->transport == ICMP) {
		*(__u16 *)head = params.ipv6 ? bpf_htons(TD_ICMPV6_ECHO_REQUEST << 8)
					     : bpf_htons(TD_ICMP_ECHO_REQUEST << 8);
		*(__be16 *)(head + 4) = f->source_port;
		put16(head + 6, f->next);
		sum += bpf_htons((__u16)f->next);
		if (params.ipv6)
			sum += bpf_htons(len);
		*(__u16 *)(head + 2) = checksum(sum);
		return;
	}
	*(__be16 *)head = f->source_port;
	*(__be16 *)(head + 2) = f->destination_port;
	sum += bpf_htons(len);
	if (f->transport == UDP) {
		put16(head + 4, len);
		check = checksum(sum + bpf_htons(len));
		*(__u16 *)(head + 6) = check ? check : 0xffff;
	} else {
		put32(head + 4, f->tcp_sequence);
		*(__be32 *)(head + 8) = f->tcp_acknowledgement;
		/* Data offset 5, ACK and PSH, window 65,535. */
		put32(head + 12, 0x5018ffff);
		*(__u16 *)(head + 16) = checksum(sum + sum32(bpf_htonl(f->tcp_sequence)));
		*(__u16 *)(head + 18) = 0;
	}
}

/* The sum of filler from an even offset on. Without filler, nothing is read: of what a short packet
 * takes, a look at a random place of the table would be the dearest. */
static __always_inline __u32 filler_sum(__u32 at, __u32 len)
{
	__u32 half = at / 2;
	__u32 sum = 0xffff;

	if (!len)
		return sum;
	sum += tables.sums[half + len / 2] - tables.sums[half];
	if (len & 1) {
		__u8 last = tables.filler[at + (len & ~1u)];
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
		sum += last;
#else
		sum += last << 8;
#endif
	}
	return sum;
}

static __always_inline __u64 identity(const struct flow *f)
{
	return (__u64)f->stream << SEQUENCE_BITS | (f->next & ((1ull << SEQUENCE_BITS) - 1));
}

static __always_inline int payload(struct xdp_md *ctx, void *data, const struct flow *f, __u32 at,
				   __u32 len, __u64 utc_ns)
{
	__u64 id = identity(f);
	__u32 from = mix(params.payload_seed ^ id) & (FILLER_BYTES - 1) & ~7u;
	void *tag = data + at;
	__u32 rest, sum;

	if (len < TAG_BYTES) {
		rest = (len - SHORT_TAG_BYTES) & 0x1f;
		put32(tag, f->next);
		sum = sum32(bpf_htonl((__u32)f->next));
		*(__u16 *)(tag + 4) = checksum(sum + filler_sum(from, rest));
		at += SHORT_TAG_BYTES;
	} else {
		rest = (len - TAG_BYTES) & (MAX_FRAME - 1);
		put64(tag, id);
		put64(tag + 8, utc_ns);
		sum = sum64(bpf_cpu_to_be64(id)) + sum64(bpf_cpu_to_be64(utc_ns));
		*(__u16 *)(tag + 16) = checksum(sum + filler_sum(from, rest));
		at += TAG_BYTES;
	}
	if (!rest)
		return 0;
	/* The verifier wants to see both bounds. */
	asm volatile("" : "+r"(rest));
	rest = ((rest - 1) & (MAX_FRAME - 1)) + 1;
	return bpf_xdp_store_bytes(ctx, at, tables.filler + from, rest);
}

static __always_inline int make(struct xdp_md *ctx, struct flow *f, __u32 len, __u64 utc_ns)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 at = params.headers_len;
	__u32 header = f->transport == TCP ? 20 : 8;
	__u32 i;

	if (data + MAX_HEADERS + 64 > end || at > MAX_HEADERS)
		return -1;
	for (i = 0; i < MAX_HEADERS / 8; i++) {
		if (i * 8 >= params.headers_len)
			break;
		((__u64 *)data)[i] = ((const volatile __u64 *)params.headers)[i];
	}
	if (params.tunnel)
		tunnel(data, f, len);
	network(data, f, len);
	transport(data + at, f, len - at);
	at += header;
	if (payload(ctx, data, f, at, len - at, utc_ns))
		return -1;
	f->next++;
	f->tcp_sequence += len - at;
	return bpf_xdp_adjust_tail(ctx, (int)len - (int)params.frame_bytes);
}

static __always_inline void observe(__u64 now, __u64 due)
{
	__u64 gap, planned, jitter;

	if (state.last_ns) {
		gap = now - state.last_ns;
		tables.gaps[bucket(gap)]++;
		if (gap > state.gap_max_ns)
			state.gap_max_ns = gap;
		if (params.paced) {
			planned = due - state.last_due_ns;
			jitter = gap > planned ? gap - planned : planned - gap;
			tables.jitters[bucket(jitter)]++;
			if (jitter > state.jitter_max_ns)
				state.jitter_max_ns = jitter;
		}
	} else {
		state.first_ns = now;
	}
	if (params.paced && now - due > state.late_max_ns)
		state.late_max_ns = now - due;
	state.last_ns = now;
	state.last_due_ns = due;
}

static __always_inline void advance(__u32 len)
{
	__u64 part = state.due_part + params.gap + len * params.gap_per_byte;

	state.due_ns += part >> PART_BITS;
	state.due_part = part & ((1 << PART_BITS) - 1);
}

/* Whether the run is over, for a packet that is due then. */
static __always_inline int over(__u64 now, __u64 due)
{
	__u64 passed = now - state.start_ns;

	if (params.count && state.made >= params.count)
		return 1;
	if (!params.duration_ns)
		return 0;
	if (due - state.start_ns >= params.duration_ns)
		return 1;
	return passed >= LATE_NS && passed - LATE_NS >= params.duration_ns;
}

/* When there is something to do: the next packet is due, or the run is over. */
static __always_inline __u64 next_moment(void)
{
	__u64 wait = state.due_ns - state.start_ns;

	if (params.duration_ns && wait > params.duration_ns)
		wait = params.duration_ns;
	return state.start_ns + wait;
}

SEC("xdp")
int tapdeck_generate(struct xdp_md *ctx)
{
	__u64 now, due, moment, flow_random, size_random;
	__u32 index, len, i;
	struct flow *f;

	if (state.done || *(volatile __u32 *)&stop)
		return XDP_DROP;
	now = bpf_ktime_get_ns();
	if (!state.due_ns) {
		if (!state.start_ns)
			state.start_ns = now;
		state.next_mark_ns = state.start_ns;
		state.due_ns = state.start_ns + params.lead_ns;
	}
	moment = params.paced ? next_moment() : state.start_ns;
	for (i = 0; i < SPINS && now < moment; i++)
		now = bpf_ktime_get_ns();
	if (now < moment)
		return XDP_DROP;
	due = params.paced ? state.due_ns : now;
	if (over(now, due)) {
		state.done = 1;
		return XDP_DROP;
	}
	if (params.mark_every_ns && due >= state.next_mark_ns) {
		index = params.flows;
		f = bpf_map_lookup_elem(&flows, &index);
		if (!f)
			goto fault;
		len = size(mix(params.payload_seed ^ ~identity(f)), f->next);
		state.next_mark_ns += params.mark_every_ns;
	} else {
		flow_random = draw();
		size_random = draw();
		if (params.shares)
			index = pick(&shares, params.shares, flow_random);
		else
			index = (flow_random & 0xffffffff) * params.flows >> 32;
		f = bpf_map_lookup_elem(&flows, &index);
		if (!f)
			goto fault;
		len = size(size_random, state.drawn++);
	}
	if (make(ctx, f, len, now + params.utc_offset_ns))
		goto fault;
	observe(now, due);
	if (params.paced)
		advance(len);
	state.made++;
	state.bytes += len;
	tables.made[len & (MAX_FRAME - 1)]++;
	return bpf_redirect(params.ifindex, 0);
fault:
	state.done = 2;
	return XDP_ABORTED;
}

/* Run once by the thread that will run the other: notes which it is. */
SEC("raw_tp")
int tapdeck_own(void *ctx)
{
	state.owner = bpf_get_current_pid_tgid();
	return 0;
}

struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

/* What became of the redirected frames: they are handed to the interface in bunches, by the thread
 * that made them and before the batch ends. What else this thread hands on (it may be interrupted)
 * it does between batches. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(tapdeck_taken, const struct net_device *from, const struct net_device *to, int sent,
	     int drops)
{
	if (state.owner != bpf_get_current_pid_tgid() || to->ifindex != params.ifindex)
		return 0;
	if (state.made == state.taken + state.refused)
		return 0;
	state.taken += sent;
	state.refused += drops;
	return 0;
}
