//! The page at `/` in real browsers: every page and form as every role, an app
//! from its registration to its shell, a server that is killed under the page, the
//! demonstration, a login through a provider.
//! The scenarios are in `tests/browser/dashboard`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{path::Path, process::Command};

use selvage_tests::{cloudlet, process::binary, real};

fn is_built() -> bool {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ui/dist/manifest.json");
    if !page.exists() {
        real::skip("the page", "it is not built: run ./dev ui");
    }
    page.exists()
}

fn can_run() -> bool {
    is_built() && selvage_testkit::containers::can_run(&["runc"])
}

/// A web server that also writes a line every second.
fn write_image(path: &Path) {
    // A first process that does not ask to be told is not ended before its time is up.
    let script = "trap exit TERM; echo started; (while sleep 1; do echo tick; done) & \
                  httpd -f -p 8080 -h /www & wait";
    let names = ["sh", "httpd", "ls", "sleep", "echo", "printf"];
    let image = cloudlet::busybox(&names).command(["/bin/sh", "-c", script]);
    image.write("localhost/web:1", path).unwrap();
}

/// The same command in a network of its own: a browser breaks off all that is under way when
/// an address of its machine comes or goes, and other tests make containers.
fn alone(command: &Command) -> Command {
    let mut alone = Command::new("unshare");
    alone.args(["--net", "sh", "-c", r#"ip link set lo up && exec "$@""#, "sh"]);
    alone.arg(command.get_program()).args(command.get_args());
    alone.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    alone
}

#[test]
fn people_use_the_page() {
    if !can_run() {
        return;
    }
    let Some(browser) = real::browser("dashboard.mjs") else { return };
    let directory = tempfile::tempdir().unwrap();
    let images = tempfile::tempdir().unwrap();
    let image = images.path().join("web.tar");
    write_image(&image);
    real::must_end_ok(alone(&browser).arg(binary()).arg(directory.path()).arg(image));
}

#[test]
fn somebody_who_has_read_nothing_uses_the_demonstration() {
    if !can_run() {
        return;
    }
    let Some(browser) = real::browser("demo.mjs") else { return };
    let directory = tempfile::tempdir().unwrap();
    real::must_end_ok(alone(&browser).arg(binary()).arg(directory.path()));
}

#[test]
fn people_log_in_through_a_provider() {
    if !is_built() {
        return;
    }
    let Ok(provider) = std::env::var("SELVAGE_OIDC_PROVIDER") else {
        real::skip("oidc", "SELVAGE_OIDC_PROVIDER is not set: run ./dev test");
        return;
    };
    let Some(browser) = real::browser("provider.mjs") else { return };
    let directory = tempfile::tempdir().unwrap();
    real::must_end_ok(alone(&browser).arg(binary()).arg(directory.path()).arg(provider));
}
