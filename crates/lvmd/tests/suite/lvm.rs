//! The suite on LVM. The tests proper are run by `under_uml`, as root under a
//! kernel with a device mapper, one after the other.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use selvage_lvmd::{
    NewSnapshot, NewVolume,
    backend::lvm::Lvm,
    config::{Config, OptionClass},
};

use super::{
    conformance, jobs,
    points_in_time::{self, Trial},
    reverts,
    served::Served,
    site::{GIB, MIB, Outside, Site, skip, status},
};

const DISKS: [&str; 2] = ["/dev/ubda", "/dev/ubdb"];

/// Has the machine to itself: a writer that never rests leaves the others no time.
const ALONE: &str = "lvm::backups_are_points_in_time";

#[test]
fn under_uml() {
    run_under_uml(&["--skip", ALONE]);
}

#[test]
fn points_in_time_under_uml() {
    run_under_uml(&["--exact", ALONE]);
}

/// Runs tests of this program that are ignored elsewhere.
fn run_under_uml(which: &[&str]) {
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/uml");
    for (part, path) in [
        ("user-mode-linux", "/usr/bin/linux.uml"),
        ("lvm2", "/usr/sbin/lvm"),
        ("thin-provisioning-tools", "/usr/sbin/thin_delta"),
        ("kmod", "/usr/sbin/modprobe"),
    ] {
        if !Path::new(path).exists() {
            return skip(part, "not installed");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = |(number, size): (usize, u64)| {
        let path = folder.path().join(format!("disk{number}"));
        std::fs::File::create(&path).unwrap().set_len(size * GIB).unwrap();
        path
    };
    let disks: Vec<PathBuf> = [3, 3, 1].into_iter().enumerate().map(disk).collect();
    std::fs::copy(runner.join("lvm.conf"), folder.path().join("lvm.conf")).unwrap();
    let mut command = Command::new(runner.join("run"));
    command.args(["-t", "900"]);
    for disk in &disks {
        command.arg("-d").arg(disk);
    }
    let own = std::env::current_exe().unwrap();
    command.arg("--").arg(own).args(["--ignored", "--test-threads=1", "--nocapture"]).args(which);
    command.env("LVM_SYSTEM_DIR", folder.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{trouble}", output.status);
    assert!(said.contains("test result: ok") && !said.contains(" 0 passed"), "{said}");
}

pub(crate) fn lvm(arguments: &[&str]) -> String {
    let output = Command::new("lvm").args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A volume group that goes with the test.
pub(crate) struct Real;

impl Real {
    pub(crate) fn make() -> Self {
        lvm(&[&["vgcreate", "-q", "-y", "tg"][..], &DISKS].concat());
        lvm(&["lvcreate", "-q", "-y", "-T", "tg/pool", "-L", "1g"]);
        Self
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let removed = Command::new("lvm").args(["vgremove", "-ff", "-y", "tg"]).output().unwrap();
        assert!(removed.status.success() || std::thread::panicking(), "{removed:?}");
    }
}

impl Outside for Real {
    fn create(&self, name: &str, size: u64) {
        lvm(&["lvcreate", "-q", "-y", "-n", name, "-L", &format!("{size}b"), "tg"]);
    }

    fn thick_snapshots_depend(&self) -> bool {
        true
    }

    fn knows_changes(&self) -> bool {
        true
    }
}

const CONFIG: &str = "
device-classes:
  - {name: thick, volume-group: tg, default: true, spare-gb: 0}
  - name: thin
    volume-group: tg
    spare-gb: 0
    type: thin
    thin-pool: {name: pool, overprovision-ratio: 10}
  - {name: gone, volume-group: novg}
lvcreate-option-classes:
  - {name: striped, options: ['-i', '2', '-I', '64k']}
";

fn config() -> Config {
    Config::parse(CONFIG).unwrap()
}

/// The same, with backups below a folder.
pub(crate) fn backup_config(folder: &Path) -> Config {
    let text = format!(
        "{CONFIG}\nbackup: {{workdir: {0}/work, directory: {0}/backups, change-room: 2}}\n",
        folder.display()
    );
    Config::parse(&text).unwrap()
}

async fn site() -> Site {
    Site::open(config(), Box::new(Real::make())).await
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn a_life() {
    conformance::a_life(&site().await).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn bad_input() {
    conformance::bad_input(&site().await).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn thin() {
    conformance::thin(&site().await).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn thick_snapshots() {
    conformance::snapshots(&site().await, "thick").await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn thin_snapshots() {
    conformance::snapshots(&site().await, "thin").await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn snapshots_of_snapshots() {
    conformance::snapshots_of_snapshots(&site().await).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn in_use() {
    conformance::in_use(&site().await).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn outside_changes() {
    conformance::outside_changes(&site().await).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn many_at_once() {
    conformance::many_at_once(&site().await, 4).await;
}

#[tokio::test]
#[ignore = "run by under_uml"]
async fn restarts() {
    drop(conformance::restarts(site().await).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn volumes_of_jobs_are_left_alone() {
    let (real, folder) = (Real::make(), tempfile::tempdir().unwrap());
    let config = backup_config(folder.path());
    let served = Served::start(config, Box::new((real, folder))).await;
    jobs::are_left_alone(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn volumes_are_reverted() {
    let (real, folder) = (Real::make(), tempfile::tempdir().unwrap());
    let config = backup_config(folder.path());
    let served = Served::start(config, Box::new((real, folder))).await;
    reverts::a_restore_over_a_volume_can_be_undone(&served).await;
    reverts::a_volume_is_reverted_to_its_snapshot_alone(&served).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn backups_are_points_in_time() {
    let (real, folder) = (Real::make(), tempfile::tempdir().unwrap());
    let config = backup_config(folder.path());
    let served = Served::start(config, Box::new((real, folder))).await;
    for class in ["thick", "thin"] {
        points_in_time::are_what_backups_hold(&served, class, Trial::of_snapshots()).await;
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn a_restore_that_the_pool_has_no_room_for_makes_no_volume() {
    let (real, folder) = (Real::make(), tempfile::tempdir().unwrap());
    let config = backup_config(folder.path());
    let served = Served::start(config, Box::new((real, folder))).await;
    jobs::restores_that_fill_the_pool_are_refused(&served, 720 * MIB).await;
    served.stop().await;
}

/// Reading without LVM tells what LVM says, for every kind of volume.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn what_is_read_is_what_lvm_says() {
    let site = site().await;
    site.create("", "plain", 8 * MIB).await.unwrap();
    let striped = NewVolume {
        name: "striped".into(),
        size: 12 * MIB,
        tags: vec!["b".into(), "a/c".into()],
        option_class: "striped".into(),
    };
    let made = site.volumes.create("", striped).await.unwrap();
    assert_eq!(made.size, 16 * MIB, "whole stripes");
    site.create("thin", "thin", GIB).await.unwrap();
    let new = |source: &str, name: &str| NewSnapshot {
        source: source.into(),
        name: name.into(),
        ..NewSnapshot::default()
    };
    site.volumes.snapshot("", new("plain", "cow")).await.unwrap();
    site.volumes.snapshot("thin", new("thin", "snap")).await.unwrap();
    let mut notices = site.watch();
    lvm(&["lvchange", "-an", "tg/striped"]);
    notices.next().await;
    let fields =
        "lv_name,lv_size,origin_size,lv_kernel_major,lv_kernel_minor,lv_tags,pool_lv,origin";
    let options = ["--noheadings", "--separator", "|", "--units", "b", "--nosuffix", "-o"];
    let said = lvm(&[&["lvs"][..], &options, &[fields, "tg"]].concat());
    let mut said: Vec<String> = said
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.starts_with("pool|"))
        .collect();
    said.sort();
    let groups = site.volumes.groups();
    let number = |volume: &selvage_lvmd::Volume| match volume.major {
        0 => ("-1".to_owned(), "-1".to_owned()),
        _ => (volume.major.to_string(), volume.minor.to_string()),
    };
    let read = groups["tg"].volumes.values().map(|volume| {
        let (major, minor) = number(volume);
        let own = volume.change_room.unwrap_or(volume.size);
        let depends =
            volume.change_room.is_some() || !groups["tg"].dependants(&volume.name).is_empty();
        let origin_size = if depends { volume.size.to_string() } else { String::new() };
        let (tags, pool) = (volume.tags.join(","), volume.pool.clone().unwrap_or_default());
        let origin = volume.origin.clone().unwrap_or_default();
        format!("{}|{own}|{origin_size}|{major}|{minor}|{tags}|{pool}|{origin}", volume.name)
    });
    let mut read: Vec<String> = read.collect();
    read.sort();
    assert_eq!(read, said);
    let said =
        lvm(&["vgs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_size,vg_free", "tg"]);
    let group = &groups["tg"];
    let numbers: Vec<u64> = said.split_whitespace().map(|text| text.parse().unwrap()).collect();
    assert_eq!(numbers, [group.size, group.free]);
}

/// Returns what LVM says of a group: free bytes, and volumes with their sizes.
fn said_of_tg() -> (u64, Vec<(String, u64)>) {
    let bytes = ["--noheadings", "--units", "b", "--nosuffix"];
    let free = lvm(&[&["vgs"][..], &bytes, &["-o", "vg_free", "tg"]].concat());
    let rows = lvm(&[&["lvs"][..], &bytes, &["-o", "lv_name,lv_size", "tg"]].concat());
    let rows = rows.lines().filter_map(|line| {
        let (name, size) = line.trim().split_once(' ')?;
        Some((name.to_owned(), size.trim().parse().unwrap()))
    });
    (free.trim().parse().unwrap(), rows.filter(|(name, _)| name != "pool").collect())
}

/// Mirrors, stripes of a class, and a volume with a cache before it, which is
/// no thin one though it has a pool.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn kinds_of_volumes_that_options_make() {
    for stripe_size in ["4k", "4M"] {
        let mut config = config();
        config.device_classes[0].stripe = Some(2);
        config.device_classes[0].stripe_size = stripe_size.into();
        let mirrored = ["--type", "raid1", "-m", "1", "--nosync"].map(ToOwned::to_owned);
        config
            .lvcreate_option_classes
            .push(OptionClass { name: "mirrored".into(), options: mirrored.to_vec() });
        let site = Site::open(config, Box::new(Real::make())).await;
        let striped = site.create("", "striped", 4096).await.unwrap();
        assert_eq!(striped.size, 8 * MIB, "rounded up to an extent on each");
        let stripes = lvm(&["lvs", "--noheadings", "-o", "stripes,stripe_size", "tg/striped"]);
        let expected = format!("2 {}.00{}", &stripe_size[..1], stripe_size[1..].to_lowercase());
        assert_eq!(stripes.split_whitespace().collect::<Vec<_>>().join(" "), expected);
        let mirror = NewVolume {
            name: "mirror".into(),
            size: 8 * MIB,
            option_class: "mirrored".into(),
            ..NewVolume::default()
        };
        site.volumes.create("", mirror).await.unwrap();
        let plain = NewVolume {
            name: "slow".into(),
            size: 16 * MIB,
            option_class: "striped".into(),
            ..NewVolume::default()
        };
        site.volumes.create("", plain).await.unwrap();
        let mut notices = site.watch();
        lvm(&["lvcreate", "-q", "-y", "-an", "-n", "fast", "-L", "8m", "tg"]);
        let convert = ["--type", "writecache", "--cachevol", "fast", "tg/slow"];
        lvm(&[&["lvconvert", "-q", "-y"][..], &convert].concat());
        let (free, said) = said_of_tg();
        notices.wait(|capacity| capacity.default_free == free).await;
        let read = site.volumes.list("").unwrap();
        assert!(read.iter().all(|volume| volume.pool.is_none()), "{read:?}");
        let read: Vec<_> = read.into_iter().map(|volume| (volume.name, volume.size)).collect();
        assert_eq!(read, said);
        assert!(site.volumes.list("thin").unwrap().is_empty());
    }
}

/// However many pieces it is in.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn a_volume_of_several_pieces_is_listed_once() {
    let mut config = config();
    config.device_classes[0].spare_gb = Some(1);
    let site = Site::open(config, Box::new(Real::make())).await;
    for name in ["test1", "test2"] {
        site.create("", name, 12 * MIB).await.unwrap();
    }
    let mut notices = site.watch();
    lvm(&["lvresize", "-q", "-L", "+12m", "tg/test1"]);
    notices.next().await;
    let (free, said) = said_of_tg();
    let read = site.volumes.list("").unwrap();
    let read: Vec<_> = read.into_iter().map(|volume| (volume.name, volume.size)).collect();
    assert_eq!(read, [("test1".to_owned(), 24 * MIB), ("test2".to_owned(), 12 * MIB)]);
    assert_eq!(read, said);
    assert_eq!(site.volumes.free("").unwrap(), free - GIB, "less the spare");
}

/// Reading runs nothing, and a change runs one program.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn reading_runs_no_program() {
    let outside = Box::new(Real::make());
    let backend = Arc::new(Lvm::open(&config()).unwrap());
    let site = Site::with(backend.clone(), config(), outside).await;
    let before = backend.runs();
    site.create("", "one", 8 * MIB).await.unwrap();
    assert_eq!(backend.runs(), before + 1, "one for lvcreate");
    for _ in 0..10 {
        site.names("");
        site.volumes.free("").unwrap();
    }
    let mut notices = site.watch();
    site.outside.create("two", 8 * MIB);
    let free = site.volumes.free("").unwrap();
    notices.wait(|capacity| capacity.default_free < free).await;
    assert_eq!(site.names(""), ["one", "two"]);
    assert_eq!(backend.runs(), before + 1);
}

/// Neither a change of a group nor anybody else tells that a pool fills.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn how_full_a_pool_is_is_known() {
    let site = site().await;
    site.create("thin", "data", 256 * MIB).await.unwrap();
    let mut notices = site.watch();
    let device = site.volumes.backend().open("tg", "data", true).unwrap();
    (0..128).for_each(|at| device.write_at(&[7; MIB as usize], at * MIB).unwrap());
    device.sync().unwrap();
    drop(device);
    let is_seen = |capacity: &Arc<selvage_lvmd::Capacity>| {
        let thin = capacity.classes.iter().find(|class| class.name == "thin").unwrap();
        let pool = thin.pool.unwrap();
        let is_half = pool.used.is_some_and(|used| (128 * MIB..256 * MIB).contains(&used));
        is_half && pool.metadata_used.is_some_and(|used| used > 0)
    };
    notices.wait(is_seen).await;
    site.volumes.remove("thin", "data").await.unwrap();
}

/// A group that is not there yet, and one that gets another disk.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn groups_may_come_and_grow() {
    lvm(&["vgcreate", "-q", "-y", "tg", DISKS[0]]);
    lvm(&["lvcreate", "-q", "-y", "-T", "tg/pool", "-L", "1g"]);
    let site = Site::open(config(), Box::new(Real)).await;
    let mut notices = site.watch();
    let free = site.volumes.free("").unwrap();
    lvm(&["vgextend", "-q", "tg", DISKS[1]]);
    let capacity_seen = notices.wait(|capacity| capacity.default_free > free + 2 * GIB).await;
    assert!(!capacity_seen.classes.iter().any(|class| class.name == "gone"));
    lvm(&["vgreduce", "-q", "tg", DISKS[1]]);
    notices.wait(|capacity| capacity.default_free == free).await;
    lvm(&["vgcreate", "-q", "-y", "novg", DISKS[1]]);
    notices.wait(|capacity| capacity.classes.iter().any(|class| class.name == "gone")).await;
    lvm(&["vgremove", "-q", "-y", "novg"]);
    notices.wait(|capacity| !capacity.classes.iter().any(|class| class.name == "gone")).await;
}

/// A thick snapshot whose room is full is lost, and is known to be.
#[tokio::test]
#[ignore = "run by under_uml"]
async fn a_full_snapshot_is_known() {
    let site = site().await;
    site.create("", "origin", 64 * MIB).await.unwrap();
    let snapshot = NewSnapshot {
        source: "origin".into(),
        name: "small".into(),
        change_room: Some(4 * MIB),
        ..NewSnapshot::default()
    };
    site.volumes.snapshot("", snapshot).await.unwrap();
    let backend = site.volumes.backend();
    let device = backend.open("tg", "origin", true).unwrap();
    device.write_at(&vec![1; MIB as usize], 0).unwrap();
    device.sync().unwrap();
    let used = backend.change_room_used("tg", "small").unwrap().unwrap();
    assert!(used > 10.0 && used < 90.0, "{used}");
    backend.extend_change_room("tg", "small", 8 * MIB).unwrap();
    let less = backend.change_room_used("tg", "small").unwrap().unwrap();
    assert!(less < used, "{less} {used}");
    device.write_at(&vec![2; 16 * MIB as usize], 16 * MIB).unwrap();
    device.sync().unwrap();
    drop(device);
    assert_eq!(backend.change_room_used("tg", "small").unwrap(), Some(100.0));
    site.volumes.remove("", "small").await.unwrap();
    site.volumes.remove("", "origin").await.unwrap();
    let (code, _) = status(site.volumes.snapshot("", NewSnapshot::default()).await);
    assert_eq!(code, tonic::Code::InvalidArgument);
}
