// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The recorder's kernel half with rules: a program of its own, so that who has none neither loads
 * nor pays anything. */
#define TD_RULES
#include "record_less.bpf.c"
