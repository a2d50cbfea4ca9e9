//! Sending from inside the kernel.
