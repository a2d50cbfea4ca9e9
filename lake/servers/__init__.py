"""Servers of one's own, for tests and the demonstration: on loopback, and gone in the end."""
