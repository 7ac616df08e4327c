//! The way out of a machine's clusters: what an instance sends to other
//! machines bears this machine's address.

use std::{fs, process::Stdio};

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;

use super::{names::Namer, network::Range};
use crate::{Error, Result, error::During};

/// Whether packets are passed on at all.
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// The rules of one cloudlet, all in one table of the kernel's packet filter.
pub(super) struct Outside {
    table: String,
    bridges: String,
    range: Range,
    open: Mutex<bool>,
}

impl Outside {
    pub(super) fn new(namer: &Namer, range: Range) -> Self {
        let bridges = namer.bridges();
        Self { table: format!("selvage_{bridges}"), bridges, range, open: Mutex::new(false) }
    }

    /// Opens the way. A machine that cannot do so runs instances all the same.
    pub(super) async fn open(&self) {
        if *self.open.lock() {
            return;
        }
        if let Err(error) = self.make().await {
            tracing::warn!(%error, "instances reach this machine and no other");
        }
        // What failed is not tried again for every cluster, but by the next
        // process.
        *self.open.lock() = true;
    }

    async fn make(&self) -> Result<()> {
        if fs::read_to_string(FORWARDING).is_ok_and(|value| value.trim() == "0") {
            fs::write(FORWARDING, "1").during("letting packets through")?;
        }
        nft(&self.rules()).await
    }

    fn rules(&self) -> String {
        let Self { table, bridges, range, .. } = self;
        // Naming the table before deleting it makes it right whether or not
        // it was there; all of it takes effect at once.
        format!(
            "table ip {table}\n\
             delete table ip {table}\n\
             table ip {table} {{\n\
             chain leaving {{\n\
             type nat hook postrouting priority 100; policy accept;\n\
             ip saddr {range} ip daddr != {range} oifname != \"{bridges}*\" masquerade\n\
             }}\n\
             }}\n"
        )
    }

    /// Removes all rules.
    pub(super) async fn close(&self) -> Result<()> {
        *self.open.lock() = false;
        let table = &self.table;
        match nft(&format!("table ip {table}\ndelete table ip {table}\n")).await {
            Err(Error::Missing { .. }) => Ok(()),
            other => other,
        }
    }
}

async fn nft(rules: &str) -> Result<()> {
    let command = tokio::process::Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = command.map_err(|_| Error::missing("program nft (package nftables)"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(rules.as_bytes()).await.during("telling the packet filter")?;
    }
    let output = child.wait_with_output().await.during("telling the packet filter")?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Error::state(format!("the packet filter refused: {}", words.trim())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::CloudletKey;

    use super::*;

    #[test]
    fn only_what_leaves_the_machine_is_given_its_address() {
        let namer = Namer::new(&CloudletKey::default()).unwrap();
        let rules = Outside::new(&namer, Range::default()).rules();
        let bridges = namer.bridges();
        let rule = format!(
            "ip saddr 10.101.0.0/16 ip daddr != 10.101.0.0/16 oifname != \"{bridges}*\" masquerade"
        );
        assert!(rules.contains(&rule), "{rules}");
    }
}
