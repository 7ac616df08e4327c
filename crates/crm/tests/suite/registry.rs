//! Images from a real registry that asks who is there.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command},
};

use selvage_api::edgeproto::TrackedState;

use crate::support::{ANSWER, TestCloudlet, TestController, can_run, fetch, has_program, wait_for};

/// `geheim`, as the registry keeps it.
const USERS: &str = "joe:$2y$05$.el4cvCb.1X2wa5DeUsNZOO1NfI6awgUoz1BsficdEZ0kqFSSwmMm\n";
const USER: &str = "joe:geheim";

/// Debian's docker-registry on a port of its own.
struct Registry {
    process: Child,
    address: SocketAddr,
}

impl Registry {
    async fn start(folder: &Path) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (users, images) = (folder.join("users"), folder.join("images"));
        std::fs::write(&users, USERS).unwrap();
        let (users, images) = (users.display(), images.display());
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: \
             {images}}}, delete: {{enabled: true}}}}\nhttp: {{addr: '{address}'}}\nauth: \
             {{htpasswd: {{realm: test, path: {users}}}}}\n"
        );
        let file = folder.join("registry.yml");
        std::fs::write(&file, config).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the registry", || async {
            tokio::net::TcpStream::connect(address).await.ok().map(drop)
        })
        .await;
        Self { process, address }
    }

    /// Puts the image of a place there; its digest.
    fn push(&self, place: &TestCloudlet, name: &str) -> String {
        let file = place.directory.path().join("digest");
        let to = format!("docker://{}/{name}", self.address);
        let from = format!("oci-archive:{}", place.image().display());
        let pushed = Command::new("skopeo")
            .args(["copy", "--dest-tls-verify=false", "--dest-creds", USER, "--digestfile"])
            .arg(&file)
            .args([&from, &to])
            .output()
            .unwrap();
        assert!(pushed.status.success(), "{pushed:?}");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn goes(controller: &TestController, place: &TestCloudlet) {
    controller.instances.put(place.instance(TrackedState::DeleteRequested)).unwrap();
    wait_for("the instance's end", || async {
        controller.instance_infos.find(&place.instance_key()).is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_come_from_a_registry_by_tag_and_by_digest() {
    if !can_run() || !has_program("docker-registry") || !has_program("skopeo") {
        return;
    }
    let mut place = TestCloudlet::new("registry", 251);
    let registry = Registry::start(place.directory.path()).await;
    let digest = registry.push(&place, "dev/hello:1");
    let address = registry.address;
    place.registry = Some((address.to_string(), USER.into()));
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    for name in [format!("{address}/dev/hello:1"), format!("{address}/dev/hello@{digest}")] {
        place.image_path = name;
        controller.make(&place).await;
        let answer = fetch(place.public()).await.unwrap();
        assert!(answer.contains(ANSWER), "{answer}");
        controller.unmake(&place).await;
    }

    // What the registry says is what the developer reads, without the
    // password.
    let other = format!("sha256:{}", "0".repeat(64));
    for (name, says) in [
        (format!("{address}/dev/hello:2"), "manifest unknown"),
        (format!("{address}/dev/nothing:1"), "unknown"),
        (format!("{address}/dev/hello@{other}"), "manifest unknown"),
    ] {
        place.image_path = name.clone();
        controller.furnish(&place);
        controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
        controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
        controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
        let key = place.instance_key();
        let info = controller.instance_state(&key, TrackedState::CreateError).await;
        assert!(info.errors[0].to_lowercase().contains(says), "{name}: {:?}", info.errors);
        assert!(!info.errors[0].contains("geheim"), "{:?}", info.errors);
        goes(&controller, &place).await;
    }

    // An image that is here needs no registry.
    place.image_path = format!("{address}/dev/hello:1");
    drop(registry);
    controller.make(&place).await;
    assert!(fetch(place.public()).await.is_some());
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_said_to_be_wrong() {
    if !can_run() || !has_program("docker-registry") || !has_program("skopeo") {
        return;
    }
    let mut place = TestCloudlet::new("password", 252);
    let registry = Registry::start(place.directory.path()).await;
    registry.push(&place, "dev/hello:1");
    place.registry = Some((registry.address.to_string(), "joe:falsch".into()));
    place.image_path = format!("{}/dev/hello:1", registry.address);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.furnish(&place);
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    let text = info.errors[0].to_lowercase();
    assert!(text.contains("401") || text.contains("unauthorized"), "{text}");
    assert!(!text.contains("falsch"), "{text}");
    goes(&controller, &place).await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

/// Wants an instance that cannot be; why.
async fn refused(controller: &TestController, place: &TestCloudlet) -> String {
    controller.furnish(place);
    controller.clusters.put(place.cluster(TrackedState::CreateRequested)).unwrap();
    controller.cluster_state(&place.cluster_key(), TrackedState::Ready).await;
    controller.instances.put(place.instance(TrackedState::CreateRequested)).unwrap();
    let info = controller.instance_state(&place.instance_key(), TrackedState::CreateError).await;
    controller.unmake(place).await;
    info.errors[0].clone()
}

/// One developer against another and the operator: neither the operator's
/// password nor what is on the cloudlet already gives away an image.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_developer_has_no_image_of_another() {
    if !can_run() || !has_program("docker-registry") || !has_program("skopeo") {
        return;
    }
    let mut place = TestCloudlet::new("rights", 250);
    let registry = Registry::start(place.directory.path()).await;
    let digest = registry.push(&place, "dev/hello:1");
    let address = registry.address;
    place.registry = Some((address.to_string(), USER.into()));
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    let names = [format!("{address}/dev/hello:1"), format!("{address}/dev/hello@{digest}")];
    for name in &names {
        place.image_path.clone_from(name);
        controller.make(&place).await;
        controller.unmake(&place).await;
    }
    place.developer = "other";
    for name in &names {
        place.image_path.clone_from(name);
        let error = refused(&controller, &place).await;
        assert!(error.contains("it wants credentials that were not given"), "{name}: {error}");
        assert!(!error.contains("geheim"), "{error}");
    }
    // A right of one's own is one.
    let secrets = place.directory.path().join("pull-secrets");
    std::fs::create_dir(&secrets).unwrap();
    let login = serde_json::json!({ "username": "joe", "password": "geheim" });
    let text = serde_json::json!({ "auths": { address.to_string(): login } }).to_string();
    std::fs::write(secrets.join("other.json"), text).unwrap();
    controller.make(&place).await;
    assert!(fetch(place.public()).await.is_some());
    controller.unmake(&place).await;
    // It ends with the secret, whatever is on the cloudlet by now.
    let login = serde_json::json!({ "username": "joe", "password": "falsch" });
    let text = serde_json::json!({ "auths": { address.to_string(): login } }).to_string();
    std::fs::write(secrets.join("other.json"), text).unwrap();
    for name in &names {
        place.image_path.clone_from(name);
        let error = refused(&controller, &place).await.to_lowercase();
        assert!(error.contains("401") || error.contains("unauthorized"), "{name}: {error}");
        assert!(!error.contains("falsch"), "{error}");
    }
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}
