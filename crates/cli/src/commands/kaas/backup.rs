//! Snapshots of clusters, and clusters made of them.

use selvage_api::selvage::clusters::{
    Backup, BackupClusterRequest, DeleteBackupRequest, ListBackupsRequest, RestoreClusterRequest,
};

use super::{
    args::{Backups, Named, Restore},
    beyond, follow, show,
};
use crate::{Error, commands::node::sheet::Sheet, output, session::Session};

const BACKUP: &str = "selvage.clusters.Backup";
const BACKUPS: &str = "selvage.clusters.ListBackupsResponse";

pub(super) async fn take(args: Named, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = BackupClusterRequest { name: args.name };
    let reply =
        beyond(&client, request, async |mut client, request| client.backup_cluster(request).await);
    let backup = reply.await?.backup.unwrap_or_default();
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(BACKUP, &backup)?);
    }
    let Backup { id, cluster, size, .. } = &backup;
    session.io.say(&format!(
        "Backup {id} has {size} bytes; `selvage kaas restore {cluster} --from {id}` brings it back."
    ))
}

pub(super) async fn list(args: Backups, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    if let Some(id) = args.delete {
        let request = DeleteBackupRequest { id: id.clone() };
        beyond(&client, request, async |mut client, request| client.delete_backup(request).await)
            .await?;
        return session.io.say(&format!("Backup {id} is gone."));
    }
    let request = ListBackupsRequest { name: args.name.unwrap_or_default() };
    let reply =
        beyond(&client, request, async |mut client, request| client.list_backups(request).await);
    let reply = reply.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(BACKUPS, &reply)?);
    }
    let mut sheet = Sheet::new(&["ID", "CLUSTER", "TAKEN", "KUBERNETES", "BYTES", "REASON"]);
    for backup in &reply.backups {
        sheet.push([
            backup.id.clone(),
            backup.cluster.clone(),
            show::time(backup.taken_at.as_ref()),
            backup.version.clone(),
            backup.size.to_string(),
            backup.reason.clone(),
        ]);
    }
    sheet.print(session)
}

pub(super) async fn restore(args: Restore, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let Restore { name, from, target, yes, wait } = args;
    let request = ListBackupsRequest { name: name.clone() };
    let known =
        beyond(&client, request, async |mut client, request| client.list_backups(request).await);
    if !known.await?.backups.iter().any(|backup| backup.id == from) {
        let text = format!("cluster {name:?} has no backup {from:?}: see `selvage kaas backups`");
        return Err(Error::invalid(text));
    }
    let question = format!(
        "Bring {name} back as it was? If it is there, all its machines are given back first."
    );
    if target.is_none() && !yes && !session.confirm(&question, "say --yes to mean it")? {
        return Err(Error::Declined(format!("{name} stays as it is")));
    }
    let request = RestoreClusterRequest { id: from, name: target.unwrap_or_default() };
    let reply =
        beyond(&client, request, async |mut client, request| client.restore_cluster(request).await);
    let name = reply.await?.cluster.unwrap_or_default().name;
    if wait {
        return follow::until_settled(&client, &name, session).await;
    }
    session
        .io
        .say(&format!("{name} is being restored; `selvage kaas show {name} --watch` tells of it."))
}
