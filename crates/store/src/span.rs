//! Which time is asked about? A span, from one moment up to another, of the packets' times: not of
//! when they were written.

/// UTC nanoseconds since 1970, from `after_ns` on, up to but without `before_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub after_ns: i64,
    pub before_ns: i64,
}

impl Span {
    /// All of time.
    pub const ALL: Self = Self { after_ns: i64::MIN, before_ns: i64::MAX };

    pub fn contains(self, time_ns: i64) -> bool {
        (self.after_ns..self.before_ns).contains(&time_ns)
    }
}
