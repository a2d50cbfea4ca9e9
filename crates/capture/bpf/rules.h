/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The image of a rule set: flat bytes, built by user space (crates/packet/src/rules/image), read by
 * look.h. All places are bytes from the image's beginning, all numbers in the machine's byte order.
 */
#ifndef TAPDECK_RULES_H
#define TAPDECK_RULES_H

#include <linux/types.h>

#define TD_IMAGE_MAGIC 0x31676d69
#define TD_MAX_SIGNATURES 4096

enum td_action { TD_NONE, TD_ACCEPT, TD_DROP, TD_SNAPLEN, TD_GROUP, TD_CUT_OFF };

/*
 * Where a look-up goes on: the kind in the two highest bits.
 * LIST   up to two signatures of 15 bits each, TD_LANE below
 * ROW    a row of signatures, its place / 8
 * CHUNK  its place / 64
 * NODE   its place / 32; with TD_LOW the address's low half is looked up there
 */
#define TD_KIND_SHIFT 30
#define TD_LIST 0
#define TD_ROW 1
#define TD_CHUNK 2
#define TD_NODE 3
#define TD_LOW (1u << 29)

/* A signature in a list: its number + 1, and whether it looks at no source address. */
#define TD_LANE_NUMBER 0x3fff
#define TD_LANE_NO_SOURCE 0x4000
/* The head of a row that has more signatures than a list of four holds. */
#define TD_LONG (~0ull)

/* Keys from min to min + span are looked up in a table of places, by (key - min) >> shift. */
struct td_node {
	__u64 min;
	__u64 span;
	__u32 below;
	__u32 above;
	__u32 table;
	__u32 shift;
};

/* Place i is that of keys from from[i - 1] up to from[i]. */
struct td_chunk {
	__u32 place[6];
	__u64 from[5];
};

/* What a rule does. */
struct td_outcome {
	__u32 rule;
	__u32 priority; /* lower is better; ~0: no rule */
	__u32 value;    /* snaplen, group or cutoff */
	__u16 stop;     /* no signature from this number on holds a better rule */
	__u8 action;
	__u8 pad;
};

/* A packet's tuple or a mask: addresses as they are compared; for IPv4 both stand in the first
 * word, the source in the high half. */
struct td_key4 {
	__u64 addresses;
	__u64 rest;
};

struct td_key6 {
	__u64 source[2];
	__u64 destination[2];
	__u64 rest;
	__u64 pad[3];
};

/* Bits of `rest`: destination port from 0, source port from 16, protocol from 32, */
#define TD_REST_PORTS (1ull << 40) /* ports are known, */
#define TD_REST_SIGNATURE 48       /* and in an entry, its signature's number. */

struct td_entry4 {
	struct td_key4 key;
	struct td_outcome outcome;
};

struct td_entry6 {
	__u64 source[2];
	__u64 destination[2];
	__u64 rest;
	struct td_outcome outcome;
	__u64 pad;
};

/* Signatures that look at a source address alone, at a destination alone, at none. */
#define TD_HAS_SOURCE_ONLY 1
#define TD_HAS_DESTINATION_ONLY 2
#define TD_HAS_GENERIC 4
#define TD_HAS_ADDRESSES 8

struct td_family {
	struct td_node source;
	struct td_node destination;
	__u32 flags;
	__u32 nsignatures;
	__u32 signatures; /* masks, struct td_key4 or td_key6 */
	__u32 words;      /* words of a row's bitmap; 0: there are no bitmaps */
	__u32 types;      /* eight rows without head: signatures that can fit, by used values */
	__u32 generic;    /* eight pairs of lists, likewise */
	__u32 displacements;
	__u32 bucket_mask;
	__u32 slot_shift; /* 32 - log2 of the slots */
	__u32 entries;
	__u32 pad[6];
};

struct td_rules {
	__u32 magic;
	__u32 walk; /* try all signatures one after the other */
	__u32 nrules;
	__u32 bloom;
	__u64 bloom_mask; /* bits - 1 */
	__u64 seed;
	struct td_outcome any; /* the rule that takes all packets, or none */
	__u32 source_ports;    /* bitmaps of the values that rules ask for */
	__u32 destination_ports;
	__u32 protocols;
	/* Set by whoever loads it: counters of each rule, then of packets that none takes,
	 * once for each lane. */
	__u32 hits;
	__u32 lane_bytes;
	__u32 lane_mask;    /* lanes - 1: a CPU's lane is its number under this mask */
	__u32 lanes_shared; /* by several CPUs */
	__u32 zero;
	struct td_family four;
	struct td_family six;
	/* The number of a word's only bit, by the highest six bits of its product with this. */
	__u8 lowest[64];
};

#define TD_DE_BRUIJN 0x03f79d71b4cb0a89ull

struct td_verdict {
	__u32 action;
	__u32 snaplen;
	__u32 group;
	__u32 rule;
	__u32 cutoff;
};

_Static_assert(sizeof(struct td_node) == 32, "a node");
_Static_assert(sizeof(struct td_chunk) == 64, "a chunk is a cache line");
_Static_assert(sizeof(struct td_outcome) == 16, "an outcome");
_Static_assert(sizeof(struct td_key4) == 16, "masks of IPv4");
_Static_assert(sizeof(struct td_key6) == 64, "masks of IPv6");
_Static_assert(sizeof(struct td_entry4) == 32, "half a cache line");
_Static_assert(sizeof(struct td_entry6) == 64, "a cache line");
_Static_assert(sizeof(struct td_family) == 128, "a family");
_Static_assert(sizeof(struct td_rules) == 400, "the header");

#endif
