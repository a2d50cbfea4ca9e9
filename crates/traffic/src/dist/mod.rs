//! Packet-size distributions.
