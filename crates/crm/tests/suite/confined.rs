//! A hostile guest: what it reaches from inside of its machine, as whom that
//! machine runs, and what an image may not name.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::MetadataExt,
    process::Command,
};

use selvage_api::edgeproto::TrackedState;

use crate::{
    machines::{InMachines, made, processes},
    support::{ANSWER, OtherMachine, TestController, fetch, fetch_path, wait_for},
};

const RANGE: u8 = 193;

/// Asks a guest whether it reaches an address.
async fn reaches(guest: SocketAddr, at: SocketAddr) -> bool {
    let answer = fetch_path(guest, &format!("/cgi-bin/reach?{at}")).await;
    let answer = answer.unwrap_or_else(|| panic!("the guest does not say whether it reaches {at}"));
    match answer.lines().last() {
        Some("reached") => true,
        Some("refused") => false,
        other => panic!("{other:?} about {at}"),
    }
}

/// A field of what the kernel says of a process.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_reaches_what_is_public_and_nothing_of_this_machine() {
    let fixture = InMachines::new("vm-guest", RANGE).map(InMachines::in_a_crm);
    let Some(mut fixture) = fixture else { return };
    // All addresses, so that guests come to public ports as everybody does.
    fixture.place.addresses = vec![Ipv4Addr::UNSPECIFIED.into()];
    let place = &fixture.place;
    let outside = OtherMachine::new(RANGE);
    let folder = tempfile::tempdir().unwrap();
    let mut server = outside.serve(folder.path());
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let loopback = TcpListener::bind("127.0.0.1:0").unwrap();
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    made(&controller, place).await;
    let (app, neighbour) = place.neighbour();
    let neighbour_key = neighbour.key.clone().unwrap();
    let neighbour_port = u16::try_from(neighbour.mapped_ports[0].public_port).unwrap();
    controller.apps.put(app).unwrap();
    controller.instances.put(neighbour.clone()).unwrap();
    controller.instance_state(&neighbour_key, TrackedState::Ready).await;

    let address = |network: u8, host: u8| Ipv4Addr::new(10, RANGE, network, host);
    let own = SocketAddr::from((address(1, 2), 8080));
    let other = SocketAddr::from((address(2, 2), 8080));
    let gateway = address(1, 1);
    for (place, what) in [(own, "itself"), (fixture.public(), "its public port"), (other, "other")]
    {
        let answer = wait_for(what, || fetch(place)).await;
        assert!(answer.contains(ANSWER), "{what}: {answer}");
    }

    assert!(reaches(own, (outside.beyond(), 8099).into()).await, "a public address");
    assert!(reaches(own, (gateway, neighbour_port).into()).await, "a neighbour's public port");
    let (open, inner) = (everywhere.local_addr().unwrap().port(), loopback.local_addr().unwrap());
    for at in [
        (gateway, open),
        (gateway, inner.port()),
        (outside.near(), open),
        // A neighbour of this machine.
        (outside.address(), 8099),
        // Where QEMU's user network shows the loopback of the host.
        (Ipv4Addr::new(10, 0, 2, 2), inner.port()),
        (Ipv4Addr::new(169, 254, 169, 254), 80),
        (*addresses(&other), 8080),
        (address(1, 254), 67),
    ] {
        assert!(!reaches(own, at.into()).await, "{at:?}");
    }

    as_nobody(&fixture);
    let before: BTreeSet<i32> = fixture.processes().into_iter().collect();
    running.stop().await;
    let running = place.start(controller.address).await;
    assert_eq!(fixture.processes().into_iter().collect::<BTreeSet<_>>(), before, "found again");
    assert!(!reaches(own, (gateway, open).into()).await, "the rules outlive the crm");
    for instance in [neighbour, place.instance(TrackedState::Ready)] {
        let key = instance.key.clone().unwrap();
        let mut instance = instance;
        instance.set_state(TrackedState::DeleteRequested);
        controller.instances.put(instance).unwrap();
        wait_for("the instance's end", || async {
            controller.instance_infos.find(&key).is_none().then_some(())
        })
        .await;
    }
    running.stop().await;
    assert_eq!(processes(place.directory.path()), Vec::<i32>::new());
    assert_eq!(place.left_behind(), Vec::<String>::new());
    server.kill().unwrap();
    server.wait().unwrap();
}

fn addresses(at: &SocketAddr) -> &Ipv4Addr {
    match at {
        SocketAddr::V4(at) => at.ip(),
        SocketAddr::V6(_) => panic!("guests have no IPv6"),
    }
}

/// Processes of machines have a user each that owns nothing but their files, no
/// right, a filter of calls and a network that is not this one's.
fn as_nobody(fixture: &InMachines) {
    let processes = fixture.processes();
    assert_eq!(processes.len(), 2);
    let here = fs::read_link("/proc/self/ns/net").unwrap();
    let mut users = BTreeSet::new();
    for pid in processes {
        let shown = Command::new("ps").args(["-o", "uid=", "-p", &pid.to_string()]).output();
        let shown: u32 = String::from_utf8(shown.unwrap().stdout).unwrap().trim().parse().unwrap();
        assert!(shown >= 0x7000_0000, "{shown}");
        assert_eq!(field(pid, "Uid"), [shown; 4].map(|uid| uid.to_string()).join("\t"));
        assert_eq!(field(pid, "Groups"), "");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(pid, set), "0".repeat(16), "{set}");
        }
        assert_eq!((field(pid, "NoNewPrivs"), field(pid, "Seccomp")), ("1".into(), "2".into()));
        assert_ne!(fs::read_link(format!("/proc/{pid}/ns/net")).unwrap(), here);
        let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().uid(), 0, "names are not its own to change");
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            assert!([0, shown].contains(&metadata.uid()), "{:?}", entry.path());
        }
        users.insert(shown);
    }
    assert_eq!(users.len(), 2, "each has a user of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_builds_on_a_file_of_this_machine_is_refused() {
    let fixture = InMachines::new("vm-backing", 194).map(InMachines::in_a_crm);
    let Some(mut fixture) = fixture else { return };
    let image = fixture.place.directory.path().join("hostile.qcow2");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/shadow"])
        .arg(&image)
        .arg("1M")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    fixture.place.image_path = format!("file://{}", image.display());
    let place = &fixture.place;
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(place);
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let key = place.instance_key();
    let info = controller.instance_state(&key, TrackedState::CreateError).await;
    let reason = info.errors.join(" ");
    assert!(reason.contains("image_path: the image builds on a file outside of it"), "{reason}");
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the instance's end", || async {
        controller.instance_infos.find(&key).is_none().then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
