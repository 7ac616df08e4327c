//! Blobs move to new packs.

use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use super::plan::{Partly, Plan};
use crate::{
    Job, Repository, Result,
    backend::{File, Kind},
    backup::{Pack, Packers},
    format::{IndexBlob, IndexPack},
    job::add,
    repository::internal,
    restore::{Piece, WantedBlob, ranges},
};

/// Copies what is needed of the packs that go. What is new is in the
/// repository when this returns, and in no index.
pub(super) async fn repack(
    repository: &Repository,
    plan: &Plan,
    job: &Job,
) -> Result<Vec<IndexPack>> {
    let pieces: Vec<Piece> = plan.repack.iter().flat_map(pieces).collect();
    let total = pieces.iter().map(|piece| piece.length).sum();
    job.counters().total.store(total, std::sync::atomic::Ordering::Relaxed);
    let (packs, queue) = mpsc::channel(1);
    let (copied, uploaded) =
        tokio::join!(copy(repository, pieces, packs, job), upload(repository, queue, job));
    let uploaded = uploaded?;
    copied?;
    Ok(uploaded)
}

fn pieces(partly: &Partly) -> Vec<Piece> {
    let wanted = |blob: &IndexBlob| WantedBlob { blob: (*blob).into(), places: Vec::new() };
    ranges(partly.pack, partly.needed.iter().map(wanted).collect())
}

async fn copy(
    repository: &Repository,
    pieces: Vec<Piece>,
    packs: mpsc::Sender<Pack>,
    job: &Job,
) -> Result<()> {
    let packers = std::sync::Arc::new(Packers::new(repository.options()));
    let mut fetched = stream::iter(pieces)
        .map(async |piece| {
            let file = File::Named(Kind::Pack, piece.pack);
            let content = repository.backend().read_range(file, piece.offset, piece.length).await;
            content.map(|content| (piece, content))
        })
        .buffered(repository.options().connections.max(1));
    while let Some(next) = fetched.next().await {
        job.check()?;
        let (piece, content) = next?;
        add(&job.counters().downloaded, piece.length);
        add(&job.counters().done, piece.length);
        let (own, packers) = (repository.clone(), std::sync::Arc::clone(&packers));
        let adding =
            tokio::task::spawn_blocking(move || add_blobs(&own, &packers, &piece, &content));
        for pack in adding.await.map_err(internal)?? {
            packs.send(pack).await.map_err(|_| internal("the uploads ended"))?;
        }
    }
    for pack in packers.flush(repository.key()) {
        packs.send(pack).await.map_err(|_| internal("the uploads ended"))?;
    }
    Ok(())
}

/// Each is opened and checked before it is believed: what is damaged must not
/// get a new, sound pack around it.
fn add_blobs(
    repository: &Repository,
    packers: &Packers,
    piece: &Piece,
    content: &[u8],
) -> Result<Vec<Pack>> {
    let mut full = Vec::new();
    for WantedBlob { blob, .. } in &piece.blobs {
        let start = (u64::from(blob.offset) - piece.offset) as usize;
        let sealed = &content[start..start + blob.length as usize];
        repository.open_blob(blob, sealed)?;
        let key = repository.key();
        full.extend(packers.add(key, blob.kind, blob.id, sealed, blob.uncompressed_length));
    }
    Ok(full)
}

async fn upload(
    repository: &Repository,
    packs: mpsc::Receiver<Pack>,
    job: &Job,
) -> Result<Vec<IndexPack>> {
    let queue = stream::unfold(packs, async |mut packs| packs.recv().await.map(|p| (p, packs)));
    let uploads = queue
        .map(async |pack| {
            let noted = pack.to_index();
            let size = pack.content.len() as u64;
            repository.backend().write(File::Named(Kind::Pack, pack.id), pack.content).await?;
            add(&job.counters().uploaded, size);
            Ok(noted)
        })
        .buffer_unordered(repository.options().connections.max(1));
    let mut uploads = std::pin::pin!(uploads);
    let mut noted = Vec::new();
    while let Some(pack) = uploads.next().await {
        noted.push(pack?);
    }
    Ok(noted)
}
