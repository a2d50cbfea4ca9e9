/* An application that does something with each packet, as Schneider's createDist does (6.3.4).
 *
 * load -i IFACE -B MIB [-s SNAPLEN] [-f FILTER] [-c COPIES] [-z LEVEL]
 *
 * captures by libpcap until SIGINT, and
 *
 * load -r - [-c COPIES] [-z LEVEL]
 *
 * reads a capture from standard input.
 *
 * Each packet is copied so many times, compressed into nothing (gzwrite to /dev/null), and counted.
 * The application says "ready" when it listens, and at its end what it counted and what libpcap
 * counted.
 */
#include <pcap/pcap.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static pcap_t *pcap;
static unsigned char to[262144];

static void stop(int number)
{
	(void)number;
	pcap_breakloop(pcap);
}

static void fail(const char *why)
{
	fprintf(stderr, "load: %s\n", why);
	exit(1);
}

struct work {
	int copies;
	gzFile into;
	unsigned long long packets;
};

static void take(u_char *user, const struct pcap_pkthdr *header, const u_char *packet)
{
	struct work *work = (struct work *)user;
	size_t length = header->caplen < sizeof(to) ? header->caplen : sizeof(to);
	for (int i = 0; i < work->copies; i++) {
		memcpy(to, packet, length);
		/* The compiler must believe that each copy is read. */
		__asm__ volatile("" : : "r"(to) : "memory");
	}
	if (work->into && length && gzwrite(work->into, packet, (unsigned)length) == 0)
		fail("zlib cannot compress");
	work->packets++;
}

static pcap_t *listen_on(const char *interface, int mib, int snaplen, const char *filter)
{
	char why[PCAP_ERRBUF_SIZE];
	struct bpf_program program;
	pcap_t *p = pcap_create(interface, why);
	if (!p)
		fail(why);
	if (pcap_set_snaplen(p, snaplen) || pcap_set_promisc(p, 1) || pcap_set_timeout(p, 100) ||
	    pcap_set_buffer_size(p, mib << 20) || pcap_activate(p) < 0)
		fail(pcap_geterr(p));
	if (filter && (pcap_compile(p, &program, filter, 1, PCAP_NETMASK_UNKNOWN) ||
		       pcap_setfilter(p, &program)))
		fail(pcap_geterr(p));
	return p;
}

int main(int argc, char **argv)
{
	char why[PCAP_ERRBUF_SIZE];
	const char *interface = NULL, *file = NULL, *filter = NULL;
	int option, mib = 64, snaplen = 262144, level = -1;
	struct work work = { 0 };
	struct pcap_stat counted = { 0 };

	while ((option = getopt(argc, argv, "i:r:B:s:f:c:z:")) != -1) {
		switch (option) {
		case 'i':
			interface = optarg;
			break;
		case 'r':
			file = optarg;
			break;
		case 'B':
			mib = atoi(optarg);
			break;
		case 's':
			snaplen = atoi(optarg);
			break;
		case 'f':
			filter = optarg;
			break;
		case 'c':
			work.copies = atoi(optarg);
			break;
		case 'z':
			level = atoi(optarg);
			break;
		default:
			fail("see the top of load.c");
		}
	}
	if (!interface == !file)
		fail("one of -i and -r is needed");
	if (level >= 0) {
		char mode[] = { 'w', 'b', (char)('0' + level % 10), 0 };
		work.into = gzopen("/dev/null", mode);
		if (!work.into)
			fail("zlib cannot open /dev/null");
	}
	if (interface) {
		pcap = listen_on(interface, mib, snaplen, filter);
		signal(SIGINT, stop);
		fprintf(stderr, "load: ready\n");
	} else {
		/* Who writes into the pipe decides when it is over. */
		signal(SIGINT, SIG_IGN);
		fprintf(stderr, "load: ready\n");
		pcap = pcap_open_offline(file, why);
		if (!pcap)
			fail(why);
	}
	if (pcap_loop(pcap, -1, take, (u_char *)&work) == PCAP_ERROR)
		fail(pcap_geterr(pcap));
	if (interface)
		pcap_stats(pcap, &counted);
	if (work.into)
		gzclose(work.into);
	printf("{\"packets\": %llu, \"received\": %u, \"dropped\": %u}\n", work.packets,
	       counted.ps_recv, counted.ps_drop);
	return 0;
}
