//! Clients that come to a public port from another machine are led by the
//! kernel, and everybody else by the balancer; both count.

use std::{
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use selvage_api::{
    distributed_match_engine::LProto,
    edgeproto::{IpAccess, TrackedState, metric_val::Value},
};
use selvage_crm::Forwarding;

use crate::support::{
    ANSWER, Life, Mirror, OtherMachine, Stuck, TEST_TIMEOUT, Talk, TestCloudlet, TestController,
    can_run, fetch, has_program, namespace, run_in, taken_for, wait_for,
};

/// Port at which the mirror listens in the instance.
const MIRROR: u16 = 9000;

fn can_forward() -> bool {
    can_run() && has_program("nft") && has_program("ip")
}

/// A place with a mirror beside its web server; `at` is its public port.
fn with_mirror(name: &'static str, range: u8, at: u16) -> TestCloudlet {
    let mut place = TestCloudlet::new(name, range);
    place.more_ports = vec![(LProto::Tcp, MIRROR, at), (LProto::Udp, MIRROR, at)];
    place
}

/// The table of a place, as the packet filter tells it.
fn table(place: &TestCloudlet) -> serde_json::Value {
    let prefix = selvage_crm::platform::network::prefix(&place.cloudlet()).unwrap();
    let name = format!("selvage_{prefix}");
    let listing = Command::new("nft").args(["-j", "list", "table", "ip", &name]).output().unwrap();
    serde_json::from_slice(&listing.stdout).unwrap_or_default()
}

/// Public ports that the kernel leads, with how often it did.
fn led(place: &TestCloudlet) -> Vec<(u64, u64)> {
    let listing = table(place);
    let all = listing["nftables"].as_array().cloned().unwrap_or_default();
    let elements = all.iter().filter_map(|thing| thing["map"]["elem"].as_array());
    let number = |element: &serde_json::Value| {
        let key = &element[0]["elem"];
        let port = key["val"]["concat"].as_array()?.last()?.as_u64()?;
        Some((port, key["counter"]["packets"].as_u64()?))
    };
    elements.flatten().filter_map(number).collect()
}

/// Waits until the samples of the first instance say so many connections are
/// open, and were.
async fn counted(controller: &TestController, active: u64, total: u64) {
    let mut last = None;
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        assert!(Instant::now() < until, "never counted; {last:?} instead");
        let sample = controller.sample("appinst-connections", &last).await;
        let value = |name: &str| {
            let found = sample.vals.iter().find(|value| value.name == name);
            match found.and_then(|value| value.value) {
                Some(Value::Ival(count)) => count,
                other => panic!("{other:?}"),
            }
        };
        let seen = (value("active"), value("total"));
        if seen == (active, total) {
            return;
        }
        last = Some(seen);
    }
}

/// The same for both ways to lead: who comes is led, and counted once.
async fn everybody_gets_there(mut place: TestCloudlet, forwarding: Forwarding) {
    place.forwarding = forwarding;
    let range = place.range;
    let outside = OtherMachine::new(range);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let mirror = Mirror::start(&namespace(&place, "hello"), MIRROR);
    let bridge = IpAddr::from([10, range, 1, 1]);
    let at = SocketAddr::new(bridge, 81);
    let kernel = forwarding == Forwarding::Kernel;
    let expected = if kernel { IpAddr::V4(outside.address()) } else { bridge };

    // From another machine, by tcp and by udp.
    let mut talk = outside.run(move || Talk::begin(at)).await.unwrap();
    assert_eq!(talk.taken_for, expected);
    let asked = move || taken_for(&UdpSocket::bind("0.0.0.0:0").unwrap(), at);
    assert_eq!(outside.run(asked).await, expected);
    // From this machine.
    let answer = fetch(place.public()).await.unwrap();
    assert!(answer.contains(ANSWER), "{answer}");
    // From another instance.
    let (app, neighbour) = place.neighbour();
    controller.apps.put(app).unwrap();
    controller.instances.put(neighbour.clone()).unwrap();
    controller.instance_state(neighbour.key.as_ref().unwrap(), TrackedState::Ready).await;
    let near = run_in(&namespace(&place, "neighbour"), move || Talk::begin(at)).await.unwrap();
    assert_eq!(near.taken_for, bridge);
    drop(near);
    talk.say("still here").unwrap();

    // One talk and the datagrams are open; two more are over.
    counted(&controller, 2, 4).await;
    let mut counts = led(&place);
    counts.sort_unstable();
    counts.retain(|(port, _)| *port != 82);
    assert_eq!(counts, if kernel { vec![(80, 0), (81, 1), (81, 1)] } else { vec![] });

    drop(talk);
    controller.instances.remove(&neighbour).unwrap();
    controller.unmake(&place).await;
    drop(mirror);
    // The address is gone: nobody even refuses.
    let asked = move || TcpStream::connect_timeout(&at, Duration::from_secs(1));
    assert!(outside.run(asked).await.is_err());
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_from_another_machine_is_led_by_the_kernel() {
    if can_forward() {
        everybody_gets_there(with_mirror("kernel", 171, 81), Forwarding::Kernel).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_clients_reach_an_instance_through_the_proxy() {
    if can_forward() {
        everybody_gets_there(with_mirror("proxy", 172, 81), Forwarding::Proxy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_outlives_the_crm_and_ends_with_its_instance() {
    if !can_forward() {
        return;
    }
    let outside = OtherMachine::new(173);
    let mut place = with_mirror("outlives", 173, 81);
    place.forwarding = Forwarding::Kernel;
    let place = Arc::new(place);
    let controller = TestController::start().await;
    let life = Life::start(&place, controller.address, &Stuck::new(usize::MAX, false)).await;
    controller.make(&place).await;
    let mirror = Mirror::start(&namespace(&place, "hello"), MIRROR);
    let at = SocketAddr::from(([10, 173, 1, 1], 81));
    let mut talk = outside.run(move || Talk::begin(at)).await.unwrap();
    life.cut().await;
    talk.say("while nobody is there").unwrap();
    let other = outside.run(move || Talk::begin(at)).await.unwrap();
    assert_eq!(other.taken_for, IpAddr::V4(outside.address()), "a new one while nobody is there");
    drop(other);

    let running = place.start(controller.address).await;
    talk.say("to the next one").unwrap();
    controller.instance_state(&place.instance_key(), TrackedState::Ready).await;
    assert_eq!(led(&place).len(), 3);
    // Somebody takes the rules away, with all others of the machine perhaps.
    let prefix = selvage_crm::platform::network::prefix(&place.cloudlet()).unwrap();
    let name = format!("selvage_{prefix}");
    let gone = Command::new("nft").args(["delete", "table", "ip", &name]).status().unwrap();
    assert!(gone.success());
    wait_for("the rules again", || async { (led(&place).len() == 3).then_some(()) }).await;
    talk.say("after that").unwrap();

    // Those who are there when it is deleted have some time, and are cut off.
    let cut = std::thread::spawn(move || {
        while talk.say("to the end").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    controller.unmake(&place).await;
    tokio::task::spawn_blocking(|| cut.join().unwrap()).await.unwrap();
    drop(mirror);
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_address_of_the_machine_leads_there_while_the_port_is_healthy() {
    if !can_forward() {
        return;
    }
    let outside = OtherMachine::new(174);
    let mut place = with_mirror("every", 174, 17481);
    place.public_port = 17480;
    place.ip_access = IpAccess::Shared;
    place.addresses = vec![IpAddr::from([0, 0, 0, 0])];
    place.forwarding = Forwarding::Kernel;
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let inside = namespace(&place, "hello");
    let mirror = Mirror::start(&inside, MIRROR);
    let client = IpAddr::V4(outside.address());
    let addresses = [IpAddr::V4(outside.near()), IpAddr::from([10, 174, 1, 1])];
    for address in addresses {
        let at = SocketAddr::new(address, 17481);
        assert_eq!(outside.run(move || Talk::begin(at)).await.unwrap().taken_for, client);
        let asked = move || taken_for(&UdpSocket::bind("0.0.0.0:0").unwrap(), at);
        assert_eq!(outside.run(asked).await, client);
    }
    let local = SocketAddr::from(([127, 0, 0, 1], 17480));
    assert!(fetch(local).await.unwrap().contains(ANSWER));

    // Nobody listens: the balancer takes over, and resets who comes.
    drop(mirror);
    let tcp_open = || led(&place).iter().filter(|(port, _)| *port == 17481).count() == 2;
    wait_for("the way to close", || async { (!tcp_open()).then_some(()) }).await;
    let at = SocketAddr::new(addresses[0], 17481);
    outside.run(move || TcpStream::connect(at)).await.expect("the balancer takes it");
    assert!(outside.run(move || Talk::begin(at)).await.is_err());
    let mirror = Mirror::start(&inside, MIRROR);
    wait_for("the way to open", || async { tcp_open().then_some(()) }).await;
    assert_eq!(outside.run(move || Talk::begin(at)).await.unwrap().taken_for, client);
    controller.unmake(&place).await;
    drop(mirror);
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
