//! Methods that are open to a kind of key: each reaches the key's own, and nothing of
//! others. Each row of the table has a test of a key at what is another's.

use std::collections::BTreeMap;

use selvage_api::selvage::identity::{
    ListMachinesRequest, RenewRequest, ReportRequest, WhoAmIRequest,
    identity_service_client::IdentityServiceClient,
};
use tonic::transport::Channel;

use super::*;

/// Test of each method that is open to machines; `None` where nothing that it
/// gives belongs to one of them.
const TRIED: [(&str, Option<&str>); 17] = [
    ("/cnct.kaas.api.Cluster/CreateCluster", Some(CLUSTERS)),
    ("/cnct.kaas.api.Cluster/DeleteCluster", Some(CLUSTERS)),
    ("/cnct.kaas.api.Cluster/GetCluster", Some(CLUSTERS)),
    ("/cnct.kaas.api.Cluster/GetClusterList", Some(CLUSTERS)),
    ("/cnct.kaas.api.Cluster/ScaleNodePool", Some(CLUSTERS)),
    ("/edgeproto.NotifyApi/StreamNotice", Some("notices::a_peer_says_nothing_of_what_is_anothers")),
    ("/selvage.clusters.ClusterService/GetCluster", Some(CLUSTERS)),
    ("/selvage.clusters.ClusterService/ListVersions", None),
    ("/selvage.clusters.ClusterService/WatchCluster", Some(CLUSTERS)),
    ("/selvage.identity.IdentityService/CheckAssertion", Some("a_key_is_vouched_for_as_nobody")),
    // Whose it is, is told to all to whom it was shown.
    ("/selvage.identity.IdentityService/CheckCertificate", None),
    ("/selvage.identity.IdentityService/Renew", Some(OWN_NAME)),
    ("/selvage.identity.IdentityService/Report", Some(OWN_NAME)),
    // Every machine must know whom to refuse.
    ("/selvage.identity.IdentityService/WatchBlockedMachines", None),
    ("/selvage.identity.IdentityService/WhoAmI", Some(OWN_NAME)),
    ("/selvage.matching.MatchingService/ListCookieKeys", None),
    (
        "/selvage.shell.ShellService/Attach",
        Some("notices::a_command_is_between_its_caller_and_its_crm"),
    ),
];

const CLUSTERS: &str = "clusters::a_cloudlets_clusters_are_its_own";
const OWN_NAME: &str = "own::a_key_names_and_reports_its_own_machine_alone";

/// A method that is opened to machines gets a row here, and a test.
#[test]
fn what_a_key_opens_is_tried_at_what_is_anothers() {
    let access = Access::load().unwrap();
    let limited: BTreeMap<&str, &str> = access
        .rules()
        .filter_map(|rule| Some((rule.path.as_str(), rule.limit_of_machines()?)))
        .collect();
    let tried: BTreeMap<&str, Option<&str>> = TRIED.into_iter().collect();
    assert_eq!(limited.keys().collect::<Vec<_>>(), tried.keys().collect::<Vec<_>>());
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stolen_keys");
    for test in tried.values().flatten() {
        let (file, name) = test.rsplit_once("::").unwrap_or(("main", test));
        let text = std::fs::read_to_string(folder.join(format!("{file}.rs"))).unwrap();
        assert!(text.contains(&format!("async fn {name}()")), "{test}");
    }
}

fn api(client: &Client) -> IdentityServiceClient<Channel> {
    IdentityServiceClient::new(client.channel.clone())
}

async fn who_am_i(client: &Client) -> String {
    let answered = api(client).who_am_i(client.request(WhoAmIRequest {})).await.unwrap();
    answered.into_inner().name
}

/// Addresses of machines, as an administrator sees them.
async fn addresses(admin: &Client) -> BTreeMap<String, String> {
    let request = admin.request(ListMachinesRequest::default());
    let machines = api(admin).list_machines(request).await.unwrap().into_inner().machines;
    machines.into_iter().map(|machine| (machine.machine, machine.address)).collect()
}

/// Whatever a request says, the name is that of the certificate that was shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_names_and_reports_its_own_machine_alone() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    for (_, name) in STOLEN {
        let thief = admin.stolen(&selvage, name).await;
        assert_eq!(who_am_i(&thief).await, name);
        for wanted in ["controller", "node/other", "cloudlet/tmus/east", "dme/east"] {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut asked = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            asked.distinguished_name.push(rcgen::DnType::CommonName, wanted);
            let csr = asked.serialize_request(&key).unwrap().pem().unwrap();
            let renewed = api(&thief).renew(thief.request(RenewRequest { csr })).await.unwrap();
            let renewed = renewed.into_inner();
            assert_eq!(renewed.machine, name, "asked for {wanted}");
            let again = Client::machine(&selvage, &renewed.certificate, &key.serialize_pem()).await;
            assert_eq!(who_am_i(&again).await, name, "asked for {wanted}");
        }
    }
    let report = |client: &Client, address: &str| {
        let (mut api, address) = (api(client), address.to_owned());
        let request = client.request(ReportRequest { port: 1, address, ..Default::default() });
        async move { api.report(request).await.unwrap() }
    };
    let other = admin.stolen(&selvage, "node/other").await;
    report(&other, "192.0.2.1:1").await;
    for (_, name) in STOLEN {
        let thief = admin.stolen(&selvage, name).await;
        report(&thief, "192.0.2.66:6").await;
    }
    let seen = addresses(&admin).await;
    assert_eq!(seen.get("node/other").map(String::as_str), Some("192.0.2.1:1"), "{seen:?}");
    assert_eq!(seen.get("node/rack3-7").map(String::as_str), Some("192.0.2.66:6"), "{seen:?}");
}
