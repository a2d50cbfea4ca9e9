/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the programs of groups and user space agree on, beside the rings (ring.h).
 * src/sys/params.rs and src/groups/maps.rs have the same, and a test in the latter compares
 * them field by field. */
#ifndef TAPDECK_SERVE_H
#define TAPDECK_SERVE_H

#include <linux/types.h>

#define TD_MAX_GROUPS 256
#define TD_MAX_MEMBERS 1024
/* In the place of a member's number: the daemon itself. */
#define TD_DAEMON TD_MAX_MEMBERS

/*
 * Who of a group's members gets a packet (steer.h). A slot holds a member's number plus one, 0
 * where it has no owner.
 *
 * - By hash: the owner of the slot that the hash's highest bits name. User space shares the slots
 *   out by weight and moves those of a member that leaves, and no others.
 * - By turn: the first `listed` slots are the order.
 * - Copies to all: the first `listed` slots are the members, with holes where somebody left, so
 *   that nobody is met twice by a packet that is on its way.
 */
#define TD_SLOT_BITS 13
#define TD_SLOTS (1u << TD_SLOT_BITS)

struct td_slots {
	__u16 slot[TD_SLOTS];
};

/* Each word changes by itself, at any time. */
struct td_group {
	__u32 steering; /* enum td_steering */
	__u32 snaplen;
	__u32 paused;
	__u32 sole;   /* its only member's number plus one; 0: look into the slots */
	__u32 listed; /* slots in use, where they are a list */
	__u32 rules;  /* 1: the group has rules, in the image of its number */
	__u32 reserved[10];
};

/* A group on one interface at one hook. */
struct td_entry {
	__u16 group;
	__u16 interface; /* the interface's number in the group's list */
	__u16 filter;    /* number of the filter in this program, plus one; 0: none */
	__u16 count;     /* which of `counts` is its own, from the port's `counts` on */
};

/* What a program serves. Constant: it is another program after a change. */
struct td_port {
	__u32 port;   /* which of `counts` is its own */
	__u32 counts; /* where in `counts` those of its groups are counted from */
	__u32 entries;
	__u32 reserved;
	struct td_entry entry[TD_MAX_GROUPS];
};

/*
 * Packets, per CPU. Programs that share a CPU follow each other (they run with software
 * interrupts off), so plain additions are exact. The law, for a group on a port:
 *
 *   seen + extra = filtered + cutoff + no_member + captured or dropped at its members' rings
 */
struct td_counts {
	__u64 seen;      /* at a port all packets; at a group those while it was not paused */
	__u64 filtered;  /* by filter or rules */
	__u64 cutoff;    /* of flows that had had their bytes */
	__u64 no_member; /* nobody was there to take it */
	__u64 extra;     /* copies beyond each packet's first */
};

/* What lies in a member's rings, or has been there. Per CPU. */
struct td_taken {
	__u64 packets;
	__u64 bytes; /* bytes of those packets' frames, as kept */
};

struct td_flush_member {
	__u32 member;
	__u32 ring;
	__u32 block;
};

#endif
