//! Requests to a service without a pause.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

/// Somebody who asks the service all the time.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    asks: JoinHandle<(usize, Vec<String>)>,
}

pub(crate) fn ask(address: SocketAddr) -> std::io::Result<String> {
    let limit = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Load {
    pub(crate) fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let asks = spawn(move || {
            let (mut good, mut bad) = (0, Vec::new());
            while !ended.load(Ordering::Relaxed) {
                match ask(address) {
                    Ok(answer) if answer.ends_with("hello\n") => good += 1,
                    other => bad.push(format!("after {good} good ones: {other:?}")),
                }
                sleep(Duration::from_millis(50));
            }
            (good, bad)
        });
        Self { stop, asks }
    }

    pub(crate) fn end(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.asks.join().unwrap()
    }
}
