//! Which alerts pin packets, which, and how many at most? A file in TOML says so; the first rule
//! that fits an alert counts, and an alert that none fits pins nothing.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::alert::Alert;

/// Rules and limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(default)]
    pub limits: Limits,
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// How much alerts may pin.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Pins under way at once.
    pub open_pins: usize,
    /// Pins in an hour.
    pub pins_per_hour: usize,
    /// How long a pin may become while alerts of its flow go on; then there is another.
    #[serde(deserialize_with = "duration")]
    pub longest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { open_pins: 100, pins_per_hour: 200, longest: Duration::from_secs(3600) }
    }
}

/// What some alerts pin. Conditions that are not there fit any alert.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    pub name: String,
    /// Alerts of this severity and more severe ones: 1 is the most severe.
    pub severity: Option<u64>,
    pub signature_ids: Option<Vec<u64>>,
    /// Texts of which the signature holds one.
    pub signatures: Option<Vec<String>>,
    /// Texts of which the category is one.
    pub categories: Option<Vec<String>>,
    #[serde(default)]
    pub pin: Scope,
    #[serde(default = "two_minutes", deserialize_with = "duration")]
    pub before: Duration,
    #[serde(default = "ten_minutes", deserialize_with = "duration")]
    pub after: Duration,
    /// How long pins are kept; `None` for until somebody removes them.
    #[serde(default, deserialize_with = "some_duration")]
    pub keep: Option<Duration>,
}

/// Which packets are pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Those of the alert's flow.
    #[default]
    Flow,
    /// All between the two hosts.
    Hosts,
    /// All of the source.
    Source,
    /// All of the destination.
    Destination,
    /// None: the alert is left alone, whatever rules follow.
    #[serde(rename = "nothing")]
    None,
}

fn two_minutes() -> Duration {
    Duration::from_secs(120)
}

fn ten_minutes() -> Duration {
    Duration::from_secs(600)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text)
        .map_err(|_| de::Error::custom(format!("{text:?} is no duration; write 2m, 1h or 30d")))
}

fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

impl Rules {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong, with line and key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rules: Self = toml::from_str(text).map_err(|e| e.to_string().trim().to_owned())?;
        if rules.rules.is_empty() {
            return Err("there is no [[rule]]: no alert would pin anything".to_owned());
        }
        Ok(rules)
    }

    /// Returns the rule that counts for an alert.
    pub fn of(&self, alert: &Alert) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.fits(alert))
    }
}

impl Rule {
    fn fits(&self, alert: &Alert) -> bool {
        let Self { severity, signature_ids, signatures, categories, .. } = self;
        severity.is_none_or(|least| alert.severity <= least)
            && signature_ids.as_ref().is_none_or(|ids| ids.contains(&alert.signature_id))
            && signatures
                .as_ref()
                .is_none_or(|texts| texts.iter().any(|text| alert.signature.contains(text)))
            && categories.as_ref().is_none_or(|texts| texts.contains(&alert.category))
    }
}
