/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The numbers that stand for protocols in headers, as far as the hook programs know them. Names,
 * values and registries are those of crates/packet/src/numbers.rs; a test compares them
 * (tests/numbers.rs).
 */
#ifndef TAPDECK_NUMBERS_H
#define TAPDECK_NUMBERS_H

/* EtherTypes: IANA "IEEE 802 Numbers". */
#define TD_ETHERTYPE_IPV4 0x0800
#define TD_ETHERTYPE_ERSPAN_3 0x22eb
#define TD_ETHERTYPE_ETHERNET 0x6558 /* transparent bridging: in GRE and GENEVE alone */
#define TD_ETHERTYPE_VLAN 0x8100     /* IEEE 802.1Q */
#define TD_ETHERTYPE_IPV6 0x86dd
#define TD_ETHERTYPE_PPP 0x880b /* in GRE alone */
#define TD_ETHERTYPE_MPLS 0x8847
#define TD_ETHERTYPE_MPLS_MULTICAST 0x8848
#define TD_ETHERTYPE_PPPOE_SESSION 0x8864
#define TD_ETHERTYPE_SERVICE_VLAN 0x88a8     /* IEEE 802.1ad */
#define TD_ETHERTYPE_ERSPAN 0x88be           /* types I and II */
#define TD_ETHERTYPE_OLD_SERVICE_VLAN 0x9100 /* stacked tags from before IEEE 802.1ad */
#define TD_ETHERTYPE_FIRST 0x0600 /* lower numbers are lengths (IEEE 802.3, section 3.2.6) */

/* IPv4's protocols and IPv6's next headers: IANA "Assigned Internet Protocol Numbers". */
#define TD_PROTO_HOP_BY_HOP 0
#define TD_PROTO_ICMP 1
#define TD_PROTO_IPV4 4
#define TD_PROTO_TCP 6
#define TD_PROTO_UDP 17
#define TD_PROTO_DCCP 33
#define TD_PROTO_IPV6 41
#define TD_PROTO_ROUTING 43
#define TD_PROTO_FRAGMENT 44
#define TD_PROTO_GRE 47
#define TD_PROTO_AUTHENTICATION 51
#define TD_PROTO_ICMPV6 58
#define TD_PROTO_DESTINATION_OPTIONS 60
#define TD_PROTO_SCTP 132
#define TD_PROTO_UDP_LITE 136
#define TD_PROTO_MPLS 137

/* UDP ports at which tunnels end: IANA "Service Name and Transport Protocol Port Number
 * Registry". */
#define TD_UDP_PORT_GTP_U 2152
#define TD_UDP_PORT_VXLAN 4789
#define TD_UDP_PORT_GENEVE 6081
#define TD_UDP_PORT_VXLAN_LINUX 8472 /* Linux's, from before one was assigned */

/* Protocols inside PPP: IANA "PPP DLL Protocol Numbers". */
#define TD_PPP_IPV4 0x0021
#define TD_PPP_IPV6 0x0057
#define TD_PPP_MPLS 0x0281
#define TD_PPP_MPLS_MULTICAST 0x0283
#define TD_PPP_ADDRESS_AND_CONTROL 0xff03 /* RFC 1662; may precede the protocol */

/* Types of ICMP messages: IANA "ICMP Type Numbers". */
#define TD_ICMP_UNREACHABLE 3
#define TD_ICMP_SOURCE_QUENCH 4
#define TD_ICMP_REDIRECT 5
#define TD_ICMP_ECHO_REQUEST 8
#define TD_ICMP_TIME_EXCEEDED 11
#define TD_ICMP_PARAMETER_PROBLEM 12

/* Types of ICMPv6 messages: IANA "ICMPv6 'type' Numbers". */
#define TD_ICMPV6_UNREACHABLE 1
#define TD_ICMPV6_PARAMETER_PROBLEM 4
#define TD_ICMPV6_ECHO_REQUEST 128

/* Hardware types of interfaces: linux/if_arp.h. */
#define TD_ARPHRD_ETHER 1
#define TD_ARPHRD_NONE 0xfffe

#endif
