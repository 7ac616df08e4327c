//! Several controllers on one etcd.

use selvage_api::selvage::pki::{
    FinishRotationRequest, Pki, ShowRequest, StartRotationRequest,
    pki_service_client::PkiServiceClient,
};
use selvage_tests::{Client, process::wait_for};

use selvage_tests::fleet::{Fleet, until};

async fn show(client: &Client) -> Pki {
    let mut pki = PkiServiceClient::new(client.channel.clone());
    pki.show(client.request(ShowRequest {})).await.unwrap().into_inner()
}

async fn stage(client: &Client, wanted: u64) {
    until("the stage", || async {
        let shown = show(client).await;
        if shown.stage == wanted { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_on_one_etcd_replace_their_authority_together() {
    let Some(mut fleet) = Fleet::start().await else { return };
    fleet.join().await;
    fleet.join().await;
    let first = fleet.client(0);
    // One is down while the new authority comes.
    fleet.kill(2);
    let mut pki = PkiServiceClient::new(first.channel.clone());
    pki.start_rotation(first.request(StartRotationRequest {})).await.unwrap();
    stage(&first, 2).await;
    stage(&fleet.client(1), 2).await;
    fleet.revive(2).await;
    stage(&fleet.client(2), 2).await;
    let same = |fleet: &Fleet, count: usize| {
        let pems: Vec<String> =
            fleet.running.iter().flatten().map(|one| one.ca().unwrap()).collect();
        pems.len() == count && pems.iter().all(|pem| *pem == pems[0])
    };
    wait_for("all to have the same authorities", || same(&fleet, 3).then_some(()));

    // One is killed while it signs with the new one, and comes back.
    fleet.kill(1);
    fleet.revive(1).await;
    let finished = until("the end", || async {
        let mut pki = PkiServiceClient::new(first.channel.clone());
        let request = first.request(FinishRotationRequest { force: false });
        pki.finish_rotation(request).await.map_err(|status| status.message().to_owned())
    });
    assert_eq!(finished.await.into_inner().stage, 3);
    wait_for("all to drop the old one", || {
        let alone = |pem: String| pem.matches("BEGIN").count() == 1;
        let dropped = fleet.running.iter().flatten().all(|one| alone(one.ca().unwrap()));
        (dropped && same(&fleet, 3)).then_some(())
    });
    // They speak to each other with certificates of the new one.
    fleet.kill(0);
    fleet.revive(0).await;
    for index in 0..3 {
        assert_eq!(show(&fleet.client(index)).await.stage, 3);
    }
}
