//! The bridge between machines, and their ends of it.

use std::net::Ipv4Addr;

use sha2::{Digest, Sha256};

use crate::{Error, Result, network::run};

/// The host's end of a machine's network.
fn link(name: &str) -> String {
    format!("slvm{}", &hex::encode(Sha256::digest(name))[..10])
}

async fn is_there(name: &str) -> bool {
    run("ip", &["link", "show", "dev", name], None).await.is_ok()
}

/// Makes the bridge, if there is none.
pub(super) async fn bridge(name: &str, gateway: Ipv4Addr) -> Result<()> {
    if !is_there(name).await {
        match run("ip", &["link", "add", name, "type", "bridge"], None).await {
            // Another one was faster.
            Err(Error::Program { text, .. }) if text.contains("File exists") => {}
            other => drop(other?),
        }
    }
    run("ip", &["address", "replace", &format!("{gateway}/24"), "dev", name], None).await?;
    run("ip", &["link", "set", name, "up"], None).await?;
    Ok(())
}

/// Puts one end into a machine that has just started, and the other on the bridge.
pub(super) async fn plug_in(bridge: &str, name: &str, pid: i32) -> Result<()> {
    let link = link(name);
    if is_there(&link).await {
        run("ip", &["link", "delete", &link], None).await?;
    }
    complete(bridge, name, pid).await
}

/// Does what is left of plugging a machine in; nothing if all is done.
pub(super) async fn complete(bridge: &str, name: &str, pid: i32) -> Result<()> {
    let (link, pid) = (link(name), pid.to_string());
    if !is_there(&link).await {
        let ends = ["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid];
        run("ip", &ends, None).await?;
    }
    // One whose cable was pulled stays as it is.
    let shown = run("ip", &["-o", "link", "show", "dev", &link], None).await?;
    if !shown.contains(&format!(" master {bridge} ")) {
        run("ip", &["link", "set", &link, "master", bridge, "up"], None).await?;
    }
    Ok(())
}

/// The kernel removes it with the machine, a little later.
pub(super) async fn unplug(name: &str) -> Result<()> {
    let link = link(name);
    let gone = run("ip", &["link", "delete", &link], None).await;
    if is_there(&link).await { gone.map(drop) } else { Ok(()) }
}

pub(super) async fn remove_bridge(name: &str) -> Result<()> {
    if is_there(name).await {
        run("ip", &["link", "delete", name], None).await?;
    }
    Ok(())
}
