//! Conformance of every backend.

use std::os::unix::fs::MetadataExt;

use selvage_lvmd::{Group, NewSnapshot, NewVolume, Pool, Volume};
use tonic::Code;

use super::site::{GIB, MIB, Site, status};

/// The group that sites have their thick volumes in.
pub(crate) const GROUP: &str = "tg";

fn new(name: &str, size: u64) -> NewVolume {
    NewVolume { name: name.into(), size, ..NewVolume::default() }
}

fn snapshot_of(source: &str, name: &str, read_only: bool) -> NewSnapshot {
    NewSnapshot { source: source.into(), name: name.into(), read_only, ..NewSnapshot::default() }
}

fn has_device(volume: &Volume) -> bool {
    let node = std::fs::metadata(&volume.path).unwrap();
    let number = (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
    number == (volume.major, volume.minor) && volume.major > 0
}

/// Make, list, grow, remove; who is told, and what is refused.
pub(crate) async fn a_life(site: &Site) {
    let mut notices = site.watch();
    let free = site.volumes.free("").unwrap();
    let tags = vec!["testtag1".to_owned(), "testtag2=x".to_owned()];
    let wanted = NewVolume { tags: tags.clone(), ..new("test1", GIB) };
    let made = site.volumes.create("thick", wanted).await.unwrap();
    assert_eq!((made.name.as_str(), made.size), ("test1", GIB));
    assert!(has_device(&made), "{made:?}");
    assert!(notices.was_notified());
    assert_eq!(site.volumes.find("", "test1").unwrap().tags, tags);
    assert_eq!(site.volumes.free("").unwrap(), free - GIB);

    let (code, text) = status(site.create("", "test2", 9 * GIB).await);
    assert_eq!(code, Code::ResourceExhausted);
    let free = free - GIB;
    let requested = 9 * GIB;
    assert_eq!(text, format!("no enough space left on VG: free={free}, requested={requested}"));
    assert!(!notices.was_notified(), "nothing happened");

    let grown = site.volumes.resize("", "test1", 2 * GIB).await.unwrap();
    assert_eq!(grown.size, 2 * GIB);
    let sectors = format!("/sys/dev/block/{}:{}/size", grown.major, grown.minor);
    assert_eq!(std::fs::read_to_string(sectors).unwrap().trim(), (2 * GIB / 512).to_string());
    assert!(notices.was_notified());
    let (code, text) = status(site.volumes.resize("", "test1", 50 * GIB).await);
    assert_eq!(code, Code::ResourceExhausted);
    let free = free - GIB;
    let more = 48 * GIB;
    assert_eq!(text, format!("no enough space left on VG: free={free}, requested={more}"));
    let (code, text) = status(site.volumes.resize("", "test1", GIB).await);
    assert_eq!((code, text.as_str()), (Code::OutOfRange, "shrinking volume size is not allowed"));
    assert!(!notices.was_notified());
    site.volumes.resize("", "test1", 2 * GIB).await.unwrap();
    assert!(notices.was_notified(), "the same size is told too");

    assert!(site.volumes.remove("", "test1").await.unwrap());
    assert!(notices.was_notified());
    assert!(site.names("").is_empty());
    assert!(!site.volumes.remove("", "test1").await.unwrap(), "it is not there any more");
    assert!(!notices.was_notified());
    let (code, text) = status(site.volumes.resize("", "test1", GIB).await);
    assert_eq!((code, text.as_str()), (Code::NotFound, "logical volume test1 is not found"));
}

/// Names, sizes, tags and classes that cannot be.
pub(crate) async fn bad_input(site: &Site) {
    let create =
        async |class: &str, volume: NewVolume| status(site.volumes.create(class, volume).await);
    let (code, text) = create("nope", new("a", GIB)).await;
    assert_eq!((code, text.as_str()), (Code::NotFound, "device-class not found: nope"));
    let (code, text) = create("gone", new("a", GIB)).await;
    assert_eq!((code, text.as_str()), (Code::NotFound, "volume group not found: novg"));
    let long = "x".repeat(128);
    for name in ["", ".", "-a", "a b", "../a", long.as_str()] {
        let (code, text) = create("", new(name, GIB)).await;
        assert_eq!(code, Code::InvalidArgument);
        assert_eq!(text, format!("Logical volume name \"{name}\" is invalid."));
    }
    assert_eq!(create("", new("snapshot1", GIB)).await.0, Code::InvalidArgument);
    assert_eq!(create("", new("a_rimage", GIB)).await.0, Code::InvalidArgument);
    let (code, text) = create("", new("a", 0)).await;
    assert_eq!((code, text.as_str()), (Code::InvalidArgument, "--size may not be zero."));
    let tagged = NewVolume { tags: vec!["a b".into()], ..new("a", GIB) };
    let (code, text) = create("", tagged).await;
    assert_eq!(
        (code, text.as_str()),
        (Code::InvalidArgument, "Invalid argument for --addtag: a b")
    );
    let optional = NewVolume { option_class: "x".into(), ..new("a", MIB) };
    let (code, text) = create("", optional).await;
    assert_eq!(
        (code, text.as_str()),
        (Code::Internal, "unsupported lvcreate-option-class target: x")
    );
    assert!(site.names("").is_empty(), "nothing was made");

    site.create("", "a", 5 * MIB).await.unwrap();
    let (code, text) = create("", new("a", MIB)).await;
    assert_eq!(code, Code::AlreadyExists);
    assert_eq!(text, "Logical Volume \"a\" already exists in volume group \"tg\"");
    let size = site.volumes.find("", "a").unwrap().size;
    assert_eq!(size, 8 * MIB, "rounded up to whole extents");
    site.volumes.remove("", "a").await.unwrap();
}

/// Volumes in a pool: more promised than there is, and classes apart.
pub(crate) async fn thin(site: &Site) {
    let free = site.volumes.free("thin").unwrap();
    assert_eq!(free, 10 * GIB, "ten times a pool of one GiB");
    let made = site.create("thin", "thin1", GIB).await.unwrap();
    assert!(has_device(&made));
    site.create("thin", "thin2", 3 * GIB).await.unwrap();
    assert_eq!(site.volumes.free("thin").unwrap(), free - 4 * GIB);
    let grown = site.volumes.resize("thin", "thin1", 2 * GIB).await.unwrap();
    assert_eq!(grown.size, 2 * GIB);
    let (code, _) = status(site.create("thin", "thin3", 6 * GIB).await);
    assert_eq!(code, Code::ResourceExhausted);
    site.create("thick", "thick1", MIB).await.unwrap();
    assert_eq!(site.names("thin"), ["thin1", "thin2"]);
    assert_eq!(site.names("thick"), ["thick1"]);
    for (class, name) in [("thin", "thin1"), ("thin", "thin2"), ("thick", "thick1")] {
        assert!(site.volumes.remove(class, name).await.unwrap());
    }
    assert_eq!(site.volumes.free("thin").unwrap(), free);
}

/// Content is kept, frozen by snapshots, and copied by clones.
pub(crate) async fn snapshots(site: &Site, class: &'static str) {
    let volumes = &site.volumes;
    let backend = volumes.backend();
    site.create(class, "origin", 64 * MIB).await.unwrap();
    let device = backend.open(GROUP, "origin", true).unwrap();
    assert_eq!(device.size(), 64 * MIB);
    device.write_at(&[7; 4096], 8 * MIB).unwrap();
    device.write_at(&[1; 4096], 0).unwrap();
    device.sync().unwrap();
    drop(device);

    let made = volumes.snapshot(class, snapshot_of("origin", "kept", true)).await.unwrap();
    assert_eq!((made.size, made.origin.as_deref()), (64 * MIB, Some("origin")));
    assert!(has_device(&made));
    let (code, _) = status(volumes.snapshot(class, snapshot_of("origin", "kept", true)).await);
    assert_eq!(code, Code::AlreadyExists);
    let (code, text) = status(volumes.snapshot(class, snapshot_of("nope", "k", true)).await);
    assert_eq!((code, text.as_str()), (Code::NotFound, "source logical volume nope is not found"));

    let device = backend.open(GROUP, "origin", true).unwrap();
    device.write_at(&[9; 4096], 8 * MIB).unwrap();
    device.zero(0, 4096).unwrap();
    device.write_at(&[3; 65536], 32 * MIB).unwrap();
    device.sync().unwrap();
    let read = |name: &str, at: u64| {
        let mut byte = [0];
        backend.open(GROUP, name, false).unwrap().read_at(&mut byte, at).unwrap();
        byte[0]
    };
    assert_eq!([read("origin", 0), read("origin", 8 * MIB)], [0, 9]);
    assert_eq!([read("kept", 0), read("kept", 8 * MIB)], [1, 7]);
    assert_eq!(read("kept", 32 * MIB), 0);
    assert!(backend.open(GROUP, "kept", true).is_err(), "it is for reading only");
    drop(device);

    maps(site, class);

    volumes.clone_volume(class, snapshot_of("origin", "copy", false)).await.unwrap();
    assert_eq!([read("copy", 0), read("copy", 8 * MIB), read("copy", 32 * MIB)], [0, 9, 3]);
    backend.open(GROUP, "copy", true).unwrap().write_at(&[5], 0).unwrap();
    assert_eq!(read("origin", 0), 0, "a copy stands on its own");
    assert!(!volumes.find(class, "copy").unwrap().is_pending());

    let depends = class == "thick" && site.outside.thick_snapshots_depend();
    if depends {
        assert!(backend.change_room_used(GROUP, "kept").unwrap().unwrap() < 100.0);
        let (code, text) = status(volumes.remove(class, "origin").await);
        assert_eq!(code, Code::FailedPrecondition);
        assert!(text.contains("has snapshots") && text.ends_with("kept"), "{text}");
        let (code, _) = status(volumes.resize(class, "origin", 128 * MIB).await);
        assert_eq!(code, Code::FailedPrecondition);
        volumes.remove(class, "kept").await.unwrap();
        volumes.remove(class, "origin").await.unwrap();
    } else {
        volumes.remove(class, "origin").await.unwrap();
        assert_eq!(read("kept", 8 * MIB), 7, "it outlives its origin");
        volumes.remove(class, "kept").await.unwrap();
    }
    volumes.remove(class, "copy").await.unwrap();
    assert!(site.names(class).is_empty());
}

/// A snapshot for reading is grown, and what is made of it is as large, and
/// stays when both before it are gone.
pub(crate) async fn snapshots_of_snapshots(site: &Site) {
    let volumes = &site.volumes;
    site.create("thin", "source", GIB).await.unwrap();
    let backend = volumes.backend();
    let device = backend.open(GROUP, "source", true).unwrap();
    device.write_at(&[7; 4096], 8 * MIB).unwrap();
    device.sync().unwrap();
    drop(device);
    let tags = vec!["testsnaptag1".to_owned(), "testsnaptag2".to_owned()];
    let wanted = NewSnapshot { tags: tags.clone(), ..snapshot_of("source", "frozen", true) };
    let frozen = volumes.snapshot("thin", wanted).await.unwrap();
    assert_eq!((frozen.size, &frozen.tags, frozen.read_only), (GIB, &tags, true));
    assert_eq!(volumes.resize("thin", "frozen", 2 * GIB).await.unwrap().size, 2 * GIB);
    let back = volumes.snapshot("thin", snapshot_of("frozen", "back", false)).await.unwrap();
    assert_eq!((back.size, back.read_only), (2 * GIB, false));
    assert_eq!(volumes.find("thin", "source").unwrap().size, GIB);
    for name in ["source", "frozen"] {
        assert!(volumes.remove("thin", name).await.unwrap());
    }
    let device = backend.open(GROUP, "back", true).unwrap();
    let mut byte = [0];
    device.read_at(&mut byte, 8 * MIB).unwrap();
    assert_eq!((byte[0], device.size()), (7, 2 * GIB));
    device.write_at(&[1], 2 * GIB - 1).unwrap();
    drop(device);
    assert!(volumes.remove("thin", "back").await.unwrap());
}

/// Maps of data, and of what differs between two.
fn maps(site: &Site, class: &'static str) {
    let backend = site.volumes.backend().clone();
    let covers = |ranges: &[std::ops::Range<u64>], at: u64| ranges.iter().any(|r| r.contains(&at));
    if let Some(allocated) = backend.allocated(GROUP, "origin").unwrap() {
        assert!(covers(&allocated, 8 * MIB) && covers(&allocated, 32 * MIB), "{allocated:?}");
        assert!(!covers(&allocated, 48 * MIB), "{allocated:?}");
    } else {
        assert!(class == "thick" && site.outside.thick_snapshots_depend());
    }
    let changed = backend.changed(GROUP, "kept", "origin").unwrap();
    assert_eq!(changed.is_some(), class == "thin" && site.outside.knows_changes());
    if let Some(changed) = changed {
        assert!(covers(&changed, 8 * MIB) && covers(&changed, 32 * MIB), "{changed:?}");
        assert!(!covers(&changed, 16 * MIB), "{changed:?}");
    }
}

/// A volume that somebody uses is not removed while they do.
pub(crate) async fn in_use(site: &Site) {
    let made = site.create("", "busy", 16 * MIB).await.unwrap();
    let open = site.outside.keep_open(&made);
    let (code, text) = status(site.volumes.remove("", "busy").await);
    assert_eq!((code, text.as_str()), (Code::FailedPrecondition, "Logical volume tg/busy in use."));
    drop(open);
    let mounted = std::env::temp_dir().join(format!("selvage-lvmd-{}", std::process::id()));
    std::fs::create_dir_all(&mounted).unwrap();
    run("mkfs.ext4", &["-q", made.path.to_str().unwrap()]);
    run("mount", &[made.path.to_str().unwrap(), mounted.to_str().unwrap()]);
    std::fs::write(mounted.join("file"), "kept").unwrap();
    let taken = site.volumes.snapshot("", snapshot_of("busy", "still", true)).await;
    std::fs::write(mounted.join("file2"), "written after").unwrap();
    let refused = status(site.volumes.remove("", "busy").await);
    run("umount", &[mounted.to_str().unwrap()]);
    std::fs::remove_dir(&mounted).unwrap();
    assert_eq!(refused.0, Code::FailedPrecondition);
    // What depends on it is named first.
    let expected = match site.outside.thick_snapshots_depend() {
        true => "logical volume busy has snapshots, which would be lost with it: still",
        false => "Logical volume tg/busy contains a filesystem in use.",
    };
    assert_eq!(refused.1, expected);
    taken.unwrap();

    let hold = site.volumes.hold(GROUP, "still", "being backed up");
    let (code, text) = status(site.volumes.remove("", "still").await);
    assert_eq!(code, Code::FailedPrecondition);
    assert_eq!(text, "logical volume still is being backed up: try again later");
    drop(hold);
    for name in ["still", "busy"] {
        assert!(site.volumes.remove("", name).await.unwrap());
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// Others change groups too, and watchers hear of it.
pub(crate) async fn outside_changes(site: &Site) {
    let mut notices = site.watch();
    let free = site.volumes.free("").unwrap();
    site.outside.create("foreign", 8 * MIB);
    notices.wait(|capacity| capacity.default_free == free - 8 * MIB).await;
    assert_eq!(site.names(""), ["foreign"]);
    // One's own decisions take it into account without waiting for a look.
    site.outside.create("foreign2", 8 * MIB);
    let (code, _) = status(site.create("", "foreign2", MIB).await);
    assert_eq!(code, Code::AlreadyExists);
    for name in ["foreign", "foreign2"] {
        assert!(site.volumes.remove("", name).await.unwrap());
    }
}

/// However many ask at once, no more is given than there is.
pub(crate) async fn many_at_once(site: &Site, count: u64) {
    let free = site.volumes.free("").unwrap();
    let each = free / count / (4 * MIB) * (4 * MIB) + 4 * MIB;
    let asking = (0..count).map(|number| {
        let volumes = site.volumes.clone();
        let wanted = new(&format!("many{number}"), each);
        tokio::spawn(async move { volumes.create("", wanted).await })
    });
    let asking: Vec<_> = asking.collect();
    let mut made = 0;
    for one in asking {
        match one.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(status::<()>(Err(error)).0, Code::ResourceExhausted),
        }
    }
    assert_eq!(made, free / each);
    assert_eq!(site.volumes.free("").unwrap(), free - made * each);
    for name in site.names("") {
        assert!(site.volumes.remove("", &name).await.unwrap());
    }
}

/// Groups without how full their pools are, which the kernel changes by itself.
fn without_fill(site: &Site) -> Vec<Group> {
    let groups = site.volumes.groups();
    let empty = |pool: &mut Pool| (pool.used, pool.metadata_used) = (None, None);
    let mut groups: Vec<Group> = groups.values().map(|group| (**group).clone()).collect();
    groups.iter_mut().flat_map(|group| group.pools.values_mut()).for_each(empty);
    groups
}

/// Restarts: what was there is there afterwards.
pub(crate) async fn restarts(site: Site) -> Site {
    site.create("", "stays", 16 * MIB).await.unwrap();
    site.create("thin", "stays-too", 16 * MIB).await.unwrap();
    let device = site.volumes.backend().open(GROUP, "stays", true).unwrap();
    device.write_at(b"content", 4096).unwrap();
    device.sync().unwrap();
    drop(device);
    let before = without_fill(&site);
    let site = site.restart().await;
    assert_eq!(without_fill(&site), before);
    let mut content = [0; 7];
    let device = site.volumes.backend().open(GROUP, "stays", false).unwrap();
    device.read_at(&mut content, 4096).unwrap();
    drop(device);
    assert_eq!(&content, b"content");
    site.volumes.remove("", "stays").await.unwrap();
    site.volumes.remove("thin", "stays-too").await.unwrap();
    site
}
