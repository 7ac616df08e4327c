//! Asking targets whether they are there.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::MissedTickBehavior};

use crate::{Protocol, frontend::Frontend, target::Target};

/// Checks a target until it is one no more.
pub(crate) async fn watch(frontend: Arc<Frontend>, target: Arc<Target>) {
    let mut beat = tokio::time::interval(frontend.context.health.every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let work = async {
        loop {
            beat.tick().await;
            look(&frontend, &target).await;
        }
    };
    tokio::select! {
        () = target.gone.cancelled() => {}
        () = work => {}
    }
}

async fn look(frontend: &Frontend, target: &Target) {
    if frontend.protocol == Protocol::Udp {
        // Whoever listens need not answer: only what clients meet counts.
        if target.give_chance() {
            frontend.changed();
        }
        return;
    }
    let limit = frontend.context.health.timeout;
    let answer = match frontend.health_path() {
        Some(path) => tokio::time::timeout(limit, ask(target.address, &path)).await,
        None => tokio::time::timeout(limit, knock(target.address)).await,
    };
    match answer {
        Ok(Ok(())) => frontend.succeeded(target),
        Ok(Err(reason)) => frontend.failed(target, &reason),
        Err(_) => frontend.failed(target, &format!("no answer within {limit:?}")),
    }
}

async fn knock(address: SocketAddr) -> Result<(), String> {
    let stream = TcpStream::connect(address).await.map_err(plain)?;
    // Said and done: nothing has to linger.
    let _ = stream.set_zero_linger();
    Ok(())
}

async fn ask(address: SocketAddr, path: &str) -> Result<(), String> {
    let stream = TcpStream::connect(address).await.map_err(plain)?;
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(io).await.map_err(|error| error.to_string())?;
    let request = Request::get(path)
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "selvage-health")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let good = status.is_success() || status.is_redirection();
        if good { Ok(()) } else { Err(format!("GET {path} answers {status}")) }
    };
    tokio::pin!(answer);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut answer => answer,
        // Data read before the end still counts.
        _ = &mut connection => answer.await,
    }
}

/// Text of an error, without the number.
pub(crate) fn plain(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::TimedOut => "connection timed out".into(),
        io::ErrorKind::HostUnreachable => "host unreachable".into(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".into(),
        _ => error.to_string(),
    }
}
