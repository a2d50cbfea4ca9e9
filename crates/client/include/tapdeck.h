/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * tapdeck.h: reads the packets of a group of a running `tapdeck serve`.
 *
 * A program attaches to a group over the daemon's Unix socket and becomes a
 * member of it. The kernel fills rings that are the member's own, and the member
 * reads packets where they lie, without a copy and without any privilege but
 * read and write permission on the socket. Link with -ltapdeck_client.
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
 * Different threads may use different struct tapdeck at the same time, but one
 * struct tapdeck is for one thread at a time. Pointers are not NULL unless a
 * function says that they may be. No function sets errno, raises a signal or ends
 * the process. docs/CLIENT.md is the manual.
 */
#ifndef TAPDECK_H
#define TAPDECK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header's declarations. tapdeck_abi() returns that of the library. */
#define TAPDECK_ABI 1

/* Bytes of an error's text at most, with the NUL at its end. Longer texts are cut. */
#define TAPDECK_ERROR_BYTES 512

/* What the functions that return an int return. */
#define TAPDECK_OK 1       /* done, or something was found */
#define TAPDECK_NOTHING 0  /* nothing was found, within the timeout if there is one */
#define TAPDECK_ERROR (-1) /* the function failed; tapdeck_error() says why */
#define TAPDECK_END (-2)   /* the daemon has ended, and every packet in the rings was read */

/* A membership in a group. */
struct tapdeck;

/* How to attach. Fill the structure with zeros first: zero means the default. */
struct tapdeck_options {
	uint32_t weight;      /* share of the group's traffic, relative to other members [1] */
	uint32_t reserved[7]; /* zeros */
};

/* A run of packets of one ring, in the order in which they came. It is valid until the next
 * call of tapdeck_next_batch(), tapdeck_next_packet() or tapdeck_release(). */
struct tapdeck_batch {
	const uint8_t *bytes; /* pcapng Enhanced Packet Blocks in this machine's byte order */
	size_t length;        /* of bytes */
	size_t at;            /* where in bytes tapdeck_batch_next() goes on; 0 to begin again */
};

/* A packet, in the memory where the kernel has put it. It is valid as long as the batch that it
 * was taken from; from tapdeck_next_packet(), as long as a batch would be. */
struct tapdeck_packet {
	uint64_t timestamp_ns; /* when the packet came: nanoseconds since 1970, UTC */
	const uint8_t *bytes;  /* the frame from its first byte on, cut to the group's snaplen */
	uint32_t captured;     /* length of bytes */
	uint32_t original;     /* length of the frame on the wire, in bytes */
	uint32_t interface_id; /* the interface it came through: see tapdeck_interface() */
	uint32_t flags;        /* epb_flags of pcapng; bits 0 and 1: 1 in, 2 out, 0 not known */
	uint64_t dropped;      /* packets for this member that were dropped between this packet and
				  the one before it in the same ring */
};

/* An interface of the group. */
struct tapdeck_interface {
	const char *name;   /* valid as long as the struct tapdeck */
	uint32_t link_type; /* LINKTYPE_ of pcap-linktype(7): 1 is Ethernet */
	uint32_t snaplen;   /* bytes kept of a frame at most */
};

/* Packets as this member's own rings count them. */
struct tapdeck_counts {
	uint64_t received; /* came into the rings, whether or not they were read */
	uint64_t unread;   /* are in blocks that were not yet returned to the kernel */
	uint64_t dropped;  /* were dropped, because the rings were full or for any other reason */
};

/* Packets as the daemon counts them. */
struct tapdeck_stats {
	uint64_t seen;     /* seen by the group since the daemon began, whichever member got them */
	uint64_t captured; /* came into this member's rings */
	uint64_t dropped_ring;  /* for this member, dropped because its rings were full */
	uint64_t dropped_other; /* for this member, dropped for any other reason */
};

/* Returns TAPDECK_ABI of the library. */
uint32_t tapdeck_abi(void);

/*
 * Attaches to the group of this name. socket is the path of the daemon's socket;
 * NULL stands for the path in the environment variable TAPDECK_SOCKET, or for
 * /run/tapdeck/serve.sock where that is not set. options may be NULL for the
 * defaults. Returns NULL on failure, with the reason in error, which has room for
 * TAPDECK_ERROR_BYTES or is NULL.
 */
struct tapdeck *tapdeck_open(const char *socket, const char *group,
			     const struct tapdeck_options *options, char *error);

/* Leaves the group and frees everything. tapdeck may be NULL. */
void tapdeck_close(struct tapdeck *tapdeck);

/* Returns the reason of the last TAPDECK_ERROR of this tapdeck. The text is valid until the next
 * call with the same tapdeck. */
const char *tapdeck_error(const struct tapdeck *tapdeck);

/*
 * Finds the next batch, and returns the memory of the batch before it to the
 * kernel. Waits for timeout_ms milliseconds at most, without end if that is
 * negative, and not at all if it is 0. Returns TAPDECK_OK, TAPDECK_NOTHING,
 * TAPDECK_ERROR or TAPDECK_END. Batches of different rings may overlap in time.
 */
int tapdeck_next_batch(struct tapdeck *tapdeck, int timeout_ms, struct tapdeck_batch *batch);

/* Finds the next packet of a batch. Returns TAPDECK_OK, TAPDECK_NOTHING behind the last packet, or
 * TAPDECK_ERROR where the bytes are no packet; the batch is then at its end, and tapdeck_error()
 * does not tell of it. */
int tapdeck_batch_next(struct tapdeck_batch *batch, struct tapdeck_packet *packet);

/* Finds the next packet in the order of time over all rings. Waits and returns as
 * tapdeck_next_batch() does. After a TAPDECK_ERROR for a damaged block, the next call passes over
 * the rest of that block. */
int tapdeck_next_packet(struct tapdeck *tapdeck, int timeout_ms, struct tapdeck_packet *packet);

/* Returns the memory of what was handed out to the kernel, without asking for more. */
void tapdeck_release(struct tapdeck *tapdeck);

/* Returns a descriptor for select(), poll() or epoll. It is readable when there may be packets to
 * read, until reading finds nothing. It stays the same for as long as the membership. Do not read
 * from it and do not close it. */
int tapdeck_fd(const struct tapdeck *tapdeck);

/* Returns the group's snaplen: the number of bytes kept of a frame at most. */
uint32_t tapdeck_snaplen(const struct tapdeck *tapdeck);

/* Describes the interface of this number, from 0 on. Returns TAPDECK_OK, or TAPDECK_NOTHING where
 * there is none. */
int tapdeck_interface(const struct tapdeck *tapdeck, uint32_t id,
		      struct tapdeck_interface *interface);

/* Reads the counts of this member's rings, without a system call. Returns TAPDECK_OK. */
int tapdeck_counts(const struct tapdeck *tapdeck, struct tapdeck_counts *counts);

/* Asks the daemon for its counts. Returns TAPDECK_OK or TAPDECK_ERROR; waits for ten seconds at
 * most. */
int tapdeck_stats(struct tapdeck *tapdeck, struct tapdeck_stats *stats);

/* Asks the daemon to close part-filled blocks, so that what is in them can be read as a batch. The
 * daemon does so by itself when a packet has waited for some tens of milliseconds. Returns
 * TAPDECK_OK or TAPDECK_ERROR; waits for ten seconds at most. */
int tapdeck_flush(struct tapdeck *tapdeck);

#ifdef __cplusplus
}
#endif

#endif
