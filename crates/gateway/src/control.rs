//! Asks recorders and daemons for their statistics, over their control sockets (`docs/CONTROL.md`).
//!
//! A recorder that hangs keeps nobody waiting for longer than [`PATIENCE`], and what it answers is
//! bounded: it is another process, which may be ill.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes that an answer may have. A daemon with a thousand members answers with some 300 KiB.
const MOST: u64 = 4 << 20;

/// Asks for the statistics. The error says why there are none.
pub async fn statistics(socket: &Path) -> Result<Value, String> {
    match timeout(PATIENCE, ask(socket)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer from {} in {PATIENCE:?}", socket.display())),
    }
}

async fn ask(socket: &Path) -> Result<Value, String> {
    let shown = socket.display();
    let stream = UnixStream::connect(socket).await;
    let mut stream = stream.map_err(|e| format!("cannot connect to {shown}: {e}"))?;
    let failed = |e: std::io::Error| format!("{shown}: {e}");
    stream.write_all(b"{\"verb\":\"stats\"}\n").await.map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(stream.take(MOST)).read_until(b'\n', &mut line).await.map_err(failed)?;
    let answer: Value = serde_json::from_slice(&line)
        .map_err(|_| format!("{shown} answers with something that is no statistics"))?;
    match answer["ok"].as_bool() {
        Some(true) => Ok(answer),
        _ => Err(format!("{shown}: {}", answer["error"].as_str().unwrap_or("it refused"))),
    }
}
