//! Files of the machine, and of those who run something on it.

use std::{io::Write, sync::LazyLock};

use selvage_node::{host, kmsg, proc};
use selvage_store::{
    Store,
    embedded::{Embedded, Options},
    transfer,
};

/// A layer of an image, unpacked.
pub(crate) fn layer(bytes: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    selvage_runtime::oci::fuzz::layer(bytes, folder.path());
}

/// A disk that may be LVM's.
pub(crate) fn lvm_device(bytes: &[u8]) {
    let mut device = tempfile::tempfile().unwrap();
    device.write_all(bytes).unwrap();
    let _ = selvage_lvmd::backend::lvm::fuzz::physical_volume(&device);
}

/// A file of the kernel or a record of its log: read, left out or refused with
/// words.
pub(crate) fn node_parsers(bytes: &[u8]) {
    if let Some(stat) = proc::stat(bytes) {
        assert!(
            bytes
                .windows(stat.comm.len().max(1))
                .any(|part| part == stat.comm || stat.comm.is_empty())
        );
    }
    let _ = proc::meminfo(bytes);
    let _ = (host::system_stat(bytes), host::loadavg(bytes), host::diskstats(bytes));
    let _ = (host::interfaces(bytes), host::mounts(bytes), host::pressure(bytes));
    let _ = host::keyed(bytes).count();
    if let Ok(record) = kmsg::parse(bytes) {
        let boot = kmsg::Boot::new(0);
        assert!(record.to_text(boot).contains(&b'\n'));
        assert!(record.to_json(boot).ends_with(b"}\n"));
    }
    if let Ok(line) = std::str::from_utf8(bytes) {
        let words: Vec<&str> = line.split('\0').collect();
        assert_eq!(proc::redact(words.iter().copied()).len(), words.len());
    }
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
});

/// A store's file: opened or refused with words, never a panic that reaches the
/// caller.
pub(crate) fn store_file(bytes: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    std::fs::write(&path, bytes).unwrap();
    RUNTIME.block_on(async {
        if let Ok(store) = Embedded::open(&path, Options::default()).await {
            let _ = store.revision().await;
            let _ = store.close().await;
        }
        let _ = transfer::check(&path).await;
    });
}
