//! Another machine, and what happens inside network namespaces.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};

use super::TEST_TIMEOUT;

/// Time for which somebody who listens is deaf for the order to stop.
const NAP: Duration = Duration::from_millis(20);

/// A machine outside this one: a network namespace at the other end of a cable.
pub(crate) struct OtherMachine {
    name: String,
    cable: String,
    number: u8,
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

impl OtherMachine {
    /// The number is the second byte of the networks that it knows the way to.
    pub(crate) fn new(number: u8) -> Self {
        let (name, cable) = (format!("outside-{number}"), format!("slvbeyond{number}"));
        let outside = Self { name, cable, number };
        let (name, cable) = (outside.name.as_str(), outside.cable.as_str());
        let (near, far) = (outside.near(), outside.address());
        let networks = format!("10.{number}.0.0/16");
        ip(&["netns", "add", name]);
        ip(&["link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name]);
        ip(&["addr", "add", &format!("{near}/30"), "dev", cable]);
        ip(&["link", "set", cable, "up"]);
        ip(&["-n", name, "addr", "add", &format!("{far}/30"), "dev", "eth0"]);
        ip(&["-n", name, "link", "set", "eth0", "up"]);
        ip(&["-n", name, "link", "set", "lo", "up"]);
        ip(&["-n", name, "route", "add", &networks, "via", &near.to_string()]);
        let beyond = format!("{}/32", outside.beyond());
        ip(&["-n", name, "addr", "add", &beyond, "dev", "lo"]);
        ip(&["route", "add", &beyond, "via", &far.to_string()]);
        outside
    }

    /// This machine, as seen from there.
    pub(crate) fn near(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 2)
    }

    /// Its address in a network that this machine is not in.
    pub(crate) fn beyond(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.number, 2)
    }

    /// A web server there, which has no way back to any cluster.
    pub(crate) fn serve(&self, folder: &Path) -> std::process::Child {
        let arguments = ["netns", "exec", &self.name, "busybox", "httpd", "-f", "-p", "8099", "-h"];
        Command::new("ip").args(arguments).arg(folder).spawn().unwrap()
    }

    /// Does something there.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        run_in(&self.name, work).await
    }
}

impl Drop for OtherMachine {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.cable]).output();
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// Does something in a network namespace. One belongs to a thread: it has one
/// of its own, which ends.
pub(crate) fn spawn_in<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    // Those of the tests are where `ip netns` makes them.
    let folders = [selvage_crm::platform::network::namespaces::FOLDER, "/run/netns"];
    let found =
        folders.iter().find_map(|folder| File::open(Path::new(folder).join(namespace)).ok());
    let namespace = found.unwrap();
    std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
}

pub(crate) async fn run_in<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = spawn_in(namespace, work);
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
}

/// Tells whoever asks, by tcp or udp at this port, who it takes them for; says
/// everything again that it hears by tcp.
pub(crate) struct Mirror {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Mirror {
    pub(crate) fn start(namespace: &str, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tcp, udp) = (Arc::clone(&stop), Arc::clone(&stop));
        // Once bound, sockets stay where they are.
        let bound = spawn_in(namespace, move || {
            let place = ("0.0.0.0", port);
            (TcpListener::bind(place).unwrap(), UdpSocket::bind(place).unwrap())
        });
        let (listener, socket) = bound.join().unwrap();
        let threads = vec![
            std::thread::spawn(move || mirror_streams(&listener, &tcp)),
            std::thread::spawn(move || mirror_datagrams(&socket, &udp)),
        ];
        Self { stop, threads }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn mirror_streams(listener: &TcpListener, stop: &Arc<AtomicBool>) {
    listener.set_nonblocking(true).unwrap();
    while !stop.load(Ordering::SeqCst) {
        let Ok((mut stream, peer)) = listener.accept() else {
            std::thread::sleep(NAP);
            continue;
        };
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(NAP)).unwrap();
            let mut word = format!("{}\n", peer.ip());
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while !stop.load(Ordering::SeqCst) && stream.write_all(word.as_bytes()).is_ok() {
                word.clear();
                while !stop.load(Ordering::SeqCst) && !word.ends_with('\n') {
                    match reader.read_line(&mut word) {
                        Ok(0) => return,
                        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                        _ => {}
                    }
                }
            }
        });
    }
}

fn mirror_datagrams(socket: &UdpSocket, stop: &AtomicBool) {
    socket.set_read_timeout(Some(NAP)).unwrap();
    while !stop.load(Ordering::SeqCst) {
        if let Ok((_, peer)) = socket.recv_from(&mut [0; 100]) {
            let _ = socket.send_to(peer.ip().to_string().as_bytes(), peer);
        }
    }
}

/// A conversation with a mirror.
pub(crate) struct Talk {
    stream: BufReader<TcpStream>,
    /// Address that the mirror takes us for.
    pub(crate) taken_for: IpAddr,
}

impl Talk {
    pub(crate) fn begin(at: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&at, TEST_TIMEOUT)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        let mut talk = Self { stream: BufReader::new(stream), taken_for: [0, 0, 0, 0].into() };
        let word = talk.hear()?;
        talk.taken_for = word.parse().map_err(std::io::Error::other)?;
        Ok(talk)
    }

    fn hear(&mut self) -> std::io::Result<String> {
        let mut word = String::new();
        match self.stream.read_line(&mut word)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(word.trim().to_owned()),
        }
    }

    /// Says something and hears it again.
    pub(crate) fn say(&mut self, word: &str) -> std::io::Result<()> {
        self.stream.get_mut().write_all(format!("{word}\n").as_bytes())?;
        assert_eq!(self.hear()?, word);
        Ok(())
    }
}

/// Address that a mirror takes somebody for that sends it a datagram by this
/// socket. The answer comes from the address that was asked.
pub(crate) fn taken_for(socket: &UdpSocket, at: SocketAddr) -> IpAddr {
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket.send_to(b"who", at).unwrap();
    let mut buffer = [0; 100];
    let (count, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from, at, "a stranger answers");
    std::str::from_utf8(&buffer[..count]).unwrap().parse().unwrap()
}
