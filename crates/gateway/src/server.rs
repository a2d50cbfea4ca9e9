//! Where does the gateway listen, and how long is a connection served?
//!
//! Plain HTTP is for those alone whom the machine itself keeps out of reach of others; else it is
//! TLS. Each connection is a task, and there are at most [`CONNECTIONS`] of them at each listener:
//! more wait in the kernel's queue, and keep nobody waiting at another listener. Who connects and
//! says nothing is left after [`SILENCE`], and who reads nothing after [`PATIENCE`]. SIGTERM and
//! SIGINT end the gateway in good order: nobody new is heard, and what is under way has [`LAST`] to
//! finish.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::asker::{Peer, Way};
use crate::config::Listen;
use crate::say;
use crate::tls::{Tls, common_name};

/// How long a reader may take nothing of what it is sent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often certificates are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// Connections of a listener at a time.
const CONNECTIONS: usize = 512;
/// How long a request's head may take.
const SILENCE: Duration = Duration::from_secs(10);
/// How long the end waits for what is under way.
const LAST: Duration = Duration::from_secs(10);
/// Bytes of a request's head, and of an answer that wait to be sent.
const BUFFER: usize = 64 << 10;
/// How long the gateway rests where it cannot take another connection, for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// A connection, by whatever it came.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What connections of a listener are told apart by.
#[derive(Clone)]
struct Kind {
    way: Way,
    tls: Option<Arc<Tls>>,
    user: Option<String>,
}

enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

struct Listener {
    socket: Socket,
    kind: Kind,
}

/// Listeners that wait for connections, and the signals that end it, which count from when it
/// listens.
pub struct Server {
    listeners: Vec<Listener>,
    terminate: Signal,
    interrupt: Signal,
}

impl Server {
    /// Begins to listen. A socket that an earlier gateway left is replaced.
    pub async fn bind(listen: &[Listen]) -> Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let mut listeners = Vec::new();
        for place in listen {
            listeners.push(match place {
                Listen::Loopback { address, user } => {
                    let kind = Kind { way: Way::Loopback, tls: None, user: user.clone() };
                    Listener { socket: bind_tcp(*address).await?, kind }
                }
                Listen::Tls { address, files } => {
                    let tls = Some(Arc::new(Tls::new(files.clone())?));
                    let kind = Kind { way: Way::Tls, tls, user: None };
                    Listener { socket: bind_tcp(*address).await?, kind }
                }
                Listen::Unix { path, mode, user } => {
                    let listener = bind_unix(path, *mode).await;
                    let shown = path.display();
                    let listener = listener.with_context(|| format!("cannot listen at {shown}"))?;
                    let kind = Kind { way: Way::Unix, tls: None, user: user.clone() };
                    Listener { socket: Socket::Unix(listener, path.clone()), kind }
                }
            });
        }
        Ok(Self { listeners, terminate, interrupt })
    }

    /// Returns where it listens, as people write that.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        self.listeners.iter().map(|Listener { socket, kind }| match socket {
            Socket::Tcp(_, address) if kind.tls.is_some() => format!("https://{address}"),
            Socket::Tcp(_, address) => format!("http://{address}"),
            Socket::Unix(_, path) => path.display().to_string(),
        })
    }

    /// Serves until a signal asks for the end, and then cancels `ending`.
    pub async fn run(self, router: Router, ending: CancellationToken) -> Result<()> {
        let Self { listeners, mut terminate, mut interrupt } = self;
        let connections = Connections { router, ending, under_way: TaskTracker::new() };
        let mut sockets = Vec::new();
        for listener in listeners {
            if let Socket::Unix(_, path) = &listener.socket {
                sockets.push(path.clone());
            }
            if let Some(tls) = listener.kind.tls.clone() {
                let ending = connections.ending.clone();
                connections.under_way.spawn(ending.run_until_cancelled_owned(renew(tls)));
            }
            let connections = connections.clone();
            connections.under_way.clone().spawn(async move { connections.accept(listener).await });
        }
        connections.under_way.close();
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        connections.ending.cancel();
        for path in sockets {
            // It is gone already where somebody has tidied up.
            let _ = std::fs::remove_file(path);
        }
        let _ = timeout(LAST, connections.under_way.wait()).await;
        Ok(())
    }
}

/// What connections have in common.
#[derive(Clone)]
struct Connections {
    router: Router,
    ending: CancellationToken,
    under_way: TaskTracker,
}

impl Connections {
    async fn accept(&self, listener: Listener) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        while !self.ending.is_cancelled() {
            // Nobody closes the semaphore.
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.socket.accept() => accepted,
                () = self.ending.cancelled() => return,
            };
            match accepted {
                Ok((stream, from)) => {
                    let (connections, kind) = (self.clone(), listener.kind.clone());
                    self.under_way.spawn(async move {
                        connections.greet(stream, from, kind).await;
                        drop(slot);
                    });
                }
                Err(_) => sleep(REST).await,
            }
        }
    }

    /// Serves a connection, after the handshake where there is one.
    async fn greet(&self, stream: Box<dyn Stream>, from: String, kind: Kind) {
        let Kind { way, tls, user } = kind;
        let Some(tls) = tls else {
            let peer = Peer { from, certificate: None, user, way };
            return self.serve(stream, peer).await;
        };
        let greeting = TlsAcceptor::from(tls.config()).accept(stream);
        // Who does not speak TLS, or shows a certificate that is not believed, hears so from TLS.
        let Ok(Ok(stream)) = timeout(SILENCE, greeting).await else { return };
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|all| all.first()).and_then(common_name);
        let peer = Peer { from, certificate, user, way };
        self.serve(Box::new(stream), peer).await;
    }

    async fn serve(&self, stream: Box<dyn Stream>, peer: Peer) {
        let router = self.router.clone().layer(Extension(peer));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(SILENCE)
            .max_buf_size(BUFFER)
            .serve_connection(
                TokioIo::new(Patient { stream, since: None }),
                TowerToHyperService::new(router),
            );
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            // Who goes away, or sends what is no HTTP, concerns nobody else.
            _ = connection.as_mut() => return,
            () = self.ending.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

impl Socket {
    /// Returns the next connection, and where it comes from.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, String)> {
        Ok(match self {
            Self::Tcp(listener, _) => {
                let (stream, from) = listener.accept().await?;
                (Box::new(stream), from.to_string())
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().map_or_else(|_| "?".into(), |c| c.uid().to_string());
                (Box::new(stream), format!("unix, user {uid}"))
            }
        })
    }
}

/// A connection that fails where the other end takes nothing for [`PATIENCE`].
struct Patient {
    stream: Box<dyn Stream>,
    /// Runs while something waits to be taken.
    since: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// Takes in whether the other end has taken something.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.since = None;
            return wrote;
        }
        let since = self.since.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        since.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, wrote)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, wrote)
    }
}

/// Reads certificates again when they have changed.
async fn renew(tls: Arc<Tls>) {
    loop {
        sleep(LOOK).await;
        match tls.look() {
            Ok(false) => {}
            Ok(true) => say("certificates were read again"),
            Err(e) => say(&format!(
                "certificates have changed and make no sense, so those of before count: {e:#}"
            )),
        }
    }
}

async fn bind_tcp(address: SocketAddr) -> Result<Socket> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
    let address = listener.local_addr()?;
    Ok(Socket::Tcp(listener, address))
}

async fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    Ok(listener)
}
