//! A machine with volumes, a place for backups, and stock restic.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use selvage_api::{
    proto::{
        Backup, BackupState, CreateBackupRequest, CreateLvRequest, DataSource, StateType,
        data_source::{S3, Type},
        lv_service_client::LvServiceClient,
    },
    selvage::volumes::{
        BackupJob, JobState, ListOrphansRequest, ListVolumesRequest, Repository,
        WatchBackupRequest, backups_service_client::BackupsServiceClient,
        volumes_service_client::VolumesServiceClient,
    },
};
use selvage_tests::{
    Selvage,
    process::{TIMEOUT, wait_for},
    real::{free_port, python, skip},
};
use tonic::transport::Channel;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const CLASS: &str = "thin";
pub(crate) const BUCKET: &str = "backups";
pub(crate) const ACCESS_KEY: &str = "tester";
/// Secrets that must be found nowhere.
pub(crate) const SECRET_KEY: &str = "canary-secret-7f3a";
pub(crate) const TOKEN: &str = "canary-token-91bc";
pub(crate) const PASSWORD: &str = "canary-password-52de";

/// A machine. Its loop devices go with it.
pub(crate) struct Site {
    pub(crate) selvage: Option<Selvage>,
    folder: tempfile::TempDir,
}

impl Site {
    /// None, with a loud word, where loop devices cannot be made.
    pub(crate) fn new() -> Option<Self> {
        if !nix::unistd::Uid::effective().is_root() {
            skip("loop devices", "only root may make them");
            return None;
        }
        let mut site = Self { selvage: None, folder: tempfile::tempdir().unwrap() };
        site.start();
        Some(site)
    }

    pub(crate) fn start(&mut self) {
        let flags = ["--set", "lvmd.size_gb=64"];
        self.selvage = Some(Selvage::up_in(self.folder.path(), &flags));
    }

    pub(crate) fn kill(&mut self) {
        self.selvage.take().unwrap().kill();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn selvage(&self) -> &Selvage {
        self.selvage.as_ref().unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        let socket = self.selvage().ready()["sockets"]["lvmd"].as_str().unwrap();
        tonic::transport::Endpoint::new(format!("unix:{socket}")).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn volumes(&self) -> LvServiceClient<Channel> {
        LvServiceClient::new(self.channel().await)
    }

    pub(crate) async fn backups(&self) -> BackupsServiceClient<Channel> {
        BackupsServiceClient::new(self.channel().await)
    }

    /// A volume of 1 GiB; gives its device.
    pub(crate) async fn create(&self, name: &str) -> PathBuf {
        let request = CreateLvRequest {
            name: name.into(),
            size_gb: 1,
            device_class: CLASS.into(),
            ..CreateLvRequest::default()
        };
        self.volumes().await.create_lv(request).await.unwrap();
        self.device(name).await
    }

    /// All volumes there are, hidden ones included: name, device, pending.
    pub(crate) async fn all(&self) -> Vec<(String, PathBuf, bool)> {
        let mut client = VolumesServiceClient::new(self.channel().await);
        let listed = client.list_volumes(ListVolumesRequest::default()).await.unwrap();
        let listed = listed.into_inner().volumes.into_iter();
        listed.map(|volume| (volume.name, volume.path.into(), volume.pending)).collect()
    }

    pub(crate) async fn names(&self) -> Vec<String> {
        self.all().await.into_iter().map(|(name, ..)| name).collect()
    }

    pub(crate) async fn device(&self, name: &str) -> PathBuf {
        self.all().await.into_iter().find(|(known, ..)| known == name).unwrap().1
    }

    /// A device for every volume, and none besides.
    pub(crate) async fn assert_no_orphans(&self, expected: &[&str]) {
        assert_eq!(self.names().await, expected);
        let devices: BTreeSet<String> = self
            .attached()
            .into_iter()
            .map(|(image, _)| image.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(devices, expected.iter().map(|name| (*name).to_owned()).collect());
        let mut backups = self.backups().await;
        let listed = backups.list_orphans(ListOrphansRequest {}).await.unwrap();
        assert_eq!(listed.into_inner().orphans, []);
    }

    /// Images below our folder that have a device.
    fn attached(&self) -> Vec<(PathBuf, PathBuf)> {
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let all = devices.filter_map(|entry| {
            let image = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let device = Path::new("/dev").join(entry.file_name());
            Some((PathBuf::from(image.trim_end()), device))
        });
        all.filter(|(image, _)| image.starts_with(self.folder.path())).collect()
    }

    /// Asks as lvmd's clients do, again and again, until it has ended.
    pub(crate) async fn back_up(&self, name: &str, handle: &str, place: &S3) -> BackupState {
        let mut client = self.volumes().await;
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let asked = client.create_backup(request(name, handle, Some(place.clone())));
            let state = asked.await.unwrap().into_inner().backup_state.unwrap();
            if state.state() != StateType::Inprogress {
                return state;
            }
            assert!(tokio::time::Instant::now() < deadline, "still {state:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A backup that has to work; gives its snapshot.
    pub(crate) async fn backed_up(&self, name: &str, handle: &str, place: &S3) -> String {
        let state = self.back_up(name, handle, place).await;
        assert_eq!(state.state(), StateType::Complete, "{state:?}");
        let snapshot = state.msg.split(' ').next().unwrap();
        snapshot.strip_prefix("snapshot=").unwrap().to_owned()
    }

    /// Returns the last state of a job.
    pub(crate) async fn ended(&self, job: &BackupJob) -> BackupJob {
        let request = WatchBackupRequest { id: job.id.clone() };
        let mut updates = self.backups().await.watch_backup(request).await.unwrap().into_inner();
        let mut last = job.clone();
        while let Some(job) = updates.message().await.unwrap() {
            last = job;
        }
        last
    }

    /// A job that has to work.
    pub(crate) async fn done(&self, job: &BackupJob) -> BackupJob {
        let ended = self.ended(job).await;
        assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
        ended
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.selvage = None;
        for (_, device) in self.attached() {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

pub(crate) fn request(name: &str, handle: &str, place: Option<S3>) -> CreateBackupRequest {
    CreateBackupRequest {
        backup: Some(Backup {
            name: name.into(),
            volume_handle: handle.into(),
            data_source: Some(DataSource {
                synchronous_restore: false,
                r#type: place.map(Type::S3),
            }),
        }),
    }
}

pub(crate) fn restore_request(name: &str, place: S3, synchronous: bool) -> CreateLvRequest {
    CreateLvRequest {
        name: name.into(),
        size_gb: 1,
        tags: vec!["owner=me".into()],
        device_class: CLASS.into(),
        data_source: Some(DataSource {
            synchronous_restore: synchronous,
            r#type: Some(Type::S3(place)),
        }),
    }
}

/// The directory of the machine.
pub(crate) fn directory(prefix: &str) -> S3 {
    S3 {
        path: format!("{BUCKET}/{prefix}"),
        endpoint: "file:".into(),
        encryption_key: PASSWORD.into(),
        ..S3::default()
    }
}

/// The same as our own service takes it.
pub(crate) fn repository(place: &S3) -> Repository {
    Repository {
        path: place.path.clone(),
        endpoint: place.endpoint.clone(),
        access_key_id: place.access_key_id.clone(),
        secret_access_key: place.secret_access_key.clone(),
        session_token: place.session_token.clone(),
        encryption_key: place.encryption_key.clone(),
        ..Repository::default()
    }
}

/// With `#snapshot` or `@name` behind its path.
pub(crate) fn with(place: &S3, selector: &str) -> S3 {
    S3 { path: format!("{}{selector}", place.path), ..place.clone() }
}

/// Numbers that look random and are the same every time.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(length.div_ceil(8)).flatten().take(length).collect()
    }
}

/// Writes to a device what no compression helps with.
pub(crate) fn fill(device: &Path, at: usize, length: usize, seed: u64) {
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(&Numbers::new(seed).bytes(length), at as u64).unwrap();
    file.sync_all().unwrap();
}

/// All of a device is as its file was; compared by hash, so that a failure
/// does not print it.
pub(crate) fn hash(mut content: impl Read) -> String {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::copy(&mut content, &mut child.stdin.take().unwrap()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

pub(crate) fn hash_of(device: &Path) -> String {
    hash(File::open(device).unwrap())
}

/// Stock restic on a repository, or None with a loud word.
pub(crate) struct Restic(Vec<(&'static str, String)>);

impl Restic {
    pub(crate) fn on(site: &Site, store: Option<&ObjectStore>, prefix: &str) -> Option<Self> {
        match store {
            Some(store) => Self::of(format!("s3:{}/{BUCKET}/{prefix}", store.endpoint())),
            None => Self::at(&site.path("data/backups").join(BUCKET).join(prefix)),
        }
    }

    pub(crate) fn at(folder: &Path) -> Option<Self> {
        Self::of(folder.display().to_string())
    }

    fn of(place: String) -> Option<Self> {
        if Command::new("restic").arg("version").output().is_err() {
            skip("restic", "not installed");
            return None;
        }
        Some(Self(vec![
            ("RESTIC_REPOSITORY", place),
            ("RESTIC_PASSWORD", PASSWORD.into()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
        ]))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("restic");
        command.args(["--no-cache", "--quiet"]).args(arguments).envs(self.0.iter().cloned());
        command
    }

    /// Reads everything there is, and is content with it.
    pub(crate) fn check(&self) {
        let output = self.command(&["check", "--read-data"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    /// The hash of a volume of 1 GiB as it lies in a snapshot.
    pub(crate) fn hash(&self, snapshot: &str, volume: &str) -> String {
        let file = format!("/{volume}/000000/data");
        let mut child =
            self.command(&["dump", snapshot, &file]).stdout(Stdio::piped()).spawn().unwrap();
        let hash = hash(child.stdout.take().unwrap());
        assert!(child.wait().unwrap().success());
        hash
    }
}

/// A real object store. Killed when dropped.
pub(crate) struct ObjectStore {
    child: Child,
    address: SocketAddr,
    tls: bool,
    _folder: tempfile::TempDir,
}

impl ObjectStore {
    pub(crate) fn rclone() -> Option<Self> {
        Self::run("rclone", |command, folder, address| {
            fs::create_dir(folder.join(BUCKET)).unwrap();
            command.args(["--config", "/dev/null", "serve", "s3"]).arg(folder);
            command.args(["--addr", &address.to_string()]);
            command.args(["--auth-key", &format!("{ACCESS_KEY},{SECRET_KEY}")]);
        })
    }

    /// Behind TLS, with a certificate that nobody's system trusts.
    pub(crate) fn rclone_with_tls(folder: &Path) -> Option<Self> {
        let ca = selvage_kit::pki::Ca::open_or_create(&folder.join("ca")).unwrap();
        let issued = ca.issue_server(&["localhost", "store.example"]).unwrap();
        let (certificate, key) = (folder.join("store.crt"), folder.join("store.key"));
        fs::write(&certificate, issued.chain_pem).unwrap();
        fs::write(&key, issued.key_pem.as_bytes()).unwrap();
        let mut store = Self::run("rclone", |command, folder, address| {
            fs::create_dir(folder.join(BUCKET)).unwrap();
            command.args(["--config", "/dev/null", "serve", "s3"]).arg(folder);
            command.args(["--addr", &address.to_string()]);
            command.args(["--auth-key", &format!("{ACCESS_KEY},{SECRET_KEY}")]);
            command.arg("--cert").arg(&certificate).arg("--key").arg(&key);
        })?;
        store.tls = true;
        Some(store)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn moto() -> Option<Self> {
        let store = Self::run("moto_server", |command, _, address| {
            command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        })?;
        let answer = ask(store.address, &format!("PUT /{BUCKET}")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(store)
    }

    fn run(name: &str, arrange: impl Fn(&mut Command, &Path, SocketAddr)) -> Option<Self> {
        let program = python()?.parent()?.join(name);
        if !program.exists() {
            skip(name, "not installed: run ./dev test");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(program);
        arrange(&mut command, folder.path(), address);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let store = Self { child, address, tls: false, _folder: folder };
        wait_for(name, || ask(address, "GET /"));
        Some(store)
    }

    pub(crate) fn endpoint(&self) -> String {
        match self.tls {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    pub(crate) fn place(&self, prefix: &str) -> S3 {
        S3 {
            path: format!("{BUCKET}/{prefix}"),
            endpoint: self.endpoint(),
            access_key_id: ACCESS_KEY.into(),
            secret_access_key: SECRET_KEY.into(),
            encryption_key: PASSWORD.into(),
            ..S3::default()
        }
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(address: SocketAddr, line: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let head = "Content-Length: 0\r\nConnection: close";
    write!(stream, "{line} HTTP/1.1\r\nHost: {address}\r\n{head}\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text).filter(|text| !text.is_empty())
}
