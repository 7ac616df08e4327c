//! An app whose data is on a volume: it is there after a restart and after a
//! kill, and gone with the instance.

use selvage_tests::{
    Selvage,
    process::{Cli, wait_for},
};

use selvage_tests::cloudlet::{
    can_run, cloudlet_here, create_app, furnish_here, on, page, write_image,
};

const PAGE: &str = "http://10.103.1.1:8080/";
/// Adds a line at every start and shows them all.
const COMMAND: &str =
    "/bin/sh -c 'echo started >> /data/log; df /data > /data/size; exec httpd -f -p 8080 -h /data'";

fn starts() -> Option<usize> {
    Some(page(None, &format!("{PAGE}log"))?.lines().count())
}

fn kill_app(cli: &Cli) {
    let shown = cli.ok(&["node", "containers", "--namespace", "selvage"]);
    let row = shown.lines().find(|line| line.contains("web-1-")).expect("the app's container");
    let pid: i32 = row.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[test]
fn data_on_a_volume_outlives_its_container_and_ends_with_its_instance() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("web.tar");
    write_image(&image);
    let flags = cloudlet_here(directory.path(), "store", "network_scheme: 10.103.0.0/16");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut selvage = Selvage::up_in(directory.path(), &flags);
    let cli = Cli::admin_of(&selvage);
    furnish_here(&cli, "store");
    let wants = ["--annotations", "volume.data=1:/data", "--command", COMMAND];
    create_app(&cli, &image, "tcp:8080", &wants);
    cli.ok(&[&["appinst", "create"][..], &on("store")].concat());
    assert_eq!(starts(), Some(1));
    let volumes = cli.ok(&["volume", "list"]);
    assert!(volumes.contains("web-1-") && volumes.contains("-data"), "{volumes}");
    let size = page(None, &format!("{PAGE}size")).unwrap();
    assert!(size.contains("/dev/"), "a device of its own: {size}");

    // The app ends; another process finds what it wrote.
    kill_app(&cli);
    wait_for("a second start", || (starts()? == 2).then_some(()));
    // So does one after a power cut of everything.
    selvage.kill();
    let selvage = Selvage::up_in(directory.path(), &flags);
    wait_for("the page", || (starts()? >= 2).then_some(()));

    let cli = Cli::admin_of(&selvage);
    cli.ok(&[&["appinst", "delete", "--yes"][..], &on("store")].concat());
    let volumes = cli.ok(&["volume", "list"]);
    assert!(!volumes.contains("web-1-"), "{volumes}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let home = directory.path().display().to_string();
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains(&home)).collect();
    assert!(left.is_empty(), "{left:?}");
}
