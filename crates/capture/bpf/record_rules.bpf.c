// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The recorder's kernel half with rules: a program of its own, so that who has none neither loads
 * nor pays anything. Rules may cut flows off. */
#define TD_CUTOFF
#define TD_RULES
#include "record.bpf.c"
