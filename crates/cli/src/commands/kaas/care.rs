//! Looking after clusters: hibernation, certificates, machines that do not come up.

use selvage_api::selvage::clusters::{
    HibernateClusterRequest, ListQuarantinedMachinesRequest, ReleaseQuarantinedMachineRequest,
    RotateCertificatesRequest, WakeClusterRequest,
};

use super::{
    args::{Quarantine, Watched},
    beyond, follow, show,
};
use crate::{Error, client::Client, commands::node::sheet::Sheet, output, session::Session};

const QUARANTINE: &str = "selvage.clusters.ListQuarantinedMachinesResponse";

pub(super) async fn hibernate(args: Watched, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = HibernateClusterRequest { name: args.name.clone() };
    beyond(&client, request, async |mut client, request| client.hibernate_cluster(request).await)
        .await?;
    let done = format!("{0} hibernates; `selvage kaas wake {0}` starts it again.", args.name);
    finish(&client, &args, session, &done).await
}

pub(super) async fn wake(args: Watched, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = WakeClusterRequest { name: args.name.clone() };
    beyond(&client, request, async |mut client, request| client.wake_cluster(request).await)
        .await?;
    let done = format!("{0} wakes; `selvage kaas show {0} --watch` tells of it.", args.name);
    finish(&client, &args, session, &done).await
}

pub(super) async fn rotate(args: Watched, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = RotateCertificatesRequest { name: args.name.clone() };
    beyond(&client, request, async |mut client, request| client.rotate_certificates(request).await)
        .await?;
    let done = format!(
        "{0} gets new certificates; `selvage kaas show {0} --watch` tells of it. Fetch \
         kubeconfigs anew when that is done.",
        args.name
    );
    finish(&client, &args, session, &done).await
}

async fn finish(
    client: &Client,
    args: &Watched,
    session: &mut Session<'_>,
    text: &str,
) -> Result<(), Error> {
    if args.wait {
        return follow::until_settled(client, &args.name, session).await;
    }
    session.io.say(text)
}

pub(super) async fn quarantine(args: Quarantine, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    if let Some(id) = args.release {
        let request = ReleaseQuarantinedMachineRequest { provider_id: id.clone() };
        beyond(&client, request, async |mut client, request| {
            client.release_quarantined_machine(request).await
        })
        .await?;
        return session.io.say(&format!("Clusters may have {id} again."));
    }
    let request = ListQuarantinedMachinesRequest {};
    let reply = beyond(&client, request, async |mut client, request| {
        client.list_quarantined_machines(request).await
    })
    .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(QUARANTINE, &reply)?);
    }
    let mut sheet = Sheet::new(&["MACHINE", "HOST", "FAILURES", "LAST", "CLUSTER", "REASON"]);
    for machine in &reply.machines {
        sheet.push([
            machine.provider_id.clone(),
            machine.hostname.clone(),
            machine.failures.to_string(),
            show::time(machine.failed_at.as_ref()),
            machine.cluster.clone(),
            machine.reason.clone(),
        ]);
    }
    sheet.print(session)
}
