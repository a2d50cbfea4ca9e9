//! Filter expressions.
