/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * tapdeck.h: read the packets of a group of a running `tapdeck serve`.
 *
 * A program attaches to a group over the daemon's Unix socket and becomes a
 * member of it. It gets rings of its own, which the kernel fills, and reads the
 * packets where they lie, without a copy and without any privilege but the
 * socket's permission. Link with -ltapdeck_client.
 *
 *	char why[TAPDECK_ERROR_BYTES];
 *	struct tapdeck *tapdeck = tapdeck_open(NULL, "ids", NULL, why);
 *	struct tapdeck_batch batch;
 *	struct tapdeck_packet packet;
 *	while (tapdeck_next_batch(tapdeck, -1, &batch) == TAPDECK_OK)
 *		while (tapdeck_batch_next(&batch, &packet) == TAPDECK_OK)
 *			look_at(packet.bytes, packet.captured);
 *	tapdeck_close(tapdeck);
 *
 * One thread at a time uses a struct tapdeck. No function sets errno, raises a
 * signal or ends the process. docs/CLIENT.md says more.
 */
#ifndef TAPDECK_H
#define TAPDECK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of what is declared here; tapdeck_abi() tells that of the library. */
#define TAPDECK_ABI 1

/* Room for the text of any error, with its end. Longer texts are cut. */
#define TAPDECK_ERROR_BYTES 512

/* What functions that return an int say. */
#define TAPDECK_OK 1	   /* there was something, or it was done */
#define TAPDECK_NOTHING 0  /* nothing by now */
#define TAPDECK_ERROR (-1) /* tapdeck_error() says why */
#define TAPDECK_END (-2)   /* nothing any more: the daemon has ended, and all was read */

/* A membership in a group. */
struct tapdeck;

/* How to attach. Fill it with zeros first: zero means the default. */
struct tapdeck_options {
	uint32_t weight; /* share of the group's traffic, relative to other members [1] */
	uint32_t reserved[7];
};

/* A run of packets of one ring, in order. Valid until the next call that reads. */
struct tapdeck_batch {
	const uint8_t *bytes; /* pcapng packet blocks in this machine's byte order */
	size_t length;
	size_t at; /* where tapdeck_batch_next() goes on; 0 begins again */
};

/* A packet, where the kernel has put it. Valid as long as what it was taken from. */
struct tapdeck_packet {
	uint64_t timestamp_ns; /* UTC, since 1970 */
	const uint8_t *bytes;  /* what was kept of the frame */
	uint32_t captured;     /* so many */
	uint32_t original;     /* bytes of the frame as it was on the wire */
	uint32_t interface_id; /* see tapdeck_interface() */
	uint32_t flags; /* epb_flags of pcapng: bits 0 and 1 are 1 in, 2 out, 0 not known */
	uint64_t dropped; /* packets for this member lost since the one before in its ring */
};

/* An interface of the group. Texts live as long as the struct tapdeck. */
struct tapdeck_interface {
	const char *name;
	uint32_t link_type; /* LINKTYPE_ of pcap-linktype(7): 1 is Ethernet */
	uint32_t snaplen;
};

/* What the rings of this member say; costs no system call. */
struct tapdeck_counts {
	uint64_t received; /* packets that came into the rings, read or not */
	uint64_t unread; /* of them, in blocks that were not given back */
	uint64_t dropped; /* packets that the rings had no room for, or lost for any other reason */
};

/* What the daemon counts for this member. */
struct tapdeck_stats {
	uint64_t seen; /* packets that the group saw, whoever got them */
	uint64_t captured;
	uint64_t dropped_ring;
	uint64_t dropped_other;
};

/* TAPDECK_ABI of the library. */
uint32_t tapdeck_abi(void);

/*
 * Attaches to a group. socket: the daemon's, NULL for that in the environment
 * variable TAPDECK_SOCKET or else /run/tapdeck/serve.sock. options: NULL for the
 * defaults. Returns NULL where it fails, and why in error, which has room for
 * TAPDECK_ERROR_BYTES or is NULL.
 */
struct tapdeck *tapdeck_open(const char *socket, const char *group,
			     const struct tapdeck_options *options, char *error);

/* Leaves the group and frees everything. NULL is allowed. */
void tapdeck_close(struct tapdeck *tapdeck);

/* Why the last function failed that returned TAPDECK_ERROR; valid until the next call. */
const char *tapdeck_error(const struct tapdeck *tapdeck);

/*
 * Gives the next run of packets; the one before goes back to the kernel. Waits for
 * timeout_ms at most, for ever if that is negative, and not at all if it is 0.
 * Returns TAPDECK_OK, TAPDECK_NOTHING, TAPDECK_ERROR or TAPDECK_END. Batches of
 * different rings may overlap in time.
 */
int tapdeck_next_batch(struct tapdeck *tapdeck, int timeout_ms, struct tapdeck_batch *batch);

/* The next packet of a batch: TAPDECK_OK, TAPDECK_NOTHING behind the last one, or
 * TAPDECK_ERROR where the bytes are no packet. */
int tapdeck_batch_next(struct tapdeck_batch *batch, struct tapdeck_packet *packet);

/* Gives the next packet in the order of time over all rings, as tapdeck_next_batch()
 * gives batches. It is valid until the next call that reads. */
int tapdeck_next_packet(struct tapdeck *tapdeck, int timeout_ms, struct tapdeck_packet *packet);

/* Gives back what was handed out, without asking for more. */
void tapdeck_release(struct tapdeck *tapdeck);

/* A descriptor for select(), poll() or epoll: readable when there may be something to
 * read, until reading finds nothing. Do not read from it and do not close it. */
int tapdeck_fd(const struct tapdeck *tapdeck);

/* Bytes kept of a frame at most. */
uint32_t tapdeck_snaplen(const struct tapdeck *tapdeck);

/* Describes an interface, counted from 0: TAPDECK_OK, or TAPDECK_NOTHING where there is none. */
int tapdeck_interface(const struct tapdeck *tapdeck, uint32_t id, struct tapdeck_interface *interface);

/* Counts of this member: TAPDECK_OK. */
int tapdeck_counts(const struct tapdeck *tapdeck, struct tapdeck_counts *counts);

/* Asks the daemon for its counts: TAPDECK_OK or TAPDECK_ERROR. */
int tapdeck_stats(struct tapdeck *tapdeck, struct tapdeck_stats *stats);

/* Has the daemon close part-filled blocks, so that what is in them comes as a batch now:
 * TAPDECK_OK or TAPDECK_ERROR. It does so by itself within some tens of milliseconds. */
int tapdeck_flush(struct tapdeck *tapdeck);

#ifdef __cplusplus
}
#endif

#endif
