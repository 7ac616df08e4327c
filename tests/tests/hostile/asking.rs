//! By what an app asks for: files of the machine as images, addresses inside,
//! volumes without end, commands for another's shell.

use std::{io::ErrorKind, net::TcpListener, path::Path};

use selvage_tests::cloudlet::can_run;

use crate::site::{Site, app};

/// Reason for which an address inside is refused.
const NOT_PUBLIC: &str = "has an address that is not public";
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
    // Somebody listens where nobody may be sent.
    let canary = TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let inside = format!("{}/web:1", canary.local_addr().unwrap());
    let folders = "crm.image_folders";
    for (name, path, reason) in [
        ("passwd", "file:///etc/passwd", folders),
        ("up", &outside, folders),
        ("key", &key, folders),
        ("meta", "169.254.169.254/latest/web:1", NOT_PUBLIC),
        ("loop", &inside, NOT_PUBLIC),
        ("private", "10.255.255.1:5000/web:1", NOT_PUBLIC),
    ] {
        let refused = create(&site, name, path, &[]);
        assert!(refused.contains(reason), "{name}: {refused}");
        assert!(
            !refused.contains("root:") && !refused.contains("PRIVATE KEY"),
            "{name}: {refused}"
        );
    }
    let asked = canary.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(asked, Err(ErrorKind::WouldBlock), "the inside was asked");
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
