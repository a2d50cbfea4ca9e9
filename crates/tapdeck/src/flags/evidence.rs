//! Which flags and verbs does `evidence` have? They make keys, and make and check bundles.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tapdeck_packet::community_id::CommunityId;

use crate::query::time;

/// Hand on packets with a signed account of what they are and what the recording lacks.
///
/// A bundle is a directory: pcapng files, `manifest.json` with the SHA-256 of each, and
/// `manifest.sig`, an Ed25519 signature of the manifest. The manifest says what was asked for, and
/// whether the recording was complete then, or what was lost, shed, cut off, unseen or not recorded
/// and when. docs/EVIDENCE.md says how anybody checks one with openssl and jq.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        time::in_help!(),
        "

Examples:
  tapdeck evidence key new -o /etc/tapdeck/evidence.key
  tapdeck evidence export --dir /var/tape host 10.0.0.7 --after 14:02 --before 14:05 --key /etc/tapdeck/evidence.key -o case-7
  tapdeck evidence export --dir /var/tape --pin 12 --key /etc/tapdeck/evidence.key -o case-8
  tapdeck evidence check case-7 --key evidence.key.pub"
    )
)]
pub struct Evidence {
    #[command(subcommand)]
    pub verb: EvidenceVerb,
}

#[derive(Debug, Subcommand)]
pub enum EvidenceVerb {
    /// Keys that sign bundles
    Key(EvidenceKey),
    Export(EvidenceExport),
    Check(EvidenceCheck),
}

#[derive(Debug, Args)]
pub struct EvidenceKey {
    #[command(subcommand)]
    pub verb: EvidenceKeyVerb,
}

#[derive(Debug, Subcommand)]
pub enum EvidenceKeyVerb {
    /// Make a key of this machine: FILE, which nobody else may read (0600), and FILE.pub for those
    /// who check
    New {
        /// The file of the private key, PKCS#8 in PEM; the public one is FILE.pub
        #[arg(short, long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Write packets of a store as a signed bundle, in time order.
///
/// What the span lacks is told on standard error and in the manifest. The exit code is 1 if packets
/// that were recorded are damaged or missing now; the bundle is made and says so.
#[derive(Debug, Args)]
pub struct EvidenceExport {
    /// The store, a directory that `tapdeck record --dir` wrote or is writing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// Only packets that match, as in pcap-filter(7) and for `tcpdump -r`; several words are
    /// joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// The packets of a pin in place of the store's, as `tapdeck pins` numbers them, and what the
    /// recording lacked when they were copied
    #[arg(
        long,
        value_name = "NUMBER",
        conflicts_with_all = ["expression", "community_id", "inner", "after", "before"]
    )]
    pub pin: Option<u64>,

    /// The directory of pins [DIR.evidence]
    #[arg(long, value_name = "PATH", requires = "pin")]
    pub evidence: Option<PathBuf>,

    /// Only packets of the flow that Zeek, Suricata and others call so
    #[arg(long, value_name = "ID")]
    pub community_id: Option<CommunityId>,

    /// Also packets with a matching packet inside a tunnel
    #[arg(long)]
    pub inner: bool,

    /// Only packets from this time on
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub after: Option<i64>,

    /// Only packets from before this time [now]
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub before: Option<i64>,

    /// The private key that signs
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// The bundle, a directory that is made
    #[arg(short, long, value_name = "BUNDLE")]
    pub out: PathBuf,
}

/// Tell whether a bundle is what was signed: exit code 1 if anything of it was changed, is missing
/// or was added.
#[derive(Debug, Args)]
pub struct EvidenceCheck {
    /// The bundle
    #[arg(value_name = "BUNDLE")]
    pub bundle: PathBuf,

    /// The public key of who should have signed it, as `evidence key new` wrote it to FILE.pub
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
}
