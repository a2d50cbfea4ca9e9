//! By which name do Zeek, Suricata, Arkime and others know a packet's flow?
//!
//! The Community ID, version 1, with seed 0 (<https://github.com/corelight/community-id-spec>): a
//! hash of the 5-tuple, the same for both directions. Of the endpoints the lesser comes first.
//! ICMP has its type and that of the answer in place of ports; where a type has no answer, the flow
//! goes one way, its type and code stand in their place, and nothing is put in order. Other
//! protocols than TCP, UDP, SCTP and ICMP have no ports here.
//!
//! The flow is that of the outermost IP header, as rules see it ([`Tuple`]). A packet that does not
//! tell its ports, or its type, has no name: one that is cut, and fragments but for the first.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha1::{Digest, Sha1};

use crate::header;
use crate::link::LinkType;
use crate::numbers::{icmp, ip_protocol};
use crate::rules::Tuple;

const VERSION: &str = "1:";
const SEED: u16 = 0;

/// The name of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommunityId([u8; 20]);

impl CommunityId {
    /// Returns the name of a packet's flow; `None` where it has none.
    pub fn of_packet(link: LinkType, frame: &[u8]) -> Option<Self> {
        let (tuple, payload) = Tuple::read_with_payload(link, frame);
        let (source, destination) = tuple.addresses()?;
        let is_first = tuple.fragment.is_none_or(|fragment| fragment.is_first);
        let ports = match tuple.protocol {
            ip_protocol::ICMP | ip_protocol::ICMPV6 => {
                let payload = payload.first_chunk().filter(|_| is_first);
                payload.map(|[kind, code]| (u16::from(*kind), u16::from(*code)))
            }
            _ => tuple.ports,
        };
        Self::of_flow(source, destination, tuple.protocol, ports)
    }

    /// Returns whether a packet is of this flow, or if `inner` is set, has one in it that is.
    pub fn takes(self, link: LinkType, frame: &[u8], inner: bool) -> bool {
        let mut found = Self::of_packet(link, frame) == Some(self);
        if !found && inner {
            header::inner_packets(link, frame, &mut |link, frame| {
                found = found || Self::of_packet(link, frame) == Some(self);
            });
        }
        found
    }

    /// Returns the name of a flow: of ICMP, `ports` are type and code of a message. `None` where
    /// ports are needed and not known, or addresses are not of one family.
    pub fn of_flow(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        ports: Option<(u16, u16)>,
    ) -> Option<Self> {
        if source.is_ipv4() != destination.is_ipv4() {
            return None;
        }
        let (ports, is_one_way) = match protocol {
            ip_protocol::TCP | ip_protocol::UDP | ip_protocol::SCTP => (Some(ports?), false),
            ip_protocol::ICMP | ip_protocol::ICMPV6 => {
                let (kind, code) = ports?;
                let answer = u8::try_from(kind).ok().and_then(|kind| icmp::answer(protocol, kind));
                let answer = answer.map(u16::from);
                (Some((kind, answer.unwrap_or(code))), answer.is_none())
            }
            _ => (None, false),
        };
        let (mut from, mut to) = ((source, ports.map(|p| p.0)), (destination, ports.map(|p| p.1)));
        if !is_one_way && to < from {
            std::mem::swap(&mut from, &mut to);
        }
        let mut hash = Sha1::new();
        hash.update(SEED.to_be_bytes());
        for (address, _) in [from, to] {
            match address {
                IpAddr::V4(address) => hash.update(address.octets()),
                IpAddr::V6(address) => hash.update(address.octets()),
            }
        }
        hash.update([protocol, 0]);
        for (_, port) in [from, to] {
            if let Some(port) = port {
                hash.update(port.to_be_bytes());
            }
        }
        Some(Self(hash.finalize().into()))
    }
}

impl fmt::Display for CommunityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}{}", BASE64.encode(self.0))
    }
}

/// A text that is no Community ID of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no Community ID; write it as 1:LQU9qZlK+B5F3KDmev6m5PMibrg=")]
pub struct ParseError;

impl Serialize for CommunityId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CommunityId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl FromStr for CommunityId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let hash = text.strip_prefix(VERSION).and_then(|hash| BASE64.decode(hash).ok());
        hash.and_then(|hash| hash.try_into().ok()).map(Self).ok_or(ParseError)
    }
}
