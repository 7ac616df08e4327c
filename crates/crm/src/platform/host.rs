//! Resources of this machine.

use std::path::Path;

use selvage_api::edgeproto::FlavorInfo;

use super::Resources;
use crate::{Error, Result, error::During};

/// All of it, in three sizes.
pub(super) async fn resources(data: &Path) -> Result<Resources> {
    let data = data.to_owned();
    let read = tokio::task::spawn_blocking(move || machine(&data)).await;
    let whole = read.map_err(|_| Error::state("looking at the machine was cut off"))??;
    let flavor = |name: &str, share: u64| FlavorInfo {
        name: name.into(),
        vcpus: (whole.vcores / share).max(1),
        ram: whole.ram / share,
        disk: whole.disk / share,
    };
    let flavors = vec![flavor("quarter", 4), flavor("half", 2), flavor("machine", 1)];
    Ok(Resources { flavors, ..whole })
}

fn machine(data: &Path) -> Result<Resources> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").during("reading the memory's size")?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let total =
        total.ok_or_else(|| Error::state("the machine does not say how much memory it has"))?;
    let cores = std::thread::available_parallelism().during("counting cores")?;
    let disk =
        rustix::fs::statvfs(data).map_err(std::io::Error::from).during("measuring the disk")?;
    Ok(Resources {
        ram: total >> 10,
        vcores: cores.get() as u64,
        disk: disk.f_blocks.saturating_mul(disk.f_frsize) / 1_000_000_000,
        flavors: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        let machine = machine(Path::new("/")).unwrap();
        assert!(machine.ram > 0 && machine.vcores > 0 && machine.disk > 0, "{machine:?}");
    }
}
