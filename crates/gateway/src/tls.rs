//! TLS: which certificate does the gateway show, and whose does it believe?
//!
//! Files are read again when they change, so that a certificate is renewed without a restart; as
//! long as new files make no sense, the old ones count. A client that shows a certificate must have
//! it from the certificate authority that the configuration names. One that shows none may still
//! have a token.
//!
//! Stenographer's tools make X.509 certificates of version 1, which rustls does not take. Such a
//! one is believed if the authority itself has signed it, with keys and a hash as strong as rustls
//! wants them (SHA-256; RSA of 2048 bits), if its time has come and not gone, and over
//! TLS 1.3 alone.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme, server,
};
use x509_parser::asn1_rs::Oid;
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::{
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA,
    OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512,
    OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::time::ASN1Time;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Version};

/// The files of a listener that speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The gateway's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority of clients' certificates; without, clients are told by tokens alone.
    pub client_ca: Option<PathBuf>,
}

/// What files hold, as rustls takes it, and what they were when they were read.
struct Loaded {
    config: Arc<ServerConfig>,
    stamps: Vec<Option<Stamp>>,
}

/// What changes when a file does.
type Stamp = (SystemTime, u64, u64);

/// TLS of one listener.
pub struct Tls {
    files: Files,
    loaded: RwLock<Loaded>,
}

impl Tls {
    pub fn new(files: Files) -> Result<Self> {
        let loaded = RwLock::new(load(&files)?);
        Ok(Self { files, loaded })
    }

    /// Returns what the next connection is greeted with.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// Reads the files again if they have changed. Returns whether they had.
    ///
    /// # Errors
    /// Where they make no sense now; then those of before count on.
    pub fn look(&self) -> Result<bool> {
        let stamps = stamps(&self.files);
        if self.loaded.read().unwrap_or_else(PoisonError::into_inner).stamps == stamps {
            return Ok(false);
        }
        let loaded = load(&self.files);
        let mut now = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        match loaded {
            Ok(loaded) => {
                *now = loaded;
                Ok(true)
            }
            Err(e) => {
                // The same files are not tried again.
                now.stamps = stamps;
                Err(e)
            }
        }
    }
}

fn stamps(files: &Files) -> Vec<Option<Stamp>> {
    use std::os::unix::fs::MetadataExt as _;
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len(), meta.ino()))
    };
    let Files { certificate, key, client_ca } = files;
    [certificate, key].into_iter().chain(client_ca).map(stamp).collect()
}

fn load(files: &Files) -> Result<Loaded> {
    let stamps = stamps(files);
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.certificate)?;
    let shown = files.key.display();
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("{shown}: no private key can be read"))?;
    let key = provider.key_provider.load_private_key(key).with_context(|| format!("{shown}"))?;
    let own = key.public_key().map(|key| key.to_vec());
    let (_, first) = X509Certificate::from_der(&chain[0])
        .with_context(|| format!("{}", files.certificate.display()))?;
    ensure!(
        own.is_none_or(|own| own == first.public_key().raw),
        "{shown} is not the key of {}",
        files.certificate.display()
    );
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let config = match &files.client_ca {
        None => config.with_no_client_auth(),
        Some(path) => config.with_client_cert_verifier(Arc::new(Clients::new(path, &provider)?)),
    };
    let own = Arc::new(Own(Arc::new(CertifiedKey::new(chain, key))));
    let mut config = config.with_cert_resolver(own);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Loaded { config: Arc::new(config), stamps })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).with_context(|| format!("{shown}"))?.collect();
    let chain = chain.with_context(|| format!("{shown}"))?;
    ensure!(!chain.is_empty(), "{shown} holds no certificate");
    Ok(chain)
}

/// The gateway's certificate, whoever asks.
#[derive(Debug)]
struct Own(Arc<CertifiedKey>);

impl server::ResolvesServerCert for Own {
    fn resolve(&self, _: server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Decides which clients' certificates are believed.
#[derive(Debug)]
struct Clients {
    usual: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Clients {
    fn new(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Self> {
        let authorities = certificates(path)?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots.add(authority.clone()).with_context(|| format!("{}", path.display()))?;
        }
        let usual = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .with_context(|| format!("{}", path.display()))?;
        Ok(Self { usual, authorities, provider: provider.clone() })
    }

    /// Verifies a certificate of version 1.
    fn verify_old(&self, old: &X509Certificate<'_>, now: UnixTime) -> Result<(), CertificateError> {
        let now = i64::try_from(now.as_secs()).ok().and_then(|s| ASN1Time::from_timestamp(s).ok());
        let now = now.ok_or(CertificateError::BadEncoding)?;
        if now < old.validity().not_before {
            return Err(CertificateError::NotValidYet);
        }
        if now > old.validity().not_after {
            return Err(CertificateError::Expired);
        }
        let is_strong = STRONG.contains(&old.signature_algorithm.algorithm);
        if !is_strong || is_weak(old.public_key()) {
            return Err(CertificateError::ApplicationVerificationFailure);
        }
        let mut issuers = self.authorities.iter().filter_map(|authority| {
            let (_, authority) = X509Certificate::from_der(authority).ok()?;
            let is_issuer = authority.subject().as_raw() == old.issuer().as_raw();
            (is_issuer && !is_weak(authority.public_key())).then_some(authority)
        });
        let is_signed =
            issuers.any(|authority| old.verify_signature(Some(authority.public_key())).is_ok());
        if is_signed { Ok(()) } else { Err(CertificateError::UnknownIssuer) }
    }
}

/// How a certificate of version 1 may be signed.
const STRONG: [Oid<'static>; 7] = [
    OID_PKCS1_SHA256WITHRSA,
    OID_PKCS1_SHA384WITHRSA,
    OID_PKCS1_SHA512WITHRSA,
    OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384,
    OID_SIG_ECDSA_WITH_SHA512,
    OID_SIG_ED25519,
];

/// Returns whether a key is of RSA and shorter than anybody should have.
fn is_weak(key: &SubjectPublicKeyInfo<'_>) -> bool {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => rsa.key_size() < 2048,
        Ok(_) => false,
        Err(_) => true,
    }
}

/// Returns a certificate, if it is of version 1.
fn old<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    (parsed.version() == X509Version::V1).then_some(parsed)
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match old(certificate) {
            Some(old) => {
                self.verify_old(&old, now)?;
                Ok(ClientCertVerified::assertion())
            }
            None => self.usual.verify_client_cert(certificate, between, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(old) = old(certificate) else {
            return self.usual.verify_tls13_signature(message, certificate, dss);
        };
        let key = SubjectPublicKeyInfoDer::from(old.public_key().raw);
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Returns the common name of a certificate's subject: the name by which the configuration knows
/// who has it.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let mut names = parsed.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?.to_owned();
    // With two of them it would be open whose certificate it is.
    names.next().is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::CertificateError::ApplicationVerificationFailure as Weak;
    use rustls::CertificateError::{self, Expired, NotValidYet, UnknownIssuer};
    use rustls::Error;
    use rustls::crypto::ring;
    use rustls::pki_types::UnixTime;
    use rustls::server::danger::ClientCertVerifier as _;

    use super::{Clients, certificates, common_name, old};

    /// Makes two authorities of one name, and certificates of version 1 by the first.
    fn make(dir: &Path) {
        let script = format!(
            "set -e; cd {}
             for ca in ca other; do
               openssl req -x509 -newkey rsa:2048 -nodes -keyout $ca.key -out $ca.pem -days 9 -subj /CN=ca
             done
             sign() {{
               openssl req -newkey rsa:$2 -nodes -keyout $1.key -out $1.csr -subj $4
               openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $1.pem -days 2 $3
             }}
             sign good 2048 -sha256 /CN=alice; sign short 1024 -sha256 /CN=alice
             sign sha1 2048 -sha1 /CN=alice; sign nameless 2048 -sha256 /O=alice",
            dir.display()
        );
        let out = Command::new("bash").args(["-c", &script]).output().expect("bash is there");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    #[test]
    fn an_old_certificate_is_believed_in_its_time_from_its_authority_and_if_it_is_strong() {
        let dir = tempfile::tempdir().expect("a directory");
        make(dir.path());
        let verify = |authority: &str, name: &str, now: UnixTime| {
            let provider = Arc::new(ring::default_provider());
            let clients = Clients::new(&dir.path().join(authority), &provider).expect("it is one");
            let certificate = &certificates(&dir.path().join(name)).expect("it is one")[0];
            assert!(old(certificate).is_some(), "{name} is of version 1");
            clients.verify_client_cert(certificate, &[], now).map(drop)
        };
        let days = |days: u64| {
            let later = UnixTime::now().as_secs() + days * 86_400;
            UnixTime::since_unix_epoch(Duration::from_secs(later))
        };
        assert_eq!(verify("ca.pem", "good.pem", days(1)), Ok(()));
        let refuses = |authority: &str, name: &str, now: UnixTime, why: CertificateError| {
            let result = verify(authority, name, now);
            assert_eq!(result, Err(Error::InvalidCertificate(why)), "{authority}, {name}");
        };
        refuses("ca.pem", "good.pem", days(3), Expired);
        let early = UnixTime::since_unix_epoch(Duration::from_secs(1_000_000_000));
        refuses("ca.pem", "good.pem", early, NotValidYet);
        refuses("other.pem", "good.pem", days(1), UnknownIssuer);
        refuses("ca.pem", "short.pem", days(1), Weak);
        refuses("ca.pem", "sha1.pem", days(1), Weak);
        let name =
            |name: &str| common_name(&certificates(&dir.path().join(name)).expect("it is one")[0]);
        assert_eq!((name("good.pem").as_deref(), name("nameless.pem")), (Some("alice"), None));
    }
}
