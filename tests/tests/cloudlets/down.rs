//! Ends of what outlives a daemon: `selvage down`, and a data directory that
//! somebody removed while apps ran.

use std::{path::Path, process::Command};

use nix::sys::signal::Signal;
use selvage_tests::{
    Selvage,
    process::{Cli, wait_for},
};

use selvage_tests::cloudlet::{
    can_run, cloudlet_here, create_app, furnish_here, on, page, write_image,
};

/// Output of a program, line by line.
fn lines(program: &str, words: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Traces of a cloudlet on this machine: addresses, rules, tables of the packet
/// filter, mounts, loop devices, control groups and namespaces.
fn traces(scheme: &str, site: &str, home: &Path) -> Vec<String> {
    let mut found = lines("ip", &["-o", "addr"]);
    found.extend(lines("ip", &["rule"]));
    found.retain(|line| line.contains(scheme));
    found.extend(lines("nft", &["list", "tables"]).into_iter().filter(|line| line.contains(site)));
    let home = home.display().to_string();
    let mut here = lines("cat", &["/proc/self/mounts"]);
    here.extend(lines("losetup", &["-a"]));
    found.extend(here.into_iter().filter(|line| line.contains(&home)));
    let groups = selvage_runtime::cgroup::group::inside("/selvage-clusters").unwrap();
    found.extend(groups.into_iter().filter(|group| group.starts_with(site)));
    let namespaces = std::fs::read_dir("/run/selvage/netns").into_iter().flatten().flatten();
    let namespaces = namespaces.map(|entry| entry.file_name().into_string().unwrap());
    let own = format!("slv-{}-", &site[3..]);
    found.extend(namespaces.filter(|name| name.starts_with(&own)));
    found
}

/// Prefix of the names of a cloudlet's bridges, by the bridge that is there.
fn site_of(scheme: &str) -> String {
    let bridges = lines("ip", &["-o", "addr"]);
    let bridge = bridges.iter().find(|line| line.contains(scheme)).unwrap();
    bridge.split_whitespace().nth(1).unwrap()[..7].to_owned()
}

/// A machine that is a cloudlet with an app on it that has a volume.
fn with_app(directory: &Path, name: &str, scheme: &str) -> Selvage {
    let image = directory.join("web.tar");
    write_image(&image);
    let flags = cloudlet_here(directory, name, &format!("network_scheme: {scheme}0.0/16"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let selvage = Selvage::up_in(directory, &flags);
    let cli = Cli::admin_of(&selvage);
    furnish_here(&cli, name);
    create_app(&cli, &image, "tcp:8080", &["--annotations", "volume.data=1:/data"]);
    cli.ok(&[&["appinst", "create"][..], &on(name)].concat());
    selvage
}

#[test]
fn down_stops_apps_and_leaves_no_trace() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let scheme = "10.111.";
    let mut selvage = with_app(directory.path(), "ends", scheme);
    let site = site_of(scheme);
    let data = selvage.data().display().to_string();
    let cli = Cli::new();
    let refused = cli.run(&["down", "--data", &data, "--yes"]);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("stop the daemon first"), "{refused:?}");

    selvage.signal(Signal::SIGTERM);
    assert!(selvage.wait().success());
    assert!(selvage.log().contains(&format!("selvage down --data {data}")), "{}", selvage.log());
    let before = traces(scheme, &site, directory.path());
    assert!(before.len() > 5, "the app runs on: {before:?}");
    let unasked = cli.run(&["down", "--data", &data]);
    assert_ne!(unasked.code, 0);
    assert!(unasked.stderr.contains("op/ends") && unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(traces(scheme, &site, directory.path()), before);

    let printed = cli.ok(&["down", "--data", &data, "--yes"]);
    assert!(printed.contains("stopped the apps of cloudlet op/ends"), "{printed}");
    assert!(printed.contains("removed container web-1-"), "{printed}");
    let left = traces(scheme, &site, directory.path());
    assert!(left.is_empty(), "{left:?}\n{printed}");
    let printed = cli.ok(&["down", "--data", &data, "--purge", "--yes"]);
    assert!(printed.contains("removed data directory"), "{printed}");
    assert!(!Path::new(&data).exists());
    assert!(cli.ok(&["down", "--data", &data]).contains("No cloudlet has its data in"));
}

#[test]
fn what_a_removed_data_directory_left_is_gone_after_the_next_start() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let scheme = "10.112.";
    let mut selvage = with_app(directory.path(), "lost", scheme);
    let site = site_of(scheme);
    selvage.kill();
    let data = selvage.data().to_owned();
    // What is mounted stays, and whoever removes it is told so.
    let _ = Command::new("rm").arg("-rf").arg(&data).output().unwrap();
    assert!(!data.join("crm.redb").exists());
    assert!(traces(scheme, &site, directory.path()).len() > 5);

    let flags = cloudlet_here(directory.path(), "lost", "network_scheme: 10.112.0.0/16");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut selvage = Selvage::up_in(directory.path(), &flags);
    wait_for("a clean machine", || {
        traces(scheme, &site, directory.path()).is_empty().then_some(())
    });
    assert!(page(None, "http://10.112.1.1:8080/").is_none());
    selvage.kill();
}

#[test]
fn a_range_that_the_machine_has_already_is_refused() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let device = "slvtest113";
    let ip = |words: &str| Command::new("ip").args(words.split(' ')).status().unwrap().success();
    assert!(ip(&format!("link add {device} type bridge")));
    assert!(
        ip(&format!("addr add 10.113.9.1/24 dev {device}")) && ip(&format!("link set {device} up"))
    );
    let flags = cloudlet_here(directory.path(), "meets", "network_scheme: 10.113.0.0/16");
    let data = directory.path().join("data");
    let started = selvage_tests::process::command()
        .args(["up", "--port", "0", "--data"])
        .arg(&data)
        .args(&flags)
        .output()
        .unwrap();
    assert!(ip(&format!("link del {device}")));
    let printed = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(!started.status.success(), "{printed}");
    assert!(printed.contains("network_scheme: 10.113.0.0/16 meets"), "{printed}");
    assert!(printed.contains(device), "{printed}");
}
