//! The driver against a real lvmd on image files, by its sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use selvage_kit::{
    serve::{Limits, Server, Services, Socket, Trust},
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_lvmd::{Lvmd, config::Config};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};

use crate::{
    Driver, Settings, TOPOLOGY, mounts, serve,
    volume::GIB,
    wire::{
        csi::{
            CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest,
            CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, ListSnapshotsRequest,
            NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
            NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
            NodeUnstageVolumeRequest, VolumeCapability, VolumeContentSource,
            controller_client::ControllerClient,
            node_client::NodeClient,
            volume_capability::{
                AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
            },
            volume_content_source::{SnapshotSource, Type as Source},
        },
        registration::{InfoRequest, registration_client::RegistrationClient},
    },
};

const LONG: Duration = Duration::from_secs(60);

/// A machine with lvmd and a driver. Nothing of it stays.
pub(crate) struct Site {
    tasks: Tasks,
    pub(crate) lvmd: Lvmd,
    folder: tempfile::TempDir,
}

impl Site {
    /// None where the host cannot.
    pub(crate) async fn open() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            selvage_testkit::skip("loop devices and mounts", "they need root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let config = Config::parse(&format!(
            "
backend: loop
loop: {{directory: {}, groups: [{{name: tg, size-gb: 8, preallocate: false}}]}}
device-classes: [{{name: thick, volume-group: tg, default: true, spare-gb: 0}}]
",
            folder.path().join("volumes").display()
        ));
        let settings = selvage_lvmd::Settings { config: config.unwrap(), path: None };
        let lvmd = Lvmd::open(settings).await.unwrap();
        let site = Self { tasks: Tasks::new(CancellationToken::new()), lvmd, folder };
        site.serve_lvmd().await;
        site.driver().serve(&site.tasks);
        for socket in [site.endpoint(), serve::registration_socket(&site.kubelet())] {
            while tokio::net::UnixStream::connect(&socket).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Some(site)
    }

    async fn serve_lvmd(&self) {
        let mut services = Services::default();
        self.lvmd.add_to(&mut services);
        let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
        let socket = Socket::unix(&self.folder.path().join("lvmd.sock")).await.unwrap();
        let token = self.tasks.token().clone();
        self.tasks.spawn("lvmd", server.run(socket, Trust::Socket, token));
        self.lvmd.spawn(&self.tasks);
    }

    pub(crate) fn driver(&self) -> Driver {
        Driver::new(Settings {
            node: "m1".into(),
            kubelet: self.kubelet(),
            lvmd: self.folder.path().join("lvmd.sock"),
            tag: "selvage.io/csi=test/m1".into(),
            data: self.folder.path().join("data"),
        })
    }

    fn kubelet(&self) -> PathBuf {
        self.folder.path().join("kubelet")
    }

    fn endpoint(&self) -> PathBuf {
        serve::driver_socket(&self.kubelet())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.kubelet().join(name).display().to_string()
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(selvage_kit::dial::unix(&self.endpoint()))
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(selvage_kit::dial::unix(&self.endpoint()))
    }

    pub(crate) async fn create(&self, name: &str, bytes: u64) -> Result<String, Status> {
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: range(bytes),
            volume_capabilities: vec![mount("ext4")],
            ..CreateVolumeRequest::default()
        };
        let made = self.controller().create_volume(request).await?.into_inner().volume.unwrap();
        assert_eq!(made.accessible_topology[0].segments[TOPOLOGY], "m1");
        Ok(made.volume_id)
    }

    async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.into() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub(crate) async fn stage(&self, id: &str, capability: VolumeCapability) -> Result<(), Status> {
        self.stage_at(id, &self.path("staging"), capability).await
    }

    pub(crate) async fn stage_at(
        &self,
        id: &str,
        path: &str,
        capability: VolumeCapability,
    ) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: path.into(),
            volume_capability: Some(capability),
            ..NodeStageVolumeRequest::default()
        };
        self.node().node_stage_volume(request).await.map(drop)
    }

    async fn publish(
        &self,
        id: &str,
        target: &str,
        readonly: bool,
        capability: VolumeCapability,
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path("staging"),
            target_path: self.path(target),
            volume_capability: Some(capability),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.node().node_publish_volume(request).await.map(drop)
    }

    async fn unpublish(&self, id: &str, target: &str) {
        let target_path = self.path(target);
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path };
        self.node().node_unpublish_volume(request).await.unwrap();
    }

    pub(crate) async fn unstage(&self, id: &str) {
        self.unstage_at(id, &self.path("staging")).await;
    }

    pub(crate) async fn unstage_at(&self, id: &str, path: &str) {
        let staging_target_path = path.to_owned();
        let request = NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
        self.node().node_unstage_volume(request).await.unwrap();
    }

    pub(crate) async fn close(self) {
        let listed = self.lvmd.volumes().list("").unwrap();
        assert!(listed.is_empty(), "{listed:?}");
        let left = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!left.contains(self.folder.path().to_str().unwrap()), "{left}");
        self.tasks.token().cancel();
        let _ = self.tasks.shutdown(LONG).await;
    }
}

fn range(bytes: u64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes: bytes.cast_signed(), limit_bytes: 0 })
}

fn capability(access: AccessType, mode: Mode) -> VolumeCapability {
    let access_mode = Some(AccessMode { mode: mode.into() });
    VolumeCapability { access_type: Some(access), access_mode }
}

pub(crate) fn mount(kind: &str) -> VolumeCapability {
    let mount = MountVolume { fs_type: kind.into(), ..MountVolume::default() };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

fn block() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)
}

async fn usage(site: &Site, id: &str, target: &str) -> Result<i64, Status> {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: site.path(target),
        ..NodeGetVolumeStatsRequest::default()
    };
    Ok(site.node().node_get_volume_stats(request).await?.into_inner().usage[0].total)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_mounted_grown_and_removed() {
    let Some(site) = Site::open().await else { return };
    // To grow a mounted ext4 takes CAP_SYS_RESOURCE, which not every machine gives.
    let id = site.create("pvc-1", GIB).await.unwrap();
    assert_eq!(site.create("pvc-1", GIB).await.unwrap(), id, "the same again");
    assert_eq!(site.create("pvc-1", 3 * GIB).await.unwrap_err().code(), Code::AlreadyExists);
    for _ in 0..2 {
        site.stage(&id, mount("xfs")).await.unwrap();
        site.publish(&id, "pod-1", false, mount("xfs")).await.unwrap();
        site.publish(&id, "pod-2", true, mount("xfs")).await.unwrap();
    }
    fs::write(site.path("pod-1/hello"), "world").unwrap();
    assert_eq!(fs::read_to_string(site.path("pod-2/hello")).unwrap(), "world");
    assert!(fs::write(site.path("pod-2/hello"), "x").is_err(), "it is read-only");
    let before = usage(&site, &id, "pod-1").await.unwrap();

    let refused = site.delete(&id).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let grow = ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: range(2 * GIB),
        volume_capability: None,
    };
    let grown = site.controller().controller_expand_volume(grow).await.unwrap().into_inner();
    assert_eq!(grown.capacity_bytes, 2 * GIB as i64);
    let grow = NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: site.path("pod-1"),
        capacity_range: range(2 * GIB),
        ..NodeExpandVolumeRequest::default()
    };
    site.node().node_expand_volume(grow).await.unwrap();
    assert!(usage(&site, &id, "pod-1").await.unwrap() > before + (GIB / 2) as i64);

    for _ in 0..2 {
        site.unpublish(&id, "pod-2").await;
        site.unpublish(&id, "pod-1").await;
        site.unstage(&id).await;
    }
    // What was written is still there when it is mounted again.
    site.stage(&id, mount("xfs")).await.unwrap();
    assert_eq!(fs::read_to_string(site.path("staging/hello")).unwrap(), "world");
    site.unstage(&id).await;
    site.delete(&id).await.unwrap();
    site.delete(&id).await.unwrap();
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_given_as_it_is() {
    let Some(site) = Site::open().await else { return };
    let id = site.create("pvc-raw", GIB).await.unwrap();
    for _ in 0..2 {
        site.stage(&id, block()).await.unwrap();
        site.publish(&id, "device", false, block()).await.unwrap();
    }
    assert_eq!(usage(&site, &id, "device").await.unwrap(), GIB as i64);
    fs::OpenOptions::new().write(true).open(site.path("device")).unwrap();
    site.unpublish(&id, "device").await;
    site.unstage(&id).await;
    assert!(!Path::new(&site.path("device")).exists());
    site.delete(&id).await.unwrap();
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_a_volume_is_never_formatted() {
    let Some(site) = Site::open().await else { return };
    let id = site.create("pvc-full", GIB).await.unwrap();
    let device = site.lvmd.volumes().find("", "pvc-full").unwrap().path;
    let made = Command::new("mkswap").arg(&device).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let refused = site.stage(&id, mount("ext4")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("swap"), "{refused}");
    assert_eq!(mounts::at(Path::new(&site.path("staging"))).unwrap(), None);
    site.delete(&id).await.unwrap();
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named() {
    let Some(site) = Site::open().await else { return };
    let id = site.create("pvc-bad", GIB).await.unwrap();
    let shared = capability(AccessType::Mount(MountVolume::default()), Mode::MultiNodeMultiWriter);
    let flagged = MountVolume { mount_flags: vec!["bind".into()], ..MountVolume::default() };
    let flags = capability(AccessType::Mount(flagged), Mode::SingleNodeWriter);
    for (capability, field) in
        [(shared, "volume_capability"), (flags, "mount_flags"), (mount("ntfs"), "fs_type")]
    {
        let refused = site.stage(&id, capability).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(field), "{refused}");
    }
    let outside = site.publish(&id, "../outside", false, mount("ext4")).await.unwrap_err();
    assert_eq!(outside.code(), Code::InvalidArgument, "{outside}");
    let early = site.publish(&id, "pod", false, mount("ext4")).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition, "not staged: {early}");
    let none = site.stage("pvc-none", mount("ext4")).await.unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
    let much = site.create("pvc-much", 100 * GIB).await.unwrap_err();
    assert_eq!(much.code(), Code::ResourceExhausted);
    site.delete(&id).await.unwrap();
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_learns_where_the_driver_is() {
    let Some(site) = Site::open().await else { return };
    let socket = serve::registration_socket(&site.kubelet());
    let mut client = RegistrationClient::new(selvage_kit::dial::unix(&socket));
    let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", crate::DRIVER));
    assert_eq!(Path::new(&info.endpoint), site.endpoint());
    let node = site.node().node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(node.node_id, "m1");
    site.close().await;
}

fn restored(snapshot: &str, bytes: u64) -> CreateVolumeRequest {
    let source = Source::Snapshot(SnapshotSource { snapshot_id: snapshot.into() });
    CreateVolumeRequest {
        name: "pvc-restored".into(),
        capacity_range: range(bytes),
        volume_capabilities: vec![mount("ext4")],
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..CreateVolumeRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_stands_on_its_own() {
    let Some(site) = Site::open().await else { return };
    let id = site.create("pvc-1", GIB).await.unwrap();
    let other = site.create("pvc-2", GIB).await.unwrap();
    site.stage(&id, mount("ext4")).await.unwrap();
    fs::write(site.path("staging/hello"), "world").unwrap();
    let mut controller = site.controller();
    let asked = |source: &str| CreateSnapshotRequest {
        source_volume_id: source.into(),
        name: "snap-1".into(),
        ..CreateSnapshotRequest::default()
    };
    let taken = controller.create_snapshot(asked(&id)).await.unwrap().into_inner();
    let snapshot = taken.snapshot.unwrap();
    assert!(snapshot.ready_to_use && snapshot.creation_time.unwrap().seconds > 1_700_000_000);
    assert_eq!((snapshot.size_bytes, &snapshot.source_volume_id), (GIB.cast_signed(), &id));
    let again = controller.create_snapshot(asked(&id)).await.unwrap().into_inner();
    assert_eq!(again.snapshot.unwrap(), snapshot, "the same again");
    let taken = controller.create_snapshot(asked(&other)).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
    let none = controller
        .create_snapshot(CreateSnapshotRequest { name: "snap-2".into(), ..asked("pvc-none") });
    assert_eq!(none.await.unwrap_err().code(), Code::NotFound);
    site.unstage(&id).await;

    // It is no volume.
    let name = &snapshot.snapshot_id;
    assert_eq!(site.stage(name, mount("ext4")).await.unwrap_err().code(), Code::NotFound);
    site.delete(name).await.unwrap();
    let all = controller.list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
    assert_eq!(all.into_inner().entries.len(), 1, "it was not deleted as a volume");

    // Its volume goes before it, and what was on it is in a larger copy.
    site.delete(&id).await.unwrap();
    let small = controller.create_volume(restored(name, GIB / 2)).await.unwrap_err();
    assert_eq!(small.code(), Code::OutOfRange, "{small}");
    let missing = controller.create_volume(restored("snap-none", GIB)).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound, "{missing}");
    for _ in 0..2 {
        let made = controller.create_volume(restored(name, 2 * GIB)).await.unwrap().into_inner();
        assert_eq!(made.volume.unwrap().capacity_bytes, 2 * GIB.cast_signed());
    }
    site.stage("pvc-restored", mount("ext4")).await.unwrap();
    assert_eq!(fs::read_to_string(site.path("staging/hello")).unwrap(), "world");
    let stats = rustix::fs::statvfs(site.path("staging")).unwrap();
    assert!(stats.f_blocks * stats.f_frsize > GIB + GIB / 2, "it has grown");
    site.unstage("pvc-restored").await;

    for _ in 0..2 {
        let request = DeleteSnapshotRequest { snapshot_id: name.clone() };
        controller.delete_snapshot(request).await.unwrap();
    }
    for volume in [&other, "pvc-restored"] {
        // A snapshot's call removes no volume.
        let request = DeleteSnapshotRequest { snapshot_id: volume.into() };
        controller.delete_snapshot(request).await.unwrap();
        assert!(site.lvmd.volumes().find("", volume).is_ok());
        site.delete(volume).await.unwrap();
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_listed_by_pages() {
    let Some(site) = Site::open().await else { return };
    let id = site.create("pvc-1", GIB).await.unwrap();
    let mut controller = site.controller();
    for name in ["snap-3", "snap-1", "snap-2"] {
        let request = CreateSnapshotRequest {
            source_volume_id: id.clone(),
            name: name.into(),
            ..CreateSnapshotRequest::default()
        };
        controller.create_snapshot(request).await.unwrap();
    }
    let mut pages = Vec::new();
    let mut token = String::new();
    loop {
        let request = ListSnapshotsRequest {
            max_entries: 2,
            starting_token: token,
            ..ListSnapshotsRequest::default()
        };
        let page = controller.list_snapshots(request).await.unwrap().into_inner();
        let ids = page.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id);
        pages.push(ids.collect::<Vec<_>>());
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [vec!["snap-1", "snap-2"], vec!["snap-3"]]);
    let one = |snapshot_id: &str, source_volume_id: &str| ListSnapshotsRequest {
        snapshot_id: snapshot_id.into(),
        source_volume_id: source_volume_id.into(),
        ..ListSnapshotsRequest::default()
    };
    for (request, count) in
        [(one("snap-2", ""), 1), (one("snap-9", ""), 0), (one("", &id), 3), (one("", "x"), 0)]
    {
        let listed = controller.list_snapshots(request).await.unwrap().into_inner();
        assert_eq!(listed.entries.len(), count);
    }
    let wrong = ListSnapshotsRequest { starting_token: "?".into(), ..Default::default() };
    assert_eq!(controller.list_snapshots(wrong).await.unwrap_err().code(), Code::Aborted);
    for name in ["snap-1", "snap-2", "snap-3"] {
        let request = DeleteSnapshotRequest { snapshot_id: name.into() };
        controller.delete_snapshot(request).await.unwrap();
    }
    site.delete(&id).await.unwrap();
    site.close().await;
}

/// The public suite for drivers, where somebody has built it:
/// `SELVAGE_TEST_CSI_SANITY=PROGRAM`.
#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_finds_nothing_wrong() {
    let Some(program) = std::env::var_os("SELVAGE_TEST_CSI_SANITY") else {
        selvage_testkit::say_skipped("csi-sanity", "SELVAGE_TEST_CSI_SANITY names no program");
        return;
    };
    let Some(site) = Site::open().await else { return };
    fs::create_dir_all(site.path("sanity")).unwrap();
    let flags = [
        format!("--csi.endpoint={}", site.endpoint().display()),
        format!("--csi.mountdir={}", site.path("sanity/target")),
        format!("--csi.stagingdir={}", site.path("sanity/staging")),
        "--csi.testvolumesize=1073741824".into(),
        "--csi.testvolumeexpandsize=2147483648".into(),
        "--ginkgo.no-color".into(),
    ];
    let run = tokio::process::Command::new(program).args(flags).output().await.unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}");
    eprintln!("{}", text.lines().rev().take(5).collect::<Vec<_>>().join("\n"));
    site.close().await;
}
