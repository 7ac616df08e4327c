//! One question to a time server (RFC 4330), and what makes its answer good.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::{UdpSocket, lookup_host};

use super::Clock;

/// Version 4, from a client.
const QUESTION: u8 = 4 << 3 | 3;

/// Seconds from 1900 to 1970.
const EPOCH: u64 = 2_208_988_800;

const LENGTH: usize = 48;

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) local: SystemTime,
    pub(super) remote: SystemTime,
}

/// Reason why a server gave no time.
#[derive(Debug)]
pub(super) enum Failure {
    Silent(String),
    Answer(String),
}

pub(super) async fn ask(server: (&str, u16), clock: &Clock) -> Result<Reading, Failure> {
    let silent = |error: std::io::Error| Failure::Silent(error.to_string());
    let mut addresses = lookup_host(server).await.map_err(silent)?;
    let address = addresses.next().ok_or_else(|| Failure::Silent("it has no address".into()))?;
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await.map_err(silent)?;
    // From now on only this server's datagrams arrive.
    socket.connect(address).await.map_err(silent)?;
    let mark = mark_of_ours();
    let mut question = [0; LENGTH];
    question[0] = QUESTION;
    question[40..].copy_from_slice(&mark);
    let sent = clock();
    socket.send(&question).await.map_err(silent)?;
    let mut answer = [0; 512];
    loop {
        let length = socket.recv(&mut answer).await.map_err(silent)?;
        let received = clock();
        // A packet without our mark is no answer to us.
        if length >= LENGTH && answer[24..32] == mark {
            return read(&answer[..LENGTH], sent, received).map_err(Failure::Answer);
        }
    }
}

/// Nonce that the server must send back, and nobody can guess.
fn mark_of_ours() -> [u8; 8] {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(SystemTime::now()).to_be_bytes()
}

fn read(answer: &[u8], sent: SystemTime, received: SystemTime) -> Result<Reading, String> {
    let (leap, mode, stratum) = (answer[0] >> 6, answer[0] & 7, answer[1]);
    match (mode, stratum) {
        (4, 0) => {
            let code = String::from_utf8_lossy(&answer[12..16]);
            let code: String = code.chars().filter(char::is_ascii_alphanumeric).collect();
            return Err(format!("the server refuses: {code}"));
        }
        (4, 1..=15) if leap != 3 => {}
        (4, _) => return Err("the server's own clock is not set".into()),
        _ => return Err("what answers is no time server".into()),
    }
    let (arrived, left) = (stamp(&answer[32..40])?, stamp(&answer[40..48])?);
    // Both ways are taken to be equally long.
    let offset = (seconds_between(sent, arrived) + seconds_between(received, left)) / 2.0;
    let remote = if offset >= 0.0 {
        received.checked_add(Duration::from_secs_f64(offset))
    } else {
        received.checked_sub(Duration::from_secs_f64(-offset))
    };
    let remote = remote.ok_or("the server's time cannot be told")?;
    Ok(Reading { local: received, remote })
}

fn seconds_between(from: SystemTime, to: SystemTime) -> f64 {
    match to.duration_since(from) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

/// A moment of the era that holds until 2104.
fn stamp(bytes: &[u8]) -> Result<SystemTime, String> {
    let [a, b, c, d, e, f, g, h] = *bytes else { return Err("a time is missing".into()) };
    let (whole, part) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
    if (whole, part) == (0, 0) {
        return Err("the server does not know the time".into());
    }
    let whole = if whole >> 31 == 1 { u64::from(whole) } else { u64::from(whole) + (1 << 32) };
    let nanos = (u64::from(part) * 1_000_000_000) >> 32;
    Ok(UNIX_EPOCH + Duration::from_secs(whole - EPOCH) + Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn eras_follow_each_other() {
        let at = |whole: u32| stamp(&[&whole.to_be_bytes()[..], &[0x80, 0, 0, 0]].concat());
        let since = |whole: u32| at(whole).unwrap().duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(since(0x83AA_7E80), Duration::from_millis(500));
        assert_eq!(since(u32::MAX) + Duration::from_secs(1), since(0));
        assert!(stamp(&[0; 8]).is_err());
    }

    #[test]
    fn marks_differ() {
        assert_ne!(mark_of_ours(), mark_of_ours());
    }
}
