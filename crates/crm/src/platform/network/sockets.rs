//! Connections of the services in a network namespace, as the kernel lists them.

use std::{collections::BTreeSet, fs, io};

/// States of `/proc/net/tcp` in which a client still waits for something:
/// established, being set up, half closed by either side with bytes on the way.
const OPEN: [&str; 6] = ["01", "03", "04", "08", "09", "0B"];
const LISTENING: &str = "0A";

/// Number of tcp connections that others have to whoever listens in the network
/// namespace of a process.
pub(in crate::platform) fn visitors(pid: u32) -> io::Result<usize> {
    let mut tables = fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    // A kernel without IPv6 has no such table.
    tables += &fs::read_to_string(format!("/proc/{pid}/net/tcp6")).unwrap_or_default();
    Ok(count(&tables))
}

fn count(tables: &str) -> usize {
    let rows = || tables.lines().filter_map(row);
    let listening: BTreeSet<&str> =
        rows().filter(|(_, state)| *state == LISTENING).map(|(port, _)| port).collect();
    rows().filter(|(port, state)| OPEN.contains(state) && listening.contains(port)).count()
}

/// Local port and state of a row.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut columns = line.split_ascii_whitespace();
    let (_, port) = columns.nth(1)?.rsplit_once(':')?;
    Some((port, columns.nth(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_came_in_are_counted() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n   \
                     0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n   \
                     1: 0201650A:1F90 0101650A:A000 01 00000000:00000000 00:00000000\n   \
                     2: 0201650A:1F90 0101650A:A001 06 00000000:00000000 00:00000000\n   \
                     3: 0201650A:B000 0301650A:1538 01 00000000:00000000 00:00000000\n   \
                     4: 0201650A:1F90 0101650A:A002 08 00000000:00000000 00:00000000\n";
        assert_eq!(count(table), 2, "a connection and one that the client has half closed");
        assert_eq!(count(""), 0);
    }

    #[test]
    fn connections_of_this_process_are_seen() -> io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let _client = std::net::TcpStream::connect(listener.local_addr()?)?;
        assert!(visitors(std::process::id())? > 0);
        Ok(())
    }
}
