//! The smallest Ceph there is: a monitor, one store in memory, and the
//! gateway that speaks S3. Nothing of it is left when it is dropped.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Its processes, and where the gateway is.
pub struct Ceph {
    pub children: Vec<Child>,
    pub gateway: SocketAddr,
    pub folder: tempfile::TempDir,
}

impl Drop for Ceph {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

impl Ceph {
    /// Starts one, with a user that has these keys.
    pub fn start(access_key: &str, secret_key: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut ceph = Self { children: Vec::new(), gateway: free(), folder };
        let cluster = id();
        let monitors = format!("[v2:{},v1:{}]", free(), free());
        ceph.configure(&cluster, &monitors);
        ceph.monitor(&cluster, &monitors);
        ceph.store();
        let keyring = ceph.path("gateway.keyring");
        let keys = ["auth", "get-or-create", "client.rgw.a", "mon", "allow rw", "osd", "allow rwx"];
        std::fs::write(&keyring, ceph.run("ceph", &keys)).unwrap();
        let (access, secret) =
            (format!("--access-key={access_key}"), format!("--secret-key={secret_key}"));
        let user = ["user", "create", "--uid=tester", "--display-name=tester", &access, &secret];
        ceph.run("radosgw-admin", &user);
        let front = format!("--rgw-frontends=beast endpoint={}", ceph.gateway);
        let keyring = keyring.to_str().unwrap();
        ceph.begin("radosgw", &["-n", "client.rgw.a", "-f", "--keyring", keyring, &front]);
        ceph
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, cluster: &str, monitors: &str) {
        let at = self.folder.path().display();
        for name in ["monitor", "store"] {
            std::fs::create_dir(self.path(name)).unwrap();
        }
        let text = format!(
            "[global]
fsid = {cluster}
mon_host = {monitors}
mon_initial_members = a
mon_data = {at}/monitor
osd_data = {at}/store
osd_objectstore = memstore
memstore_device_bytes = 1073741824
keyring = {at}/keyring
run_dir = {at}
admin_socket = {at}/$name.asok
log_file = {at}/$name.log
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
"
        );
        std::fs::write(self.path("ceph.conf"), text).unwrap();
    }

    fn monitor(&mut self, cluster: &str, monitors: &str) {
        let (keyring, map) = (self.path("keyring"), self.path("monitors"));
        let (keyring, map) = (keyring.to_str().unwrap(), map.to_str().unwrap());
        let all = ["--cap", "mon", "allow *"];
        let begin = ["--create-keyring", keyring, "--gen-key", "-n", "mon."];
        self.run("ceph-authtool", &[&begin[..], &all[..]].concat());
        let admin = [keyring, "--gen-key", "-n", "client.admin", "--cap", "osd", "allow *"];
        self.run("ceph-authtool", &[&admin[..], &all[..]].concat());
        self.run("monmaptool", &["--create", "--fsid", cluster, "--addv", "a", monitors, map]);
        self.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", map, "--keyring", keyring]);
        self.begin("ceph-mon", &["-i", "a", "-f"]);
    }

    fn store(&mut self) {
        let (number, keyring) = (id(), self.path("store/keyring"));
        let keyring = keyring.to_str().unwrap();
        self.run("ceph", &["osd", "new", &number]);
        let keys = self.run(
            "ceph",
            &["auth", "get-or-create", "osd.0", "mon", "allow profile osd", "osd", "allow *"],
        );
        std::fs::write(keyring, keys).unwrap();
        self.run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &number, "--keyring", keyring]);
        self.begin("ceph-osd", &["-i", "0", "-f", "--keyring", keyring]);
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("CEPH_CONF", self.path("ceph.conf")).stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Vec<u8> {
        let output = self.command(program, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        output.stdout
    }

    fn begin(&mut self, program: &str, arguments: &[&str]) {
        let mut command = self.command(program, arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.push(child);
    }
}

/// Makes a bucket, by somebody else's client.
pub fn make_bucket(python: &Path, endpoint: &str, bucket: &str, keys: (&str, &str)) {
    let script = "import boto3, sys
endpoint, bucket, access, secret = sys.argv[1:]
client = boto3.client('s3', endpoint_url=endpoint, aws_access_key_id=access,
                      aws_secret_access_key=secret, region_name='us-east-1')
client.create_bucket(Bucket=bucket)";
    let made = Command::new(python).args(["-c", script, endpoint, bucket, keys.0, keys.1]).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
