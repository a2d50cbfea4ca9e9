/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What generate.bpf.c and user space agree on. src/sys/generate.rs has the same structures, and a
 * test there compares them field by field. */
#ifndef TAPDECK_GENERATE_H
#define TAPDECK_GENERATE_H

#include <linux/types.h>

#define MAX_HEADERS 160
#define FILLER_BYTES (1 << 20)
#define MAX_FRAME 4096
#define BUCKETS 4096

enum { TUNNEL_NONE, TUNNEL_VXLAN, TUNNEL_GRE };
enum { UDP, TCP, ICMP };

/* Constants, told before the program is verified. */
struct td_generate {
	__u64 payload_seed;
	__u64 gap; /* from one packet to the next, in 2^-20 ns */
	__u64 gap_per_byte;
	__u64 duration_ns; /* 0: no end */
	__u64 count;       /* 0: no end */
	__u64 mark_every_ns;
	__u64 lead_ns; /* from the start to the first packet */
	__s64 utc_offset_ns;
	__u32 paced;
	__u32 ifindex;
	__u32 flows;    /* without the mark's, which is the next */
	__u32 shares;   /* columns; 0: flows are equal */
	__u32 sizes;    /* columns; 0: there is a sequence */
	__u32 sequence; /* sizes in it */
	__u32 first;
	__u32 step;
	__u32 frame_bytes; /* bytes of the frame that this program is run with */
	__u32 headers_len;
	__u32 ip_at;
	__u32 outer_ip_at;
	__u32 tunnel;
	__u32 outer_sum;
	__u32 ipv6;
	__u32 pad;
	__u8 headers[MAX_HEADERS];
};

struct flow {
	__u8 source[16];
	__u8 destination[16];
	__be16 source_port;
	__be16 destination_port;
	__be16 tunnel_port;
	__u16 transport;
	__u16 header_sum;
	__u16 transport_sum;
	__u32 stream;
	__be32 tcp_acknowledgement;
	__u32 tcp_sequence; /* the sequence number of the next packet */
	__u64 next;         /* number of the next packet */
};
_Static_assert(sizeof(struct flow) == 64, "a cache line");

struct column {
	__u32 threshold;
	__u32 own;
	__u32 other;
};

/* What a run has come to. */
struct td_generate_state {
	__u64 random;
	__u64 drawn;
	__u64 due_ns;
	__u64 due_part;
	__u64 next_mark_ns;
	__u64 start_ns;
	__u64 first_ns;
	__u64 last_ns;
	__u64 last_due_ns;
	__u64 made;
	__u64 taken;   /* by the interface */
	__u64 refused; /* by it */
	__u64 bytes;
	__u64 late_max_ns;
	__u64 gap_max_ns;
	__u64 jitter_max_ns;
	__u64 owner; /* the thread that runs the program */
	__u32 done;
	__u32 pad;
};

#endif
