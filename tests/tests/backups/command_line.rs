//! `selvage backup`.

use std::{fs, os::unix::fs::PermissionsExt};

use selvage_tests::process::{Cli, Printed};

use crate::site::{MIB, PASSWORD, Site, fill, hash_of};

struct Person<'a>(&'a Cli);

impl Person<'_> {
    fn run(&self, args: &[&str]) -> Printed {
        self.0.run_with(args, &[("RESTIC_PASSWORD", PASSWORD)], None)
    }

    fn ok(&self, args: &[&str]) -> String {
        let printed = self.run(args);
        assert_eq!(printed.code, 0, "{args:?}: {printed:?}");
        printed.stdout
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.ok(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_first_backup_to_the_last() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 4 * MIB, 1);
    let cli = Cli::admin_of(site.selvage());
    let person = Person(&cli);
    let place = ["backups/laptop", "--store", "file:"];
    let at = |before: &[&'static str], after: &[&'static str]| {
        [&["backup"][..], before, &place, after].concat()
    };

    let made = person.ok(&at(&["create", "vol1"], &["--name", "monday"]));
    assert!(made.starts_with("selvage/vol1 is backed up as monday: snapshot "), "{made}");
    assert!(made.ends_with(" of 1G new, 4M stored\n"), "{made}");
    // Another run of that name is another backup.
    let again = person.ok(&at(&["create", "vol1"], &["--name", "monday"]));
    assert_ne!(made.split(", ").next(), again.split(", ").next(), "{again}");
    person.ok(&at(&["delete"], &[])
        .into_iter()
        .map(|word| match word {
            "backups/laptop" => "backups/laptop#vol1@monday",
            word => word,
        })
        .chain(["--yes"])
        .collect::<Vec<_>>());
    person.ok(&at(&["create", "vol1"], &[]));
    let listed = person.ok(&at(&["list"], &[]));
    assert!(listed.starts_with("SNAPSHOT"), "{listed}");
    assert!(listed.contains("monday"), "{listed}");
    let jobs = person.ok(&["backup", "list"]);
    assert!(jobs.contains("complete"), "{jobs}");
    let listed = person.json(&at(&["list"], &[]));
    assert_eq!(listed["backups"].as_array().unwrap().len(), 2);

    let restore = ["backup", "restore", "backups/laptop@monday", "back", "--store", "file:"];
    let back = person.ok(&[&restore[..], &["--class", "thin"]].concat());
    assert!(back.starts_with("selvage/back is restored from snapshot "), "{back}");
    assert!(back.contains(" of vol1: 1G, "), "{back}");
    assert_eq!(hash_of(&site.device("back").await), hash_of(&device));

    let sound = person.ok(&at(&["verify"], &["--read", "100"]));
    assert!(sound.starts_with("verify is done: snapshots=2 "), "{sound}");
    let wrong = cli.run_with(&at(&["list"], &[]), &[("RESTIC_PASSWORD", "other")], None);
    assert_eq!(wrong.code, i32::from(selvage_api::Code::PermissionDenied.exit()), "{wrong:?}");
    let none = cli.run(&at(&["list"], &[]));
    assert!(none.stderr.contains("encryption_key is required"), "{none:?}");

    let asked = ["backup", "delete", "backups/laptop@monday", "--store", "file:"];
    assert_ne!(person.run(&asked).code, 0, "nobody said yes");
    person.ok(&[&asked[..], &["--yes"]].concat());
    let pruned = person.ok(&at(&["prune"], &["--keep-last", "1"]));
    assert!(pruned.starts_with("prune is done: forgotten=0 "), "{pruned}");
    person.ok(&at(&["create", "vol1"], &["--name", "sunday"]));
    let pruned = person.ok(&at(&["prune"], &["--keep-last", "1"]));
    assert!(
        pruned.starts_with("forgotten: backup vol1-") && pruned.contains(" of vol1 ("),
        "{pruned}"
    );
    assert!(pruned.contains("prune is done: forgotten=1 "), "{pruned}");

    let limits = person.json(&["backup", "limits", "--upload", "10M"]);
    assert_eq!(limits["upload"], (10 * MIB).to_string());
    schedules(&site, &person);
}

/// Looking after a repository, and the ways back.
#[tokio::test(flavor = "multi_thread")]
async fn a_repository_is_looked_after() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 4 * MIB, 1);
    let monday = hash_of(&device);
    let cli = Cli::admin_of(site.selvage());
    let person = Person(&cli);
    let store = ["--store", "file:"];
    let on = |words: &[&'static str]| [&["backup"][..], words, &store].concat();
    person.ok(&on(&["create", "vol1", "backups/care", "--name", "monday"]));
    fill(&device, 512 * MIB, MIB, 2);
    let tuesday = hash_of(&device);
    person.ok(&on(&["create", "vol1", "backups/care", "--name", "tuesday"]));

    let differing = person.json(&on(&["diff", "backups/care@tuesday", "@monday"]));
    let part = &differing["changed"][0];
    assert_eq!(part["offset"], (512 * MIB).to_string(), "{differing}");
    assert_eq!(differing["changed_bytes"], MIB.to_string(), "{differing}");
    let nothing = person.run(&on(&["diff", "backups/care@monday", "@monday"]));
    assert!(nothing.stderr.starts_with("Nothing differs between backup monday"), "{nothing:?}");
    let unclear = person.run(&on(&["diff", "backups/care", "monday"]));
    assert!(unclear.stderr.contains("older: "), "{unclear:?}");
    let stats = person.json(&on(&["stats", "backups/care"]));
    assert_eq!(stats["backups"], "2", "{stats}");
    assert_eq!(stats["volumes"][0]["volume"], "vol1", "{stats}");
    let locks = person.run(&on(&["unlock", "backups/care"]));
    assert_eq!((locks.code, locks.stderr.as_str()), (0, "There are no locks.\n"));
    keys(&site, &cli, &person);

    let back = ["restore", "backups/care@monday", "vol1", "--replace"];
    let asked = person.run(&on(&back));
    assert!(asked.code != 0 && hash_of(&device) == tuesday, "nobody said yes: {asked:?}");
    let done = person.ok(&[&on(&back)[..], &["--yes"]].concat());
    let before = done.trim().rsplit(' ').next().unwrap();
    assert!(before.starts_with("vol1-before-"), "{done}");
    assert_eq!(hash_of(&site.device("vol1").await), monday);
    person.ok(&["volume", "revert", "vol1", before, "--yes", "--class", crate::site::CLASS]);
    assert_eq!(hash_of(&site.device("vol1").await), tuesday);
}

fn keys(site: &Site, cli: &Cli, person: &Person<'_>) {
    const NEW: &str = "a new passphrase";
    let file = site.path("new-passphrase");
    fs::write(&file, format!("{NEW}\n")).unwrap();
    let file = file.to_str().unwrap();
    let repository = ["backups/care", "--store", "file:"];
    let list = [&["backup", "key", "list"][..], &repository].concat();
    let first = person.json(&list)["keys"][0]["id"].as_str().unwrap().to_owned();
    let add = [&["backup", "key", "add"][..], &repository, &["--new-password-file", file]].concat();
    person.ok(&add);
    let delete = ["backup", "key", "delete", "backups/care", &first[..8], "--store", "file:"];
    let refused = person.run(&delete);
    assert!(refused.stderr.contains("was opened with"), "{refused:?}");
    let with_new = |args: &[&str]| cli.run_with(args, &[("RESTIC_PASSWORD", NEW)], None);
    assert_eq!(with_new(&delete).code, 0);
    assert_ne!(person.run(&list).code, 0, "the old one opens nothing any more");
    // As it was, for those who come after.
    fs::write(file, PASSWORD).unwrap();
    assert_eq!(with_new(&add).code, 0);
}

fn schedules(site: &Site, person: &Person<'_>) {
    let set = ["backup", "schedule", "set", "nightly", "vol1", "backups/laptop", "--store"];
    let set = [&set[..], &["file:", "--every", "1d", "--at", "2h", "--keep-daily", "7"]].concat();
    let without = person.run(&set);
    assert!(without.stderr.contains("--credentials NAME"), "{without:?}");
    let file = site.path("data/lvmd/credentials/here");
    fs::write(&file, format!("RESTIC_PASSWORD={PASSWORD}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let made = person.ok(&[&set[..], &["--credentials", "here"]].concat());
    assert!(made.contains("24h0m0s") && made.contains("7 daily"), "{made}");
    assert!(person.ok(&["backup", "schedule", "list"]).contains("nightly"));
    person.ok(&["backup", "schedule", "delete", "nightly"]);
}
