//! The hook programs, and their way into the kernel.

pub(crate) mod loaded;

pub(crate) use loaded::*;
