//! What holds when a daemon answers anything at all, and its rings hold anything? The fuzz target
//! asks this, and a test that runs what it does on mutated inputs.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::attachment::Home;
use crate::member::{Member, Next};
use crate::session::{Grant, Session};

/// Rings that are larger than this are not made: they are as the smaller ones, and take time.
const MOST: u64 = 64 << 20;
/// How many packets are read at most; words that a daemon made up can promise them without end.
const PACKETS: usize = 1000;

/// Takes `answer` for what a daemon answers to `attach`, and reads rings that hold `contents`:
/// words first, then, behind 4 KiB of them, blocks. Returns how many packets were read; `None`
/// where the answer grants nothing.
///
/// # Panics
/// If a packet lies outside of its block.
pub fn read_anything(answer: &[u8], contents: &[u8]) -> io::Result<Option<usize>> {
    let file = || memfd_create("fuzz", MemfdFlags::CLOEXEC).map(File::from);
    let [rings, data, release] = [file()?, file()?, file()?];
    let (wake, daemon) = UnixStream::pair()?;
    let fds =
        vec![rings.try_clone()?.into(), data.try_clone()?.into(), release.try_clone()?.into()];
    let fds: Vec<OwnedFd> = fds.into_iter().chain([OwnedFd::from(wake)]).collect();
    let Ok(grant) = Grant::read(answer, fds) else { return Ok(None) };
    let g = grant.geometry;
    let (words, blocks) = contents.split_at(contents.len().min(4096));
    for (file, stride, bytes) in [
        (rings, g.ring_stride, words),
        (data, g.data_stride, blocks),
        (release, g.release_stride, &[]),
    ] {
        let len = (stride as u64).saturating_mul(g.nrings.into());
        if len > MOST {
            return Ok(None);
        }
        file.set_len(len.next_multiple_of(4096))?;
        file.write_all_at(&bytes[..bytes.len().min(len as usize)], 0)?;
    }
    let (stream, _peer) = UnixStream::pair()?;
    let home = Home { socket: "/nonexistent/socket".into(), group: "fuzz".into() };
    let Ok(mut member) = Member::of(Session::of(stream), grant, home) else { return Ok(None) };
    drop(daemon);
    let mut packets = 0;
    while packets < PACKETS {
        match member.next_packet(Some(Duration::ZERO)) {
            Ok(Next::Got(packet)) => {
                assert!(packet.bytes.len() <= 1 << g.block_shift, "{} bytes", packet.bytes.len());
                packets += 1;
            }
            Ok(Next::Nothing | Next::End) | Err(_) => break,
        }
    }
    let _ = member.counts();
    if let Ok(Next::Got(batch)) = member.next_batch(Some(Duration::ZERO)) {
        assert!(batch.bytes().len() <= 1 << g.block_shift);
        packets += batch.packets().take(PACKETS).take_while(Result::is_ok).count();
    }
    member.release();
    Ok(Some(packets))
}
