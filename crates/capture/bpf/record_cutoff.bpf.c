// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The recorder's kernel half with flows that are cut off. */
#define TD_CUTOFF
#include "record.bpf.c"
