//! Changed blocks, on file systems that share blocks: found without reading them.

use std::{fs, ops::Range, path::Path};

use selvage_api::{
    proto::{GetLvListRequest, vg_service_client::VgServiceClient},
    selvage::volumes::JobState,
};
use selvage_lvmd::{NewSnapshot, NewVolume};

use super::{
    conformance::run,
    served::{Served, noise},
};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

async fn create(served: &Served, size: u64) {
    let new = NewVolume { name: "data".into(), size, ..NewVolume::default() };
    served.volumes().create("thin", new).await.unwrap();
}

async fn snapshot(served: &Served, class: &str, name: &str) {
    let new = NewSnapshot {
        source: "data".into(),
        name: name.into(),
        read_only: true,
        ..NewSnapshot::default()
    };
    served.volumes().snapshot(class, new).await.unwrap();
}

/// Numbers that look random and are the same every time.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let bytes = noise(1 << 16, seed);
    let mut at = 0;
    move |below| {
        at = (at + 8) % (bytes.len() - 8);
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) % below
    }
}

/// Whatever differs between two snapshots is within what is told, however it was
/// written, discarded or written back.
pub(crate) async fn are_all_reported(served: &Served) {
    let size = 48 * MIB;
    create(served, size).await;
    served.write("tg", "data", 0, 24 << 20, 1);
    let backend = served.volumes().backend();
    let path = served.volumes().find("thin", "data").unwrap().path;
    let mut number = numbers(2);
    let read = |name: &str| served.read("tg", name, 0, size as usize);
    snapshot(served, "thin", "s0").await;
    let mut before = read("s0");
    for round in 1..=8 {
        let device = backend.open("tg", "data", true).unwrap();
        for _ in 0..number(40) {
            let length = 1 + number(3 * 65536);
            let at = number(size - length);
            match number(5) {
                0 => device.zero(at, length).unwrap(),
                4 => {
                    let (at, length) = (at / 65536 * 65536, length.next_multiple_of(65536));
                    device.sync().unwrap();
                    discard(&path, at, length.min(size - at));
                }
                // As it was: not a change, whatever is told.
                1 => device.write_at(&before[at as usize..(at + length) as usize], at).unwrap(),
                _ => device.write_at(&noise(length as usize, round * 100 + at), at).unwrap(),
            }
        }
        device.sync().unwrap();
        drop(device);
        let (older, newer) = (format!("s{}", round - 1), format!("s{round}"));
        snapshot(served, "thin", &newer).await;
        let changed_ranges =
            backend.changed("tg", &older, &newer).unwrap().expect("blocks are shared");
        let after = read(&newer);
        for (at, (old, new)) in before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate() {
            let at = (at * BLOCK) as u64;
            let is_reported = changed_ranges.iter().any(|range: &Range<u64>| range.contains(&at));
            assert!(old == new || is_reported, "round {round}: {at} differs and is not told");
        }
        let bytes: u64 = changed_ranges.iter().map(|range| range.end - range.start).sum();
        assert!(bytes < size / 3, "round {round}: {bytes} of {size} are told");
        before = after;
    }
    assert_eq!(backend.changed("tg", "s8", "s8").unwrap(), Some(Vec::new()));
    assert_eq!(backend.changed("tg", "s8", "data").unwrap(), None, "it is being written to");
}

/// Gives a part of a volume back.
fn discard(device: &Path, offset: u64, length: u64) {
    let (offset, length) = (offset.to_string(), length.to_string());
    let arguments = ["--offset", &offset, "--length", &length, device.to_str().unwrap()];
    run("blkdiscard", &arguments);
}

/// A backup reads what changed since the last one, and holds all of it.
pub(crate) async fn are_what_a_backup_reads(served: &Served) {
    let size = 64 * MIB;
    create(served, size).await;
    served.write("tg", "data", 0, 40 << 20, 3);
    let first = served.start_backup("first", "data").await.unwrap();
    let first = served.ended(&first).await;
    assert_eq!(first.state(), JobState::JobComplete, "{first:?}");
    let listed = GetLvListRequest { device_class: "thin".into() };
    let listed = VgServiceClient::new(served.channel()).get_lv_list(listed).await.unwrap();
    let listed = listed.into_inner().volumes;
    assert_eq!(listed.len(), 1, "what is kept to compare with is hidden: {listed:?}");
    served.write("tg", "data", 10 * MIB + 5, 100_000, 4);
    served.write("tg", "data", 50 * MIB, 4096, 5);
    let second = served.start_backup("second", "data").await.unwrap();
    let second = served.ended(&second).await;
    assert_eq!(second.state(), JobState::JobComplete, "{second:?}");
    assert!((100_000..MIB).contains(&second.read_bytes), "{second:?}");
    let same = served.start_backup("same", "data").await.unwrap();
    assert_eq!(served.ended(&same).await.read_bytes, 0);
    for name in ["second", "same"] {
        let job = served.start_restore(name, "back").await;
        let restored = served.ended(&job).await;
        assert_eq!(restored.state(), JobState::JobComplete, "{restored:?}");
        let content = |name: &str| served.read("tg", name, 0, size as usize);
        assert!(content("back") == content("data"), "{name} holds something else");
        served.remove("back").await.unwrap();
    }
    served.remove_from("thin", "data").await;
    let left = || served.volumes().list("thin").unwrap_or_default();
    served.wait("what was kept is gone", async || left().is_empty()).await;
}

/// A volume whose file system is written to all the time, on files that share nothing.
pub(crate) async fn are_copied_while_mounted(served: &Served, folder: &Path) {
    let size = 128 * MIB;
    let new = NewVolume { name: "data".into(), size, ..NewVolume::default() };
    let volume = served.volumes().create("thick", new).await.unwrap();
    let (device, mount) = (volume.path.to_str().unwrap(), folder.join("mount"));
    fs::create_dir(&mount).unwrap();
    let at = mount.to_str().unwrap();
    run("mkfs.ext4", &["-q", device]);
    run("mount", &[device, at]);
    fs::write(mount.join("ballast"), noise(40 << 20, 6)).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_numbers(&mount, &stop));
        let taken = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let wrote = async || mount.join("last").exists();
                served.wait("the writer writes", wrote).await;
                for name in ["one", "two", "three"] {
                    let new = NewSnapshot {
                        source: "data".into(),
                        name: name.into(),
                        read_only: true,
                        ..NewSnapshot::default()
                    };
                    served.volumes().snapshot("thick", new).await?;
                }
                Ok::<_, selvage_lvmd::Error>(())
            })
        });
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        writer.join().unwrap();
        taken
    });
    run("umount", &[at]);
    outcome.unwrap();
    for name in ["one", "two", "three"] {
        let taken = served.volumes().find("thick", name).unwrap();
        let device = taken.path.to_str().unwrap();
        run("e2fsck", &["-fn", device]);
        run("mount", &["-o", "ro", device, at]);
        let count = |name: &str| {
            let bytes = fs::read(mount.join(name)).unwrap();
            u64::from_le_bytes(bytes[..8].try_into().unwrap())
        };
        let (first, last) = (count("first"), count("last"));
        let ballast = fs::read(mount.join("ballast")).unwrap();
        let once = fs::read(mount.join("once")).unwrap();
        run("umount", &[at]);
        for round in 1..=last.min(ONCE) {
            let at = (round as usize - 1) * BLOCK;
            let written = once.get(at..at + BLOCK);
            assert!(written == Some(&noise(BLOCK, round)), "{name}: block {round} of {last}");
        }
        assert!(first == last || first == last + 1, "{name}: {first} {last} never were");
        assert!(ballast == noise(40 << 20, 6), "{name}");
    }
    let traces = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    let own = format!("selvage-{}-{}", std::process::id(), volume.minor);
    assert!(traces.into_iter().all(|trace| trace.file_name() != *own), "{own} is left");
}

/// A volume with a file system that is mounted, and no room for a copy: what is stored is
/// what was written, however warm the cache of its device is.
pub(crate) async fn are_read_in_place_while_mounted(served: &Served, folder: &Path) {
    let new = NewVolume { name: "data".into(), size: 256 * MIB, ..NewVolume::default() };
    let volume = served.volumes().create("thick", new).await.unwrap();
    let (device, mount) = (volume.path.to_str().unwrap(), folder.join("mount"));
    fs::create_dir(&mount).unwrap();
    let at = mount.to_str().unwrap();
    run("mkfs.ext4", &["-q", device]);
    run("mount", &[device, at]);
    fs::write(mount.join("ballast"), noise(MIB as usize, 6).repeat(215)).unwrap();
    let write = |number: u64| {
        number_files(&mount, number);
        let file = fs::File::create(mount.join(format!("made-{number}"))).unwrap();
        file.sync_all().unwrap();
    };
    write(1);
    // As another reader leaves it.
    fs::read(&volume.path).unwrap();

    // The first is written to while it is read, and so is read again.
    served.limits(64 * MIB, 0).await;
    let job = served.start_backup("one", "data").await.unwrap();
    served.until(&job, |job| job.phase == "upload" && job.done_bytes > 0).await;
    assert_eq!(served.all_names(), ["data"], "there is no room for a snapshot");
    (2..10).for_each(write);
    served.limits(0, 0).await;
    let one = served.ended(&job).await;
    write(100);
    let job = served.start_backup("two", "data").await.unwrap();
    let two = served.ended(&job).await;
    run("umount", &[at]);
    for ended in [one, two] {
        assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    }
    // A child of another test may have a copy of our mounts for a moment.
    let remove = async |name: &str| served.volumes().remove("thick", name).await.is_ok();
    served.wait("it is not mounted", async || remove("data").await).await;
    for (name, number) in [("one", 9), ("two", 100)] {
        let job = served.start_restore(name, "back").await;
        let restored = served.ended(&job).await;
        assert_eq!(restored.state(), JobState::JobComplete, "{restored:?}");
        let restored = served.volumes().find("thick", "back").unwrap();
        let device = restored.path.to_str().unwrap();
        run("e2fsck", &["-fn", device]);
        run("mount", &["-o", "ro", device, at]);
        let numbers = ["first", "last"].map(|file| fs::read(mount.join(file)).unwrap());
        let newest = mount.join(format!("made-{number}")).exists();
        run("umount", &[at]);
        assert_eq!(
            numbers.map(|bytes| bytes[..8].to_vec()),
            [number, number].map(u64::to_le_bytes),
            "{name}"
        );
        assert!(newest, "{name}");
        served.wait("it is not mounted", async || remove("back").await).await;
    }
}

/// Writes a number to the first file, and then to the last one, in place.
fn number_files(mount: &Path, number: u64) {
    for name in ["first", "last"] {
        let mut options = fs::File::options();
        let file = options.write(true).create(true).truncate(false).open(mount.join(name)).unwrap();
        let content = number.to_le_bytes().repeat(BLOCK / 8);
        std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).unwrap();
        file.sync_all().unwrap();
    }
}

/// Number of blocks that a writer writes once and never again.
const ONCE: u64 = 4096;

/// Numbers its writes, first to one file, then to another, and changes others. Before each
/// it writes a block that it does not come back to: a copy that missed it is found out.
fn write_numbers(mount: &Path, stop: &std::sync::atomic::AtomicBool) {
    let write_at = |name: &str, content: &[u8], at: u64| {
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(mount.join(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, content, at).unwrap();
        file.sync_data().unwrap();
    };
    let write = |name: &str, content: &[u8]| write_at(name, content, 0);
    for round in 1_u64.. {
        if stop.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        if round <= ONCE {
            write_at("once", &noise(BLOCK, round), (round - 1) * BLOCK as u64);
        }
        write("first", &round.to_le_bytes());
        write("last", &round.to_le_bytes());
        if round % 8 == 0 {
            let _ = fs::remove_file(mount.join("other"));
            write("other", &noise(256 << 10, round));
        }
    }
}
