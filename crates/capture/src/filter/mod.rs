//! Filter expressions, pcap-filter(7): libpcap compiles them to classic BPF, the kernel runs them.
//!
//! Expressions are compiled on a live handle of the interface, as tcpdump does. Only then does
//! libpcap use what the kernel alone can tell (`inbound`, and VLAN tags that stand beside the
//! packet instead of in it); a program compiled for a file would look for those in the bytes and
//! miss them.
//!
//! A loop is written out first ([`unroll`]). Then a socket takes the program as it is. A hook
//! program cannot run it, so it is translated: [`cbpf`] is what libpcap wrote, [`ebpf`] what the
//! kernel takes, [`translate`] the way from one to the other, and [`splice`] puts the result into a
//! hook program before that is loaded.

pub(crate) mod cbpf;
pub(crate) mod ebpf;
pub(crate) mod splice;
#[cfg(test)]
mod tests;
pub(crate) mod translate;
pub(crate) mod unroll;

use std::io;

use libc::sock_filter;
use pcap::{Active, Capture, Linktype};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::pcap_file;

use crate::explain::explain;
use crate::interface::Interface;
use crate::{Config, Error, Hook};
use splice::Filters;

/// `BPF_RET | BPF_K`: accept as many bytes of the packet as the constant says, 0 refuses it.
const RETURN: u16 = 0x06;

/// A program that refuses every packet.
pub(crate) const REFUSE_ALL: [sock_filter; 1] = [returning(0)];

const fn returning(bytes: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: bytes }
}

/// Compiles the socket filter for what `config` asks: its expression, or else everything, cut to
/// its snaplen.
pub(crate) fn compile(interface: &Interface, config: &Config) -> Result<Vec<sock_filter>, Error> {
    let keep = returning(config.snaplen.clamp(1, pcap_file::MAX_SNAPLEN));
    let Some(expression) = &config.filter else {
        return Ok(vec![keep]);
    };
    let (_, mut program) = classic(interface, config.hook, expression)?;
    for i in &mut program {
        if i.code == RETURN && i.k != 0 {
            *i = keep;
        }
    }
    Ok(program)
}

/// Compiles an expression for a hook program.
pub(crate) fn for_hook(
    interface: &Interface,
    hook: Hook,
    expression: &str,
) -> Result<cbpf::Program, Error> {
    classic(interface, hook, expression).map(|(program, _)| program)
}

/// Compiles expressions for the hook programs of one interface, all on one live handle: the kernel
/// waits for its readers whenever one is opened or closed.
pub(crate) struct Compiler<'a> {
    interface: &'a Interface,
    hook: Hook,
    live: Option<Capture<Active>>,
}

impl<'a> Compiler<'a> {
    /// Makes a compiler that opens the handle when there is something to compile.
    pub(crate) fn new(interface: &'a Interface, hook: Hook) -> Self {
        Self { interface, hook, live: None }
    }

    /// Compiles an expression for a hook program.
    pub(crate) fn compile(&mut self, expression: &str) -> Result<cbpf::Program, Error> {
        let live = match self.live.take() {
            Some(live) => live,
            None => open(self.interface).map_err(|e| explain(self.interface, self.hook, e))?,
        };
        let live = self.live.insert(live);
        made(Some(live), self.interface, expression).map(|(program, _)| program)
    }
}

/// Refuses an expression for an interface that is not there now. One that only a live interface can
/// be asked about (`inbound`) is refused too.
pub(crate) fn check_absent(interface: &Interface, expression: &str) -> Result<(), Error> {
    made(None, interface, expression).map(|_| ())
}

/// Compiles the filter of a hook program, if there is one.
pub(crate) fn filters_for(interface: &Interface, config: &Config) -> Result<Filters, Error> {
    let mut filters = Filters::new();
    if let Some(expression) = &config.filter {
        filters.add(for_hook(interface, config.hook, expression)?);
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
    refused(interface, config.hook, config.filter.as_deref(), filters.longest(), source)
}

/// Says what an error of the kernel means for whoever wanted a socket, or programs, with this
/// filter of so many instructions.
pub(crate) fn refused(
    interface: &Interface,
    hook: Hook,
    expression: Option<&str>,
    instructions: usize,
    source: io::Error,
) -> Error {
    let Some(expression) = expression else { return explain(interface, hook, source) };
    let why = match source.raw_os_error() {
        Some(libc::ENOMEM) if hook.is_packet_socket() => format!(
            "it is too large: its {instructions} instructions do not fit into what a socket may have beside its buffers; make it shorter, raise net.core.optmem_max, or take --hook tcx"
        ),
        Some(libc::E2BIG) => format!(
            "it is too large: its {instructions} instructions have more ways through them than the kernel's verifier walks; make it shorter, or take --hook tpacket"
        ),
        _ => return explain(interface, hook, source),
    };
    Error::Filter { expression: expression.to_owned(), why }
}

/// Returns what libpcap makes of an expression, checked and as it is.
fn classic(
    interface: &Interface,
    hook: Hook,
    expression: &str,
) -> Result<(cbpf::Program, Vec<sock_filter>), Error> {
    let live = open(interface).map_err(|e| explain(interface, hook, e))?;
    made(Some(&live), interface, expression)
}

/// Returns what libpcap makes of an expression, by a live handle of the interface or by none.
fn made(
    live: Option<&Capture<Active>>,
    interface: &Interface,
    expression: &str,
) -> Result<(cbpf::Program, Vec<sock_filter>), Error> {
    let wanted = Linktype(interface.link.unwrap_or(LinkType::ETHERNET).dlt());
    // Where libpcap would read the interface in another form than this crate does, its live
    // programs would look at the wrong bytes.
    let compiled = match live.filter(|live| live.get_datalink() == wanted) {
        Some(live) => live.compile(expression, true),
        None => Capture::dead(wanted).and_then(|dead| dead.compile(expression, true)),
    };
    let bad = |why| Error::Filter { expression: expression.to_owned(), why };
    let program = compiled.map_err(|e| bad(message(&e)))?;
    let code: Vec<sock_filter> = program
        .get_instructions()
        .iter()
        .map(|i| {
            parse(&i.to_string())
                .ok_or_else(|| bad(format!("libpcap made of it the unknown instruction {i}")))
        })
        .collect::<Result<_, _>>()?;
    let invalid = |e| bad(format!("libpcap made of it what the kernel does not run: {e}"));
    let code = unroll::unroll(&code).map_err(invalid)?;
    let checked = cbpf::Program::new(&code).map_err(invalid)?;
    Ok((checked, code))
}

fn open(interface: &Interface) -> io::Result<Capture<Active>> {
    Capture::from_device(interface.name.as_str())
        .and_then(|inactive| inactive.promisc(false).open())
        .map_err(|e| io::Error::other(message(&e)))
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
