//! Filter expressions, pcap-filter(7): libpcap compiles them to classic BPF, the kernel runs them.
//!
//! A filter judges each frame as it is recorded, with its VLAN tags in it, so that a recording with
//! a filter holds what `tcpdump -r` finds in one without. So expressions are compiled as for a
//! file, and not as for a live interface, where libpcap looks for the outermost tag beside the
//! frame. What only a live interface can be asked about (`inbound`) some versions of libpcap
//! refuse for a file; for that they are asked by a live handle, and nothing stands beside the frame
//! that is a tag.
//!
//! A loop is written out first ([`unroll`]). The kernel's programs cannot run what libpcap wrote,
//! so it is translated: [`cbpf`] is what libpcap wrote, [`ebpf`] what the kernel takes,
//! [`translate`] the way from one to the other, and [`splice`] puts the result into a program
//! before that is loaded.

pub(crate) mod cbpf;
pub(crate) mod ebpf;
pub(crate) mod splice;
#[cfg(test)]
mod tests;
pub(crate) mod translate;
pub(crate) mod unroll;

use std::io;

use libc::sock_filter;
use pcap::{Active, BpfProgram, Capture, Linktype};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::pcap_file;

use crate::explain::explain;
use crate::interface::Interface;
use crate::sys::packet_socket::PacketSocket;
use crate::{Config, Error};
use splice::Filters;

/// `BPF_RET | BPF_K`: accept as many bytes of the packet as the constant says, 0 refuses it.
const RETURN: u16 = 0x06;

/// A program that refuses every packet.
pub(crate) const REFUSE_ALL: [sock_filter; 1] = [returning(0)];

const fn returning(bytes: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: bytes }
}

/// Returns the socket filter that keeps so many bytes of every packet.
pub(crate) fn keep_all(snaplen: u32) -> [sock_filter; 1] {
    [returning(kept(snaplen))]
}

/// Returns how many bytes of a packet a socket filter says to keep where so many are wanted.
pub(crate) fn kept(snaplen: u32) -> u32 {
    snaplen.clamp(1, pcap_file::MAX_SNAPLEN)
}

/// Compiles expressions for one interface. Where libpcap needs a live handle for some, it has one
/// for all of them: the kernel waits for its readers whenever one is opened or closed.
pub(crate) struct Compiler<'a> {
    interface: &'a Interface,
    live: Option<Capture<Active>>,
    /// Whether this process may not open a live handle.
    is_forbidden: bool,
}

impl<'a> Compiler<'a> {
    /// Makes a compiler. The interface need not be there: an expression that only a live one can be
    /// asked about is refused then.
    pub(crate) fn new(interface: &'a Interface) -> Self {
        Self { interface, live: None, is_forbidden: false }
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// [`Error::Filter`] where libpcap refuses it, for frames of this form and for Ethernet.
    pub(crate) fn compile(&mut self, expression: &str) -> Result<cbpf::ClassicProgram, Error> {
        let link = Linktype(self.interface.link.unwrap_or(LinkType::ETHERNET).dlt());
        let bad = |why| Error::Filter { expression: expression.to_owned(), why };
        let program = match dead(link, expression) {
            Ok(program) => program,
            Err(refusal) => match self.by_live(link, expression) {
                Some(program) => program,
                // It asks for what frames of this form do not have.
                None if !is_ethernet(self.interface)
                    && dead(Linktype::ETHERNET, expression).is_ok() =>
                {
                    return cbpf::ClassicProgram::new(&REFUSE_ALL).map_err(|e| bad(e.to_string()));
                }
                None => return Err(bad(refusal_text(message(&refusal), self.is_forbidden))),
            },
        };
        read(&program).map_err(bad)
    }

    /// Compiles an expression that libpcap refuses for a file.
    fn by_live(&mut self, link: Linktype, expression: &str) -> Option<BpfProgram> {
        if self.live.is_none() {
            let inactive = Capture::from_device(self.interface.name.as_str()).ok()?;
            self.live = inactive.promisc(false).open().ok();
            self.is_forbidden = self.live.is_none()
                && PacketSocket::new().is_err_and(|e| e.raw_os_error() == Some(libc::EPERM));
        }
        // Where libpcap would read the interface in another form than this crate does, its program
        // would look at the wrong bytes.
        let live = self.live.as_ref().filter(|live| live.get_datalink() == link)?;
        live.compile(expression, true).ok()
    }
}

/// Returns what libpcap says of an expression that it refuses, and what would help where live
/// interfaces alone can be asked and this process may not ask them.
fn refusal_text(refusal: String, is_forbidden: bool) -> String {
    if is_forbidden && refusal.contains("not supported") {
        return format!(
            "{refusal}: this version of libpcap asks a live interface for that, which takes rights that are given up once packets come; begin with it (--filter)"
        );
    }
    refusal
}

/// Returns what libpcap made of an expression, its loops written out, or why that is not run.
fn read(program: &BpfProgram) -> Result<cbpf::ClassicProgram, String> {
    let code: Vec<sock_filter> = program
        .get_instructions()
        .iter()
        .map(|i| {
            parse(&i.to_string())
                .ok_or_else(|| format!("libpcap made of it the unknown instruction {i}"))
        })
        .collect::<Result<_, _>>()?;
    let invalid = |e| format!("libpcap made of it what the kernel does not run: {e}");
    cbpf::ClassicProgram::new(&unroll::unroll(&code).map_err(invalid)?).map_err(invalid)
}

/// Compiles the filter of a capture, if there is one.
pub(crate) fn filters_for(interface: &Interface, config: &Config) -> Result<Filters, Error> {
    let mut filters = Filters::new();
    if let Some(expression) = &config.filter {
        filters.add(Compiler::new(interface).compile(expression)?);
    }
    Ok(filters)
}

/// Says what an error of the kernel means for whoever wanted programs with this filter.
pub(crate) fn explain_load(
    interface: &Interface,
    config: &Config,
    filters: &Filters,
    source: io::Error,
) -> Error {
    match (&config.filter, source.raw_os_error()) {
        (Some(expression), Some(libc::E2BIG)) => Error::LargeFilter {
            expression: expression.clone(),
            why: format!(
                "it is too large: its {} instructions have more ways through them than the kernel's verifier walks; make it shorter",
                filters.longest()
            ),
        },
        (Some(_), Some(libc::EPERM)) if config.hook.is_packet_socket() => {
            Error::Privilege { hook: config.hook, needed: "CAP_NET_RAW and, for a filter, CAP_BPF" }
        }
        _ => explain(interface, config.hook, source),
    }
}

fn is_ethernet(interface: &Interface) -> bool {
    interface.link.is_none_or(|link| link == LinkType::ETHERNET)
}

/// Compiles an expression for frames of a form that no interface here need have.
fn dead(link: Linktype, expression: &str) -> Result<BpfProgram, pcap::Error> {
    Capture::dead(link).and_then(|dead| dead.compile(expression, true))
}

/// Refuses an expression that can match nothing on any of these interfaces. One that can match on
/// some of them takes nothing on the others: a packet of bare IP has no Ethernet address.
///
/// # Errors
/// [`Error::Filter`], with what libpcap says of the first interface.
pub fn check_filter<'a>(
    expression: &str,
    interfaces: impl IntoIterator<Item = &'a Interface>,
) -> Result<(), Error> {
    let mut refusal = None;
    for interface in interfaces {
        // Where libpcap refuses it for Ethernet, it is refused when the hook is opened.
        if is_ethernet(interface) {
            return Ok(());
        }
        let link = Linktype(interface.link.unwrap_or(LinkType::ETHERNET).dlt());
        match dead(link, expression) {
            Ok(_) => return Ok(()),
            Err(e) => refusal = refusal.or(Some(message(&e))),
        }
    }
    let bad = |why| Error::Filter { expression: expression.to_owned(), why };
    refusal.map_or(Ok(()), |why| Err(bad(why)))
}

/// Reads an instruction's fields, which the `pcap` crate keeps private but prints as `tcpdump -ddd`
/// does.
fn parse(text: &str) -> Option<sock_filter> {
    let mut fields = text.split(' ');
    let instruction = sock_filter {
        code: fields.next()?.parse().ok()?,
        jt: fields.next()?.parse().ok()?,
        jf: fields.next()?.parse().ok()?,
        k: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some(instruction)
}

/// Returns what libpcap says, without the crate's words around it.
fn message(e: &pcap::Error) -> String {
    match e {
        pcap::Error::PcapError(text) => text.clone(),
        other => other.to_string(),
    }
}
