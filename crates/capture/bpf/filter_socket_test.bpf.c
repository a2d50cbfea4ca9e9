// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The tests of filters for packet sockets, whose programs read frames by instructions. */
#define TD_SOCKET 1
#include "filter_test.bpf.c"
