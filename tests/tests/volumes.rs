//! Volumes: lvmd's own clients, sudden ends, and lvmd's own configuration.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use selvage_api::proto::{
    CreateLvRequest, Empty, GetFreeBytesRequest, GetLvListRequest, RemoveLvRequest,
    lv_service_client::LvServiceClient, vg_service_client::VgServiceClient,
};
use selvage_tests::{
    Selvage,
    process::{Cli, binary, wait_for},
    real::{on_lvm, python, skip},
};
use tonic::transport::Channel;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Lets go the loop devices of images below a folder.
struct Loops(tempfile::TempDir);

impl Loops {
    fn new() -> Option<Self> {
        if !nix::unistd::Uid::effective().is_root() {
            skip("loop devices", "only root may make them");
            return None;
        }
        Some(Self(tempfile::tempdir().unwrap()))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Images that have a device.
    fn attached(&self) -> Vec<(PathBuf, PathBuf)> {
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let all = devices.filter_map(|entry| {
            let image = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let device = Path::new("/dev").join(entry.file_name());
            Some((PathBuf::from(image.trim_end()), device))
        });
        all.filter(|(image, _)| image.starts_with(self.path())).collect()
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for (_, device) in self.attached() {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

fn socket(selvage: &Selvage) -> String {
    selvage.ready()["sockets"]["lvmd"].as_str().unwrap().to_owned()
}

async fn connect(socket: &str) -> Channel {
    tonic::transport::Endpoint::new(format!("unix:{socket}")).unwrap().connect().await.unwrap()
}

fn topolvm(python: &Path, socket: &str, class: &str) {
    let output = Command::new(python)
        .arg(repository("tests/foreign/topolvm.py"))
        .arg(repository("tests/foreign/lvmd_wire.proto"))
        .args([socket, class])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{trouble}");
    assert_eq!(said.lines().last(), Some("ok"), "{said}\n{trouble}");
}

#[test]
fn topolvms_calls_on_loop_files() {
    let (Some(python), Some(loops)) = (python(), Loops::new()) else { return };
    let selvage = Selvage::up_in(loops.path(), &["--set", "lvmd.size_gb=8"]);
    topolvm(&python, &socket(&selvage), "thick");
    assert_eq!(loops.attached(), []);
}

#[test]
fn topolvms_calls_on_lvm() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    on_lvm(folder.path(), 300, "stock.sh", |script| {
        script.arg(binary()).args([python, repository(".")]).arg(folder.path());
    });
}

/// The status and the text of a page that a socket serves.
fn page(socket: &str, path: &str) -> (String, String) {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), text.to_owned())
}

fn stock_config(folder: &Path, classes: &str) -> PathBuf {
    let path = folder.join("lvmd.yaml");
    let text = format!(
        "
Socket-Name: {0}/lvmd.sock
socket-mode: '0660'
backend: loop
loop:
  directory: {0}/volumes
  groups: [{{name: vg1, size-gb: 4}}]
device-classes:
{classes}",
        folder.display()
    );
    let new = folder.join("lvmd.yaml.new");
    fs::write(&new, text).unwrap();
    fs::rename(new, &path).unwrap();
    path
}

const ONE_CLASS: &str = "  - {name: ssd, volume-group: vg1, default: true, spare-gb: 0}\n";

#[test]
fn in_the_place_of_lvmd() {
    let (Some(python), Some(loops)) = (python(), Loops::new()) else { return };
    let config = stock_config(loops.path(), ONE_CLASS);
    let flags = ["--config", config.to_str().unwrap()];
    let mut selvage = Selvage::start("lvmd", loops.path(), &flags);
    let path = socket(&selvage);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    assert_eq!(page(&path, "/readiness"), ("200".to_owned(), "OK".to_owned()));
    assert_eq!(page(&path, "/healthz").0, "200");
    topolvm(&python, &path, "ssd");
    selvage.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(selvage.wait().success());
    assert!(!Path::new(&path).exists());
}

/// A folder that cannot be read any more is a daemon that is not well, but
/// answers what it knows.
#[tokio::test(flavor = "multi_thread")]
async fn callers_learn_that_volumes_cannot_be_read() {
    let Some(loops) = Loops::new() else { return };
    let config = stock_config(loops.path(), ONE_CLASS);
    let selvage = Selvage::start("lvmd", loops.path(), &["--config", config.to_str().unwrap()]);
    let path = socket(&selvage);
    let damaged = loops.path().join("volumes/vg1/damaged.volume");
    fs::write(&damaged, "{").unwrap();
    let reported = wait_for("the trouble", || {
        let (status, text) = page(&path, "/readiness");
        (status == "503").then_some(text)
    });
    assert!(reported.contains("damaged.volume"), "{reported}");
    assert_eq!(page(&path, "/healthz").0, "200", "it lives");
    let mut groups = VgServiceClient::new(connect(&path).await);
    let listed = groups.get_lv_list(GetLvListRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.volumes.len(), 0);
    fs::remove_file(damaged).unwrap();
    wait_for("the end of it", || (page(&path, "/readiness").0 == "200").then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_taken_over() {
    let Some(loops) = Loops::new() else { return };
    let config = stock_config(loops.path(), ONE_CLASS);
    let flags = ["--config", config.to_str().unwrap()];
    let selvage = Selvage::start("lvmd", loops.path(), &flags);
    let mut groups = VgServiceClient::new(connect(&socket(&selvage)).await);
    let mut watching = groups.watch(Empty {}).await.unwrap().into_inner();
    let first = watching.message().await.unwrap().unwrap();
    assert_eq!((first.free_bytes, first.items.len()), (4 << 30, 1));

    stock_config(loops.path(), "  - {name: '-wrong', volume-group: vg1}\n");
    wait_for("the refusal", || selvage.log().contains("the old one stays").then_some(()));
    let two = format!(
        "{}  - {{name: hdd, volume-group: vg2}}\n",
        ONE_CLASS.replace("spare-gb: 0", "spare-gb: 1")
    );
    stock_config(loops.path(), &two);
    let reported = watching.message().await.unwrap().unwrap();
    assert_eq!(reported.free_bytes, 3 << 30, "the spare is kept back");
    assert_eq!(reported.items.len(), 1, "a class without its group is left out");
    let request = GetFreeBytesRequest { device_class: "hdd".into() };
    let missing = groups.get_free_bytes(request).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound);
    assert_eq!(missing.message(), "volume group not found: vg2");
}

/// However it ends, what was acknowledged is there, and nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn kills_at_any_point_leave_nothing_half_done() {
    const ROUNDS: usize = 6;
    let Some(loops) = Loops::new() else { return };
    let mut promised: BTreeSet<String> = BTreeSet::new();
    for round in 0..ROUNDS {
        let mut selvage = Selvage::up_in(loops.path(), &["--set", "lvmd.size_gb=2000"]);
        let path = socket(&selvage);
        let named = look(&path).await;
        // What was asked for and not answered may be there or not, but whole.
        assert!(promised.is_subset(&named), "{promised:?} {named:?}");
        assert_eq!(images(&loops), named, "an image for every volume");
        let devices: BTreeSet<String> = loops
            .attached()
            .into_iter()
            .map(|(image, _)| image.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(devices, named, "a device for every volume");
        let acknowledged = churn(&path, round, named).await;
        selvage.kill();
        promised = acknowledged.await.unwrap();
    }
    let selvage = Selvage::up_in(loops.path(), &["--set", "lvmd.size_gb=2000"]);
    let named = look(&socket(&selvage)).await;
    assert!(promised.is_subset(&named));
    let mut volumes = LvServiceClient::new(connect(&socket(&selvage)).await);
    for name in named {
        let request = RemoveLvRequest { name, device_class: "thin".into() };
        volumes.remove_lv(request).await.unwrap();
    }
    assert_eq!(images(&loops).len() + loops.attached().len(), 0);
}

/// The names that are there.
async fn look(socket: &str) -> BTreeSet<String> {
    let mut groups = VgServiceClient::new(connect(socket).await);
    let request = GetLvListRequest { device_class: "thin".into() };
    let listed = groups.get_lv_list(request).await.unwrap().into_inner().volumes;
    listed.into_iter().map(|volume| volume.name).collect()
}

fn images(loops: &Loops) -> BTreeSet<String> {
    let folder = loops.path().join("data/volumes/selvage");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let images = files.filter(|path| path.extension().is_some_and(|end| end == "img"));
    images.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// Makes and removes until the connection breaks; returns when it is under
/// way. What comes out are the names that must be there.
async fn churn(
    socket: &str,
    round: usize,
    mut names: BTreeSet<String>,
) -> tokio::task::JoinHandle<BTreeSet<String>> {
    let mut volumes = LvServiceClient::new(connect(socket).await);
    let (under_way, started) = tokio::sync::oneshot::channel();
    let mut under_way = Some(under_way);
    let task = tokio::spawn(async move {
        for number in 0.. {
            let name = format!("r{round}-{number}");
            let create = CreateLvRequest {
                name: name.clone(),
                size_gb: 1,
                device_class: "thin".into(),
                ..CreateLvRequest::default()
            };
            if volumes.create_lv(create).await.is_err() {
                break;
            }
            names.insert(name.clone());
            if number % 3 == 0 {
                // Once asked for, it may be gone whatever the answer.
                names.remove(&name);
                let remove = RemoveLvRequest { name, device_class: "thin".into() };
                if volumes.remove_lv(remove).await.is_err() {
                    break;
                }
            }
            if number == 2 + round
                && let Some(under_way) = under_way.take()
            {
                let _ = under_way.send(());
            }
        }
        names
    });
    started.await.unwrap();
    task
}

#[test]
fn the_command_line() {
    let Some(loops) = Loops::new() else { return };
    let selvage = Selvage::up_in(loops.path(), &["--set", "lvmd.size_gb=8"]);
    let cli = Cli::admin_of(&selvage);
    let classes = cli.json(&["volume", "classes", "-o", "json"]);
    let first = &classes["device_classes"][0];
    assert_eq!(first["name"], "thick");
    assert_eq!(first["free_bytes"], (4u64 << 30).to_string(), "the other half is the pool's");

    let made = cli.ok(&["volume", "create", "data", "--size", "2G", "--class", "thin"]);
    assert!(made.starts_with("NAME") && made.contains("data"), "{made}");
    cli.ok(&["volume", "resize", "data", "--size", "3", "--class", "thin"]);
    cli.ok(&["volume", "snapshot", "data", "before", "--class", "thin", "--tag", "k=v"]);
    cli.ok(&["volume", "clone", "data", "copy", "--class", "thin"]);
    let listed = cli.json(&["volume", "list", "-o", "json"]);
    let volumes = listed["volumes"].as_array().unwrap();
    let names: Vec<&str> = volumes.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["before", "copy", "data"]);
    assert_eq!(volumes[0]["origin"], "data");
    assert_eq!(volumes[0]["read_only"], true);
    assert_eq!(volumes[2]["size_bytes"], (3u64 << 30).to_string());

    let shrunk = cli.run(&["volume", "resize", "data", "--size", "1", "--class", "thin"]);
    assert_eq!(shrunk.code, i32::from(selvage_api::Code::InvalidArgument.exit()), "{shrunk:?}");
    assert!(shrunk.stderr.contains("shrinking volume size is not allowed"), "{shrunk:?}");
    // Over lvmd's own socket no credentials are needed.
    let socket = format!("unix://{}", socket(&selvage));
    for name in names {
        let delete = ["volume", "delete", name, "--yes", "--class", "thin", "--endpoint", &socket];
        Cli::new().ok(&delete);
    }
    assert_eq!(loops.attached(), []);
}
