//! Datagrams: every client address has a session with a socket of its own
//! towards one target; what comes back leaves by the public port, from the
//! address that the client asked.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::Interest,
    net::UdpSocket,
    task::AbortHandle,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    datagram::{LocalAddress, Public},
    frontend::{Admission, Frontend},
    target::{Lease, Target},
};

/// Fraction of the sessions that is removed at once when there is no room (one
/// in so many): to search for the oldest one each time would be slow just under
/// load.
const EVICTED_FRACTION: usize = 64;

/// Maximum interval of removing sessions that are idle or lead nowhere.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Delay after a failure to receive, so that a lasting one does not keep the
/// processor busy.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Size of the buffer for a datagram, larger than any.
const DATAGRAM: usize = 64 * 1024;

/// Serves one public socket until the frontend stops.
pub(crate) async fn serve(frontend: Arc<Frontend>, socket: Public) {
    let idle = frontend.context.limits.udp_idle;
    let mut sweep =
        tokio::time::interval((idle / 4).clamp(Duration::from_millis(1), SWEEP_INTERVAL));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = frontend.stop.clone();
    let mut listener = UdpListener {
        frontend,
        public: Arc::new(socket),
        start: Instant::now(),
        sessions: HashMap::new(),
    };
    let mut buffer = vec![0; DATAGRAM];
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = sweep.tick() => listener.sweep(idle),
            came = listener.public.receive(&mut buffer) => match came {
                Ok((count, client, asked)) => listener.pass((client, asked), &buffer[..count]).await,
                Err(error) => {
                    tracing::debug!(%error, "cannot receive datagrams");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            },
        }
    }
}

/// Sender of a datagram, and the address of ours it was sent to.
type Ends = (SocketAddr, LocalAddress);

/// All sessions of one public socket.
struct UdpListener {
    frontend: Arc<Frontend>,
    public: Arc<Public>,
    start: Instant,
    sessions: HashMap<Ends, Session>,
}

struct Session {
    link: Arc<Link>,
    lease: Lease,
    replies: AbortHandle,
    _admission: Admission,
}

/// State that both directions of a session use.
struct Link {
    socket: UdpSocket,
    /// Time of the last datagram, in milliseconds since the listener was
    /// opened.
    moved: AtomicU64,
    refused: AtomicBool,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.replies.abort();
    }
}

impl Session {
    /// Returns whether it leads anywhere.
    fn alive(&self) -> bool {
        !self.link.refused.load(Relaxed) && !self.lease.0.gone.is_cancelled()
    }
}

impl UdpListener {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Passes a datagram on. What cannot be passed on is lost, as datagrams
    /// are; a target that refused before is not tried twice.
    async fn pass(&mut self, ends: Ends, datagram: &[u8]) {
        let mut tried = Vec::new();
        loop {
            if self.sessions.get(&ends).is_none_or(|session| !session.alive()) {
                self.sessions.remove(&ends);
                let Some(session) = self.open(ends, &tried).await else { break };
                self.sessions.insert(ends, session);
            }
            let Some(session) = self.sessions.get(&ends) else { break };
            match session.link.socket.try_send(datagram) {
                Ok(_) => {
                    session.link.moved.store(self.now(), Relaxed);
                    let count = datagram.len() as u64;
                    self.frontend.counters.bytes_in.fetch_add(count, Relaxed);
                    return;
                }
                Err(error) if is_refusal(&error) => {
                    refuse(&self.frontend, &session.link, &session.lease.0);
                    tried.push(session.lease.0.address);
                }
                Err(_) => break,
            }
        }
        self.frontend.error();
    }

    async fn open(&mut self, ends: Ends, tried: &[SocketAddr]) -> Option<Session> {
        let admission = match self.frontend.admit() {
            Some(admission) => admission,
            None => {
                self.evict();
                self.frontend.admit()?
            }
        };
        let lease = self.frontend.pick(tried)?;
        let any: IpAddr = match lease.0.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await.ok()?;
        socket.connect(lease.0.address).await.ok()?;
        // At once; until then it would seem to be full.
        socket.writable().await.ok()?;
        let (moved, refused) = (AtomicU64::new(self.now()), AtomicBool::new(false));
        let link = Arc::new(Link { socket, moved, refused });
        let replies = Replies {
            frontend: self.frontend.clone(),
            public: self.public.clone(),
            link: link.clone(),
            ends,
            start: self.start,
        };
        let replies = self.frontend.tasks.spawn(replies.run(lease.0.clone())).abort_handle();
        Some(Session { link, lease, replies, _admission: admission })
    }

    /// Removes the sessions that were idle for longest.
    fn evict(&mut self) {
        let mut ages: Vec<_> = self
            .sessions
            .iter()
            .map(|(ends, session)| (session.link.moved.load(Relaxed), *ends))
            .collect();
        if ages.is_empty() {
            return;
        }
        let last = (ages.len() / EVICTED_FRACTION).min(ages.len() - 1);
        ages.select_nth_unstable_by_key(last, |(moved, _)| *moved);
        for (_, ends) in &ages[..=last] {
            self.sessions.remove(ends);
        }
    }

    fn sweep(&mut self, idle: Duration) {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let oldest = self.now().saturating_sub(idle);
        self.sessions
            .retain(|_, session| session.alive() && session.link.moved.load(Relaxed) >= oldest);
    }
}

/// Replies of a target in one session.
struct Replies {
    frontend: Arc<Frontend>,
    public: Arc<Public>,
    link: Arc<Link>,
    ends: Ends,
    start: Instant,
}

impl Replies {
    async fn run(self, target: Arc<Target>) {
        loop {
            match self.one().await {
                Ok(()) => self.frontend.served(&target),
                Err(error) if is_refusal(&error) => {
                    refuse(&self.frontend, &self.link, &target);
                    break;
                }
                Err(_) => {}
            }
        }
    }

    async fn one(&self) -> io::Result<()> {
        let ready = self.link.socket.ready(Interest::READABLE | Interest::ERROR).await?;
        if ready.is_error() {
            // A refusal does not make a socket readable.
            let error = self.link.socket.take_error()?;
            let seen = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = self.link.socket.try_io(Interest::ERROR, seen);
            if let Some(error) = error {
                return Err(error);
            }
        }
        // Borrowed only while there is something: silent sessions cost little.
        let mut buffer = self.frontend.context.buffer_pool.buffer();
        let count = self.link.socket.try_recv(&mut buffer)?;
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.link.moved.store(now, Relaxed);
        // The client may be gone: that is no news of the target.
        let (client, asked) = self.ends;
        if self.public.send(&buffer[..count], client, asked).await.is_ok() {
            self.frontend.counters.bytes_out.fetch_add(count as u64, Relaxed);
        }
        Ok(())
    }
}

fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

/// Nobody listens there: counted once for a session.
fn refuse(frontend: &Frontend, link: &Link, target: &Target) {
    if !link.refused.swap(true, Relaxed) {
        frontend.failed(target, "port unreachable");
    }
}
