//! `tapdeck probe`.

use anyhow::Result;

use crate::flags;

pub fn run(_flags: &flags::Probe) -> Result<()> {
    Ok(())
}
