/*
 * Tries what somebody could who has taken a process over: has its main thread make a
 * system call, and prints the number of the error, or 0 where the kernel let it.
 *
 *	as_recorder PID read PATH | write PATH | socket | bpf | setuid | tcp | signal PID
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#define MUST(x)                                                                              \
	do {                                                                                 \
		if (!(x)) {                                                                  \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

static pid_t pid;
static struct user_regs_struct before;

static void wait_until_stopped(void)
{
	int status;

	MUST(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
}

/* Puts bytes below the thread's stack. Returns where. */
static unsigned long put(const void *bytes, size_t len)
{
	unsigned long at = (before.rsp - 4096) & ~15UL, word;

	for (size_t i = 0; i < len; i += sizeof(word)) {
		word = 0;
		memcpy(&word, (const char *)bytes + i,
		       len - i < sizeof(word) ? len - i : sizeof(word));
		MUST(!ptrace(PTRACE_POKEDATA, pid, at + i, word));
	}
	return at;
}

/* Has the thread, which waits in a system call, make another one. */
static long make(long number, long a, long b, long c, long d)
{
	struct user_regs_struct regs = before;

	regs.orig_rax = -1;
	regs.rip -= 2;
	regs.rax = number;
	regs.rdi = a;
	regs.rsi = b;
	regs.rdx = c;
	regs.r10 = d;
	MUST(!ptrace(PTRACE_SETREGS, pid, 0, &regs));
	MUST(!ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
	wait_until_stopped();
	MUST(!ptrace(PTRACE_GETREGS, pid, 0, &regs));
	return regs.rax;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "", *with = argc > 3 ? argv[3] : "";
	struct sockaddr_in address = { .sin_family = AF_INET };
	union bpf_attr attr = {
		.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1
	};
	long got = -ENOSYS;

	MUST(argc > 2);
	pid = atoi(argv[1]);
	MUST(!ptrace(PTRACE_SEIZE, pid, 0, 0));
	do {
		MUST(!ptrace(PTRACE_INTERRUPT, pid, 0, 0));
		wait_until_stopped();
		MUST(!ptrace(PTRACE_GETREGS, pid, 0, &before));
		/* Behind the instruction `syscall` alone it can be made to go there again. */
		errno = 0;
		if ((ptrace(PTRACE_PEEKTEXT, pid, before.rip - 2, 0) & 0xffff) == 0x050f &&
		    (long)before.orig_rax >= 0)
			break;
		MUST(!ptrace(PTRACE_CONT, pid, 0, 0));
	} while (1);
	if (!strcmp(what, "read"))
		got = make(SYS_openat, AT_FDCWD, put(with, strlen(with) + 1), O_RDONLY, 0);
	else if (!strcmp(what, "write"))
		got = make(SYS_openat, AT_FDCWD, put(with, strlen(with) + 1), O_WRONLY | O_CREAT,
			   0600);
	else if (!strcmp(what, "socket"))
		got = make(SYS_socket, AF_PACKET, SOCK_RAW, 0, 0);
	else if (!strcmp(what, "bpf"))
		got = make(SYS_bpf, BPF_MAP_CREATE, put(&attr, sizeof(attr)), sizeof(attr), 0);
	else if (!strcmp(what, "setuid"))
		got = make(SYS_setuid, 0, 0, 0, 0);
	else if (!strcmp(what, "signal"))
		got = make(SYS_kill, atoi(with), 0, 0, 0);
	else if (!strcmp(what, "tcp")) {
		long fd = make(SYS_socket, AF_INET, SOCK_STREAM, 0, 0);

		got = fd < 0 ? fd
			     : make(SYS_bind, fd, put(&address, sizeof(address)), sizeof(address),
				    0);
	}
	MUST(!ptrace(PTRACE_SETREGS, pid, 0, &before));
	MUST(!ptrace(PTRACE_DETACH, pid, 0, 0));
	printf("%ld\n", got < 0 ? -got : 0);
	return 0;
}
