/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Detaches BPF links by their numbers, as `bpftool link detach id N` does: what tests/unseen.rs
 * does to hooks behind the back of the recorder that has them.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		union bpf_attr attr;

		memset(&attr, 0, sizeof(attr));
		attr.link_id = (__u32)strtoul(argv[i], NULL, 10);
		long link = bpf(BPF_LINK_GET_FD_BY_ID, &attr);

		if (link < 0) {
			perror("BPF_LINK_GET_FD_BY_ID");
			return 1;
		}
		memset(&attr, 0, sizeof(attr));
		attr.link_detach.link_fd = (__u32)link;
		if (bpf(BPF_LINK_DETACH, &attr)) {
			perror("BPF_LINK_DETACH");
			return 1;
		}
		close((int)link);
	}
	return 0;
}
