//! Input of strangers for the fuzzer. Not for anything else.

use crate::{
    format::{
        BlobKind, Config, IndexFile, LockFile, Snapshot, Tree, decode, encode, header_plain,
        parse_header,
    },
    index::Index,
};

/// Reads the header of a pack: one that can be read can be written.
pub fn pack(bytes: &[u8]) {
    if let Ok(blobs) = parse_header(bytes) {
        let again = parse_header(&header_plain(&blobs));
        assert_eq!(again.as_ref(), Ok(&blobs));
        for blob in &blobs {
            let _ = blob.plain_length();
        }
    }
}

/// Reads an index, and finds in it what it says is there.
pub fn index(bytes: &[u8]) {
    let Ok(file) = decode::<IndexFile>(bytes) else { return };
    let mut index = Index::default();
    index.add_file(&file);
    for pack in &file.packs {
        assert!(index.knows_pack(&pack.id));
        for blob in &pack.blobs {
            assert!(index.has(blob.kind, &blob.id));
            let found = index.find(blob.kind, &blob.id);
            assert!(found.is_some_and(|found| found.blob.kind == blob.kind));
            let _ = index.find(BlobKind::Tree, &blob.id);
        }
    }
    let written = encode(&file, true).ok();
    assert_eq!(written.and_then(|plain| decode::<IndexFile>(&plain).ok()), Some(file));
}

/// Reads the other documents of a repository.
pub fn documents(bytes: &[u8]) {
    let _ = decode::<Config>(bytes);
    let _ = decode::<LockFile>(bytes);
    let _ = serde_json::from_slice::<Tree>(bytes).map(|tree| tree.to_json());
    if let Ok(snapshot) = decode::<Snapshot>(bytes) {
        let _ = (snapshot.name(), snapshot.volume(), snapshot.size(), snapshot.chunk());
    }
}
