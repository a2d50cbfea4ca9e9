//! What is shown to servers, and what they have to show.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use reqwest::redirect::Policy;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use crate::Error;

/// How long it may take to reach a server, at most.
const CONNECT: Duration = Duration::from_secs(10);

/// What is shown to servers, and what they have to show.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Shown {
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub token: Option<String>,
}

impl Shown {
    /// Returns what is said here, and where nothing is, what is said elsewhere.
    pub fn or(&self, other: &Self) -> Self {
        let (cert, key) = match (&self.cert, &self.token) {
            (None, None) => (&other.cert, &other.key),
            _ => (&self.cert, &self.key),
        };
        let token = match (&self.cert, &self.token) {
            (None, None) => &other.token,
            _ => &self.token,
        };
        let ca = self.ca.as_ref().or(other.ca.as_ref());
        let [cert, key] = [cert, key].map(Clone::clone);
        Self { cert, key, ca: ca.cloned(), token: token.clone() }
    }

    /// Takes relative paths as those of a directory.
    pub fn lies_in(&mut self, dir: &Path) {
        for path in [&mut self.cert, &mut self.key, &mut self.ca].into_iter().flatten() {
            *path = dir.join(&*path);
        }
    }

    /// Makes a client that shows the certificate, and believes the authority. The token is the
    /// business of whoever makes requests.
    pub fn client(&self, patience: Duration) -> Result<Client, Error> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Tls(e.to_string()))?
            .with_root_certificates(roots(self.ca.as_deref())?);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| unusable(key, &format!("no private key can be read: {e}")))?;
                let chain = certificates(cert)?;
                config.with_client_auth_cert(chain, private).map_err(|e| unusable(key, &e))?
            }
            _ => config.with_no_client_auth(),
        };
        Client::builder()
            .tls_backend_preconfigured(config)
            .user_agent(concat!("tapdeck-remote/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT.min(patience))
            // What is shown to a server is for that server alone.
            .redirect(Policy::none())
            .no_proxy()
            .build()
            .map_err(|e| Error::Tls(e.to_string()))
    }
}

fn unusable(file: &Path, why: &dyn ToString) -> Error {
    Error::Shown { file: file.display().to_string(), why: why.to_string() }
}

/// Returns the authorities that are believed: those of a file, or the machine's.
fn roots(file: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        // One that makes no sense keeps nobody from the others.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|e| unusable(file, &e))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain = CertificateDer::pem_file_iter(path).map_err(|e| unusable(path, &e))?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|e| unusable(path, &e))?;
    if chain.is_empty() {
        return Err(unusable(path, &"it holds no certificate"));
    }
    Ok(chain)
}
