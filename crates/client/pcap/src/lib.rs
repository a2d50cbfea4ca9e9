//! How does a program that knows libpcap alone read a group of a running `tapdeck serve`?
//!
//! It is started with `LD_PRELOAD=libtapdeck_pcap.so`, and the group is the device `deck:NAME`. The
//! program needs no change, and no privilege but read and write permission on the daemon's socket.
//!
//! This object defines the functions of libpcap that take a device's name or a handle. Where the
//! device is a group, they are answered here; any other device, and files, go to the libpcap that
//! the program would have had. Functions that take neither are not defined, so the program finds
//! libpcap's. Programs that have libpcap compiled into them are out of reach.
//!
//! Four things are called a handle in libpcap's world, and have names of their own here:
//!
//! - `Pcap`, the `pcap_t` that the program holds. Of a group it is one of libpcap's own, from
//!   `pcap_open_dead`. So a function that a later libpcap has and this object does not know meets a
//!   handle that it can work with.
//! - [`handle::Handle`], the capture of a group, in safe Rust: settings, member, filter, counts. It
//!   knows nothing of C.
//! - `PcapHandle`, a [`handle::Handle`] and the memory whose addresses libpcap's functions return.
//!   The registry finds it by the `pcap_t`.
//! - `Dead`, a second handle from `pcap_open_dead`, made when link type, snaplen and precision of
//!   times are known. It does what libpcap does without a device: it compiles filters and writes
//!   files.
//!
//! [`filter`] has what becomes of a filter, and `abi` the functions themselves: all unsafe code is
//! there. [`arguments`] knows a group whose name the program has cut at its colon. Beside libpcap's
//! functions the object defines ioctl(2), for a program that asks the kernel whether its interface
//! is up.

mod abi;
mod arguments;
mod filter;
mod handle;
