/*
 * What a network sensor does with libpcap, beyond what tcpdump does: non-blocking
 * reads behind select(), filters changed on the way, counts from a signal handler,
 * a loop that is broken, also by another thread, several handles at once. Linked with libpcap and
 * nothing else.
 *
 * It says "ready" when it waits for packets that tests/functions.rs puts into the rings,
 * which are numbered by their source port, 1000 and up.
 */
#include <arpa/inet.h>
#include <pcap/pcap.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#define MUST(x)                                                         \
	do {                                                            \
		if (!(x)) {                                             \
			fprintf(stderr, "line %d: %s\n", __LINE__, #x); \
			exit(1);                                        \
		}                                                       \
	} while (0)

static pcap_t *p;
static unsigned shown;

static int number(const u_char *frame)
{
	return (frame[34] << 8 | frame[35]) - 1000;
}

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static void count(u_char *user, const struct pcap_pkthdr *header, const u_char *frame)
{
	struct pcap_stat stat;

	MUST(!strcmp((char *)user, "user"));
	MUST(header->caplen == 44 && header->len == 44 && number(frame) >= 0);
	/* A callback may ask, and write. */
	MUST(pcap_stats(p, &stat) == 0 && stat.ps_recv > shown);
	shown++;
}

static void stop_at_three(u_char *user, const struct pcap_pkthdr *header, const u_char *frame)
{
	count(user, header, frame);
	if (shown == 3)
		pcap_breakloop(p);
}

static void on_signal(int signal)
{
	struct pcap_stat stat;

	(void)signal;
	MUST(pcap_stats(p, &stat) == 0);
	pcap_breakloop(p);
}

static int readable(int fd, int seconds)
{
	struct timeval wait = { .tv_sec = seconds };
	fd_set fds;

	FD_ZERO(&fds);
	FD_SET(fd, &fds);
	return select(fd + 1, &fds, NULL, NULL, &wait);
}

static void filter(const char *text)
{
	struct bpf_program program;

	MUST(pcap_compile(p, &program, text, 1, PCAP_NETMASK_UNKNOWN) == 0);
	MUST(pcap_setfilter(p, &program) == 0);
	pcap_freecode(&program);
}

static void before_activation(void)
{
	struct bpf_program program;
	int *kinds;

	MUST(pcap_datalink(p) == PCAP_ERROR_NOT_ACTIVATED);
	MUST(pcap_snapshot(p) == PCAP_ERROR_NOT_ACTIVATED);
	MUST(pcap_dispatch(p, 1, count, NULL) == PCAP_ERROR_NOT_ACTIVATED);
	MUST(pcap_compile(p, &program, "ip", 1, 0) == PCAP_ERROR && *pcap_geterr(p));
	MUST(pcap_get_selectable_fd(p) == -1);
	MUST(pcap_set_snaplen(p, 2000) == 0);
	MUST(pcap_set_promisc(p, 1) == 0);
	MUST(pcap_set_timeout(p, 50) == 0);
	MUST(pcap_set_buffer_size(p, 1 << 20) == 0);
	MUST(pcap_set_immediate_mode(p, 1) == 0);
	MUST(pcap_can_set_rfmon(p) == 0);
	MUST(pcap_list_tstamp_types(p, &kinds) == 1 && kinds[0] == PCAP_TSTAMP_HOST);
	pcap_free_tstamp_types(kinds);
	MUST(pcap_set_tstamp_type(p, PCAP_TSTAMP_HOST) == 0);
	MUST(pcap_set_tstamp_type(p, PCAP_TSTAMP_ADAPTER) == PCAP_WARNING_TSTAMP_TYPE_NOTSUP);
	MUST(pcap_set_tstamp_precision(p, 7) == PCAP_ERROR_TSTAMP_PRECISION_NOTSUP);
	MUST(pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO) == 0);
	MUST(pcap_get_tstamp_precision(p) == PCAP_TSTAMP_PRECISION_NANO);
}

static void after_activation(void)
{
	char error[PCAP_ERRBUF_SIZE];
	int *links;

	MUST(pcap_activate(p) == PCAP_ERROR_ACTIVATED);
	MUST(pcap_set_snaplen(p, 100) == PCAP_ERROR_ACTIVATED);
	MUST(pcap_datalink(p) == DLT_EN10MB && pcap_datalink_ext(p) == DLT_EN10MB);
	MUST(pcap_list_datalinks(p, &links) == 1 && links[0] == DLT_EN10MB);
	pcap_free_datalinks(links);
	MUST(pcap_set_datalink(p, DLT_EN10MB) == 0);
	MUST(pcap_set_datalink(p, DLT_RAW) == PCAP_ERROR && strstr(pcap_geterr(p), "12"));
	MUST(pcap_snapshot(p) == 2000);
	MUST(pcap_is_swapped(p) == 0 && pcap_major_version(p) >= 0);
	MUST(pcap_file(p) == NULL && pcap_fileno(p) == pcap_get_selectable_fd(p));
	MUST(pcap_get_required_select_timeout(p) == NULL);
	MUST(pcap_inject(p, "x", 1) == PCAP_ERROR && pcap_sendpacket(p, (u_char *)"x", 1) < 0);
	MUST(pcap_getnonblock(p, error) == 0);
	MUST(pcap_setnonblock(p, 1, error) == 0 && pcap_getnonblock(p, error) == 1);
}

static void read_packets(void)
{
	const int fd = pcap_get_selectable_fd(p);
	struct pcap_pkthdr *header, copy;
	struct pcap_stat stat;
	char error[PCAP_ERRBUF_SIZE];
	const u_char *frame;

	/* Nothing: neither the descriptor nor a read waits, and with a timeout it ends. */
	MUST(readable(fd, 0) == 0);
	MUST(pcap_dispatch(p, -1, count, (u_char *)"user") == 0);
	MUST(pcap_next_ex(p, &header, &frame) == 0);
	MUST(pcap_setnonblock(p, 0, error) == 0);
	MUST(pcap_next_ex(p, &header, &frame) == 0);
	MUST(pcap_next(p, &copy) == NULL);
	MUST(pcap_setnonblock(p, 1, error) == 0);

	say("ready"); /* 0 to 9 */
	MUST(readable(fd, 30) == 1);
	MUST(pcap_dispatch(p, 4, count, (u_char *)"user") == 4 && shown == 4);
	MUST(readable(fd, 0) == 1);
	MUST(pcap_next_ex(p, &header, &frame) == 1);
	MUST(number(frame) == 4 && header->caplen == 44 && header->ts.tv_usec == 4000004);
	frame = pcap_next(p, &copy);
	MUST(frame && number(frame) == 5 && copy.len == 44);
	filter("src port 1007 or src port 1009");
	MUST(pcap_dispatch(p, 0, count, (u_char *)"user") == 2);
	MUST(pcap_dispatch(p, 0, count, (u_char *)"user") == 0);
	MUST(readable(fd, 0) == 0);
	MUST(pcap_stats(p, &stat) == 0);
	/* Two were rejected. */
	MUST(stat.ps_recv == 8 && stat.ps_drop == 0 && stat.ps_ifdrop == 0);
}

static void loops(void)
{
	const struct itimerval soon = { .it_value.tv_usec = 20000 }, never = { 0 };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	char error[PCAP_ERRBUF_SIZE];

	MUST(pcap_setnonblock(p, 0, error) == 0);
	filter("");
	shown = 0;
	say("ready"); /* 10 to 19 */
	MUST(pcap_loop(p, -1, stop_at_three, (u_char *)"user") == PCAP_ERROR_BREAK && shown == 3);
	MUST(pcap_loop(p, 5, count, (u_char *)"user") == 0 && shown == 8);
	/* A break that came before is told once. */
	pcap_breakloop(p);
	MUST(pcap_dispatch(p, 1, count, (u_char *)"user") == PCAP_ERROR_BREAK && shown == 8);
	MUST(pcap_dispatch(p, 2, count, (u_char *)"user") == 2 && shown == 10);
	/* A handler that waits for ever is reached by a signal. */
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	MUST(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	MUST(pcap_loop(p, -1, count, (u_char *)"user") == PCAP_ERROR_BREAK && shown == 10);
	MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void *break_soon(void *none)
{
	(void)none;
	usleep(20000);
	pcap_breakloop(p);
	return NULL;
}

static void threads(void)
{
	pthread_t thread;

	/* Nothing comes, and nothing but the other thread ends the loop. */
	MUST(pthread_create(&thread, NULL, break_soon, NULL) == 0);
	MUST(pcap_loop(p, -1, count, (u_char *)"user") == PCAP_ERROR_BREAK);
	MUST(pthread_join(thread, NULL) == 0);
}

static void files(const char *path)
{
	struct pcap_pkthdr *header;
	const u_char *frame;
	char error[PCAP_ERRBUF_SIZE];
	pcap_dumper_t *dumper;
	pcap_t *file;

	MUST(!pcap_dump_open(p, "/nonexistent/file") && strstr(pcap_geterr(p), "nonexistent"));
	MUST((dumper = pcap_dump_open(p, path)));
	say("ready"); /* 20 and 21 */
	MUST(pcap_loop(p, 2, pcap_dump, (u_char *)dumper) == 0);
	pcap_dump_close(dumper);
	MUST((file = pcap_open_offline_with_tstamp_precision(path, PCAP_TSTAMP_PRECISION_NANO,
							     error)));
	MUST(pcap_snapshot(file) == 2000 && pcap_datalink(file) == DLT_EN10MB);
	MUST(pcap_next_ex(file, &header, &frame) == 1 && number(frame) == 20);
	MUST(header->ts.tv_usec == 20000020);
	MUST(pcap_next_ex(file, &header, &frame) == 1 && number(frame) == 21);
	MUST(pcap_next_ex(file, &header, &frame) == PCAP_ERROR_BREAK);
	pcap_close(file);
}

/* A read may end without a packet when its time is up. */
static int patiently(struct pcap_pkthdr **header, const u_char **frame)
{
	int got;

	while ((got = pcap_next_ex(p, header, frame)) == 0)
		;
	return got;
}

int main(int argc, char **argv)
{
	char error[PCAP_ERRBUF_SIZE];
	struct pcap_pkthdr *header;
	const u_char *frame;
	bpf_u_int32 net = 1, mask = 1;
	pcap_t *other, *dead;

	MUST(argc == 2);
	MUST(pcap_lookupnet("deck:ids", &net, &mask, error) == 0 && net == 0 && mask == 0);
	MUST((p = pcap_create("deck:ids", error)));
	before_activation();
	MUST(pcap_activate(p) == 0);
	after_activation();
	read_packets();
	loops();
	threads();
	files(argv[1]);

	/* Handles of other kinds beside it. */
	MUST((other = pcap_open_live("deck:ids", 96, 1, 0, error)));
	MUST(pcap_snapshot(other) == 96 && pcap_get_tstamp_precision(other) == 0);
	MUST((dead = pcap_open_dead(DLT_RAW, 300)) && pcap_snapshot(dead) == 300);
	MUST(pcap_datalink(p) == DLT_EN10MB && pcap_datalink(dead) == DLT_RAW);
	pcap_close(dead);
	pcap_close(other);
	MUST(!pcap_open_live("deck:nids", 96, 1, 0, error) && strstr(error, "no group \"nids\""));
	MUST(!pcap_open_live("nowhere0", 96, 1, 0, error) && strstr(error, "nowhere0"));

	say("end");
	MUST(patiently(&header, &frame) == 1 && number(frame) == 22);
	net = patiently(&header, &frame);
	MUST((int)net == PCAP_ERROR && strstr(pcap_geterr(p), "the daemon has ended"));
	pcap_perror(p, "sensor");
	pcap_close(p);
	return 0;
}
