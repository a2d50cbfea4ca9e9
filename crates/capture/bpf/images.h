/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Rule sets inside the kernel: images by number, and the judge over them.
 *
 * The including file says by TD_IMAGES how many sets there can be, and has struct td_tuple.
 *
 * An image is one element of a map of its own, as large as the next of four sizes. Its set is
 * exchanged by putting another map in its place, which is one store: a packet looks its set up once
 * and keeps to it. Where the size changes too, the new map is put in place first, and then the size
 * that says where to look. src/rules.rs does that.
 */
#ifndef TAPDECK_IMAGES_H
#define TAPDECK_IMAGES_H

#include "look.h"

/* The size of each set's image, as a number from 1; 0 where there is no set. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TD_IMAGES);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} images SEC(".maps");

#define TD_IMAGE_SIZE(shift)                              \
	struct td_image_##shift {                         \
		__uint(type, BPF_MAP_TYPE_ARRAY);         \
		__uint(map_flags, BPF_F_MMAPABLE);        \
		__uint(max_entries, 1);                   \
		__uint(key_size, sizeof(__u32));          \
		__uint(value_size, 1 << shift);           \
	};                                                \
	struct {                                          \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); \
		__uint(max_entries, TD_IMAGES);           \
		__uint(key_size, sizeof(__u32));          \
		__array(values, struct td_image_##shift); \
	} images_##shift SEC(".maps")

TD_IMAGE_SIZE(18);
TD_IMAGE_SIZE(21);
TD_IMAGE_SIZE(24);
TD_IMAGE_SIZE(25);

#define TD_IMAGE_OF(shift)                                                    \
	({                                                                    \
		void *_inner = bpf_map_lookup_elem(&images_##shift, &number); \
		__u32 _zero = 0;                                              \
                                                                              \
		if (!_inner)                                                  \
			return 0;                                             \
		look.image.bytes = bpf_map_lookup_elem(_inner, &_zero);       \
		look.image.mask = (1ull << shift) - 1;                        \
	})

/*
 * Judges a packet by a set. 0: there is no set of that number, and nothing is said.
 */
__noinline int td_judge(__u32 number, const struct td_tuple *tuple, struct td_verdict *verdict)
{
	struct td_look look = {};
	__u32 *size = bpf_map_lookup_elem(&images, &number);

	if (!size || !tuple || !verdict)
		return 0;
	switch (*size) {
	case 1:
		TD_IMAGE_OF(18);
		break;
	case 2:
		TD_IMAGE_OF(21);
		break;
	case 3:
		TD_IMAGE_OF(24);
		break;
	case 4:
		TD_IMAGE_OF(25);
		break;
	default:
		return 0;
	}
	if (!look.image.bytes)
		return 0;
	td_judge_image(&look, tuple, verdict, bpf_get_smp_processor_id());
	return 1;
}

#endif
