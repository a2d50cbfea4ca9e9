//! Which flags say what is shown to servers, and what they have to show?

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

/// What is shown to sensors and to servers of stores, and what they have to show.
#[derive(Clone, Debug, Default, Args)]
pub struct Shown {
    /// The certificate that is shown to sensors, or to the server of a store
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,

    /// The authority of their certificates [default: those that this machine believes]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl Shown {
    /// Hands the flags on to another program.
    pub fn pass_to(&self, command: &mut Command) {
        for (flag, file) in [("--cert", &self.cert), ("--key", &self.key), ("--ca", &self.ca)] {
            if let Some(file) = file {
                command.arg(flag).arg(file);
            }
        }
    }

    /// Returns the first flag that is there.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [("--cert", &self.cert), ("--key", &self.key), ("--ca", &self.ca)];
        flags.into_iter().find(|(_, file)| file.is_some()).map(|(flag, _)| flag)
    }
}
