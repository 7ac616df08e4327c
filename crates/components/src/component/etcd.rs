//! etcd: what the cluster remembers.

use std::fs;

use selvage_api::selvage::kubernetes::{EtcdPeer, Profile};
use selvage_kit::pki::replace_private;
use selvage_runtime::Mount;

use super::{Component, flags};
use crate::{
    Result,
    member::{File, Member, in_url},
    probe::Probe,
};

pub(super) const NAME: &str = crate::member::ETCD;

/// Says whether it leads or follows; one that does not vote yet says no.
pub(super) const VOTES: &str = "http://127.0.0.1:2381/health";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    let version = member.versions().etcd;
    let data = member.paths.data(NAME);
    Ok(Component {
        name: NAME,
        program: member.artifacts.find(NAME, &version, NAME)?,
        arguments: command(member)?,
        files: files(member)?,
        mounts: vec![Mount { source: data.clone(), target: data, read_only: false }],
        host: false,
        gate: None,
        health: health(),
        version,
    })
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    let mut files = vec![File::new("ca.crt", member.authorities().etcd)];
    files.extend(member.pair(Profile::EtcdServer)?);
    files.extend(member.pair(Profile::EtcdPeer)?);
    Ok(files)
}

fn command(member: &Member<'_>) -> Result<Vec<String>> {
    let (peers, state) = beginning(member)?;
    let (own, at) = (&member.spec.address, |file: &str| member.path(NAME, file));
    let mut arguments = flags([
        ("name", member.spec.node.clone()),
        ("data-dir", member.paths.data(NAME).display().to_string()),
        ("listen-client-urls", format!("{},{}", url("127.0.0.1", 2379), url(own, 2379))),
        ("advertise-client-urls", url(own, 2379)),
        ("listen-peer-urls", peer_url(own)),
        ("initial-advertise-peer-urls", peer_url(own)),
        ("initial-cluster", peers),
        ("initial-cluster-state", state),
        ("initial-cluster-token", member.spec.cluster.clone()),
        ("listen-metrics-urls", "http://127.0.0.1:2381".into()),
        ("cert-file", at("etcd-server.crt")),
        ("key-file", at("etcd-server.key")),
        ("trusted-ca-file", at("ca.crt")),
        ("client-cert-auth", "true".into()),
        ("peer-cert-file", at("etcd-peer.crt")),
        ("peer-key-file", at("etcd-peer.key")),
        ("peer-trusted-ca-file", at("ca.crt")),
        ("peer-client-cert-auth", "true".into()),
    ]);
    arguments.extend(by_version(&member.versions().etcd));
    Ok(arguments)
}

/// Address for other members.
pub(crate) fn peer_url(address: &str) -> String {
    url(address, 2380)
}

fn url(address: &str, port: u16) -> String {
    format!("https://{}:{port}", in_url(address))
}

/// Members that it begins with, and whether they are there already. Of interest
/// to an etcd without data only: what was said first is said for ever, so that
/// it is not restarted when another member comes or goes.
fn beginning(member: &Member<'_>) -> Result<(String, String)> {
    let path = member.paths.root.join("etcd-beginning");
    if let Ok(text) = fs::read_to_string(&path)
        && let Some((peers, state)) = text.trim().split_once(' ')
    {
        return Ok((peers.to_owned(), state.to_owned()));
    }
    let plane = member.control_plane()?;
    let peer = |peer: &EtcdPeer| format!("{}={}", peer.name, peer_url(&peer.address));
    let peers: Vec<String> = plane.etcd.iter().map(peer).collect();
    let (peers, state) = (peers.join(","), if plane.join_etcd { "existing" } else { "new" });
    replace_private(&path, format!("{peers} {state}\n").as_bytes())?;
    Ok((peers, state.to_owned()))
}

/// Flags of etcd that the API server likes, where this version has them.
fn by_version(version: &str) -> Vec<String> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    match (numbers.next(), numbers.next()) {
        (Some(3), Some(minor)) if minor >= 6 => flags([
            ("feature-gates", "InitialCorruptCheck=true".into()),
            ("watch-progress-notify-interval", "5s".into()),
        ]),
        (Some(3), Some(5)) => flags([
            ("experimental-initial-corrupt-check", "true".into()),
            ("experimental-watch-progress-notify-interval", "5s".into()),
        ]),
        _ => Vec::new(),
    }
}

/// Also well before it votes.
fn health() -> Probe {
    Probe::Page("http://127.0.0.1:2381/health?serializable=true".into())
}
