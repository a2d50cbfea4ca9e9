//! `tapdeck extcap`: Wireshark captures from recordings and from groups.
//!
//! Wireshark runs the programs in its extcap folder to ask what they can capture, and then to
//! capture into a pipe. What it asks, and in which form it is answered, is Wireshark's
//! (<https://www.wireshark.org/docs/wsdg_html_chunked/ChCaptureExtcap.html>); capturing is what
//! `query --follow` and `attach` do.

mod install;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tapdeck_client::default_socket;
use tapdeck_packet::link::LinkType;
use tapdeck_store::query::{Described, Snapshot, Span};

use crate::query::{self, time};
use crate::usage::usage;
use crate::{attach, control, flags, units};
use tapdeck_store::filter::Filter;

/// Where recordings of services lie.
const STORES: &str = "/var/lib/tapdeck";
/// The environment variable that names more stores.
const STORES_VARIABLE: &str = "TAPDECK_STORES";

/// What Wireshark calls an interface of ours.
enum Interface {
    /// `tapdeck:STORE`.
    Store(PathBuf),
    /// `deck:NAME`.
    Group(String),
}

impl Interface {
    fn named(name: &str) -> Result<Self> {
        if let Some(store) = name.strip_prefix("tapdeck:") {
            return Ok(Self::Store(store.into()));
        }
        match name.strip_prefix("deck:") {
            Some(group) => Ok(Self::Group(group.into())),
            None => usage(format!("{name} is neither tapdeck:STORE nor deck:GROUP")),
        }
    }

    /// Returns the interfaces whose packets it has, as far as anybody can tell.
    fn described(&self) -> Vec<Described> {
        match self {
            Self::Store(dir) => {
                // What is in the newest segments.
                let span = Span { after_ns: time::point("now").unwrap_or(0), ..Span::ALL };
                let snapshot = Snapshot::open(dir, span);
                snapshot.map_or_else(|_| Vec::new(), |s| s.interfaces().to_vec())
            }
            Self::Group(_) => Vec::new(),
        }
    }
}

pub fn run(flags: &flags::Extcap) -> Result<()> {
    if flags.install {
        return install::run(flags);
    }
    if flags.extcap_interfaces {
        return answer(&interfaces());
    }
    let Some(name) = &flags.extcap_interface else {
        return usage("nothing is asked: `tapdeck extcap --install` makes Wireshark ask");
    };
    let interface = Interface::named(name)?;
    if flags.extcap_dlts {
        return answer(&link_types(&interface));
    }
    if flags.extcap_config {
        return answer(&config(&interface));
    }
    if flags.capture {
        return capture(flags, interface);
    }
    // Wireshark takes what is said of a filter as what is wrong with it.
    match &flags.extcap_capture_filter {
        Some(filter) => match Filter::new(filter, &interface.described(), false) {
            Ok(_) => Ok(()),
            Err(e) => answer(&format!("{e:#}\n")),
        },
        None => usage(format!("nothing is asked of {name}")),
    }
}

fn answer(text: &str) -> Result<()> {
    Ok(stdout().write_all(text.as_bytes())?)
}

/// Returns what stands in a sentence of Wireshark's as a value; `None` where it has no place there.
fn value(text: &str) -> Option<&str> {
    let is_plain = |c: char| !c.is_control() && !matches!(c, '{' | '}');
    text.chars().all(is_plain).then_some(text)
}

/// Lists what can be captured.
fn interfaces() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=tapdeck}}\n");
    for store in stores() {
        if let Some(path) = store.to_str().and_then(value) {
            let _ =
                writeln!(text, "interface {{value=tapdeck:{path}}}{{display=Recording in {path}}}");
        }
    }
    // Where no daemon runs, or this user may not ask it, there are no groups.
    for group in tapdeck_client::groups(&default_socket()).unwrap_or_default() {
        if let Some(name) = value(&group.name) {
            let of = value(&group.interfaces.join(", ")).unwrap_or_default().to_owned();
            let _ =
                writeln!(text, "interface {{value=deck:{name}}}{{display=Group {name} of {of}}}");
        }
    }
    text
}

/// Returns the stores that there are, as far as one can know.
fn stores() -> BTreeSet<PathBuf> {
    let named = std::env::var_os(STORES_VARIABLE).unwrap_or_default();
    let mut candidates: Vec<PathBuf> =
        std::env::split_paths(&named).filter(|path| path.is_absolute()).collect();
    candidates.push(STORES.into());
    let below = fs::read_dir(STORES).into_iter().flatten().flatten();
    candidates.extend(below.map(|entry| entry.path()));
    // Those that are recorded into have a socket of ours.
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let of_socket = |line: &str| {
        let path = Path::new(line.get(line.find('/')?..)?);
        let is_ours = path.file_name()? == control::IN_STORE;
        path.parent().filter(|_| is_ours).map(Path::to_owned)
    };
    candidates.extend(sockets.lines().filter_map(of_socket));
    let nothing = Span { after_ns: i64::MAX, before_ns: i64::MAX };
    candidates.into_iter().filter(|dir| Snapshot::open(dir, nothing).is_ok()).collect()
}

/// Lists the link types of an interface. A pcapng file tells by itself what its packets are;
/// Wireshark's filters of its own go by the first.
fn link_types(interface: &Interface) -> String {
    let mut links: Vec<LinkType> = interface.described().iter().map(|i| i.link).collect();
    if links.is_empty() {
        links.push(LinkType::ETHERNET);
    }
    links.dedup();
    let line = |link: LinkType| match link {
        LinkType::ETHERNET => "dlt {number=1}{name=EN10MB}{display=Ethernet}\n".to_owned(),
        LinkType(number) => format!("dlt {{number={number}}}{{name={link}}}{{display={link}}}\n"),
    };
    line(links[0])
}

/// Lists the flags by which an interface is captured.
fn config(interface: &Interface) -> String {
    match interface {
        Interface::Store(_) => "\
arg {number=0}{call=--rewind}{display=Begin}{type=string}{default=0s}{tooltip=So long ago, as 30s, 10m or 2h; or at a time, as 14:02 or 2026-01-02 03:04; all is the beginning}
arg {number=1}{call=--follow}{display=Then go on live}{type=boolean}{default=true}{tooltip=Go on with what is recorded from now on}
arg {number=2}{call=--only}{display=Interfaces}{type=string}{default=}{tooltip=Only packets of these, as eth0,eth1 or eth*; nothing is all}
"
        .to_owned(),
        Interface::Group(_) => format!(
            "arg {{number=0}}{{call=--weight}}{{display=Weight}}{{type=unsigned}}{{range=1,{}}}{{default=1}}{{tooltip=The share of the group's traffic, beside its other members}}\n",
            tapdeck_capture::groups::MAX_WEIGHT
        ),
    }
}

fn capture(flags: &flags::Extcap, interface: Interface) -> Result<()> {
    let fifo = flags.fifo.clone().context("--fifo names no pipe")?;
    let filter = flags.extcap_capture_filter.clone().unwrap_or_default();
    match interface {
        Interface::Store(dir) => {
            let names = flags.only.split(',').map(str::trim).filter(|name| !name.is_empty());
            query::run(&flags::Query {
                after: since(&flags.rewind).map_err(|why| {
                    crate::usage::Usage(format!("--rewind {}: {why}", flags.rewind))
                })?,
                write: Some(fifo),
                follow: flags.follow,
                interfaces: names.map(str::to_owned).collect(),
                expression: vec![filter],
                ..flags::Query::of(dir)
            })
        }
        Interface::Group(group) => {
            let attach = flags::Attach {
                group,
                socket: None,
                write: fifo,
                listen: None,
                weight: flags.weight,
                count: None,
                duration: None,
            };
            attach::run_quietly(&attach, &filter)
        }
    }
}

/// Reads from when on packets are wanted; `None` is from the beginning.
fn since(text: &str) -> Result<Option<i64>, String> {
    match text.trim() {
        "all" => Ok(None),
        "" => time::point("now").map(Some),
        ago if units::duration(ago).is_ok() || ago == "0s" => {
            time::point(&format!("{ago} ago")).map(Some)
        }
        point => time::point(point).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::{since, value};

    #[test]
    fn a_recording_is_rewound_by_a_span_or_to_a_time() {
        assert_eq!(since("all"), Ok(None));
        let of = |text| since(text).expect("a time").expect("not the beginning");
        assert!(of("1h") < of("59m") && of("59m") < of("0s"));
        assert!(of("-1h") < of("now") && of("1767323045") == 1_767_323_045_000_000_000);
        assert!(since("soon").is_err());
    }

    #[test]
    fn what_would_end_a_value_is_no_value() {
        assert_eq!(value("/var/tape 1"), Some("/var/tape 1"));
        assert_eq!((value("/var/{tape"), value("a\nb")), (None, None));
    }
}
