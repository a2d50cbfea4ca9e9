/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Prints a line for each packet of a group, and the counts at the end.
 *
 *	cc -o follow follow.c -I../include -L../../../target/release -ltapdeck_client
 *	./follow GROUP [SOCKET]
 */
#include <inttypes.h>
#include <stdio.h>

#include "tapdeck.h"

int main(int argc, char **argv)
{
	char why[TAPDECK_ERROR_BYTES];
	struct tapdeck_options options = { .weight = 2 };
	struct tapdeck_batch batch;
	struct tapdeck_counts counts;
	int got;

	if (argc < 2) {
		fprintf(stderr, "usage: follow GROUP [SOCKET]\n");
		return 2;
	}
	struct tapdeck *tapdeck = tapdeck_open(argc > 2 ? argv[2] : NULL, argv[1], &options, why);
	if (!tapdeck) {
		fprintf(stderr, "follow: %s\n", why);
		return 1;
	}
	while ((got = tapdeck_next_batch(tapdeck, -1, &batch)) == TAPDECK_OK) {
		struct tapdeck_packet packet;
		struct tapdeck_interface interface;

		while ((got = tapdeck_batch_next(&batch, &packet)) == TAPDECK_OK) {
			if (tapdeck_interface(tapdeck, packet.interface_id, &interface) !=
			    TAPDECK_OK)
				interface.name = "?";
			printf("%" PRIu64 " %s %" PRIu32 " of %" PRIu32 " bytes, %" PRIu64
			       " lost before\n",
			       packet.timestamp_ns, interface.name, packet.captured,
			       packet.original, packet.dropped);
		}
		if (got == TAPDECK_ERROR)
			fprintf(stderr, "follow: a block is damaged\n");
		fflush(stdout);
	}
	if (got == TAPDECK_ERROR)
		fprintf(stderr, "follow: %s\n", tapdeck_error(tapdeck));
	tapdeck_counts(tapdeck, &counts);
	printf("received %" PRIu64 ", unread %" PRIu64 ", dropped %" PRIu64 "\n", counts.received,
	       counts.unread, counts.dropped);
	tapdeck_close(tapdeck);
	return got == TAPDECK_END ? 0 : 1;
}
