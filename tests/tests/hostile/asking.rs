//! By what an app asks for: files of the machine as images, addresses inside,
//! volumes without end, commands for another's shell.

use std::path::Path;

use selvage_tests::cloudlet::can_run;

use crate::site::{Site, app};

const LEFT: &str = "/tmp/selvage-hostile-was-here";

fn create(site: &Site, name: &str, image: &str, more: &[&str]) -> String {
    let app = app("evil", name, image);
    let app: Vec<&str> = app.iter().map(String::as_str).collect();
    let made = site.evil(&[&["app", "create"][..], &app, more].concat());
    if made.code != 0 {
        return made.stderr;
    }
    let cluster = format!("autocluster{name}");
    let named = ["--developer", "evil", "--appname", name, "--appvers", "1"];
    let place = ["--operator", "op", "--cloudlet", &site.cloudlet, "--cluster", &cluster];
    let printed = site.evil(&[&["appinst", "create"][..], &named, &place].concat());
    assert_ne!(printed.code, 0, "{name}: {printed:?}");
    printed.stdout + &printed.stderr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_gets_no_more_than_its_own_by_asking() {
    if !can_run() {
        return;
    }
    let site = Site::start(108).await;
    let image = format!("file://{}", site.image().display());
    std::fs::write(site.directory.path().join("secret"), "canary-of-the-machine").unwrap();
    let outside = format!("file://{}/../../etc/passwd", site.directory.path().display());
    let key = format!("file://{}/pki/ca.key", site.selvage.data().display());
    for (name, path) in [
        ("passwd", "file:///etc/passwd"),
        ("up", &outside),
        ("key", &key),
        ("meta", "http://169.254.169.254/latest/web:1"),
        ("loop", "127.0.0.1:1/web:1"),
        ("private", "10.255.255.1:5000/web:1"),
    ] {
        let refused = create(&site, name, path, &[]);
        assert!(
            !refused.contains("root:") && !refused.contains("PRIVATE KEY"),
            "{name}: {refused}"
        );
    }
    for (name, annotation) in [
        ("endless", "volume.data=1000000:/data"),
        ("overflow", "volume.data=18446744073709551615:/data"),
        ("proc", "volume.data=1:/proc"),
        ("climb", "volume.data=1:/a/../../etc"),
        ("named", "volume.../../x=1:/data"),
    ] {
        let refused = create(&site, name, &image, &["--annotations", annotation]);
        assert!(refused.contains("Disk") || refused.contains("annotations"), "{name}: {refused}");
    }
    assert!(!site.admin.ok(&["volume", "list"]).contains("-data"), "no volume was made");

    // A command is words: no shell of the machine reads it.
    let command = format!("/bin/nothing; touch {LEFT} $(touch {LEFT}) `touch {LEFT}` > {LEFT}");
    create(&site, "shell", &image, &["--command", &command]);
    assert!(!Path::new(LEFT).exists());
}
