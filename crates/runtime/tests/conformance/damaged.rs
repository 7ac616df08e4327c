//! Records that a power cut or a bad disk has damaged: begun anew, not fatal.

use std::fs;

use selvage_runtime::{ContainerSpec, RestartPolicy, Runtime, Status, oci};

use crate::{
    NAMESPACE, is_alive,
    oci::oci_options,
    real::{self, wait_for},
    spec,
};

#[tokio::test(flavor = "multi_thread")]
async fn oci_damaged_records_are_begun_anew() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = oci_options(directory.path(), "runc");
    let runtime = oci::Oci::open(options.clone()).await.unwrap();
    let image = real::image_tar(directory.path());
    runtime.import(NAMESPACE, &image, None).await.unwrap();
    let mut pids = Vec::new();
    for id in ["lost", "unsure"] {
        let spec =
            ContainerSpec { restart: RestartPolicy::Always, ..spec(id, &["/bin/sleep", "3600"]) };
        runtime.create(NAMESPACE, spec).await.unwrap();
        pids.push(runtime.start(NAMESPACE, id).await.unwrap().pid.unwrap());
    }
    drop(runtime);
    let containers = options.root.join("containers").join(NAMESPACE);
    fs::write(options.root.join("images.json"), "{\"half").unwrap();
    fs::write(containers.join("lost/record.json"), "").unwrap();
    fs::write(containers.join("unsure/state.json"), "\0\0\0").unwrap();
    // A layer that was renamed and never reached the disk.
    let stray = options.root.join("layers").join("0".repeat(32));
    fs::create_dir(&stray).unwrap();

    let runtime =
        wait_for("the runtime", || async { oci::Oci::open(options.clone()).await.ok() }).await;
    assert!(!stray.exists(), "what no record names is not believed");
    assert!(runtime.inspect(NAMESPACE, "lost").await.is_err());
    wait_for("the ends of both", || async { pids.iter().all(|pid| !is_alive(*pid)).then_some(()) })
        .await;
    wait_for("the other to run again", || async {
        let found = runtime.inspect(NAMESPACE, "unsure").await.unwrap();
        (found.status == Status::Running).then_some(())
    })
    .await;
    // Both names can be had again.
    runtime.import(NAMESPACE, &image, None).await.unwrap();
    runtime.create(NAMESPACE, spec("lost", &["/bin/sleep", "3600"])).await.unwrap();
    for id in ["lost", "unsure"] {
        runtime.delete(NAMESPACE, id, true).await.unwrap();
    }
}
