//! All of this crate's unsafe code: memory shared with the kernel, and the functions that C calls.
//! The functions of `mapping` are safe to call; `ffi` says what its callers promise.
#![allow(unsafe_code)]

pub mod ffi;
pub mod mapping;
