//! Which rule takes a packet? The judge of `bpf/look.h`, which hook programs run, compiled for user
//! space.

use tapdeck_packet::rules::{Family, Tuple};

const HAS_PORTS: u8 = 1;

/// What a verdict says (`enum td_action` of `bpf/rules.h`).
pub mod action {
    #[cfg(test)]
    pub const NONE: u32 = 0;
    pub const ACCEPT: u32 = 1;
    pub const DROP: u32 = 2;
    pub const SNAPLEN: u32 = 3;
    pub const GROUP: u32 = 4;
    pub const CUT_OFF: u32 = 5;
}

/// `struct td_tuple` of `bpf/judged.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JudgedTuple {
    family: u8,
    protocol: u8,
    flags: u8,
    pad: u8,
    source_port: u16,
    destination_port: u16,
    source: [u8; 16],
    destination: [u8; 16],
}

impl JudgedTuple {
    /// Returns the structure as the hook programs have it.
    pub fn bytes(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..3].copy_from_slice(&[self.family, self.protocol, self.flags]);
        bytes[4..6].copy_from_slice(&self.source_port.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.destination_port.to_ne_bytes());
        bytes[8..24].copy_from_slice(&self.source);
        bytes[24..].copy_from_slice(&self.destination);
        bytes
    }
}

impl From<&Tuple> for JudgedTuple {
    fn from(tuple: &Tuple) -> Self {
        let (source_port, destination_port) = tuple.ports.unwrap_or_default();
        Self {
            family: match tuple.family {
                None => 0,
                Some(Family::V4) => 4,
                Some(Family::V6) => 6,
            },
            protocol: tuple.protocol,
            flags: if tuple.ports.is_some() { HAS_PORTS } else { 0 },
            pad: 0,
            source_port,
            destination_port,
            source: tuple.source.to_be_bytes(),
            destination: tuple.destination.to_be_bytes(),
        }
    }
}

/// `struct td_verdict`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawVerdict {
    pub action: u32,
    pub snaplen: u32,
    pub group: u32,
    pub rule: u32,
    pub cutoff: u32,
}

impl RawVerdict {
    pub fn from_words([action, snaplen, group, rule, cutoff]: [u32; 5]) -> Self {
        Self { action, snaplen, group, rule, cutoff }
    }
}

mod c {
    use super::{JudgedTuple, RawVerdict};

    unsafe extern "C" {
        pub fn tapdeck_judge_image(
            image: *mut u8,
            mask: u64,
            tuple: *const JudgedTuple,
            cpu: u32,
            verdict: *mut RawVerdict,
        );
        pub fn tapdeck_bloom(image: *const u8, mask: u64, addresses: u64, rest: u64) -> i32;
    }
}

fn mask(image: &[u64]) -> u64 {
    let bytes = size_of_val(image);
    assert!(bytes.is_power_of_two() && bytes >= 4096, "an image of {bytes} bytes");
    bytes as u64 - 1
}

/// Judges a tuple as CPU number `cpu` does, and counts it in the image.
///
/// # Panics
/// If the memory is not of a power of two of bytes, or less than a page.
pub fn judge(image: &mut [u64], tuple: &Tuple, cpu: u32) -> RawVerdict {
    let mut verdict = RawVerdict::default();
    let tuple = JudgedTuple::from(tuple);
    // SAFETY: the memory is ours alone and of a power of two of bytes, and nothing is read or
    // written but under the mask, which is that less one; the header fits into a page. The
    // other pointers are to whole structures.
    unsafe {
        c::tapdeck_judge_image(
            image.as_mut_ptr().cast(),
            mask(image),
            &raw const tuple,
            cpu,
            &raw mut verdict,
        );
    }
    verdict
}

/// Returns whether the Bloom filter in an image takes a masked tuple of IPv4 for one of its own.
///
/// # Panics
/// The conditions of [`judge`].
pub fn bloom(image: &[u64], addresses: u64, rest: u64) -> bool {
    // SAFETY: as in `judge`, and nothing is written.
    unsafe { c::tapdeck_bloom(image.as_ptr().cast(), mask(image), addresses, rest) != 0 }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::{JudgedTuple, RawVerdict, action};

    mod c {
        unsafe extern "C" {
            pub safe static tapdeck_rules_layout: [u32; 21];
        }
    }

    #[test]
    fn fields_are_where_c_has_them() {
        let here = [
            size_of::<JudgedTuple>(),
            offset_of!(JudgedTuple, family),
            offset_of!(JudgedTuple, protocol),
            offset_of!(JudgedTuple, flags),
            offset_of!(JudgedTuple, pad),
            offset_of!(JudgedTuple, source_port),
            offset_of!(JudgedTuple, destination_port),
            offset_of!(JudgedTuple, source),
            offset_of!(JudgedTuple, destination),
            size_of::<RawVerdict>(),
            offset_of!(RawVerdict, action),
            offset_of!(RawVerdict, snaplen),
            offset_of!(RawVerdict, group),
            offset_of!(RawVerdict, rule),
            offset_of!(RawVerdict, cutoff),
        ];
        let actions = [
            action::NONE,
            action::ACCEPT,
            action::DROP,
            action::SNAPLEN,
            action::GROUP,
            action::CUT_OFF,
        ];
        let places = here.map(|n| n as u32);
        assert_eq!([&places[..], &actions].concat(), c::tapdeck_rules_layout);
    }
}
