//! Ports for servers that tests start.

use std::{
    fs::{self, File},
    net::{TcpListener, UdpSocket},
    ops::Range,
    sync::Mutex,
};

/// Ports below those that the kernel gives to connections: a server that is started again
/// must find its own free.
const PORTS: Range<u16> = 20_500..29_900;
/// Claims of this process. They end with it.
static CLAIMS: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A port that nobody listens on and that no other test gets while this process runs.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let folder = std::env::temp_dir().join("selvage-test-ports");
    fs::create_dir_all(&folder).unwrap();
    let mut claims = CLAIMS.lock().unwrap();
    let count = PORTS.end - PORTS.start;
    // Programs that run at the same time begin at different places.
    let first = u16::try_from(std::process::id() * 97 % u32::from(count)).unwrap();
    for step in 0..count {
        let port = PORTS.start + (first + step) % count;
        let claim = File::create(folder.join(port.to_string())).unwrap();
        if claim.try_lock().is_ok() && is_free(port) {
            claims.push(claim);
            return port;
        }
    }
    panic!("none of the ports {PORTS:?} is free");
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let first = free_port();
        let second = free_port();
        assert_ne!(first, second);
        assert!(is_free(first) && is_free(second));
        let folder = std::env::temp_dir().join("selvage-test-ports");
        let claim = File::create(folder.join(first.to_string())).unwrap();
        assert!(claim.try_lock().is_err(), "another program would get it");
    }
}
