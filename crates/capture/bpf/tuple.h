/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the header walk finds, where it stopped, and what the numbers in headers mean. */
#ifndef TAPDECK_TUPLE_H
#define TAPDECK_TUPLE_H

#include "numbers.h"
#include "read.h"

/* The stripped tag, if there is one, and those in the frame. */
#define TD_TAGS 4
#define TD_EXTENSIONS 8
#define TD_LABELS 8
#define TD_TUNNELS 4

enum td_tuple_flags {
	TD_HAS_PORTS = 1,
	TD_FIRST_FRAGMENT = 2,
	TD_LATER_FRAGMENT = 4, /* its ports, if it has any here, are those of its first fragment */
	TD_QUOTED = 8,         /* from inside an ICMP error */
};

/* What stands at a tuple's `offset`. */
enum td_next {
	TD_NOTHING,
	TD_QUOTE_IPV4, /* the packet that an ICMP error is about */
	TD_QUOTE_IPV6,
	TD_IPV4,
	TD_IPV6,
	TD_ETHERNET,
	TD_VXLAN,
	TD_GENEVE,
	TD_GTP_U,
	TD_GRE,
	TD_MPLS,
	TD_PPPOE,
};

struct td_tuple {
	__u8 family;   /* 4, 6; 0: not IP, and nothing else here means anything */
	__u8 protocol; /* IPv6: of the header behind the extension headers, or of the one that ended
			  the walk */
	__u8 flags;    /* enum td_tuple_flags */
	__u8 next;     /* enum td_next */
	__u16 source_port; /* host order */
	__u16 destination_port;
	__u32 fragment_id; /* the identification of a fragment, network order */
	__u32 offset;      /* where `next` stands; of what has ports else, where that begins */
	__u32 source[4];   /* network order; IPv4 in the first */
	__u32 destination[4];
};

static __always_inline bool td_is_tag(__u16 type)
{
	return type == TD_ETHERTYPE_VLAN || type == TD_ETHERTYPE_SERVICE_VLAN ||
	       type == TD_ETHERTYPE_OLD_SERVICE_VLAN;
}

static __always_inline __u16 td_half(const void *at)
{
	return __builtin_bswap16(*(const __u16 *)at);
}

static __always_inline __u8 td_byte(const void *at)
{
	return *(const __u8 *)at;
}

static __always_inline bool td_has_ports(__u8 protocol)
{
	return protocol == TD_PROTO_TCP || protocol == TD_PROTO_UDP || protocol == TD_PROTO_SCTP ||
	       protocol == TD_PROTO_UDP_LITE || protocol == TD_PROTO_DCCP;
}

static __always_inline __u8 td_of_ethertype(__u16 type)
{
	switch (type) {
	case TD_ETHERTYPE_IPV4:
		return TD_IPV4;
	case TD_ETHERTYPE_IPV6:
		return TD_IPV6;
	case TD_ETHERTYPE_ETHERNET:
		return TD_ETHERNET;
	case TD_ETHERTYPE_MPLS:
	case TD_ETHERTYPE_MPLS_MULTICAST:
		return TD_MPLS;
	case TD_ETHERTYPE_PPPOE_SESSION:
		return TD_PPPOE;
	default:
		return TD_NOTHING;
	}
}

static __always_inline __u8 td_of_udp_port(__u16 destination)
{
	switch (destination) {
	case TD_UDP_PORT_VXLAN:
	case TD_UDP_PORT_VXLAN_LINUX:
		return TD_VXLAN;
	case TD_UDP_PORT_GENEVE:
		return TD_GENEVE;
	case TD_UDP_PORT_GTP_U:
		return TD_GTP_U;
	default:
		return TD_NOTHING;
	}
}

static __always_inline __u8 td_of_version(__u8 first)
{
	return first >> 4 == 4 ? TD_IPV4 : first >> 4 == 6 ? TD_IPV6 : TD_NOTHING;
}

/* The types of ICMP that quote the packet they are about. */
static __always_inline bool td_quotes(__u8 family, __u8 type)
{
	if (family == 6)
		return type >= TD_ICMPV6_UNREACHABLE && type <= TD_ICMPV6_PARAMETER_PROBLEM;
	return type == TD_ICMP_UNREACHABLE || type == TD_ICMP_SOURCE_QUENCH ||
	       type == TD_ICMP_REDIRECT || type == TD_ICMP_TIME_EXCEEDED ||
	       type == TD_ICMP_PARAMETER_PROBLEM;
}

/* What stands behind IP's header, at `at`; `four` are its first bytes, or NULL where there are not
 * as many. */
static __always_inline void td_transport(struct td_tuple *t, __u8 protocol, const void *four,
					 __u32 at)
{
	t->next = TD_NOTHING;
	t->offset = at;
	if (td_has_ports(protocol)) {
		if (!four)
			return;
		t->source_port = td_half(four);
		t->destination_port = td_half(four + 2);
		t->flags |= TD_HAS_PORTS;
		if (protocol == TD_PROTO_UDP) {
			t->next = td_of_udp_port(t->destination_port);
			t->offset = at + 8;
		}
		return;
	}
	switch (protocol) {
	case TD_PROTO_IPV4:
		t->next = TD_IPV4;
		break;
	case TD_PROTO_IPV6:
		t->next = TD_IPV6;
		break;
	case TD_PROTO_GRE:
		t->next = TD_GRE;
		break;
	case TD_PROTO_MPLS:
		t->next = TD_MPLS;
		break;
	case TD_PROTO_ICMP:
	case TD_PROTO_ICMPV6:
		if (protocol == (t->family == 4 ? TD_PROTO_ICMP : TD_PROTO_ICMPV6) && four &&
		    td_quotes(t->family, td_byte(four))) {
			t->next = t->family == 4 ? TD_QUOTE_IPV4 : TD_QUOTE_IPV6;
			t->offset = at + 8;
		}
		break;
	}
}

#endif
