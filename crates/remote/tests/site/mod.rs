//! A web server over TLS that wants to be shown a certificate, gives a directory as nginx would,
//! and can misbehave.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tapdeck_testkit::wait_for;

/// How a server misbehaves where it is asked for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Says nothing more in the middle of the bytes.
    Stall,
    /// Goes in the middle of the bytes.
    Cut,
    /// Goes in the middle of the bytes, the first time alone.
    CutOnce,
    /// Has no time, the first time alone.
    BusyOnce,
    /// Sends half of the bytes, and says that this is what was asked for.
    Half,
    /// Sends more bytes than were asked for.
    More,
    /// Sends other bytes of the file.
    Elsewhere,
    /// Says that the file is longer than it is.
    LongerFile,
    /// Says that the file is as long as a number can tell.
    EndlessFile,
    /// Gives no bytes before it has refused a range, which it does without an `ETag`.
    RefusesFirst,
    /// Sends the whole file.
    Whole,
    /// Has another file of that name from the second time on.
    Exchanged,
    /// Sends a byte now and then.
    Drip,
}

const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// What is asked for and how often, by path.
type Asked = Arc<Mutex<HashMap<String, usize>>>;

/// A running server.
pub struct Site {
    pub url: String,
    misbehaves: Arc<Mutex<Option<(String, Misbehaviour)>>>,
    asked: Asked,
    refused: Arc<AtomicBool>,
    certificates: PathBuf,
}

/// Makes an authority, and certificates of a server and of somebody who asks.
fn certificates(dir: &Path) {
    let script = format!(
        "set -e; cd {}
        openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca
        make() {{
          openssl req -newkey rsa:2048 -nodes -keyout $1.key -out $1.csr -subj /CN=$1
          echo \"$2\" >$1.ext
          openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $1.pem -days 1 -extfile $1.ext
        }}
        make alice extendedKeyUsage=clientAuth
        make site subjectAltName=IP:127.0.0.1",
        dir.display()
    );
    let out = Command::new("bash").args(["-c", &script]).output().expect("bash");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

impl Site {
    /// Gives a directory as `/tape/`. Certificates are made in another.
    pub fn start(given: &Path, made: &Path) -> Self {
        certificates(made);
        let chain = CertificateDer::pem_file_iter(made.join("site.pem")).expect("a file");
        let chain = chain.collect::<std::result::Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(made.join("site.key")).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(made.join("ca.pem")).expect("it")).expect("it");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.expect("a verifier"))
            .with_single_cert(chain, key)
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let url = format!("https://{}/tape/", listener.local_addr().expect("an address"));
        let site = Self {
            url,
            misbehaves: Arc::default(),
            asked: Asked::default(),
            refused: Arc::default(),
            certificates: made.to_owned(),
        };
        let (config, given) = (Arc::new(config), given.to_owned());
        let (misbehaves, asked) = (site.misbehaves.clone(), site.asked.clone());
        let refused = site.refused.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = Server {
                    given: given.clone(),
                    misbehaves: misbehaves.clone(),
                    asked: asked.clone(),
                    refused: refused.clone(),
                };
                let config = config.clone();
                thread::spawn(move || {
                    let connection = ServerConnection::new(config).expect("a configuration");
                    // Who asks may go at any time.
                    let _ = server.serve(StreamOwned::new(connection, stream));
                });
            }
        });
        site
    }

    /// Misbehaves from now on at files whose names end so.
    pub fn misbehave(&self, end: &str, how: Misbehaviour) {
        *self.misbehaves.lock().unwrap() = Some((end.to_owned(), how));
        self.asked.lock().unwrap().clear();
        self.refused.store(false, Ordering::Release);
    }

    pub fn behave(&self) {
        *self.misbehaves.lock().unwrap() = None;
    }

    /// Returns how often what ends so was asked for since the last time.
    pub fn take_asked(&self, end: &str) -> usize {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.iter().filter(|(path, _)| path.ends_with(end)).map(|(_, times)| times).sum()
    }

    /// Returns whether anything that ends so was asked for.
    pub fn was_asked(&self, end: &str) -> bool {
        self.asked.lock().unwrap().keys().any(|path| path.ends_with(end))
    }

    /// Returns what has to be shown, and whom is to be believed.
    pub fn flags(&self) -> Vec<String> {
        let flag = |name: &str, file: &str| {
            [name.to_owned(), self.certificates.join(file).display().to_string()]
        };
        [flag("--cert", "alice.pem"), flag("--key", "alice.key"), flag("--ca", "ca.pem")].concat()
    }
}

struct Server {
    given: PathBuf,
    misbehaves: Arc<Mutex<Option<(String, Misbehaviour)>>>,
    asked: Asked,
    /// Whether a range was refused.
    refused: Arc<AtomicBool>,
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

impl Server {
    /// Answers requests until the client goes.
    fn serve(&self, stream: Stream) -> Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut line, mut range) = (String::new(), None);
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let path = line.split(' ').nth(1).expect("a path").to_owned();
            loop {
                let mut header = String::new();
                stream.read_line(&mut header)?;
                let header = header.trim_end().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                range = header.strip_prefix("range: bytes=").map(str::to_owned).or(range);
            }
            let mut asked = self.asked.lock().unwrap();
            let times = asked.entry(path.clone()).or_default();
            *times += 1;
            let times = *times;
            drop(asked);
            let name = path.strip_prefix("/tape/").expect("it is below");
            let to = stream.get_mut();
            match range {
                None if name.is_empty() => self.list(to)?,
                None => to.write_all(NOT_FOUND)?,
                Some(range) => self.file(name, &range, times, to)?,
            }
            to.flush()?;
        }
    }

    fn list(&self, to: &mut Stream) -> Result<()> {
        let mut entries: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.given)?.flatten() {
            let name = entry.file_name().into_string().expect("text");
            // As nginx does.
            if !name.starts_with('.') {
                let size = entry.metadata()?.len();
                entries.push(format!(
                    "{{ \"name\":\"{name}\", \"type\":\"file\", \"mtime\":\"Fri, 02 Jan 2026 03:04:05 GMT\", \"size\":{size} }}"
                ));
            }
        }
        entries.push("{ \"name\":\"more\", \"type\":\"directory\", \"mtime\":\"\" }".into());
        let body = format!("[\n{}\n]", entries.join(",\n"));
        write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn file(&self, name: &str, range: &str, times: usize, to: &mut Stream) -> Result<()> {
        let misbehaves = self.misbehaves.lock().unwrap().clone();
        let how = misbehaves.filter(|(end, _)| name.ends_with(end.as_str())).map(|(_, how)| how);
        let Ok(mut bytes) = fs::read(self.given.join(name)) else {
            return to.write_all(NOT_FOUND);
        };
        let (first, last) = range.split_once('-').expect("a range");
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let mut tag = format!("{:x}", bytes.len());
        let mut len = bytes.len();
        if first >= len {
            write!(
                to,
                "HTTP/1.1 416 No\r\nContent-Range: bytes */{len}\r\nContent-Length: 0\r\n\r\n"
            )?;
            to.flush()?;
            self.refused.store(true, Ordering::Release);
            return Ok(());
        }
        if how == Some(Misbehaviour::RefusesFirst) {
            wait_for("a range to be refused", || self.refused.load(Ordering::Acquire));
        }
        let mut part: Range<usize> = first..len.min(last + 1);
        match how {
            Some(Misbehaviour::BusyOnce) if times == 1 => {
                return write!(to, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
            }
            Some(Misbehaviour::Whole) => {
                write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
                return to.write_all(&bytes);
            }
            Some(Misbehaviour::Half) => part.end = part.start + part.len() / 2,
            Some(Misbehaviour::More) => bytes.splice(part.end..part.end, [0; 9]).for_each(drop),
            Some(Misbehaviour::Elsewhere) => part = part.start + 1..part.end,
            Some(Misbehaviour::LongerFile) => len += 4096,
            Some(Misbehaviour::EndlessFile) => len = usize::MAX,
            Some(Misbehaviour::Exchanged) if times > 1 => tag = "another".into(),
            _ => {}
        }
        let told = format!("bytes {}-{}/{len}", part.start, part.end - 1);
        if how == Some(Misbehaviour::More) {
            part.end += 9;
        }
        let mut head = String::new();
        let _ = write!(
            head,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: {told}\r\nETag: \"{tag}\"\r\nContent-Length: {}\r\n\r\n",
            part.len()
        );
        to.write_all(head.as_bytes())?;
        let middle = part.start + part.len() / 2;
        match how {
            Some(Misbehaviour::Stall) => self.stall(&bytes[part.start..middle], to),
            Some(Misbehaviour::Drip) => drip(&bytes[part], to),
            Some(Misbehaviour::Cut) => cut(&bytes[part.start..middle], to),
            Some(Misbehaviour::CutOnce) if times == 1 => cut(&bytes[part.start..middle], to),
            _ => to.write_all(&bytes[part]),
        }
    }

    /// Sends bytes, and nothing more until the client goes.
    fn stall(&self, bytes: &[u8], to: &mut Stream) -> Result<()> {
        let _ = self;
        to.write_all(bytes)?;
        to.flush()?;
        // Nothing comes that is a request, so this ends when the client goes.
        to.read_exact(&mut [0; 1])?;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    }
}

/// Sends bytes one by one, slowly.
fn drip(bytes: &[u8], to: &mut Stream) -> Result<()> {
    for byte in bytes {
        to.write_all(&[*byte])?;
        to.flush()?;
        thread::sleep(std::time::Duration::from_millis(300));
    }
    Ok(())
}

/// Sends bytes, and goes.
fn cut(bytes: &[u8], to: &mut Stream) -> Result<()> {
    to.write_all(bytes)?;
    to.flush()?;
    Err(std::io::ErrorKind::ConnectionAborted.into())
}
