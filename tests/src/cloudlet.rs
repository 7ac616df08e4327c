//! A cloudlet on this machine, an app to run there, and how to ask for it.

use std::{path::Path, process::Command};

use selvage_runtime::ImageBuilder;
use selvage_testkit::containers;

use crate::{
    Selvage,
    process::{Cli, wait_for},
};

pub const APP: [&str; 6] = ["--developer", "acme", "--appname", "web", "--appvers", "1"];

/// Returns whether cloudlets can run containers here; says so loudly when not.
pub fn can_run() -> bool {
    containers::can_run(&["runc", "nft", "mkfs.ext4"])
}

/// An image of busybox, with these of its programs.
pub fn busybox(names: &[&str]) -> ImageBuilder {
    let program = std::fs::read(selvage_testkit::find("busybox").unwrap()).unwrap();
    ImageBuilder::busybox(&program, names).unwrap()
}

/// A busybox that serves `/www`.
pub fn write_image(path: &Path) {
    let image = busybox(&["sh", "httpd", "cat", "date", "df"])
        .command(["/bin/httpd", "-f", "-p", "8080", "-h", "/www"])
        .directory("data", 0o755)
        .unwrap();
    image.file("www/index.html", 0o644, b"hello").unwrap().write("localhost/web:1", path).unwrap();
}

/// Everything up to the cloudlets.
pub fn furnish(cli: &Cli) {
    cli.ok(&["flavor", "create", "--name", "s", "--ram", "64", "--vcpus", "1", "--disk", "1"]);
    cli.ok(&["operator", "create", "--name", "op"]);
    cli.ok(&["developer", "create", "--name", "acme"]);
}

pub fn create_cloudlet(cli: &Cli, name: &str) {
    let place = ["--latitude", "1", "--longitude", "1", "--numdynamicips", "9"];
    let named = ["cloudlet", "create", "--operator", "op", "--name", name];
    cli.ok(&[&named[..], &place].concat());
}

/// Settings that make a machine with a controller a cloudlet as well, with
/// images in this directory. `common` is what its site has in common with
/// others.
pub fn cloudlet_here(directory: &Path, name: &str, common: &str) -> Vec<String> {
    let site = directory.join("site.yaml");
    std::fs::write(&site, format!("common: {{{common}}}\n")).unwrap();
    let (name, site) = (format!("crm.cloudlet=op/{name}"), format!("crm.site={}", site.display()));
    let images = images_in(directory);
    ["--set", &name, "--set", &site, "--set", "crm.runtime=oci", "--set", &images]
        .map(str::to_owned)
        .to_vec()
}

/// The setting by which files of a directory may be images.
pub fn images_in(directory: &Path) -> String {
    format!("crm.image_folders={}", directory.display())
}

/// Everything up to this one cloudlet, which is there.
pub fn furnish_here(cli: &Cli, name: &str) {
    furnish(cli);
    create_cloudlet(cli, name);
    wait_for("the cloudlet", || {
        let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
        shown.contains("CLOUDLET_STATE_READY").then_some(())
    });
}

/// The crm of a cloudlet on a machine, joined to its controller; images are
/// beside its directory.
pub fn join(
    cli: &Cli,
    controller: &str,
    cloudlet: &str,
    namespace: &str,
    home: &Path,
    more: &[&str],
) -> Selvage {
    let named = format!("cloudlet/op/{cloudlet}");
    let made = cli.json(&["join-token", "create", &named, "-o", "json"]);
    let token = home.join("token");
    std::fs::write(&token, made["token"].as_str().unwrap()).unwrap();
    let (token, images) = (token.display().to_string(), images_in(home.parent().unwrap()));
    let joins = ["--controller", controller, "--join-file", &token];
    let runs = ["--set", "crm.runtime=oci", "--set", &images];
    Selvage::start_in(namespace, "crm", home, &[&joins[..], &runs, more].concat())
}

pub fn create_app(cli: &Cli, image: &Path, port: &str, more: &[&str]) {
    let path = format!("file://{}", image.display());
    let of = ["--imagepath", &path, "--imagetype", "docker", "--deployment", "docker"];
    let runs = ["--accessports", port, "--defaultflavor", "s"];
    cli.ok(&[&["app", "create"][..], &APP, &of, &runs, more].concat());
}

/// The words that name the instance of the app on a cloudlet.
pub fn on(cloudlet: &str) -> Vec<&str> {
    let place = ["--operator", "op", "--cloudlet", cloudlet, "--cluster", "autoclusterweb"];
    [&APP[..], &place].concat()
}

/// Page of a web server, asked for from a network namespace or from here.
pub fn page(namespace: Option<&str>, address: &str) -> Option<String> {
    let curl = ["curl", "-s", "-m", "5", "-f", address];
    let output = match namespace {
        Some(name) => {
            let enter = format!("--net=/run/netns/{name}");
            Command::new("nsenter").arg(enter).args(curl).output().unwrap()
        }
        None => Command::new(curl[0]).args(&curl[1..]).output().unwrap(),
    };
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}
