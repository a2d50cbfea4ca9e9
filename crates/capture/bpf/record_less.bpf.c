// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The recorder's kernel half that sheds payload and cuts flows off: a program of its own, so that
 * who keeps all pays nothing. */
#define TD_SHED
#define TD_CUTOFF
#include "record.bpf.c"
