//! Where does the gateway listen, and how long is a connection served?
//!
//! Each connection is a task, and there are at most [`CONNECTIONS`] of them: more wait in the
//! kernel's queue. Who connects and says nothing is left after [`SILENCE`]. SIGTERM and SIGINT end
//! the gateway in good order: nobody new is heard, and what is under way has [`LAST`] to finish.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Listen;

/// Connections at a time.
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

enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

/// Listeners that wait for connections.
pub struct Server(Vec<Listener>);

impl Server {
    /// Begins to listen. A socket that an earlier gateway left is replaced.
    pub async fn bind(listen: &[Listen]) -> Result<Self> {
        let mut listeners = Vec::new();
        for place in listen {
            listeners.push(match place {
                Listen::Loopback(address) => {
                    let listener = TcpListener::bind(address).await;
                    let listener =
                        listener.with_context(|| format!("cannot listen at {address}"))?;
                    let address = listener.local_addr()?;
                    Listener::Tcp(listener, address)
                }
                Listen::Unix { path, mode } => {
                    let listener = bind_unix(path, *mode).await;
                    let shown = path.display();
                    let listener = listener.with_context(|| format!("cannot listen at {shown}"))?;
                    Listener::Unix(listener, path.clone())
                }
            });
        }
        Ok(Self(listeners))
    }

    /// Returns where it listens, as people write that.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|listener| match listener {
            Listener::Tcp(_, address) => format!("http://{address}"),
            Listener::Unix(_, path) => path.display().to_string(),
        })
    }

    /// Serves until a signal asks for the end.
    pub async fn run(self, router: Router) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let connections = Connections {
            router,
            slots: Arc::new(Semaphore::new(CONNECTIONS)),
            ending: CancellationToken::new(),
            under_way: TaskTracker::new(),
        };
        let mut sockets = Vec::new();
        for listener in self.0 {
            if let Listener::Unix(_, path) = &listener {
                sockets.push(path.clone());
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
        let _ = tokio::time::timeout(LAST, connections.under_way.wait()).await;
        Ok(())
    }
}

/// What connections have in common.
#[derive(Clone)]
struct Connections {
    router: Router,
    slots: Arc<Semaphore>,
    ending: CancellationToken,
    under_way: TaskTracker,
}

impl Connections {
    async fn accept(&self, listener: Listener) {
        while !self.ending.is_cancelled() {
            // Nobody closes the semaphore.
            let Ok(slot) = self.slots.clone().acquire_owned().await else { return };
            let accepted: io::Result<Box<dyn Stream>> = tokio::select! {
                accepted = async {
                    Ok::<Box<dyn Stream>, _>(match &listener {
                        Listener::Tcp(listener, _) => Box::new(listener.accept().await?.0),
                        Listener::Unix(listener, _) => Box::new(listener.accept().await?.0),
                    })
                } => accepted,
                () = self.ending.cancelled() => return,
            };
            match accepted {
                Ok(stream) => {
                    let connections = self.clone();
                    self.under_way.spawn(async move { connections.serve(stream, slot).await });
                }
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
    }

    async fn serve(&self, stream: Box<dyn Stream>, _slot: OwnedSemaphorePermit) {
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(SILENCE)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            // Who goes away, or sends what is no HTTP, concerns nobody else.
            _ = connection.as_mut() => return,
            () = self.ending.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
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
