/*
 * A member that means harm: it speaks the protocol of docs/CLIENT.md by itself, tries
 * to write what it may only read, and then scribbles over what it may write until its
 * standard input ends.
 *
 *	hostile SOCKET GROUP
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <linux/bpf.h>

#define MUST(x)                                                                              \
	do {                                                                                 \
		if (!(x)) {                                                                  \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

static char answer[1 << 16];

static size_t said(const char *key)
{
	char quoted[64];
	const char *at;

	snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	MUST((at = strstr(answer, quoted)));
	return strtoull(at + strlen(quoted), NULL, 10);
}

static void attach(const char *path, const char *group, int fds[4])
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char request[256], space[CMSG_SPACE(4 * sizeof(int))];
	struct iovec part = { answer, sizeof(answer) - 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = space,
				  .msg_controllen = sizeof(space) };
	const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	ssize_t got;

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	MUST(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	snprintf(request, sizeof(request), "{\"verb\":\"attach\",\"group\":\"%s\",\"weight\":1}\n",
		 group);
	MUST(write(fd, request, strlen(request)) == (ssize_t)strlen(request));
	MUST((got = recvmsg(fd, &message, 0)) > 0);
	const struct cmsghdr *control = CMSG_FIRSTHDR(&message);
	MUST(control && control->cmsg_type == SCM_RIGHTS);
	MUST(control->cmsg_len == CMSG_LEN(4 * sizeof(int)));
	memcpy(fds, CMSG_DATA(control), 4 * sizeof(int));
	while (!memchr(answer, '\n', got)) {
		ssize_t more = read(fd, answer + got, sizeof(answer) - 1 - got);
		MUST(more > 0);
		got += more;
	}
}

/* The kernel lets nobody write here, whatever way is tried. */
static void try_to_write(int fd, size_t bytes)
{
	uint32_t key = 0;
	static char value[64 << 20];
	union bpf_attr update = { .map_fd = fd, .key = (uintptr_t)&key, .value = (uintptr_t)value };
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	MUST(at == MAP_FAILED && (errno == EPERM || errno == EACCES));
	MUST((at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
	MUST(mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0);
	MUST(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &update, sizeof(update)) != 0);
	MUST(pwrite(fd, value, 8, 0) < 0);
	MUST(ftruncate(fd, 0) != 0);
	munmap(at, bytes);
}

int main(int argc, char **argv)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	volatile uint32_t *words;
	uint32_t noise = 2463534242u;
	char byte;
	int fds[4];

	MUST(argc == 3);
	attach(argv[1], argv[2], fds);
	try_to_write(fds[0], said("nrings") * said("ring_stride"));
	try_to_write(fds[1], said("nrings") * said("data_stride"));
	const size_t release = said("nrings") * said("release_stride");
	words = mmap(NULL, release, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0);
	MUST(words != MAP_FAILED);
	/* The daemon writes to the pipe; nobody writes to it from here, or makes it block. */
	MUST(write(fds[3], "x", 1) < 0);
	puts("scribbling");
	fflush(stdout);
	do {
		for (size_t i = 0; i < release / sizeof(*words); i++) {
			noise ^= noise << 13;
			noise ^= noise >> 17;
			noise ^= noise << 5;
			/* Numbers of every size, near to the right ones too. */
			words[i] = noise >> noise % 32;
		}
	} while (!(poll(&input, 1, 0) > 0 && read(0, &byte, 1) == 0));
	return 0;
}
