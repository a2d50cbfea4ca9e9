//! What this kernel and driver can do.
