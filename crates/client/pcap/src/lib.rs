//! Stands in for libpcap: to a program that is started with `LD_PRELOAD=libtapdeck_pcap.so`, a
//! group of a running `tapdeck serve` is the device `deck:NAME`. The program needs no change and no
//! privilege but the socket's permission.
//!
//! The object defines the functions of libpcap that take a device's name or a handle. Where the
//! device is a group, they are answered here; anything else goes to the libpcap that the program
//! would have had. Functions that have to do with neither are not defined, so they are libpcap's as
//! ever.
//!
//! A handle of a group is, to the outside, one of libpcap's own: that of `pcap_open_dead`. So a
//! function that a later libpcap has and this object does not know meets a handle that it can work
//! with. A second one, made when link type, snaplen and precision of the times are known, does what
//! libpcap does without a device: it compiles filters and writes files.
//!
//! [`handle`] is what a handle does, [`filter`] what becomes of a filter, `abi` the functions
//! themselves: all unsafe code is there.

mod abi;
mod filter;
mod handle;
