//! All of this crate's unsafe code: shared memory, and the system calls that no
//! library wraps. What leaves this module is safe to use.
#![allow(unsafe_code)]

pub mod afxdp;
pub mod arithmetic;
pub mod btf;
pub mod generate;
pub mod headers;
pub mod kernel;
pub mod libbpf;
pub mod mapping;
pub mod packet_socket;
pub mod params;
pub mod pins;
mod plain;
pub mod process;
pub mod program;
pub mod ring_bytes;
pub mod rules;
