//! Looking after a repository: locks, keys, figures, differences.

use selvage_api::selvage::volumes::{
    AddRepositoryKeyRequest, DeleteRepositoryKeyRequest, DiffBackupsRequest, DiffBackupsResponse,
    GetRepositoryStatsRequest, ListRepositoryKeysRequest, ListRepositoryKeysResponse,
    RepositoryKey, RepositoryStats, UnlockRepositoryRequest, UnlockRepositoryResponse,
};

use super::{
    args::{AddKey, Diff, KeyCommand, Stats, Unlock},
    ask, described, time,
};
use crate::{
    Error,
    commands::node::{binary, sheet::Sheet},
    output,
    session::Session,
};

const UNLOCKED: &str = "selvage.volumes.UnlockRepositoryResponse";
const STATS: &str = "selvage.volumes.RepositoryStats";
const KEYS: &str = "selvage.volumes.ListRepositoryKeysResponse";
const KEY: &str = "selvage.volumes.RepositoryKey";
const DIFF: &str = "selvage.volumes.DiffBackupsResponse";

pub(super) async fn unlock(args: Unlock, session: &mut Session<'_>) -> Result<(), Error> {
    let repository = Some(args.store.repository(&args.repository, session)?);
    let question = "Remove all locks, also those of work that may be under way?";
    if args.all && !args.yes && !session.confirm(question, "say --yes to mean it")? {
        return Err(Error::Declined("the locks stay".into()));
    }
    let client = session.client().await?;
    let request = UnlockRepositoryRequest { repository, all: args.all };
    let answer =
        ask(&client, request, async |mut client, request| client.unlock_repository(request).await);
    let answer: UnlockRepositoryResponse = answer.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(UNLOCKED, &answer)?);
    }
    let mut sheet = Sheet::new(&["LOCK", "STATE", "HOST", "USER", "PROCESS", "SINCE"]);
    let removed = answer.removed.iter().map(|lock| ("removed", lock));
    for (state, lock) in removed.chain(answer.left.iter().map(|lock| ("held", lock))) {
        sheet.push([
            short(&lock.id),
            state.to_owned(),
            lock.hostname.clone(),
            lock.username.clone(),
            lock.pid.to_string(),
            time(lock.time.as_ref()),
        ]);
    }
    if answer.removed.is_empty() && answer.left.is_empty() {
        return session.io.say("There are no locks.");
    }
    sheet.print(session)?;
    if answer.left.is_empty() {
        return Ok(());
    }
    session.io.say("Locks that are held stay; --all removes them, too.")
}

pub(super) async fn stats(args: Stats, session: &mut Session<'_>) -> Result<(), Error> {
    let repository = Some(args.store.repository(&args.repository, session)?);
    let client = session.client().await?;
    let request = GetRepositoryStatsRequest { repository };
    let stats = ask(&client, request, async |mut client, request| {
        client.get_repository_stats(request).await
    });
    let stats: RepositoryStats = stats.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(STATS, &stats)?);
    }
    let mut sheet =
        Sheet::new(&["VOLUME", "HOST", "BACKUPS", "SIZE", "OLDEST", "NEWEST", "+GROUP"]);
    for volume in &stats.volumes {
        sheet.push([
            if volume.volume.is_empty() { "-".into() } else { volume.volume.clone() },
            volume.hostname.clone(),
            volume.backups.to_string(),
            binary(volume.size_bytes),
            time(volume.oldest.as_ref()),
            time(volume.newest.as_ref()),
            volume.group.clone(),
        ]);
    }
    sheet.print(session)?;
    session.io.say(&format!(
        "{} backups of {} in all take {}: {} different chunks of {} in {} packs.",
        stats.backups,
        binary(stats.volume_bytes),
        binary(stats.stored_bytes),
        stats.chunks,
        binary(stats.chunk_bytes),
        stats.packs
    ))
}

pub(super) async fn key(command: KeyCommand, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        KeyCommand::List(args) => {
            let repository = Some(args.store.repository(&args.repository, session)?);
            let client = session.client().await?;
            let request = ListRepositoryKeysRequest { repository };
            let keys = ask(&client, request, async |mut client, request| {
                client.list_repository_keys(request).await
            });
            let keys: ListRepositoryKeysResponse = keys.await?;
            if !session.printer().is_table() {
                return session.printer().message(&output::dynamic(KEYS, &keys)?);
            }
            key_sheet(&keys.keys).print(session)
        }
        KeyCommand::Add(args) => add_key(args, session).await,
        KeyCommand::Delete { args, key } => {
            let repository = Some(args.store.repository(&args.repository, session)?);
            let client = session.client().await?;
            let request = DeleteRepositoryKeyRequest { repository, id: key };
            let gone = ask(&client, request, async |mut client, request| {
                client.delete_repository_key(request).await
            });
            let gone = gone.await?;
            session.io.say(&format!("Key {} opens the repository no more.", short(&gone.id)))
        }
    }
}

async fn add_key(args: AddKey, session: &mut Session<'_>) -> Result<(), Error> {
    let repository = Some(args.store.repository(&args.repository, session)?);
    let hint = "give the new passphrase with --new-password-file FILE, or - for stdin";
    let password = session.new_password(args.new_password_file.as_deref(), hint)?;
    let client = session.client().await?;
    let new_encryption_key = password.expose().to_owned();
    let request = AddRepositoryKeyRequest { repository, new_encryption_key };
    let added =
        ask(&client, request, async |mut client, request| client.add_repository_key(request).await);
    let added: RepositoryKey = added.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(KEY, &added)?);
    }
    key_sheet(&[added]).print(session)
}

fn key_sheet(keys: &[RepositoryKey]) -> Sheet {
    let mut sheet = Sheet::new(&["KEY", "HOST", "USER", "CREATED", "CURRENT"]);
    for key in keys {
        sheet.push([
            short(&key.id),
            key.hostname.clone(),
            key.username.clone(),
            time(key.created.as_ref()),
            if key.current { "yes".into() } else { String::new() },
        ]);
    }
    sheet
}

pub(super) async fn diff(args: Diff, session: &mut Session<'_>) -> Result<(), Error> {
    let request = DiffBackupsRequest {
        repository: Some(args.store.repository(&args.repository, session)?),
        older: args.older,
        volume: args.volume,
        hostname: args.host,
    };
    let client = session.client().await?;
    let answer =
        ask(&client, request, async |mut client, request| client.diff_backups(request).await);
    let answer: DiffBackupsResponse = answer.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(DIFF, &answer)?);
    }
    let mut sheet = Sheet::new(&["OFFSET", "LENGTH", "+BYTES"]);
    for range in &answer.changed {
        sheet.push([range.offset.to_string(), binary(range.length), range.length.to_string()]);
    }
    if !answer.changed.is_empty() {
        sheet.print(session)?;
    }
    let (older, newer) = (answer.older.unwrap_or_default(), answer.newer.unwrap_or_default());
    let changed = match answer.changed_bytes {
        0 => "Nothing differs".to_owned(),
        bytes => format!("{} in {} parts differ", binary(bytes), answer.changed.len()),
    };
    let (older, newer) = (described(&older), described(&newer));
    session.io.say(&format!("{changed} between {older} and {newer}."))
}

fn short(id: &str) -> String {
    id.get(..8).unwrap_or(id).to_owned()
}
