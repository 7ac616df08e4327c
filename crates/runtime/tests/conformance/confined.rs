//! Confinement of a container, though its programs run as root.

use std::path::Path;

use selvage_runtime::{ContainerSpec, Network, Runtime};

use crate::{NAMESPACE, argv, output, spec};

/// Of two: what makes the first may be used again for the second.
pub(crate) async fn suite(runtime: &dyn Runtime) {
    for id in ["f1", "f2"] {
        runtime.create(NAMESPACE, spec(id, &[])).await.unwrap();
        runtime.start(NAMESPACE, id).await.unwrap();
        is_filtered(runtime, id).await;
        has_what_it_needs(runtime, id).await;
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
    let host = ContainerSpec { network: Network::Host, ..spec("f3", &[]) };
    runtime.create(NAMESPACE, host).await.unwrap();
    runtime.start(NAMESPACE, "f3").await.expect("the machine's own network is left as it is");
    runtime.delete(NAMESPACE, "f3", true).await.unwrap();
}

async fn says(runtime: &dyn Runtime, id: &str, line: &str) -> (String, i32) {
    let ran = runtime.exec(NAMESPACE, id, argv(&["/bin/sh", "-c", line])).await.unwrap();
    let (out, err, code) = output(ran).await;
    (out + &err, code)
}

async fn is_filtered(runtime: &dyn Runtime, id: &str) {
    if !Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        // Kernels that tests bring along may be small.
        return selvage_testkit::say_skipped("seccomp", "this kernel has no filters");
    }
    for process in ["1", "self"] {
        let (status, _) = says(runtime, id, &format!("cat /proc/{process}/status")).await;
        assert!(status.contains("Seccomp:\t2\n"), "{process}: {status}");
        assert!(status.contains("NoNewPrivs:\t1\n"), "{process}: {status}");
    }
    for (line, refusal) in [
        // The kernel lets everybody make a namespace of users.
        ("busybox unshare -U true", "Operation not permitted"),
        ("busybox unshare -m true", "Operation not permitted"),
        ("busybox mount -t tmpfs none /tmp", "permi"),
        ("busybox chroot / /bin/true", "Operation not permitted"),
        ("busybox hostname other", "permi"),
        ("echo 1 > /proc/sys/kernel/panic", "Read-only file system"),
    ] {
        let (printed, code) = says(runtime, id, line).await;
        assert_ne!(code, 0, "{line}: {printed}");
        assert!(printed.contains(refusal), "{line}: {printed}");
    }
    let (printed, code) = says(runtime, id, "cat /proc/interrupts").await;
    assert_eq!((printed.as_str(), code), ("", 0), "what tells of others is empty");
}

async fn has_what_it_needs(runtime: &dyn Runtime, id: &str) {
    const PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    for line in [
        "busybox date",
        "busybox linux32 busybox uname -m",
        "echo a | busybox tee /tmp/a | busybox wc -c; busybox mv /tmp/a /tmp/b; busybox rm /tmp/b",
        "busybox chown 5:5 /tmp && busybox chown 0:0 /tmp",
        "sleep 0 & wait; busybox timeout 99 busybox seq 3",
        "busybox mknod /tmp/null c 1 3 && busybox rm /tmp/null",
        "busybox mkfifo /tmp/p && (echo x > /tmp/p & cat /tmp/p) && busybox rm /tmp/p",
        "busybox ip link && busybox netstat -tln && busybox ps && busybox free",
    ] {
        let line = format!("set -e; {line}");
        let (printed, code) = says(runtime, id, &line).await;
        assert_eq!(code, 0, "{line}: {printed}");
    }
    if Path::new(PORTS).exists() {
        let (ports, _) = says(runtime, id, &format!("cat {PORTS}")).await;
        assert_eq!(ports, "0\n", "any port is for everybody there");
    }
}
