//! A balancer to test, targets for it, and waiting.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::Duration,
};

use selvage_balancer::{
    Balancer, HealthOptions, Limits, Options, Port, PortStatus, Protocol, Service,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::{AbortHandle, JoinSet},
};

pub(crate) use selvage_testkit::{TIMEOUT as TEST_TIMEOUT, wait_until as until};

static NEXT: AtomicU8 = AtomicU8::new(1);

/// A loopback address that no other test has.
pub(crate) fn place() -> IpAddr {
    let pid = std::process::id();
    let [_, _, high, low] = pid.to_be_bytes();
    Ipv4Addr::new(127, high | 0x80, low, NEXT.fetch_add(1, Relaxed)).into()
}

/// Waits for something that must come.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    selvage_testkit::within("this", work).await
}

pub(crate) struct Bed {
    pub(crate) balancer: Balancer,
    pub(crate) address: IpAddr,
}

pub(crate) fn options() -> Options {
    Options {
        addresses: vec![place()],
        health: HealthOptions {
            every: Duration::from_millis(20),
            timeout: Duration::from_secs(5),
            failures: 2,
            successes: 1,
        },
        limits: Limits { drain: TEST_TIMEOUT, ..Limits::default() },
        ..Options::default()
    }
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(options())
    }

    pub(crate) fn with(options: Options) -> Self {
        let address = options.addresses[0];
        Self { balancer: Balancer::new(options), address }
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    pub(crate) async fn publish(&self, id: &str, ports: Vec<Port>) {
        self.balancer.publish(Service { id: id.into(), ports }).await.unwrap();
    }

    /// One service, `it`, with one tcp port, 1000.
    pub(crate) async fn tcp(&self, targets: &[SocketAddr]) {
        self.publish("it", vec![port(Protocol::Tcp, 1000, targets)]).await;
    }

    pub(crate) async fn connect(&self, port: u16) -> TcpStream {
        soon(TcpStream::connect(self.at(port))).await.unwrap()
    }

    /// The only port of a service.
    pub(crate) fn seen(&self, id: &str) -> PortStatus {
        self.balancer.status(id).unwrap().ports.remove(0)
    }

    pub(crate) async fn until_empty(&self, id: &str) {
        until("nobody is inside", || self.seen(id).connections == 0).await;
    }
}

pub(crate) fn port(protocol: Protocol, public: u16, targets: &[SocketAddr]) -> Port {
    Port { protocol, public, targets: targets.to_vec(), ..Port::default() }
}

pub(crate) fn prefixed(public: u16, prefix: &str, targets: &[SocketAddr]) -> Port {
    Port { path_prefix: prefix.into(), ..port(Protocol::Http, public, targets) }
}

/// Something that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves every connection on a port of its own. When it is dropped, so are
/// the listener and all connections.
pub(crate) async fn target<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Running
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    target_on(listener, serve)
}

pub(crate) fn target_on<F>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> Running
where
    F: Future<Output = ()> + Send + 'static,
{
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut all = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            all.spawn(serve(stream));
        }
    });
    Running { address, task: task.abort_handle() }
}

/// Says back what it hears.
pub(crate) async fn echo() -> Running {
    target(async |mut stream| {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

/// Says its name to all_closed and then listens.
pub(crate) async fn named(name: &'static str) -> Running {
    target(move |mut stream| async move {
        let _ = stream.write_all(name.as_bytes()).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await
}

/// An address where nobody is.
pub(crate) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// A listener, for tests that play the target themselves.
pub(crate) async fn by_hand() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The next connection that says something: health checks leave without a word.
pub(crate) async fn next_client(listener: &TcpListener) -> TcpStream {
    loop {
        let (stream, _) = soon(listener.accept()).await.unwrap();
        if soon(stream.peek(&mut [0])).await.is_ok_and(|count| count > 0) {
            return stream;
        }
    }
}

/// A datagram target that says back what it hears, after its name.
pub(crate) async fn datagram_echo(name: &'static str) -> Running {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = vec![0; 65536];
        loop {
            let Ok((count, from)) = socket.recv_from(&mut buffer).await else { continue };
            let answer = [name.as_bytes(), &buffer[..count]].concat();
            let _ = socket.send_to(&answer, from).await;
        }
    });
    Running { address, task: task.abort_handle() }
}

pub(crate) async fn read_all(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    soon(stream.read_to_end(&mut all)).await?;
    Ok(all)
}

pub(crate) async fn read_some(stream: &mut TcpStream, count: usize) -> String {
    let mut bytes = vec![0; count];
    soon(stream.read_exact(&mut bytes)).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
