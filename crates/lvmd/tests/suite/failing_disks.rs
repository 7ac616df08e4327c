//! Disks that fail and come back, on LVM: a physical volume that stands on a
//! device whose table is exchanged under it.

use std::{path::Path, process::Command};

use selvage_api::{
    proto::{Empty, WatchResponse, vg_service_client::VgServiceClient},
    selvage::volumes::JobState,
};
use selvage_lvmd::{NewSnapshot, NewVolume, config::Config};
use tonic::{Code, Status, Streaming};

use super::{
    served::{Served, noise},
    site::MIB,
};

/// The disk below, which is no other test's.
const DISK: &str = "/dev/ubdc";
const FLAKY: &str = "/dev/mapper/flaky";
const CONTENT: usize = 8 << 20;

fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).env("DM_DISABLE_UDEV", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A group `fg` on a disk that can be told to fail.
struct Flaky {
    folder: tempfile::TempDir,
    sectors: u64,
}

impl Flaky {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let usual = Path::new(&std::env::var("LVM_SYSTEM_DIR").unwrap()).join("lvm.conf");
        let text = std::fs::read_to_string(usual).unwrap();
        let text = text.replace("a|^/dev/ubd.*|", "a|^/dev/mapper/(flaky|other)$|");
        std::fs::write(folder.path().join("lvm.conf"), text).unwrap();
        let sectors = run("blockdev", &["--getsz", DISK]).trim().parse().unwrap();
        let this = Self { folder, sectors };
        this.attach();
        this.lvm(&["vgcreate", "-q", "-y", "fg", FLAKY]);
        this
    }

    fn table(&self, target: &str) -> String {
        format!("0 {} {target}", self.sectors)
    }

    fn attach(&self) {
        run("dmsetup", &["create", "flaky", "--table", &self.table(&format!("linear {DISK} 0"))]);
    }

    fn becomes(&self, target: &str) {
        run("dmsetup", &["suspend", "--nolockfs", "flaky"]);
        run("dmsetup", &["load", "flaky", "--table", &self.table(target)]);
        run("dmsetup", &["resume", "flaky"]);
    }

    /// Every access fails.
    fn fails(&self) {
        self.becomes(&format!("flakey {DISK} 0 0 10000"));
    }

    /// Reading goes on.
    fn fails_to_write(&self) {
        self.becomes(&format!("flakey {DISK} 0 0 10000 1 error_writes"));
    }

    fn is_well(&self) {
        self.becomes(&format!("linear {DISK} 0"));
    }

    fn system(&self) -> String {
        format!("LVM_SYSTEM_DIR={}", self.folder.path().display())
    }

    fn lvm(&self, arguments: &[&str]) -> String {
        run("env", &[&[self.system().as_str(), "lvm"], arguments].concat())
    }

    /// Returns what LVM itself says there is.
    fn said(&self) -> Vec<String> {
        let said = self.lvm(&["lvs", "--noheadings", "-o", "lv_name", "fg"]);
        said.split_whitespace().map(ToOwned::to_owned).collect()
    }

    fn config(&self, prefix: &[&str]) -> Config {
        let prefix = serde_json::to_string(&[&["env", &self.system()], prefix].concat()).unwrap();
        let text = format!(
            "
lvm-command-prefix: {prefix}
device-classes: [{{name: thick, volume-group: fg, default: true, spare-gb: 0}}]
backup: {{workdir: {0}/work, directory: {0}/backups}}
",
            self.folder.path().display()
        );
        Config::parse(&text).unwrap()
    }
}

impl Drop for Flaky {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.lvm(&["vgremove", "-ff", "-y", "fg"]);
        self.lvm(&["pvremove", "-ff", "-y", FLAKY]);
        run("dmsetup", &["remove", "flaky"]);
    }
}

/// Messages to a watcher of the one class.
struct CapacityStream(Streaming<WatchResponse>);

impl CapacityStream {
    async fn of(served: &Served) -> Self {
        let mut groups = VgServiceClient::new(served.channel());
        Self(groups.watch(Empty {}).await.unwrap().into_inner())
    }

    /// Waits until the class is there with so much, or is not there.
    async fn until(&mut self, free: Option<u64>) {
        let waiting = async {
            loop {
                let response = self.0.message().await.unwrap().unwrap();
                if response.items.first().map(|class| class.free_bytes) == free {
                    return;
                }
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(120), waiting).await;
        waited.unwrap_or_else(|_| panic!("watchers are not told of {free:?}"));
    }
}

async fn create(served: &Served, name: &str) -> Status {
    let new = NewVolume { name: name.into(), size: 8 * MIB, ..NewVolume::default() };
    served.volumes().create("", new).await.unwrap_err().into()
}

async fn snapshot(served: &Served, name: &str) -> Status {
    let new = NewSnapshot { source: "kept".into(), name: name.into(), ..NewSnapshot::default() };
    served.volumes().snapshot("", new).await.unwrap_err().into()
}

async fn start(flaky: &Flaky, prefix: &[&str]) -> Served {
    let served = Served::start(flaky.config(prefix), Box::new(())).await;
    served.create("kept", 64 * MIB).await;
    served.write("fg", "kept", 0, CONTENT, 1);
    served
}

fn assert_kept(served: &Served) {
    assert!(served.read("fg", "kept", 0, CONTENT) == noise(CONTENT, 1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn a_disk_that_fails_takes_its_class_along_until_it_is_back() {
    let flaky = Flaky::make();
    let served = start(&flaky, &["lvm"]).await;
    let free = served.volumes().free("").unwrap();
    let mut capacities = CapacityStream::of(&served).await;
    capacities.until(Some(free)).await;

    flaky.fails();
    for refused in [
        create(&served, "one").await,
        served.resize("kept", 1).await.unwrap_err(),
        snapshot(&served, "two").await,
        served.remove("kept").await.unwrap_err(),
        served.names().await.unwrap_err(),
        served.start_backup("three", "kept").await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    }
    let refused = create(&served, "one").await;
    assert_eq!(refused.message(), "volume group not found: fg");
    capacities.until(None).await;

    flaky.is_well();
    capacities.until(Some(free)).await;
    assert_eq!(served.names().await.unwrap(), ["kept"]);
    assert_kept(&served);

    // Gone altogether, as a disk that is pulled.
    flaky.lvm(&["vgchange", "-q", "-an", "fg"]);
    run("dmsetup", &["remove", "flaky"]);
    capacities.until(None).await;
    flaky.attach();
    capacities.until(Some(free)).await;
    flaky.lvm(&["vgchange", "-q", "-ay", "fg"]);
    served.resize("kept", 0).await.unwrap_err();
    assert_kept(&served);
    assert_eq!(flaky.said(), ["kept"], "and nothing that was asked for meanwhile");
    served.remove("kept").await.unwrap();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn a_disk_that_cannot_be_written_leaves_everything_as_it_was() {
    let flaky = Flaky::make();
    let served = start(&flaky, &["lvm"]).await;
    let before = served.volumes().group("fg").unwrap();
    flaky.fails_to_write();
    for refused in [
        create(&served, "one").await,
        Status::from(served.volumes().resize("", "kept", 128 * MIB).await.unwrap_err()),
        snapshot(&served, "two").await,
    ] {
        assert_eq!(refused.code(), Code::Internal, "{refused:?}");
        assert!(refused.message().contains("Failed to write VG fg"), "{refused:?}");
    }
    let job = served.start_backup("three", "kept").await.unwrap();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobFailed, "{ended:?}");
    assert!(ended.error.contains("Failed to write VG fg"), "{ended:?}");
    assert_eq!(served.names().await.unwrap(), ["kept"], "what is there can be listed");
    flaky.is_well();
    assert_eq!(flaky.said(), ["kept"]);
    assert_eq!(served.volumes().group("fg").unwrap().free, before.free);
    assert_kept(&served);
    served.volumes().resize("", "kept", 128 * MIB).await.unwrap();
    served.remove("kept").await.unwrap();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn a_disk_that_fails_under_a_backup_fails_the_backup_alone() {
    let flaky = Flaky::make();
    let served = start(&flaky, &["lvm"]).await;
    let free = served.volumes().free("").unwrap();
    served.limits(2 * MIB, 0).await;
    let job = served.start_backup("one", "kept").await.unwrap();
    served.until(&job, |job| job.phase == "upload" && job.done_bytes > 0).await;
    flaky.fails();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobFailed, "{ended:?}");
    assert!(!ended.error.is_empty());
    assert_eq!(served.stored().await, [], "half a backup is none");

    flaky.is_well();
    served.limits(0, 0).await;
    // Its snapshot could not be removed from a disk that did not answer.
    served.wait("nothing is left", || async { served.all_names() == ["kept"] }).await;
    assert_eq!((served.orphans().await, served.volumes().free("").unwrap()), (0, free));
    assert_kept(&served);
    let job = served.start_backup("two", "kept").await.unwrap();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    served.remove("kept").await.unwrap();
    served.stop().await;
}

/// A second disk for the group.
struct Other;

impl Other {
    const DISK: &str = "/dev/ubdb";
    const PATH: &str = "/dev/mapper/other";

    fn attach() {
        let sectors = run("blockdev", &["--getsz", Self::DISK]);
        let table = format!("0 {} linear {} 0", sectors.trim(), Self::DISK);
        run("dmsetup", &["create", "other", "--table", &table]);
    }

    fn detach() {
        run("dmsetup", &["remove", "other"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn a_group_that_has_lost_a_disk_is_listed_and_takes_nothing_new() {
    let flaky = Flaky::make();
    let served = start(&flaky, &["lvm"]).await;
    Other::attach();
    flaky.lvm(&["vgextend", "-q", "-y", "fg", Other::PATH]);
    let mut capacities = CapacityStream::of(&served).await;
    served.wait("both", || async { served.volumes().free("").unwrap() > 2 << 30 }).await;
    let free = served.volumes().free("").unwrap();

    Other::detach();
    capacities.until(None).await;
    assert_eq!(served.names().await.unwrap(), ["kept"]);
    assert_kept(&served);
    for refused in [
        create(&served, "one").await,
        served.resize("kept", 1).await.unwrap_err(),
        snapshot(&served, "two").await,
    ] {
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    }
    let expected = "volume group fg is not complete: devices that are missing: 1";
    assert_eq!(create(&served, "one").await.message(), expected);

    Other::attach();
    capacities.until(Some(free)).await;
    assert_eq!(flaky.said(), ["kept"]);
    served.remove("kept").await.unwrap();
    flaky.lvm(&["vgreduce", "-q", "fg", Other::PATH]);
    flaky.lvm(&["pvremove", "-ff", "-y", Other::PATH]);
    Other::detach();
    served.stop().await;
}

/// The disk fails when LVM has written the new volume down, and before it has
/// made it usable or has taken it back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn what_a_failure_left_is_removed_and_what_others_made_is_not() {
    let flaky = Flaky::make();
    let flag = flaky.folder.path().join("fails");
    let script = format!(
        "lvm \"$@\"; status=$?; [ \"$1\" = lvcreate ] && [ -e {} ] && exit 5; exit $status",
        flag.display()
    );
    let served = start(&flaky, &["sh", "-c", &script, "lvm"]).await;
    std::fs::write(&flag, "").unwrap();
    assert_eq!(create(&served, "one").await.code(), Code::Internal);
    served.wait("it is removed", || async { flaky.said() == ["kept"] }).await;
    assert_eq!(snapshot(&served, "two").await.code(), Code::Internal);
    // Whoever tries again need not wait for that.
    std::fs::remove_file(&flag).unwrap();
    let two = NewSnapshot { source: "kept".into(), name: "two".into(), ..NewSnapshot::default() };
    served.volumes().snapshot("", two).await.unwrap();
    // Of the same name, but not of the same time.
    std::fs::write(&flag, "").unwrap();
    let (code, _) = (create(&served, "two").await.code(), ());
    assert_eq!(code, Code::AlreadyExists);
    std::fs::remove_file(&flag).unwrap();
    served.remove("two").await.unwrap();
    served.remove("kept").await.unwrap();
    served.stop().await;
}
