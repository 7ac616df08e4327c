//! A snapshot brings back what was there: in place, and after all is gone.

use std::process::Command;

use crate::site::Site;

fn made(site: &Site, name: &str) {
    site.until("an object", || {
        site.kubectl(&["create", "configmap", name]).or_else(|error| {
            if error.contains("already exists") { Ok(String::new()) } else { Err(error) }
        })
    });
}

/// Uid of an object, by which it is the same and not one of the same name.
fn uid(site: &Site, name: &str) -> String {
    site.until(name, || site.kubectl(&["get", "configmap", name, "-o", "jsonpath={.metadata.uid}"]))
}

fn nodes(site: &Site) -> Vec<String> {
    let listed = site.until("nodes", || site.kubectl(&["get", "nodes", "-o", "name"]));
    listed.lines().map(|line| line.trim_start_matches("node/").to_owned()).collect()
}

/// Backups are no secret of this program.
fn is_read_by_restic(site: &Site, id: &str) {
    let data = site.folder().join("data");
    let restic = |arguments: &[&str]| {
        let output = Command::new("restic")
            .args(["--no-cache", "-r"])
            .arg(data.join("kaas/repository"))
            .arg("--password-file")
            .arg(data.join("pki/kaas-backup.password"))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let listed = restic(&["snapshots", "--json"]);
    assert!(listed.contains(&format!("name={id}")), "{listed}");
    restic(&["check", "--read-data"]);
    let files = restic(&["ls", "latest"]);
    assert!(files.contains("/demo/"), "{files}");
}

#[test]
fn a_snapshot_is_restored_in_place_and_after_the_cluster_is_gone() {
    let Some(site) = Site::open(1) else { return };
    site.cli.ok(&["kaas", "create", "demo", "--wait"]);
    made(&site, "kept");
    let (kept, before) = (uid(&site, "kept"), nodes(&site));
    let backup = site.cli.json(&["kaas", "backup", "demo", "-o", "json"]);
    let id = backup["id"].as_str().unwrap();
    is_read_by_restic(&site, id);
    site.kubectl(&["delete", "configmap", "kept"]).unwrap();
    made(&site, "later");

    site.cli.ok(&["kaas", "restore", "demo", "--from", id, "--yes", "--wait"]);
    assert_eq!(uid(&site, "kept"), kept);
    let later = site.kubectl(&["get", "configmap", "later"]).unwrap_err();
    assert!(later.contains("not found"), "{later}");
    let after = nodes(&site);
    assert!(after.len() == 1 && after != before, "{after:?} after {before:?}");

    site.cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    let listed = site.cli.ok(&["kaas", "backups"]);
    assert!(listed.contains(id), "{listed}");
    site.cli.ok(&["kaas", "restore", "demo", "--from", id, "--as", "again", "--wait"]);
    assert_eq!(uid(&site, "kept"), kept);
    assert_eq!(nodes(&site).len(), 1);
    // It is a cluster like any other.
    site.apply(
        &format!("{{apiVersion: v1, kind: Pod, metadata: {{name: first}}, spec: {{restartPolicy: Never, containers: [{{name: first, image: '{}', command: [echo, hello]}}]}}}}", crate::site::IMAGE),
    );
    site.shows(&["logs", "first"], "hello");
    site.cli.ok(&["kaas", "delete", "again", "--yes", "--wait"]);
    site.close();
}
