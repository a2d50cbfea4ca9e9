//! What is asked, and of what: the same for all that look for the answer.

use tapdeck_packet::key::Plan;

use super::opened::Opened;
use super::snapshot::Snapshot;
use crate::span::Span;

/// A question, and the segments or capture files that it is asked of.
pub struct Request {
    pub snapshot: Snapshot,
    pub span: Span,
    /// The keys that packets of the answer have. The plan leaves out no packet that matches.
    pub plan: Plan,
    /// About how many bytes one look at an unread stretch reads.
    pub piece_bytes: usize,
    pub opened: Opened,
}
