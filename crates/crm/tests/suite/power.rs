//! Power cuts: the disk stops taking writes at some moment after READY, what
//! only memory had is lost, and all processes are gone. Afterwards the instance
//! serves again, as it was last told to.
//!
//! The cut is the file system's own (`shutdown`, without flushing its journal),
//! as tests of file systems make it. `SELVAGE_TEST_CUTS=100` makes as many.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use selvage_api::edgeproto::TrackedState;
use selvage_runtime::cgroup::group;

use crate::support::{
    ANSWER, Life, Stuck, TestCloudlet, TestController, can_run, fetch, has_program, wait_for,
};

const RANGE: u8 = 195;
/// Cuts of an ordinary run.
const CUTS: usize = 4;
/// Longest time from an order to the cut.
const MOMENT: u64 = 1500;

/// A disk that can lose its power.
struct Disk {
    folder: tempfile::TempDir,
    kind: &'static str,
    options: &'static str,
}

impl Disk {
    fn new(kind: &'static str, options: &'static str) -> Self {
        let disk = Self { folder: tempfile::tempdir().unwrap(), kind, options };
        let image = disk.image();
        fs::File::create(&image).unwrap().set_len(2 << 30).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        fs::create_dir(disk.place()).unwrap();
        disk.plug();
        disk
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn plug(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind, "-o", self.options]).arg(self.image()).arg(self.place());
        run(&mut mount);
    }

    /// Waits until everything is on it.
    fn settle(&self) {
        rustix::fs::syncfs(fs::File::open(self.place()).unwrap()).unwrap();
    }

    /// From here on it takes nothing more, and forgets what it has not got.
    fn cut(&self) {
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(self.place()));
    }

    /// Takes it out, with all that is mounted on it.
    async fn unplug(&self) {
        for mount in mounts_below(&self.place()) {
            let _ = Command::new("umount").arg("-l").arg(mount).output();
        }
        wait_for("the disk to be let go", || async {
            let done = Command::new("umount").arg(self.place()).output().unwrap();
            done.status.success().then_some(())
        })
        .await;
        // Whoever has it still would share what it was before.
        wait_for("the device of the disk to go", || async {
            let devices = Command::new("losetup").arg("-j").arg(self.image()).output().unwrap();
            devices.stdout.is_empty().then_some(())
        })
        .await;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mount in mounts_below(&self.place()) {
            let _ = Command::new("umount").arg("-l").arg(mount).output();
        }
        let _ = Command::new("umount").arg("-l").arg(self.place()).output();
    }
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Mount points below a folder, the innermost first.
fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let targets = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let below = targets.filter(|target| target.starts_with(folder) && target != folder);
    let mut below: Vec<PathBuf> = below.collect();
    below.reverse();
    below
}

/// Numbers that look random and are the same in every run.
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_millis(self.0 % MOMENT)
    }
}

/// Ends all processes of a cloudlet, as with the power.
fn end_processes(place: &TestCloudlet) {
    let site = selvage_crm::platform::network::prefix(&place.cloudlet()).unwrap();
    for cluster in group::inside("/selvage-clusters").unwrap() {
        if cluster.starts_with(&site) {
            group::kill(&format!("/selvage-clusters/{cluster}")).unwrap();
        }
    }
}

/// Removes what a restarted machine lacks: the runtime's own notes, which are
/// in memory, and proof that disks of containers were mounted since.
fn forget_boot(directory: &Path) {
    match fs::remove_dir_all(directory.join("run")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
    let containers = directory.join("containers/containers/selvage");
    for container in fs::read_dir(containers).into_iter().flatten().flatten() {
        let _ = fs::remove_file(container.path().join("disk.boot"));
    }
}

/// Cloudlets of tests that run side by side have names of their own: whoever ends
/// all processes of one would end those of its namesakes.
async fn survives(name: &'static str, kind: &'static str, options: &'static str, range: u8) {
    let cuts = std::env::var("SELVAGE_TEST_CUTS").ok().and_then(|cuts| cuts.parse().ok());
    let disk = Disk::new(kind, options);
    let place = TestCloudlet::on(&disk.place(), name, range);
    let (place, mut moments) = (Arc::new(place), Moments(0x5e1a_6e00 + u64::from(range)));
    disk.settle();
    let controller = TestController::start().await;
    controller.believe(&place);
    let life = Life::start(&place, controller.address, &Stuck::nowhere()).await;
    controller.make(&place).await;
    let mut life = Some(life);
    for number in 0..cuts.unwrap_or(CUTS) {
        // Right after READY, and in the middle of a later change.
        if number > 0 {
            controller.instances.put(place.instance(TrackedState::UpdateRequested)).unwrap();
            tokio::time::sleep(moments.next()).await;
        }
        disk.cut();
        life.take().unwrap().cut().await;
        end_processes(&place);
        disk.unplug().await;
        disk.plug();
        forget_boot(place.directory.path());
        life = Some(Life::start(&place, controller.address, &Stuck::nowhere()).await);
        let answer =
            wait_for(&format!("an answer after cut {number}"), || fetch(place.public())).await;
        assert!(answer.contains(ANSWER), "after cut {number}: {answer}");
        controller.is_ready(&place).await;
    }
    life.take().unwrap().cut().await;
    wait_for("the end of what was reported", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    let running = place.start(controller.address).await;
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

fn has_disks() -> bool {
    can_run() && ["xfs_io", "mkfs.xfs", "mkfs.ext4"].into_iter().all(has_program)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_survives_power_cuts_on_ext4() {
    if has_disks() {
        survives("power-ext4", "ext4", "loop,noauto_da_alloc,commit=300", RANGE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_survives_power_cuts_on_xfs() {
    if has_disks() {
        survives("power-xfs", "xfs", "loop", RANGE + 1).await;
    }
}
