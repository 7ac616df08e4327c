//! Members of etcd: added so that they do not vote, promoted, removed.

use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Identity, Member as Remote, MemberAddOptions, TlsOptions,
};
use selvage_api::selvage::kubernetes::{EtcdMember, EtcdPeer, Profile};

use crate::{Error, Result, component::etcd_peer_url, member::Member};

const TIMEOUT: Duration = Duration::from_secs(10);

/// etcd of this machine.
pub(crate) async fn connect(member: &Member<'_>) -> Result<Client> {
    member.control_plane()?;
    let Some(pair) = member.keys.pair(Profile::EtcdHealthcheckClient)? else {
        return Err(Error::Certificate {
            profile: Profile::EtcdHealthcheckClient.as_str_name(),
            reason: "there is none yet".into(),
        });
    };
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(member.authorities().etcd))
        .identity(Identity::from_pem(pair.certificate, pair.key));
    let options =
        ConnectOptions::new().with_tls(tls).with_timeout(TIMEOUT).with_connect_timeout(TIMEOUT);
    Ok(Client::connect(["https://127.0.0.1:2379"], Some(options)).await?)
}

/// All members.
pub(crate) async fn list(client: &mut Client) -> Result<Vec<EtcdMember>> {
    let leader = client.status().await?.leader();
    let members = client.member_list().await?;
    Ok(members.members().iter().map(|one| describe(one, leader)).collect())
}

fn describe(remote: &Remote, leader: u64) -> EtcdMember {
    EtcdMember {
        id: remote.id(),
        name: remote.name().to_owned(),
        peer_urls: remote.peer_urls().to_vec(),
        learner: remote.is_learner(),
        leader: remote.id() == leader,
    }
}

/// Adds a member that does not vote; the same one again is found.
pub(crate) async fn add(
    client: &mut Client,
    peer: &EtcdPeer,
) -> Result<(EtcdMember, Vec<EtcdPeer>)> {
    let url = etcd_peer_url(&peer.address);
    let mut all = list(client).await?;
    if !all.iter().any(|one| one.peer_urls.contains(&url)) {
        if let Some(other) = all.iter().find(|one| one.learner || one.name.is_empty()) {
            let name = if other.name.is_empty() { "one" } else { &other.name };
            return Err(Error::EtcdState(format!(
                "{name} was added and does not vote yet: one at a time"
            )));
        }
        let options = MemberAddOptions::new().with_is_learner();
        client.member_add([&url], Some(options)).await?;
        all = list(client).await?;
    }
    let Some(added) = all.iter().find(|one| one.peer_urls.contains(&url)).cloned() else {
        return Err(Error::EtcdState(format!("{} is not there after it was added", peer.name)));
    };
    let peers = all.iter().filter_map(|one| {
        let known = one.peer_urls.contains(&url).then(|| peer.name.clone());
        let name = known.unwrap_or_else(|| one.name.clone());
        let address = address_of(one.peer_urls.first()?)?;
        Some(EtcdPeer { name, address })
    });
    Ok((added, peers.collect()))
}

fn address_of(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://")?;
    let (host, _) = rest.rsplit_once(':')?;
    Some(host.trim_matches(['[', ']']).to_owned())
}

/// Lets a member vote.
pub(crate) async fn promote(client: &mut Client, name: &str) -> Result<()> {
    let all = list(client).await?;
    let Some(member) = all.iter().find(|one| one.name == name) else {
        return Err(Error::EtcdState(format!("{name} did not start yet")));
    };
    if !member.learner {
        return Ok(());
    }
    match client.member_promote(member.id).await {
        Ok(_) => Ok(()),
        // Its own words: in sync, unhealthy, …
        Err(etcd_client::Error::GRpcStatus(status)) => {
            Err(Error::EtcdState(status.message().to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes a member, unless too few would be left.
pub(crate) async fn remove(client: &mut Client, name: &str) -> Result<()> {
    let all = list(client).await?;
    let by_address =
        |one: &EtcdMember| one.peer_urls.iter().any(|url| address_of(url).as_deref() == Some(name));
    let Some(member) = all.iter().find(|one| one.name == name || by_address(one)) else {
        return Ok(());
    };
    let voters: Vec<&EtcdMember> =
        all.iter().filter(|one| !one.learner && one.id != member.id).collect();
    if !member.learner && voters.is_empty() {
        return Err(Error::EtcdState(format!("{name} is the last one that votes")));
    }
    if member.leader
        && let Some(next) = voters.first()
    {
        // Only the leader can give its place away; another is not reached here.
        let _ = client.move_leader(next.id).await;
    }
    client.member_remove(member.id).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn addresses_stand_in_urls() {
        assert_eq!(super::address_of("https://10.0.0.1:2380").as_deref(), Some("10.0.0.1"));
        assert_eq!(super::address_of("https://[fd00::1]:2380").as_deref(), Some("fd00::1"));
        assert_eq!(super::address_of("10.0.0.1:2380"), None);
    }
}
