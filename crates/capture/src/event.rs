//! What can happen to an interface.

/// What happened to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Gone,
    Back,
    LinkDown,
    LinkUp,
}
