//! What can happen to an interface while something captures there?

/// What happened to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Gone,
    Back,
    LinkDown,
    LinkUp,
}
