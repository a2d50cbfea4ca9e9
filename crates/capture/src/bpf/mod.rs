//! The hook programs (`bpf/*.bpf.c`), and their way into the kernel.
//!
//! [`program`] names them; [`params`] and [`control`] are what they are told, before they are
//! verified and while they run; [`driver`] is what some of them ask the network driver; [`object`]
//! loads an object with filters put into its hook programs, and [`pages`] sees that none outgrows
//! its pages thereby, nor [`stack`] its stack; [`loaded`] is the recorder's object with its rings.
//! Nothing here attaches a program to an interface: `attach` does that.

pub(crate) mod control;
pub(crate) mod driver;
mod fold;
pub(crate) mod loaded;
pub(crate) mod object;
mod pages;
pub(crate) mod params;
pub(crate) mod program;
pub(crate) mod socket;
mod stack;
