//! Volumes of the machine that the server runs on.

mod args;
mod size;

use selvage_api::{
    proto::{
        CreateLvRequest, Empty, RemoveLvRequest, ResizeLvRequest, WatchResponse,
        lv_service_client::LvServiceClient, vg_service_client::VgServiceClient,
    },
    selvage::volumes::{
        CreateCloneRequest, CreateSnapshotRequest, DeviceClass, ListDeviceClassesRequest,
        ListVolumesRequest, RevertVolumeRequest, Volume as Described,
        volumes_service_client::VolumesServiceClient,
    },
};
use tonic::Request;

pub(crate) use args::Volume;
pub(crate) use size::bytes;

use args::{Classes, Clone, Create, Delete, List, Resize, Revert, Snapshot};

use super::node::{binary, interrupt::or_interrupted, sheet::Sheet};
use crate::{Error, output, session::Session};

const VOLUMES: &str = "selvage.volumes.ListVolumesResponse";
const CLASSES: &str = "selvage.volumes.ListDeviceClassesResponse";
const VOLUME: &str = "selvage.volumes.Volume";
const CAPACITY: &str = "proto.WatchResponse";

pub(crate) async fn run(command: Volume, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Volume::Create(args) => create(args, session).await,
        Volume::Resize(args) => resize(args, session).await,
        Volume::Delete(args) => delete(args, session).await,
        Volume::List(args) => list(args, session).await,
        Volume::Classes(args) => classes(args, session).await,
        Volume::Watch => match or_interrupted(watch(session)).await {
            // There is no other way to end it.
            Err(Error::Interrupted) => Ok(()),
            result => result,
        },
        Volume::Snapshot(args) => snapshot(args, session).await,
        Volume::Clone(args) => clone(args, session).await,
        Volume::Revert(args) => revert(args, session).await,
    }
}

async fn create(args: Create, session: &mut Session<'_>) -> Result<(), Error> {
    let request = CreateLvRequest {
        name: args.name.clone(),
        size_gb: args.size,
        tags: args.tags,
        device_class: args.class.class.clone(),
        data_source: None,
    };
    let client = session.client().await?;
    client
        .call(request, |channel, request| async move {
            LvServiceClient::new(channel).create_lv(request).await
        })
        .await?;
    one(&args.name, &args.class.class, session).await?;
    warn_of_overcommit(&args.class.class, session).await
}

async fn resize(args: Resize, session: &mut Session<'_>) -> Result<(), Error> {
    let request = ResizeLvRequest {
        name: args.name.clone(),
        size_gb: args.size,
        device_class: args.class.class.clone(),
    };
    let client = session.client().await?;
    client
        .call(request, |channel, request| async move {
            LvServiceClient::new(channel).resize_lv(request).await
        })
        .await?;
    one(&args.name, &args.class.class, session).await?;
    warn_of_overcommit(&args.class.class, session).await
}

async fn delete(args: Delete, session: &mut Session<'_>) -> Result<(), Error> {
    let name = args.name;
    // The server takes the removal of nothing for done, as lvmd's clients want
    // it. Whoever types a name wants to know.
    let Some(found) = find(&name, &args.class.class, session).await? else {
        return Err(Error::Status {
            code: selvage_api::Code::NotFound,
            message: format!("there is no volume {name}"),
            hints: vec!["`selvage volume list` shows those there are".into()],
        });
    };
    let question = format!("Delete volume {name} and everything on it?");
    if !args.yes && !session.confirm(&question, "say --yes to mean it")? {
        return Err(Error::Declined(format!("{name} stays")));
    }
    let request = RemoveLvRequest { name: name.clone(), device_class: found.device_class };
    let client = session.client().await?;
    client
        .call(request, |channel, request| async move {
            LvServiceClient::new(channel).remove_lv(request).await
        })
        .await?;
    session.io.say(&format!("{name} is gone."))
}

async fn list(args: List, session: &mut Session<'_>) -> Result<(), Error> {
    let request = ListVolumesRequest { device_class: args.class };
    let client = session.client().await?;
    let answer = client
        .call(request, |channel, request| async move {
            VolumesServiceClient::new(channel).list_volumes(request).await
        })
        .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(VOLUMES, &answer)?);
    }
    // What a backup reads, or compares the next one with, is no volume of
    // anybody.
    let shown = answer.volumes.iter().filter(|volume| volume.purpose != "backup");
    sheet(&shown.cloned().collect::<Vec<_>>()).print(session)
}

async fn classes(_: Classes, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let answer = client
        .call(ListDeviceClassesRequest {}, |channel, request| async move {
            VolumesServiceClient::new(channel).list_device_classes(request).await
        })
        .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(CLASSES, &answer)?);
    }
    class_sheet(&answer.device_classes).print(session)
}

async fn snapshot(args: Snapshot, session: &mut Session<'_>) -> Result<(), Error> {
    let request = CreateSnapshotRequest {
        source: args.source,
        name: args.name,
        device_class: args.class.class,
        tags: args.tags,
        writable: args.writable,
        change_room_bytes: args.room.unwrap_or_default(),
    };
    let client = session.client().await?;
    // Where blocks cannot be shared it is a copy, which takes its time.
    let request = client.request(request, client.limit(true))?;
    let made = VolumesServiceClient::new(client.channel()).create_snapshot(request).await;
    show(made.map_err(|status| client.refused(&status))?.into_inner(), session)
}

async fn clone(args: Clone, session: &mut Session<'_>) -> Result<(), Error> {
    let request = CreateCloneRequest {
        source: args.source,
        name: args.name,
        device_class: args.class.class,
        tags: args.tags,
    };
    let client = session.client().await?;
    let request = client.request(request, client.limit(true))?;
    let made = VolumesServiceClient::new(client.channel()).create_clone(request).await;
    show(made.map_err(|status| client.refused(&status))?.into_inner(), session)
}

async fn revert(args: Revert, session: &mut Session<'_>) -> Result<(), Error> {
    let Revert { volume, snapshot, yes, class } = args;
    let question = format!("Replace what volume {volume} holds by snapshot {snapshot}?");
    if !yes && !session.confirm(&question, "say --yes to mean it")? {
        return Err(Error::Declined(format!("{volume} stays as it is")));
    }
    let request = RevertVolumeRequest { volume, snapshot, device_class: class.class };
    let client = session.client().await?;
    let request = client.request(request, client.limit(true))?;
    let reverted = VolumesServiceClient::new(client.channel()).revert_volume(request).await;
    show(reverted.map_err(|status| client.refused(&status))?.into_inner(), session)
}

async fn watch(session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request: Request<Empty> = client.request(Empty {}, client.limit(true))?;
    let begun = VgServiceClient::new(client.channel()).watch(request).await;
    let mut capacities = begun.map_err(|status| client.refused(&status))?.into_inner();
    let mut before = WatchResponse::default();
    loop {
        let next = capacities.message().await.map_err(|status| client.refused(&status))?;
        let Some(capacity) = next else { return Ok(()) };
        if session.printer().is_table() {
            for line in news(&before, &capacity) {
                session.io.say(&line)?;
            }
        } else {
            session.printer().row(&output::dynamic(CAPACITY, &capacity)?)?;
            session.printer().flush()?;
        }
        before = capacity;
    }
}

/// Returns what a capacity tells that the one before it did not.
fn news(before: &WatchResponse, now: &WatchResponse) -> Vec<String> {
    let free = |capacity: &WatchResponse, class: &str| {
        let item = capacity.items.iter().find(|item| item.device_class == class);
        item.map(|item| item.free_bytes)
    };
    let mut lines = Vec::new();
    for item in &now.items {
        let class = &item.device_class;
        if free(before, class) != Some(item.free_bytes) {
            lines.push(format!("{class}: {} free", binary(item.free_bytes)));
        }
    }
    for item in &before.items {
        if free(now, &item.device_class).is_none() {
            lines.push(format!("{}: gone", item.device_class));
        }
    }
    lines
}

/// Shows a volume by what the server knows of it now.
async fn one(name: &str, class: &str, session: &mut Session<'_>) -> Result<(), Error> {
    match find(name, class, session).await? {
        Some(volume) => show(volume, session),
        None => session.io.say(&format!("{name} is made, and gone already.")),
    }
}

/// A volume of a class; without one, of the class that has it.
async fn find(
    name: &str,
    class: &str,
    session: &mut Session<'_>,
) -> Result<Option<Described>, Error> {
    let request = ListVolumesRequest { device_class: class.to_owned() };
    let client = session.client().await?;
    let answer = client
        .call(request, |channel, request| async move {
            VolumesServiceClient::new(channel).list_volumes(request).await
        })
        .await?;
    let mut found: Vec<Described> =
        answer.volumes.into_iter().filter(|volume| volume.name == name).collect();
    if found.len() > 1 {
        let classes: Vec<&str> = found.iter().map(|it| it.device_class.as_str()).collect();
        return Err(Error::Status {
            code: selvage_api::Code::InvalidArgument,
            message: format!(
                "volumes called {name} are in several classes: {}",
                classes.join(", ")
            ),
            hints: vec!["say which one with --class".into()],
        });
    }
    Ok(found.pop())
}

fn show(volume: Described, session: &mut Session<'_>) -> Result<(), Error> {
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(VOLUME, &volume)?);
    }
    sheet(&[volume]).print(session)
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

fn sheet(volumes: &[Described]) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NAME", "CLASS", "SIZE", "DEVICE", "ORIGIN", "TAGS", "+GROUP", "+POOL", "+PATH",
    ]);
    for volume in volumes {
        let device = match volume.dev_major {
            0 => "-".to_owned(),
            major => format!("{major}:{}", volume.dev_minor),
        };
        let size = match volume.pending {
            true => format!("{} (not complete)", binary(volume.size_bytes)),
            false => binary(volume.size_bytes),
        };
        sheet.push([
            volume.name.clone(),
            volume.device_class.clone(),
            size,
            device,
            or_none(&volume.origin),
            or_none(&volume.tags.join(",")),
            volume.group.clone(),
            or_none(&volume.pool),
            volume.path.clone(),
        ]);
    }
    sheet
}

fn class_sheet(classes: &[DeviceClass]) -> Sheet {
    let mut sheet =
        Sheet::new(&["CLASS", "KIND", "SIZE", "PROMISED", "FREE", "SPARE", "GROUP", "+POOL"]);
    for class in classes {
        let default = if class.default { " (default)" } else { "" };
        let (size, promised, free) = match class.missing {
            true => ("missing".to_owned(), "-".to_owned(), "-".to_owned()),
            false => (binary(class.size_bytes), promised(class), binary(class.free_bytes)),
        };
        sheet.push([
            format!("{}{default}", class.name),
            if class.pool.is_empty() { "thick" } else { "thin" }.to_owned(),
            size,
            promised,
            free,
            binary(class.spare_bytes),
            class.group.clone(),
            or_none(&class.pool),
        ]);
    }
    sheet
}

/// Returns what a class has promised, and by how much too much.
fn promised(class: &DeviceClass) -> String {
    let promised = binary(class.promised_bytes);
    match overcommitted(class) {
        true => format!("{promised} (overcommitted)"),
        false => promised,
    }
}

fn overcommitted(class: &DeviceClass) -> bool {
    !class.pool.is_empty() && class.promised_bytes > class.size_bytes
}

/// Tells whoever made or grew a volume that its pool cannot hold all it has
/// promised.
async fn warn_of_overcommit(class: &str, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let answer = client
        .call(ListDeviceClassesRequest {}, |channel, request| async move {
            VolumesServiceClient::new(channel).list_device_classes(request).await
        })
        .await?;
    let meant = |it: &&DeviceClass| if class.is_empty() { it.default } else { it.name == class };
    let classes = answer.device_classes;
    let Some(class) = classes.iter().find(meant).filter(|it| overcommitted(it)) else {
        return Ok(());
    };
    session.io.say(&format!(
        "Note: pool {}/{} holds {} and has promised {}. Its volumes cannot all be filled.",
        class.group,
        class.pool,
        binary(class.size_bytes),
        binary(class.promised_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use selvage_api::proto::WatchItem;

    use super::*;

    #[test]
    fn volumes_are_a_table() {
        let plain = Described {
            name: "data".into(),
            device_class: "thick".into(),
            size_bytes: 5 << 30,
            dev_major: 7,
            dev_minor: 3,
            tags: vec!["a".into(), "k=v".into()],
            ..Described::default()
        };
        let copy = Described {
            name: "copy".into(),
            origin: "data".into(),
            pending: true,
            dev_major: 0,
            tags: Vec::new(),
            ..plain.clone()
        };
        assert_eq!(
            sheet(&[plain, copy]).text(crate::Format::Table),
            "NAME   CLASS   SIZE                DEVICE   ORIGIN   TAGS\n\
             data   thick   5G                  7:3      -        a,k=v\n\
             copy   thick   5G (not complete)   -        data     -\n"
        );
    }

    #[test]
    fn classes_are_a_table() {
        let thick = DeviceClass {
            name: "ssd".into(),
            group: "vg1".into(),
            default: true,
            size_bytes: 100 << 30,
            free_bytes: 80 << 30,
            promised_bytes: 20 << 30,
            spare_bytes: 10 << 30,
            ..DeviceClass::default()
        };
        let full = DeviceClass {
            name: "full".into(),
            pool: "pool1".into(),
            default: false,
            promised_bytes: 120 << 30,
            ..thick.clone()
        };
        let thin = DeviceClass {
            name: "thin".into(),
            pool: "pool0".into(),
            default: false,
            missing: true,
            spare_bytes: 0,
            ..thick.clone()
        };
        assert_eq!(
            class_sheet(&[thick, full, thin]).text(crate::Format::Table),
            "CLASS           KIND    SIZE      PROMISED               FREE   SPARE   GROUP\n\
             ssd (default)   thick   100G      20G                    80G    10G     vg1\n\
             full            thin    100G      120G (overcommitted)   80G    10G     vg1\n\
             thin            thin    missing   -                      -      0B      vg1\n"
        );
    }

    #[test]
    fn only_changed_sizes_are_shown() {
        let response = |items: &[(&str, u64)]| WatchResponse {
            free_bytes: 0,
            items: items
                .iter()
                .map(|(class, free)| WatchItem {
                    device_class: (*class).into(),
                    free_bytes: free << 30,
                    ..WatchItem::default()
                })
                .collect(),
        };
        let before = response(&[("a", 4), ("b", 2), ("c", 1)]);
        let now = response(&[("a", 3), ("b", 2), ("d", 9)]);
        assert_eq!(news(&before, &now), ["a: 3G free", "d: 9G free", "c: gone"]);
        assert_eq!(news(&now, &now), Vec::<String>::new());
    }
}
