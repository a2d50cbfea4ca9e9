//! A span of time, as a question about a store names it.

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
