/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Gives what a recorder has left, by the pin of its state, the number of another layout: for
 * tests/takeover.rs.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where the state has it (crates/capture/src/persist/state.rs). */
#define AT_LAYOUT 2

int main(int argc, char **argv)
{
	union bpf_attr attr;

	if (argc != 3)
		return 2;
	memset(&attr, 0, sizeof(attr));
	attr.pathname = (__u64)(unsigned long)argv[1];
	long map = syscall(SYS_bpf, BPF_OBJ_GET, &attr, sizeof(attr));

	if (map < 0) {
		perror("BPF_OBJ_GET");
		return 1;
	}
	__u32 *state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)map, 0);

	if (state == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	state[AT_LAYOUT] = (__u32)strtoul(argv[2], NULL, 10);
	return 0;
}
