//! Reads stores that lie elsewhere: on S3, and on web servers.
//!
//! [`open`] makes a [`Storage`] of a URL. Whoever reads stores needs to know nothing of networks,
//! and whatever the answer of a directory would be, that of its copy elsewhere is the same.
//!
//! - [`Shown`]: what is shown to servers, and whom they have to show; one HTTP client for all.
//! - `exchange`: one request and its whole answer, within bounds of time and of memory.
//! - `web`, `s3`: two dialects of the same questions, which are a list and a range.
//! - `extents`: what came, and what is on its way, so that nothing is asked for twice.
//! - `elsewhere`: the storage above all of them.
//!
//! A server is not believed. What it says of lengths has to agree with what it sends and with what
//! it said before; a range is the one that was asked for; an object that was exchanged while it is
//! read is a fault, and so is one that comes too slowly. What the bytes mean is checked by whoever
//! reads them, as in a directory that anybody may have written.
#![forbid(unsafe_code)]

mod elsewhere;
mod exchange;
mod extents;
mod s3;
mod server;
mod shown;
mod web;

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tapdeck_store::io::Storage;

pub use shown::Shown;

/// Why a URL cannot be opened. What a server says is known only when it is asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the text is no URL of a store
    #[error("{0} is no store: write s3://BUCKET[/PREFIX] or https://HOST[:PORT][/PATH/]")]
    Url(String),
    /// packets would go over a network as they are
    #[error("{0}: without TLS only this machine is asked")]
    Plain(String),
    /// the environment does not say how S3 is asked
    #[error(
        "{0}: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT_URL where it is not Amazon's"
    )]
    S3(String),
    /// a certificate or a key
    #[error("{file}: {why}")]
    Shown { file: String, why: String },
    /// anything that the TLS library says
    #[error("cannot prepare TLS: {0}")]
    Tls(String),
    /// threads
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

/// Opens a store at a URL. Nothing is asked yet. A server may be silent for as long as `patience`.
///
/// S3 is asked as the environment says: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
/// `AWS_ENDPOINT_URL`, `AWS_REGION` and what else there is of that kind.
pub fn open(url: &str, shown: &Shown, patience: Duration) -> Result<Arc<dyn Storage>, Error> {
    let unfit = || Error::Url(url.to_owned());
    let parsed: Url = url.parse().map_err(|_| unfit())?;
    let is_plain = parsed.query().is_none()
        && parsed.fragment().is_none()
        && parsed.username().is_empty()
        && parsed.password().is_none();
    if !is_plain {
        return Err(unfit());
    }
    let client = shown.client(patience)?;
    let asked = exchange::Asked { client, patience };
    let server = match parsed.scheme() {
        "s3" => server::Server::S3(s3::Bucket::open(&parsed, asked)?),
        "https" => server::Server::Web(web::Site::new(parsed, asked)),
        "http" if is_loopback(&parsed) => server::Server::Web(web::Site::new(parsed, asked)),
        "http" => return Err(Error::Plain(url.to_owned())),
        _ => return Err(unfit()),
    };
    let storage = elsewhere::Elsewhere::new(url, server).map_err(Error::Threads)?;
    Ok(Arc::new(storage))
}

/// Returns whether nothing that is sent to a URL leaves this machine.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
