//! What does somebody want to be pinned? The body of `POST /v1/pins` is read, and held against what
//! any pin may be, whoever wants it. What the role allows is put on it afterwards
//! ([`crate::pins`]).

use serde::Deserialize;
use tapdeck_packet::community_id::CommunityId;
use tapdeck_store::query::Span;
use utoipa::ToSchema;

use crate::condition::flow;
use crate::time;

/// How far ahead a pin may end.
pub const AHEAD_NS: i64 = 24 * 3_600_000_000_000;
/// Bytes of a reason, and of a filter: a list has both of each pin.
pub const REASON: usize = 1000;
pub const FILTER: usize = 2000;

/// What `POST /v1/pins` wants.
#[derive(Deserialize, ToSchema)]
#[schema(as = NewPin)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// The store; may be left out where there is one.
    pub store: Option<String>,
    /// pcap-filter(7), with addresses in place of names.
    #[serde(default)]
    pub filter: String,
    /// The flow, as Zeek and Suricata call it.
    pub community_id: Option<String>,
    /// Packets from this time on: RFC 3339, or seconds since 1970.
    pub after: String,
    /// Packets from before this time, which may be up to a day ahead.
    pub before: String,
    /// How long the pin is kept; without, until somebody removes it.
    pub until: Option<String>,
    /// Why, for those who read it later.
    pub reason: String,
}

/// What somebody wants that makes sense.
pub struct Sound {
    /// A span with time in it.
    pub span: Span,
    pub until_ns: Option<i64>,
    pub filter: String,
    pub community_id: Option<CommunityId>,
    pub reason: String,
}

impl Wanted {
    /// Reads the body of a request.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|e| format!("no pin is asked for: {e}"))
    }

    /// Returns what is wanted, as values that make sense together.
    pub fn check(self, now_ns: i64) -> Result<Sound, String> {
        let Self { filter, community_id, after, before, until, reason, .. } = self;
        let point = |key, text: &str| time::point(text).map_err(|e| format!("{key}: {e}"));
        let (after_ns, before_ns) = (point("after", &after)?, point("before", &before)?);
        let until_ns = until.map(|until| point("until", &until)).transpose()?;
        if after_ns >= before_ns {
            return Err("before is not later than after: the span has no time in it".into());
        }
        if before_ns > now_ns.saturating_add(AHEAD_NS) {
            return Err("before: no more than a day from now".into());
        }
        if until_ns.is_some_and(|until_ns| until_ns <= before_ns.max(now_ns)) {
            return Err("until: later than now, and than the end of the span".into());
        }
        let reason = reason.trim().to_owned();
        if reason.is_empty() || reason.len() > REASON {
            return Err(format!("reason: 1 to {REASON} bytes of text"));
        }
        if filter.len() > FILTER {
            return Err(format!("filter: {FILTER} bytes at most"));
        }
        let community_id = flow(community_id.as_deref())?;
        let span = Span { after_ns, before_ns };
        Ok(Sound { span, until_ns, filter, community_id, reason })
    }
}

#[cfg(test)]
mod tests {
    use crate::steno::tests::understood;
    use crate::wanted_check;

    #[test]
    fn whatever_is_wanted_makes_sense_or_is_refused() {
        let inputs = [
            include_str!("../../../fuzz/seeds/wanted/0"),
            include_str!("../../../fuzz/seeds/wanted/1"),
        ];
        let understood = understood(&inputs, wanted_check::wanted);
        assert!((500..19_500).contains(&understood), "{understood}");
    }
}
