//! Virtual machines: a real guest on a disk that boots, under QEMU.

use std::{
    fs,
    io::{Cursor, Read as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use selvage_api::edgeproto::{App, CloudletKey, Flavor, TrackedState};
use selvage_crm::{
    FetchPolicy, ImageFolders, Platform,
    platform::{
        InstanceFacts,
        network::Range,
        vm::{Machines, Options},
    },
};

use crate::{
    conformance::{Fixture, STARTED, conforms},
    support::{
        ANSWER, Life, Stuck, TEST_TIMEOUT, TestCloudlet, TestController, can_run, fetch, find,
        has_program, skip, wait_for,
    },
};

/// Modules of the kernel that the guest needs.
const MODULES: [&str; 15] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "fat",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "button",
    "evdev",
];
/// Of the disk that boots.
const DISK: usize = 24 << 20;

/// Script that runs when its power button is pressed.
const OFF: &str = "#!/busybox sh\necho goodbye >/dev/console\n/busybox poweroff -f\n";

/// Commands of a guest that has received its address.
const ADDRESSED: &str = "#!/busybox sh\nb=/busybox\n[ \"$1\" = bound ] || exit 0\n\
    $b ip addr add $ip/$mask dev $interface\n$b ip route add default via $router\n\
    echo \"address: $ip/$mask via $router dns $dns\"\n";

/// A page that tells whether an address answers, asked from inside.
const REACH: &str = "#!/busybox sh\necho Content-Type: text/plain\necho\n\
    /busybox nc -w 3 ${QUERY_STRING%:*} ${QUERY_STRING#*:} </dev/null >/dev/null 2>&1 \
    && echo reached || echo refused\n";

/// First program of a machine that ends as soon as it starts.
const ENDING: &str = "#!/busybox sh\n/busybox poweroff -f\n";

/// The first and only program: the network, the app, and what the seed says,
/// for all to see.
fn init(modules: &[(String, Vec<u8>)]) -> String {
    let modules: String = modules.iter().map(|(name, _)| format!("$b insmod /{name}\n")).collect();
    format!(
        "#!/busybox sh\nb=/busybox\n$b mkdir -p /proc /sys /dev /seed /var/log /var/run\n\
         $b mount -t proc proc /proc\n$b mount -t sysfs sys /sys\n$b mount -t devtmpfs dev /dev\n\
         {modules}\
         $b mount -t vfat -o ro /dev/vdb /seed\n\
         echo \"seed: $($b cat /seed/meta-data) $($b tail -n +2 /seed/user-data)\"\n\
         $b ip link set lo up\n$b ip link set eth0 up\n\
         $b udhcpc -i eth0 -f -n -q -t 20 -T 1 -s /addressed\n\
         $b acpid\n$b httpd -p 8080 -h /www\necho {STARTED}\n\
         while :; do $b setsid $b cttyhack $b sh; done\n"
    )
}

/// Files as the kernel takes them at its start.
fn archive(files: &[(&str, usize, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let trailer: (&str, usize, &[u8]) = ("TRAILER!!!", 0, b"");
    for (number, (name, mode, content)) in (1..).zip(files.iter().chain([&trailer])) {
        let fields = [number, *mode, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0]
            .map(|field: usize| format!("{field:08x}"));
        out.extend(b"070701");
        out.extend(fields.concat().as_bytes());
        for part in [name.as_bytes(), b"\0"] {
            out.extend(part);
        }
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(*content);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

fn run(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Files of the modules, each behind those that it needs: which these are differs
/// from kernel to kernel.
fn modules(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let order = fs::read_to_string(folder.join("order")).unwrap();
    let needed = |file: &&str| file.strip_suffix(".ko").is_some_and(|name| MODULES.contains(&name));
    let read = |file: &str| (file.to_owned(), fs::read(folder.join(file)).unwrap());
    order.lines().filter(needed).map(read).collect()
}

/// A qcow2 that boots: a FAT disk with syslinux, a kernel and its first files.
fn guest(kernel: &Path, directory: &Path) -> PathBuf {
    let init = init(&modules(&kernel.join("modules")));
    guest_with(kernel, &directory.join("guest.qcow2"), &init)
}

/// The same with another first program.
fn guest_with(kernel: &Path, image: &Path, init: &str) -> PathBuf {
    let busybox = fs::read(find("busybox").unwrap()).unwrap();
    let modules = modules(&kernel.join("modules"));
    let (directory_mode, file_mode) = (0o040_755, 0o100_755);
    let mut files: Vec<(&str, usize, &[u8])> = vec![
        ("init", file_mode, init.as_bytes()),
        ("busybox", file_mode, &busybox),
        ("etc", directory_mode, b""),
        ("etc/acpi", directory_mode, b""),
        ("etc/acpi/PWRF", directory_mode, b""),
        ("etc/acpi/PWRF/00000080", file_mode, OFF.as_bytes()),
        ("www", directory_mode, b""),
        ("www/index.html", file_mode, ANSWER.as_bytes()),
        ("www/cgi-bin", directory_mode, b""),
        ("www/cgi-bin/reach", file_mode, REACH.as_bytes()),
        ("addressed", file_mode, ADDRESSED.as_bytes()),
    ];
    files.extend(modules.iter().map(|(name, content)| (name.as_str(), file_mode, &content[..])));
    let mut disk = vec![0; DISK];
    let options = fatfs::FormatVolumeOptions::new().drive_num(0x80);
    fatfs::format_volume(Cursor::new(&mut disk[..]), options).unwrap();
    let volume =
        fatfs::FileSystem::new(Cursor::new(&mut disk[..]), fatfs::FsOptions::new()).unwrap();
    let settings = "DEFAULT linux\nLABEL linux\n KERNEL vmlinuz\n INITRD initrd\n \
                    APPEND console=ttyS0 quiet panic=-1\n";
    for (name, content) in [
        ("vmlinuz", fs::read(kernel.join("vmlinuz")).unwrap()),
        ("initrd", archive(&files)),
        ("syslinux.cfg", settings.into()),
    ] {
        volume.root_dir().create_file(name).unwrap().write_all(&content).unwrap();
    }
    volume.unmount().unwrap();
    let raw = image.with_extension("img");
    fs::write(&raw, disk).unwrap();
    run(Command::new("syslinux").arg("--install").arg(&raw));
    run(Command::new("qemu-img").args(["convert", "-O", "qcow2"]).arg(&raw).arg(image));
    fs::remove_file(raw).unwrap();
    image.to_owned()
}

pub(crate) struct InMachines {
    pub(crate) place: TestCloudlet,
    kernel: PathBuf,
    image: PathBuf,
}

impl InMachines {
    /// Says so loudly when there can be none.
    pub(crate) fn new(name: &'static str, range: u8) -> Option<Self> {
        if !can_run() {
            return None;
        }
        for program in ["qemu-system-x86_64", "qemu-img", "syslinux", "busybox", "nft"] {
            if !has_program(program) {
                return None;
            }
        }
        let Some(kernel) = std::env::var_os("SELVAGE_TEST_VM").map(PathBuf::from) else {
            skip("a kernel", "SELVAGE_TEST_VM does not say where it is: run ./dev test");
            return None;
        };
        let place = TestCloudlet::new(name, range);
        let image = guest(&kernel, place.directory.path());
        Some(Self { place, kernel, image })
    }

    /// A cloudlet of a crm, with a public port that is free.
    pub(crate) fn in_a_crm(mut self) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        self.place.public_port = free.local_addr().unwrap().port();
        self.place.kind = "kvm";
        self.place.deployment = "vm";
        self.place.image_path = format!("file://{}", self.image.display());
        self
    }

    pub(crate) fn public(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.place.public_port))
    }

    async fn answers(&self) {
        let answer = wait_for("an answer", || fetch(self.public())).await;
        assert!(answer.contains(ANSWER), "{answer}");
    }

    /// Log of its only machine, as far as it is and as it grows.
    fn log(&self) -> fs::File {
        let machines = self.place.directory.path().join("vm/machines");
        let machine = fs::read_dir(machines).unwrap().next().unwrap().unwrap();
        fs::File::open(machine.path().join("console.log")).unwrap()
    }

    /// Processes of its machines, by number.
    pub(crate) fn processes(&self) -> Vec<i32> {
        processes(self.place.directory.path())
    }
}

/// Processes of machines with their files in a directory.
pub(crate) fn processes(directory: &Path) -> Vec<i32> {
    let home = directory.canonicalize().unwrap();
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let folder = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        let runs = String::from_utf8_lossy(&line).contains("qemu-system");
        (runs && folder.starts_with(&home)).then_some(pid)
    });
    numbers.collect()
}

#[async_trait]
impl Fixture for InMachines {
    fn place(&self) -> &TestCloudlet {
        &self.place
    }

    async fn open(&self, cloudlet: &CloudletKey) -> Arc<dyn Platform> {
        let elsewhere = *cloudlet != self.place.cloudlet();
        let data = self.place.directory.path();
        let data = if elsewhere { data.join("elsewhere") } else { data.to_owned() };
        let options = Options {
            data,
            images: ImageFolders::new([self.place.directory.path().to_owned()]),
            policy: FetchPolicy::default(),
            start_timeout: TEST_TIMEOUT * 3,
            powerdown: Duration::from_millis(200),
            range: Range::parse(&format!("10.{}.0.0/16", self.place.range)).unwrap(),
            forwarding: self.place.forwarding,
            egress: self.place.egress.clone(),
        };
        Arc::new(Machines::open(cloudlet, options).unwrap())
    }

    fn flavor(&self) -> Flavor {
        Flavor { ram: 192, vcpus: 1, disk: 1, ..Flavor::default() }
    }

    fn has_clusters(&self) -> bool {
        false
    }

    fn app(&self) -> App {
        App {
            deployment: "vm".into(),
            image_path: format!("file://{}", self.image.display()),
            command: "touch /marked".into(),
            auth_public_key: "ssh-ed25519 AAAA me".into(),
            ..self.place.app()
        }
    }

    fn bad_image(&self) -> (String, &'static str) {
        let path = self.place.directory.path().join("text");
        fs::write(&path, "no disk").unwrap();
        (format!("file://{}", path.display()), "the image is no qcow2")
    }

    async fn kill(&self, _: &InstanceFacts) {
        for pid in self.processes() {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }

    async fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.processes().iter().map(ToString::to_string).collect();
        let machines = fs::read_dir(self.place.directory.path().join("vm/machines")).unwrap();
        left.extend(machines.map(|entry| entry.unwrap().path().display().to_string()));
        left.extend(self.place.left_behind());
        left.sort();
        left
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_conform() {
    let Some(fixture) = InMachines::new("conform-vm", 190) else { return };
    conforms(&fixture).await;
}

pub(crate) async fn made(controller: &TestController, place: &TestCloudlet) {
    controller.furnish(place);
    let mut flavor = Flavor::clone(&controller.flavors.list()[0]);
    flavor.ram = 192;
    controller.flavors.put(flavor).unwrap();
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    controller.instances.put(place.instance(TrackedState::Ready)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_outlives_its_crm_and_goes_with_its_instance() {
    let Some(fixture) = InMachines::new("vm-crm", 191).map(InMachines::in_a_crm) else { return };
    let place = &fixture.place;
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    made(&controller, place).await;
    fixture.answers().await;
    let before = fixture.processes();
    assert_eq!(before.len(), 1, "{before:?}");
    running.stop().await;
    assert_eq!(fetch(fixture.public()).await, None, "nobody leads there");

    // Nobody listens at that address.
    let running = place.start("127.0.0.1:1".parse().unwrap()).await;
    fixture.answers().await;
    assert_eq!(fixture.processes(), before, "it was never stopped");
    running.stop().await;

    let running = place.start(controller.address).await;
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    let refused = wait_for("a refusal", || async {
        let info = controller.cluster_infos.find(&place.cluster_key())?;
        info.errors.first().cloned()
    })
    .await;
    assert!(refused.contains("a cloudlet of virtual machines has no clusters"), "{refused}");
    assert_eq!(fixture.processes(), before, "it is in no cluster");
    let mut log = fixture.log();
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the instance's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    assert_eq!(fetch(fixture.public()).await, None);
    let mut last = Vec::new();
    log.read_to_end(&mut last).unwrap();
    let last = String::from_utf8_lossy(&last);
    assert!(last.contains("goodbye"), "it did not turn itself off: {last}");
    running.stop().await;
    assert_eq!(fixture.left().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_while_a_machine_is_made_is_made_up_for() {
    let Some(fixture) = InMachines::new("vm-cut", 192).map(InMachines::in_a_crm) else { return };
    let (public, left) = (fixture.public(), fixture.place.directory.path().to_owned());
    let place = Arc::new(fixture.place);
    let controller = TestController::start().await;
    let stuck = Stuck::new(0, true);
    let life = Life::start(&place, controller.address, &stuck).await;
    tokio::select! {
        () = made(&controller, &place) => panic!("it did not stop"),
        () = stuck.reached() => {}
    }
    life.cut().await;
    let running = place.start(controller.address).await;
    made(&controller, &place).await;
    let answer = wait_for("an answer", || fetch(public)).await;
    assert!(answer.contains(ANSWER), "{answer}");
    assert_eq!(processes(&left).len(), 1);
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the instance's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!(processes(&left), Vec::<i32>::new());
}

/// A machine is replaced in place: when the new one cannot be made, the one of
/// before comes back and serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_update_brings_the_machine_of_before_back() {
    let Some(fixture) = InMachines::new("vm-back", 199).map(InMachines::in_a_crm) else { return };
    if !can_run() {
        return;
    }
    let place = &fixture.place;
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    made(&controller, place).await;
    fixture.answers().await;
    let good = App::clone(&controller.apps.list()[0]);
    let folder = place.directory.path();
    // One is not there, and from the other a machine starts that ends at once.
    guest_with(&fixture.kernel, &folder.join("ending.qcow2"), ENDING);
    for (image, why) in [("missing.qcow2", "missing.qcow2"), ("ending.qcow2", "ended")] {
        let image_path = format!("file://{}", folder.join(image).display());
        controller.apps.put(App { image_path, ..good.clone() }).unwrap();
        controller.instances.put(place.instance(TrackedState::UpdateRequested)).unwrap();
        let key = place.instance_key();
        wait_for("the failure", || async {
            let info = controller.instance_infos.find(&key)?;
            let reported = info.errors.iter().any(|error| error.contains(why));
            (reported && info.state() == TrackedState::UpdateError).then_some(())
        })
        .await;
        controller.instances.put(place.instance(TrackedState::UpdateError)).unwrap();
        fixture.answers().await;
        assert_eq!(fixture.processes().len(), 1, "{image}");
    }
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the instance's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!(fixture.left().await, Vec::<String>::new());
}
