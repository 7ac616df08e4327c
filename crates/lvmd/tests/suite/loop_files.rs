//! The suite on image files, and what only they have.

use std::{
    fs,
    path::{Path, PathBuf},
};

use selvage_api::proto::{Empty, WatchResponse, vg_service_client::VgServiceClient};
use selvage_lvmd::{NewSnapshot, NewVolume, backend::loopfile::LoopFiles, config::Config};

use super::{
    changes, conformance, jobs,
    points_in_time::{self, Busy, Trial},
    requests, reverts,
    served::Served,
    site::{GIB, MIB, Outside, Site, skip},
};

/// A folder whose loop devices are let go at the end.
struct Folder(tempfile::TempDir);

impl Drop for Folder {
    fn drop(&mut self) {
        for (device, image) in attached() {
            if image.starts_with(self.0.path()) {
                let _ = std::process::Command::new("losetup").arg("-d").arg(device).status();
            }
        }
    }
}

fn attached() -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let image = |path: PathBuf| fs::read_to_string(path.join("loop/backing_file")).ok();
    entries
        .filter_map(|entry| {
            let image = image(entry.path())?.trim_end().to_owned();
            Some((Path::new("/dev").join(entry.file_name()), image.into()))
        })
        .collect()
}

struct Files(Folder);

impl Files {
    fn group(&self) -> PathBuf {
        self.0.0.path().join("tg")
    }
}

impl Outside for Files {
    fn create(&self, name: &str, size: u64) {
        let image = fs::File::create(self.group().join(format!("{name}.img"))).unwrap();
        image.set_len(size).unwrap();
        let record = format!(r#"{{"name":"{name}","size":{size}}}"#);
        let new = self.group().join("outside");
        fs::write(&new, record).unwrap();
        fs::rename(new, self.group().join(format!("{name}.volume"))).unwrap();
    }

    fn thick_snapshots_depend(&self) -> bool {
        false
    }

    fn knows_changes(&self) -> bool {
        false
    }
}

fn config(directory: &Path) -> Config {
    Config::parse(&config_text(directory)).unwrap()
}

fn config_text(directory: &Path) -> String {
    format!(
        "
backend: loop
loop:
  directory: {}
  groups:
    - {{name: tg, size-gb: 4, preallocate: false, thin-pools: [{{name: pool, size-gb: 1}}]}}
device-classes:
  - {{name: thick, volume-group: tg, default: true, spare-gb: 0}}
  - name: thin
    volume-group: tg
    spare-gb: 0
    type: thin
    thin-pool: {{name: pool, overprovision-ratio: 10}}
  - {{name: gone, volume-group: novg}}
",
        directory.display()
    )
}

async fn site() -> Option<Site> {
    if !rustix::process::geteuid().is_root() {
        skip("loop devices", "only root may make them");
        return None;
    }
    let folder = Folder(tempfile::tempdir().unwrap());
    let config = config(folder.0.path());
    Some(Site::open(config, Box::new(Files(folder))).await)
}

fn group_of(site: &Site) -> PathBuf {
    site.config.loop_files.directory.join("tg")
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input() {
    let Some(site) = site().await else { return };
    conformance::bad_input(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life() {
    let Some(site) = site().await else { return };
    conformance::a_life(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thin() {
    let Some(site) = site().await else { return };
    conformance::thin(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thick_snapshots() {
    let Some(site) = site().await else { return };
    conformance::snapshots(&site, "thick").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thin_snapshots() {
    let Some(site) = site().await else { return };
    conformance::snapshots(&site, "thin").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_of_snapshots() {
    let Some(site) = site().await else { return };
    conformance::snapshots_of_snapshots(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_use() {
    let Some(site) = site().await else { return };
    conformance::in_use(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_changes() {
    let Some(site) = site().await else { return };
    conformance::outside_changes(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once() {
    let Some(site) = site().await else { return };
    conformance::many_at_once(&site, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts() {
    let Some(site) = site().await else { return };
    drop(conformance::restarts(site).await);
}

/// The service on files, with backups.
async fn served() -> Option<Served> {
    if !rustix::process::geteuid().is_root() {
        skip("loop devices", "only root may make them");
        return None;
    }
    let (folder, work) = (Folder(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
    let text = config_text(folder.0.path());
    let at = work.path().display();
    let text = format!("{text}\nbackup: {{workdir: {at}/work, directory: {at}/backups}}\n");
    let config = Config::parse(&text).unwrap();
    Some(Served::start(config, Box::new((folder, work))).await)
}

/// A file system that is made for a test, in a file.
struct Disk {
    mount: tempfile::TempDir,
    _image: tempfile::NamedTempFile,
}

impl Disk {
    /// None, and said so, where it cannot be made.
    fn make(kind: &str, size: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("loop devices", "only root may make them");
            return None;
        }
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        let program = format!("mkfs.{kind}");
        let there = ["/usr/sbin", "/sbin"].iter().any(|at| Path::new(at).join(&program).exists());
        if !there || !known.split_whitespace().any(|name| name == kind) {
            skip(&program, "there is no such program, or the kernel does not know it");
            return None;
        }
        let (image, mount) =
            (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
        image.as_file().set_len(size).unwrap();
        let (device, at) = (image.path().to_str().unwrap(), mount.path().to_str().unwrap());
        conformance::run(&program, &["-q", device]);
        conformance::run("mount", &["-o", "loop", device, at]);
        Some(Self { mount, _image: image })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Not at once, if a task of the test has a file open still.
        let mut command = std::process::Command::new("umount");
        let unmounted = command.arg("--lazy").arg(self.mount.path()).status();
        assert!(unmounted.unwrap().success() || std::thread::panicking());
    }
}

/// The service on files on a file system of a kind, with backups.
async fn served_on(kind: &str) -> Option<Served> {
    served_with(Disk::make(kind, 2 * GIB)?, |_| {}).await
}

async fn served_with(disk: Disk, change: impl FnOnce(&mut Config)) -> Option<Served> {
    let folder = Folder(tempfile::tempdir_in(disk.mount.path()).unwrap());
    let work = tempfile::tempdir().unwrap();
    let text = config_text(folder.0.path());
    let at = work.path().display();
    let text = format!("{text}\nbackup: {{workdir: {at}/work, directory: {at}/backups}}\n");
    let mut config = Config::parse(&text).unwrap();
    change(&mut config);
    Some(Served::start(config, Box::new((folder, disk, work))).await)
}

/// A writer that never ends is not waited for long, or this would take minutes.
#[tokio::test(flavor = "multi_thread")]
async fn backups_on_ext4_are_points_in_time() {
    let Some(disk) = Disk::make("ext4", 2 * GIB) else { return };
    let impatient = |config: &mut Config| config.loop_files.copy_timeout = 0;
    let Some(served) = served_with(disk, impatient).await else { return };
    points_in_time::are_what_backups_hold(&served, "thick", Trial::of_copies(Busy::MayBeRefused))
        .await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_on_ext4_wait_for_short_writers() {
    let Some(served) = served_on("ext4").await else { return };
    let trial = Trial::of_copies(Busy::Works);
    points_in_time::wait_for_short_writers(&served, "thick", trial).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_on_xfs_are_points_in_time() {
    let Some(served) = served_on("xfs").await else { return };
    let trial = Trial::of_copies(Busy::Works);
    points_in_time::are_what_backups_hold(&served, "thick", trial).await;
    points_in_time::wait_for_short_writers(&served, "thick", trial).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_on_btrfs_are_points_in_time() {
    let Some(served) = served_on("btrfs").await else { return };
    let trial = Trial::of_copies(Busy::Works);
    points_in_time::are_what_backups_hold(&served, "thin", trial).await;
    points_in_time::wait_for_short_writers(&served, "thin", trial).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_on_xfs_are_all_reported() {
    let Some(served) = served_on("xfs").await else { return };
    changes::are_all_reported(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_on_btrfs_are_all_reported() {
    let Some(served) = served_on("btrfs").await else { return };
    changes::are_all_reported(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_on_xfs_reads_what_changed() {
    let Some(served) = served_on("xfs").await else { return };
    changes::are_what_a_backup_reads(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_volume_on_ext4_is_copied_while_it_is_written_to() {
    let Some(disk) = Disk::make("ext4", 2 * GIB) else { return };
    let at_once = |config: &mut Config| config.loop_files.copy_timeout = 0;
    let folder = tempfile::tempdir().unwrap();
    let Some(served) = served_with(disk, at_once).await else { return };
    changes::are_copied_while_mounted(&served, folder.path()).await;
    served.stop().await;
}

/// A volume that the disk has no room for twice is read where it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_needs_no_room_for_a_copy() {
    let Some(disk) = Disk::make("ext4", 448 * MIB) else { return };
    let thick_alone = |config: &mut Config| {
        config.loop_files.groups[0].thin_pools.clear();
        config.device_classes.retain(|class| class.name == "thick");
    };
    let Some(served) = served_with(disk, thick_alone).await else { return };
    points_in_time::are_read_in_place(&served, "thick", 256 * MIB).await;
    served.stop().await;
}

/// The same of one that is mounted, and whose device others have read.
#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_volume_without_room_for_a_copy_is_stored_as_it_was_written() {
    let Some(disk) = Disk::make("ext4", 448 * MIB) else { return };
    let thick_alone = |config: &mut Config| {
        config.loop_files.groups[0].thin_pools.clear();
        config.device_classes.retain(|class| class.name == "thick");
    };
    let folder = tempfile::tempdir().unwrap();
    let Some(served) = served_with(disk, thick_alone).await else { return };
    changes::are_read_in_place_while_mounted(&served, folder.path()).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_the_disk_has_no_room_for_makes_no_volume() {
    let Some(disk) = Disk::make("ext4", 448 * MIB) else { return };
    let Some(served) = served_with(disk, |_| {}).await else { return };
    jobs::restores_that_fill_the_pool_are_refused(&served, 100 * MIB).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_jobs_are_left_alone() {
    let Some(served) = served().await else { return };
    jobs::are_left_alone(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_over_a_volume_can_be_undone() {
    let Some(served) = served().await else { return };
    reverts::a_restore_over_a_volume_can_be_undone(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_reverted_to_its_snapshot_alone() {
    let Some(served) = served().await else { return };
    reverts::a_volume_is_reverted_to_its_snapshot_alone(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_revert_is_shown_to_nobody() {
    let Some(served) = served().await else { return };
    reverts::half_a_revert_is_shown_to_nobody(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_how_old_backups_are() {
    let Some(served) = served().await else { return };
    served.create("data", 64 * MIB).await;
    assert!(!served.metrics().contains("selvage_backup_age_seconds{"));
    let job = served.start_backup("one", "data").await.unwrap();
    served.ended(&job).await;
    let page = served.metrics();
    let age = page.lines().find(|line| line.starts_with("selvage_backup_age_seconds{"));
    assert!(age.is_some_and(|line| line.contains("volume=\"tg/data\"")), "{page}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prunes_that_differ_are_all_done() {
    let Some(served) = served().await else { return };
    requests::prunes_that_differ_are_all_done(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_no_request() {
    let Some(served) = served().await else { return };
    requests::a_name_is_no_request(&served).await;
    served.stop().await;
}

/// Later published clients read how large classes are.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_receive_the_sizes_of_classes() {
    let Some(served) = served().await else { return };
    let mut groups = VgServiceClient::new(served.channel());
    let mut watch = groups.watch(Empty {}).await.unwrap().into_inner();
    let response = watch.message().await.unwrap().unwrap();
    let sizes = response.items.iter().map(|item| (item.device_class.as_str(), item.size_bytes));
    assert_eq!(sizes.collect::<Vec<_>>(), [("thick", 4 * GIB), ("thin", GIB)]);
    let pools = response.items.iter().map(|item| item.thin_pool.map(|pool| pool.size_bytes));
    assert_eq!(pools.collect::<Vec<_>>(), [None, Some(GIB)]);
    served.stop().await;
}

/// One message at the beginning and one for every change, to each.
#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_receives_a_change_once() {
    let Some(served) = served().await else { return };
    let mut groups = VgServiceClient::new(served.channel());
    let mut watch = async || groups.watch(Empty {}).await.unwrap().into_inner();
    let (mut first, mut second) = (watch().await, watch().await);
    let free = |response: Option<WatchResponse>| response.unwrap().free_bytes;
    let before = free(first.message().await.unwrap());
    assert_eq!(free(second.message().await.unwrap()), before);
    served.create("one", 8 * MIB).await;
    for watcher in [&mut first, &mut second] {
        assert_eq!(free(watcher.message().await.unwrap()), before - 8 * MIB);
    }
    drop(second);
    served.remove("one").await.unwrap();
    assert_eq!(free(first.message().await.unwrap()), before, "what is told next is new");
    served.stop().await;
    let mut last = first.message().await;
    while let Ok(Some(_)) = last {
        last = first.message().await;
    }
}

/// A reboot takes all devices away; the next start attaches what is there.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_reboot_volumes_have_their_devices_again() {
    let Some(site) = site().await else { return };
    let names = ["one", "three", "two"];
    for name in names {
        site.create("", name, 16 * MIB).await.unwrap();
        let device = site.volumes.backend().open("tg", name, true).unwrap();
        device.write_at(name.as_bytes(), 8 * MIB).unwrap();
        device.sync().unwrap();
    }
    let snapshot = NewSnapshot {
        source: "two".into(),
        name: "still".into(),
        read_only: true,
        ..NewSnapshot::default()
    };
    site.volumes.snapshot("", snapshot).await.unwrap();
    let (group, before) = (group_of(&site), site.volumes.groups());
    for (device, image) in attached() {
        if image.starts_with(&group) {
            conformance::run("losetup", &["-d", device.to_str().unwrap()]);
        }
    }
    assert!(!attached().iter().any(|(_, image)| image.starts_with(&group)));

    let site = site.restart().await;
    assert_eq!(site.names(""), ["one", "still", "three", "two"]);
    for (name, was) in &before["tg"].volumes {
        let now = site.volumes.find("", name).unwrap();
        assert_eq!((now.size, &now.tags, now.read_only), (was.size, &was.tags, was.read_only));
        let node = fs::metadata(&now.path).unwrap();
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        assert!(node.file_type().is_block_device(), "{now:?}");
        let number = (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
        assert_eq!(number, (now.major, now.minor));
        let said = fs::read_to_string(format!("/sys/dev/block/{}:{}/ro", now.major, now.minor));
        assert_eq!(said.unwrap().trim() == "1", now.read_only);
    }
    for name in names {
        let mut content = vec![0; name.len()];
        let device = site.volumes.backend().open("tg", name, false).unwrap();
        device.read_at(&mut content, 8 * MIB).unwrap();
        assert_eq!(content, name.as_bytes());
    }
    for name in site.names("") {
        site.volumes.remove("", &name).await.unwrap();
    }
}

/// The spare of a thin class is kept back from what its pool may promise.
#[tokio::test(flavor = "multi_thread")]
async fn the_spare_of_a_pool_is_kept_back() {
    let Some(site) = site().await else { return };
    let mut config = site.config.clone();
    config.device_classes[1].spare_gb = Some(2);
    site.volumes.configure(&config).await.unwrap();
    assert_eq!(site.volumes.free("thin").unwrap(), 8 * GIB);
    config.device_classes[1].spare_gb = None;
    site.volumes.configure(&config).await.unwrap();
    assert_eq!(site.volumes.free("thin").unwrap(), 0, "ten if nothing is said");
    site.create("thin", "one", GIB).await.unwrap();
    site.volumes.remove("thin", "one").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sudden_end_leaves_is_put_right() {
    let Some(site) = site().await else { return };
    site.create("", "kept", 16 * MIB).await.unwrap();
    let group = group_of(&site);
    // Killed between image and record, between the removal of the record and of the
    // image, in the middle of writing a record, and in the middle of growing.
    fs::write(group.join("half.img.new"), [0; 4096]).unwrap();
    conformance::run("losetup", &["-f", group.join("half.img.new").to_str().unwrap()]);
    fs::write(group.join("other.volume.new"), "{\"na").unwrap();
    let kept = fs::File::options().write(true).open(group.join("kept.img")).unwrap();
    kept.set_len(32 * MIB).unwrap();
    // And one that was detached, as after a reboot.
    let device = site.volumes.find("", "kept").unwrap().path;
    conformance::run("losetup", &["-d", device.to_str().unwrap()]);
    // And one between record and name of the image, when it was made or removed.
    site.create("", "nearly", 16 * MIB).await.unwrap();
    fs::rename(group.join("nearly.img"), group.join("nearly.img.new")).unwrap();

    let site = site.restart().await;
    assert_eq!(site.names(""), ["kept", "nearly"]);
    assert_eq!(fs::metadata(group.join("nearly.img")).unwrap().len(), 16 * MIB);
    site.volumes.remove("", "nearly").await.unwrap();
    let mut files: Vec<String> = fs::read_dir(&group)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["kept.img", "kept.volume"]);
    assert_eq!(fs::metadata(group.join("kept.img")).unwrap().len(), 16 * MIB);
    let ours: Vec<PathBuf> =
        attached().into_iter().map(|(_, image)| image).filter(|i| i.starts_with(&group)).collect();
    assert_eq!(ours, [group.join("kept.img")]);
    assert_eq!(site.volumes.find("", "kept").unwrap().major, 7);
    site.volumes.remove("", "kept").await.unwrap();
}

/// It may be all that is left of a volume: nothing removes it, or makes another in its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_lost_its_record_is_left_alone() {
    let Some(site) = site().await else { return };
    site.create("", "lost", 16 * MIB).await.unwrap();
    let group = group_of(&site);
    let content = b"all that is left";
    std::os::unix::fs::FileExt::write_all_at(
        &fs::File::options().write(true).open(group.join("lost.img")).unwrap(),
        content,
        0,
    )
    .unwrap();
    fs::remove_file(group.join("lost.volume")).unwrap();
    let site = site.restart().await;
    assert_eq!(site.names(""), Vec::<String>::new());
    let refused = site.create("", "lost", 16 * MIB).await.unwrap_err().to_string();
    assert!(refused.contains("lost.img is there without a record"), "{refused}");
    assert_eq!(site.volumes.backend().strays(), [("tg".to_owned(), "lost".to_owned())]);
    assert!(fs::read(group.join("lost.img")).unwrap().starts_with(content));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_has_one_owner() {
    let Some(site) = site().await else { return };
    let error = LoopFiles::open(&site.config).err().unwrap();
    let response = tonic::Status::from(error).message().to_owned();
    assert!(response.ends_with("another process has these volumes"), "{response}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thick_volumes_have_their_space_and_thin_ones_do_not() {
    use std::os::unix::fs::MetadataExt;
    let Some(site) = site().await else { return };
    let mut config = site.config.clone();
    config.loop_files.groups[0].preallocate = Some(true);
    site.volumes.configure(&config).await.unwrap();
    site.create("", "full", 16 * MIB).await.unwrap();
    site.create("thin", "empty", GIB).await.unwrap();
    let blocks = |name: &str| fs::metadata(group_of(&site).join(name)).unwrap().blocks() * 512;
    assert!(blocks("full.img") >= 16 * MIB);
    site.volumes.resize("", "full", 32 * MIB).await.unwrap();
    assert!(blocks("full.img") >= 32 * MIB);
    assert!(blocks("empty.img") < MIB);
    site.volumes.remove("", "full").await.unwrap();
    site.volumes.remove("thin", "empty").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_are_taken_over_while_running() {
    let Some(site) = site().await else { return };
    let mut config = site.config.clone();
    config.device_classes[0].spare_gb = Some(1);
    config.loop_files.groups[0].size_gb = 5;
    let mut notices = site.watch();
    site.volumes.configure(&config).await.unwrap();
    // Five, less the pool and the spare.
    let response = notices.wait(|capacity| capacity.default_free == 3 * GIB).await;
    let names: Vec<&str> = response.classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(names, ["thick", "thin"], "a class without its group is left out");
    assert_eq!(site.volumes.free("").unwrap(), 3 * GIB);
    // The spare is for those who ask for it.
    let made = NewVolume { name: "large".into(), size: 4 * GIB, ..NewVolume::default() };
    site.volumes.create("", made).await.unwrap();
    assert_eq!(site.volumes.free("").unwrap(), 0);
    site.volumes.remove("", "large").await.unwrap();
}

/// Not even what an earlier version made, or an administrator by hand.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_reads_volumes() {
    use std::os::unix::fs::PermissionsExt;
    let Some(site) = site().await else { return };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    site.create("", "one", 16 * MIB).await.unwrap();
    let (group, directory) = (group_of(&site), site.config.loop_files.directory.clone());
    let files = [group.join("one.img"), group.join("one.volume"), directory.join("lock")];
    assert_eq!([mode(&directory), mode(&group)], [0o700; 2]);
    assert_eq!(files.each_ref().map(|file| mode(file)), [0o600; 3]);

    set(&directory, 0o755);
    set(&group, 0o755);
    files.iter().for_each(|file| set(file, 0o644));
    let site = site.restart().await;
    assert_eq!([mode(&directory), mode(&group)], [0o700; 2]);
    assert_eq!([mode(&files[0]), mode(&files[1])], [0o600; 2]);

    // A directory that holds what is not ours stays as it is.
    fs::write(directory.join("theirs"), "").unwrap();
    set(&directory, 0o755);
    set(&group, 0o755);
    let site = site.restart().await;
    assert_eq!([mode(&directory), mode(&group)], [0o755, 0o700]);
    site.volumes.remove("", "one").await.unwrap();
}

/// Whatever is discarded on it, a thick volume can be written to its last byte
/// on a disk that others have filled.
async fn is_reserved_on(kind: &str) {
    let Some(disk) = Disk::make(kind, 2 * GIB) else { return };
    let folder = Folder(tempfile::tempdir_in(disk.mount.path()).unwrap());
    let mut config = config(folder.0.path());
    config.loop_files.groups[0].preallocate = Some(true);
    let site = Site::open(config, Box::new(Files(folder))).await;
    let made = site.create("", "data", 256 * MIB).await.unwrap();
    let image = group_of(&site).join("data.img");
    let held = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&image).unwrap().blocks() * 512
    };
    let device = made.path.to_str().unwrap();
    conformance::run("mkfs.ext4", &["-q", "-F", device]);
    let _ = std::process::Command::new("blkdiscard").arg(device).status();
    let opened = site.volumes.backend().open("tg", "data", true).unwrap();
    opened.zero(MIB, 64 * MIB).unwrap();
    opened.sync().unwrap();
    assert!(held() >= 256 * MIB, "{} of it are left", held());
    // A way that no setting forbids: it is reserved again.
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fs::File::options().write(true).open(&image).unwrap(), punch, 0, MIB)
        .unwrap();
    site.volumes.backend().uphold();
    assert!(held() >= 256 * MIB, "{} of it are left", held());

    let free = site.volumes.free("").unwrap();
    let mut ballast = fs::File::create(disk.mount.path().join("ballast")).unwrap();
    let block = vec![7; MIB as usize];
    while std::io::Write::write_all(&mut ballast, &block).is_ok() {}
    let mut notices = site.watch();
    notices.wait(|capacity| capacity.default_free < free && capacity.default_free == 0).await;
    for at in 0..256 {
        opened.write_at(&block, at * MIB).unwrap();
    }
    opened.sync().unwrap();
    drop((opened, ballast));
    fs::remove_file(disk.mount.path().join("ballast")).unwrap();
    let loop_device = fs::canonicalize(device).unwrap();
    site.volumes.remove("", "data").await.unwrap();
    assert!(!refuses_discards_unused(&loop_device), "{}", loop_device.display());
    drop(site);
}

/// Returns whether a loop device that nobody has would refuse the discards of whoever
/// has it next.
fn refuses_discards_unused(device: &Path) -> bool {
    let home = Path::new("/sys/block").join(device.file_name().unwrap());
    let limit = |name: &str| fs::read_to_string(home.join("queue").join(name)).unwrap_or_default();
    let unused = !home.join("loop/backing_file").exists();
    unused && limit("discard_max_bytes") == "0\n" && limit("discard_max_hw_bytes") != "0\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thick_volume_is_reserved_on_ext4() {
    is_reserved_on("ext4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thick_volume_is_reserved_on_xfs() {
    is_reserved_on("xfs").await;
}

/// Blocks that a thick volume shares with a snapshot that stays are written to a new place:
/// as much of the disk is not free, and whoever takes the rest leaves enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_thick_volume_with_a_snapshot_can_be_written_to_its_last_byte() {
    let Some(disk) = Disk::make("xfs", 2 * GIB) else { return };
    let folder = Folder(tempfile::tempdir_in(disk.mount.path()).unwrap());
    let mut config = config(folder.0.path());
    config.loop_files.groups[0].preallocate = Some(true);
    config.loop_files.groups[0].thin_pools.clear();
    config.device_classes.retain(|class| class.name == "thick");
    let site = Site::open(config, Box::new(Files(folder))).await;
    let size = 256 * MIB;
    site.create("", "data", size).await.unwrap();
    let opened = site.volumes.backend().open("tg", "data", true).unwrap();
    let fill = |byte: u8| {
        let block = vec![byte; MIB as usize];
        (0..size / MIB).try_for_each(|at| opened.write_at(&block, at * MIB))?;
        opened.sync()
    };
    fill(1).unwrap();
    site.volumes.configure(&site.config).await.unwrap();
    let before = site.volumes.free("").unwrap();
    let kept = NewSnapshot {
        source: "data".into(),
        name: "kept".into(),
        read_only: true,
        ..NewSnapshot::default()
    };
    site.volumes.snapshot("", kept).await.unwrap();
    let free = site.volumes.free("").unwrap();
    assert!(free <= before - size, "{free} of {before}");
    // A little for the file system itself.
    site.create("", "filler", free - 16 * MIB).await.unwrap();
    fill(2).unwrap();
    drop(opened);
    for name in ["filler", "kept", "data"] {
        site.volumes.remove("", name).await.unwrap();
    }
    drop((site, disk));
}

/// Promises of a pool are told, and what a job reads is no promise.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_tells_what_it_promised() {
    let Some(site) = site().await else { return };
    site.create("thin", "one", 3 * GIB).await.unwrap();
    let pool = site.volumes.groups()["tg"].pools["pool"];
    assert_eq!((pool.size, pool.promised), (GIB, 3 * GIB));
    let snapshot = NewSnapshot {
        source: "one".into(),
        name: "read".into(),
        read_only: true,
        tags: vec![selvage_lvmd::PENDING_TAG.into()],
        ..NewSnapshot::default()
    };
    site.volumes.snapshot("thin", snapshot).await.unwrap();
    assert_eq!(site.volumes.groups()["tg"].pools["pool"].promised, 3 * GIB);
    let response = site.volumes.watch().borrow().clone();
    let thin = response.classes.iter().find(|class| class.name == "thin").unwrap();
    assert_eq!((thin.size, thin.pool.map(|pool| pool.promised)), (GIB, Some(3 * GIB)));
    for name in ["read", "one"] {
        site.volumes.remove("thin", name).await.unwrap();
    }
}
