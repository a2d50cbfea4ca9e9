//! Where in a frame does an instruction of a filter read?

use super::Frames;
use crate::filter::cbpf::{Instruction, Size, Value};

/// Where a tag stands in a frame as it is recorded.
pub(super) const TAG: u32 = 12;
pub(super) const TAG_END: u32 = 16;

/// Where in the frame something is read.
#[derive(Clone, Copy)]
pub(super) enum LoadFrom {
    At(u32),
    BehindX(u32),
    /// What the kernel knows of the packet beside its frame.
    Beside(u32),
}

/// Where what the filter reads lies in a frame that may be stripped.
pub(super) enum Lies {
    /// All in the frame.
    At(LoadFrom),
    /// All in the tag.
    InTag(u32),
    /// Some in the frame and some in the tag, or nobody knows beforehand.
    Anywhere(LoadFrom),
}

/// Returns where an instruction reads the frame, and how much.
pub(super) fn lies(instruction: &Instruction, frames: Frames) -> Option<(Lies, Size)> {
    let (place, size) = match *instruction {
        Instruction::Load(size, place) => (LoadFrom::At(place), size),
        Instruction::LoadBehindX(size, place) => (LoadFrom::BehindX(place), size),
        Instruction::LoadXHeaderLength(place) => (LoadFrom::At(place), Size::Byte),
        _ => return None,
    };
    let lies = match place {
        _ if frames == Frames::Whole => Lies::At(place),
        LoadFrom::At(at) if at.saturating_add(size.bytes()) <= TAG => Lies::At(place),
        LoadFrom::At(at) if at >= TAG_END => Lies::At(LoadFrom::At(at - (TAG_END - TAG))),
        LoadFrom::At(at) if at >= TAG && at + size.bytes() <= TAG_END => Lies::InTag(at),
        LoadFrom::BehindX(at) if at >= TAG_END => Lies::At(LoadFrom::BehindX(at - (TAG_END - TAG))),
        LoadFrom::At(_) | LoadFrom::BehindX(_) | LoadFrom::Beside(_) => Lies::Anywhere(place),
    };
    Some((lies, size))
}

/// The end of what an instruction reads at a fixed place of the frame, where it lies.
pub(super) fn fixed_place(instruction: &Instruction, frames: Frames) -> Option<u32> {
    match lies(instruction, frames)? {
        (Lies::At(LoadFrom::At(place)), size) => Some(place.saturating_add(size.bytes())),
        _ => None,
    }
}

pub(super) fn reads_frame(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::Load(..)
            | Instruction::LoadBehindX(..)
            | Instruction::LoadXHeaderLength(_)
            | Instruction::LoadBeside(_)
    )
}

pub(super) fn asks_about(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::LoadBeside(_)
            | Instruction::LoadValue(Value::Length)
            | Instruction::LoadXValue(Value::Length)
    )
}
