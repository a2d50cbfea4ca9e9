//! What does a line of EVE say? Of Suricata's event types `alert` is the one that matters here;
//! what others write in the same form is read, too.

use std::net::IpAddr;

use serde::Deserialize;

use super::rules::Scope;
use crate::time::Time;

/// The longest text of an alert that is kept.
const MOST: usize = 256;

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    pub time: Time,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Source and destination port, where the protocol has ports.
    pub ports: Option<(u16, u16)>,
    /// The protocol as pcap-filter(7) calls it; `None` where it has no word for it.
    pub protocol: Option<&'static str>,
    pub signature_id: u64,
    pub signature: String,
    pub category: String,
    /// 1 is the most severe.
    pub severity: u64,
}

#[derive(Deserialize)]
struct Line {
    event_type: String,
    timestamp: Option<String>,
    src_ip: Option<IpAddr>,
    dest_ip: Option<IpAddr>,
    src_port: Option<u16>,
    dest_port: Option<u16>,
    proto: Option<String>,
    alert: Option<Body>,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    signature_id: u64,
    #[serde(default)]
    signature: String,
    #[serde(default)]
    category: Option<String>,
    #[serde(default = "least")]
    severity: u64,
}

fn least() -> u64 {
    u64::MAX
}

impl Alert {
    /// Reads a line; `None` where it is another event, or an alert of no IP packet.
    ///
    /// # Errors
    /// A few words that say what is wrong with a line that is no event.
    pub fn parse(line: &[u8]) -> Result<Option<Self>, String> {
        let line: Line = serde_json::from_slice(line).map_err(|e| format!("no event: {e}"))?;
        if line.event_type != "alert" {
            return Ok(None);
        }
        let (Some(source), Some(destination)) = (line.src_ip, line.dest_ip) else {
            return Ok(None);
        };
        if source.is_ipv4() != destination.is_ipv4() {
            return Err("addresses of two families".to_owned());
        }
        let body = line.alert.ok_or("an alert that does not say of what")?;
        let time = line.timestamp.as_deref().and_then(Time::parse);
        let time = time.ok_or("an alert without a time")?;
        let protocol = line.proto.unwrap_or_default().to_ascii_lowercase();
        let protocol = match &*protocol {
            "tcp" => Some("tcp"),
            "udp" => Some("udp"),
            "sctp" => Some("sctp"),
            // Of the other family there is no such packet, and libpcap refuses to look for one.
            "icmp" if source.is_ipv4() => Some("icmp"),
            "ipv6-icmp" | "icmpv6" if source.is_ipv6() => Some("icmp6"),
            _ => None,
        };
        let has_ports = matches!(protocol, Some("tcp" | "udp" | "sctp"));
        let ports = line.src_port.zip(line.dest_port).filter(|_| has_ports);
        let shortened = |mut text: String| {
            let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= MOST);
            text.truncate(end.unwrap_or(text.len()));
            text
        };
        Ok(Some(Self {
            time,
            source,
            destination,
            ports,
            protocol,
            signature_id: body.signature_id,
            signature: shortened(body.signature),
            category: shortened(body.category.unwrap_or_default()),
            severity: body.severity,
        }))
    }

    /// Returns a filter for the packets that an alert is about: the same for all alerts of a flow,
    /// whichever way their packets went; `None` for no packets. With up to two VLAN tags, as
    /// Suricata reads packets.
    pub fn filter(&self, scope: Scope) -> Option<String> {
        let (one, other) = (self.source.min(self.destination), self.source.max(self.destination));
        let plain = match scope {
            Scope::Source => format!("host {}", self.source),
            Scope::Destination => format!("host {}", self.destination),
            Scope::Hosts => format!("host {one} and host {other}"),
            Scope::None => return None,
            Scope::Flow => {
                let mut words = format!("host {one} and host {other}");
                if let Some(protocol) = self.protocol {
                    words = format!("{protocol} and {words}");
                }
                if let Some((a, b)) = self.ports {
                    let (a, b) = (a.min(b), a.max(b));
                    words = format!("{words} and port {a} and port {b}");
                }
                words
            }
        };
        Some(format!("({plain}) or (vlan and {plain}) or (vlan and vlan and {plain})"))
    }
}

#[cfg(test)]
mod tests {
    use super::Alert;
    use crate::alerts::Scope;
    use crate::time::Time;

    /// An alert of Suricata 7.
    const LINE: &str = concat!(
        r#"{"timestamp":"2026-01-02T03:04:05.678901+0000","flow_id":1,"in_iface":"eth0","#,
        r#""event_type":"alert","src_ip":"10.0.0.2","src_port":4444,"dest_ip":"10.0.0.1","#,
        r#""dest_port":80,"proto":"TCP","alert":{"action":"allowed","signature_id":2024897,"#,
        r#""rev":3,"signature":"ET MALWARE x","category":"A Network Trojan was detected","#,
        r#""severity":1},"flow":{"pkts_toserver":1}}"#
    );

    #[test]
    fn an_alert_is_read_and_names_its_flow() {
        let alert = Alert::parse(LINE.as_bytes()).unwrap().unwrap();
        assert_eq!(alert.time, Time(1_767_323_045_678_901_000));
        assert_eq!((alert.signature_id, alert.severity), (2_024_897, 1));
        assert_eq!(alert.ports, Some((4444, 80)));
        let filter = alert.filter(Scope::Flow).unwrap();
        let plain = "tcp and host 10.0.0.1 and host 10.0.0.2 and port 80 and port 4444";
        assert!(filter.starts_with(&format!("({plain}) or (vlan and {plain})")), "{filter}");
        let answer = LINE
            .replace("10.0.0.2", "#a")
            .replace("10.0.0.1", "10.0.0.2")
            .replace("#a", "10.0.0.1")
            .replace("4444", "#b")
            .replace("80,", "4444,")
            .replace("#b", "80");
        let answer = Alert::parse(answer.as_bytes()).unwrap().unwrap();
        assert_eq!(
            answer.filter(Scope::Flow).as_ref(),
            Some(&filter),
            "the way back is the same flow"
        );
        assert!(alert.filter(Scope::Source).unwrap().starts_with("(host 10.0.0.2)"));
    }

    #[test]
    fn what_is_no_alert_is_none_and_what_is_no_event_is_told() {
        let other = LINE.replace("\"alert\",", "\"dns\",");
        assert_eq!(Alert::parse(other.as_bytes()), Ok(None));
        let without = LINE.replace("\"src_ip\":\"10.0.0.2\",", "");
        assert_eq!(Alert::parse(without.as_bytes()), Ok(None));
        for end in 1..LINE.len() {
            assert!(Alert::parse(&LINE.as_bytes()[..end]).is_err(), "cut at {end}");
        }
        for (from, to) in [("03:04", "25:04"), ("10.0.0.1", "10.0.0"), ("4444", "70000")] {
            assert!(Alert::parse(LINE.replace(from, to).as_bytes()).is_err(), "{to}");
        }
        let long = LINE.replace("ET MALWARE x", &"ä".repeat(1000));
        assert!(Alert::parse(long.as_bytes()).unwrap().unwrap().signature.len() <= 257);
    }
}
