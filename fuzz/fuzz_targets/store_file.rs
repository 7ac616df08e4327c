//! Any bytes as a store's file: opened or refused with words, never a panic
//! that reaches the caller.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvage_store::{
    Store,
    embedded::{Embedded, Options},
    transfer,
};

fuzz_target!(|bytes: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    std::fs::write(&path, bytes).unwrap();
    runtime.block_on(async {
        if let Ok(store) = Embedded::open(&path, Options::default()).await {
            let _ = store.revision().await;
            let _ = store.close().await;
        }
        let _ = transfer::check(&path).await;
    });
});
