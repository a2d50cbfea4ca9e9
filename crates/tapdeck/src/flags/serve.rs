//! Which flags does `serve` have? The groups themselves are in the configuration file, whose form
//! is in the text of `--help`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::units;

/// Own the hooks of interfaces and give their packets to groups of programs, which attach and leave
/// at any time
///
/// SIGUSR1 prints what the groups have seen so far, and serving goes on.
#[derive(Debug, Args)]
#[command(after_help = "A configuration:
  [serve]                        # all of this may be left out
  socket = \"/run/tapdeck/serve.sock\"
  socket-mode = \"0660\"           # who may attach: the file's permission
  socket-group = \"netops\"
  ring-bytes = \"64MiB\"           # of each member [4 MiB for each queue or CPU, 16 to 128 MiB]
  block-bytes = \"256KiB\"
  device-bound = true            # false: bind no XDP program to its device
  clock = \"auto\"                 # or packet, batch, hardware: what packets are stamped by
  max-members = 128              # of each user, root aside
  memory = \"4GiB\"                # of the members of each user [a quarter of the memory]

  [[group]]
  name = \"ids\"
  interfaces = [\"eth1\"]
  hook = \"xdp\"                   # auto xdp xdp-generic tcx netfilter
  deliver = \"pass\"               # or consume
  yes-this-interface = true      # consume even on the interface of the default route [false]
  filter = \"not port 22\"         # pcap-filter(7)
  rules = \"ids.rules\"            # a rule file, named as seen from this one
  snaplen = 65535
  steering = \"flow\"              # flow ip-pair src dst both-ends mac vlan round-robin queue copy
  promiscuous = true
  allow = [\"user:ids\", \"group:netops\"]  # who may attach [who may connect]
  max-members = 16               # of the group [1024; with steering copy 16]
  memory = \"1GiB\"                # of all its members [no limit]

Examples:
  tapdeck serve --config /etc/tapdeck.toml
  tapdeck serve --config /etc/tapdeck.toml --socket /run/tapdeck/serve.sock --stats-json stats.jsonl
  tapdeck serve --config /etc/tapdeck.toml --persist deck")]
pub struct Serve {
    /// What to serve, as TOML
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Listen here, whatever the configuration says [default: TAPDECK_SOCKET, or
    /// /run/tapdeck/serve.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The permission of the socket's file, whatever the configuration says
    #[arg(long, value_name = "MODE", value_parser = units::mode)]
    pub socket_mode: Option<u32>,

    /// The group of users that the socket's file belongs to, whatever the configuration says
    #[arg(long, value_name = "NAME")]
    pub socket_group: Option<String>,

    /// Have hooks, rings and counters outlive the daemon under this name: members read on, and the
    /// next daemon of the name goes on with them, whatever groups it has. tapdeck ctl persist lists
    /// and removes what is left
    #[arg(long, value_name = "NAME")]
    pub persist: Option<String>,

    /// Let packets pass unseen when the daemon has not run for so long, at least 3s
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::abandon)]
    pub abandon: Duration,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,

    /// The user that the daemon becomes, without capabilities: a process of its own keeps those
    /// that hooks take [default: tapdeck, where root serves and there is such a user]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Write one JSON object of counters a second, and a last one; - is standard output
    #[arg(long, value_name = "FILE")]
    pub stats_json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};
    use tapdeck_capture::Hook;

    use super::Serve;

    #[test]
    fn the_help_names_the_hooks_that_take_groups() {
        let hooks = Hook::ALL.into_iter().filter(|hook| hook.takes_groups()).map(Hook::name);
        let names: Vec<&str> = std::iter::once("auto").chain(hooks).collect();
        let command = Serve::augment_args(Command::new("serve"));
        let help = command.get_after_help().expect("an example").to_string();
        let line = help.lines().find(|line| line.contains("hook = ")).expect("a line for the hook");
        assert!(line.ends_with(&format!("# {}", names.join(" "))), "{line}: {names:?}");
    }
}
