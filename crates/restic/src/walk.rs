//! Everything that snapshots refer to.

use futures::{StreamExt, stream};

use crate::{
    Error, Id, Job, Repository, Result, Snapshot,
    backend::Kind,
    format::{IndexFile, Tree},
    index::IdSet,
};

/// Result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) data: IdSet,
    pub(crate) trees: IdSet,
    /// Trees that cannot be read: what is below them is not known.
    pub(crate) lost: Vec<(Id, Error)>,
}

/// Goes through all trees of these snapshots. The index has to be loaded.
pub(crate) async fn walk(
    repository: &Repository,
    snapshots: &[Snapshot],
    job: &Job,
) -> Result<Used> {
    let mut used = Used::default();
    let mut level: Vec<Id> = Vec::new();
    for snapshot in snapshots {
        if used.trees.insert(snapshot.tree) {
            level.push(snapshot.tree);
        }
    }
    while !level.is_empty() {
        let mut trees = stream::iter(std::mem::take(&mut level))
            .map(async |id| (id, repository.load_tree(&id).await))
            .buffer_unordered(repository.options().connections.max(1));
        while let Some((id, tree)) = trees.next().await {
            job.check()?;
            match tree {
                Ok(tree) => note(tree, &mut used, &mut level),
                Err(error) if error.code() == selvage_api::Code::DataLoss => {
                    used.lost.push((id, error));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(used)
}

fn note(tree: Tree, used: &mut Used, level: &mut Vec<Id>) {
    for node in tree.nodes {
        used.data.extend(node.content.unwrap_or_default());
        if let Some(subtree) = node.subtree
            && used.trees.insert(subtree)
        {
            level.push(subtree);
        }
    }
}

/// All index files as they are.
pub(crate) async fn index_files(repository: &Repository) -> Result<Vec<(Id, IndexFile)>> {
    let mut files = Vec::new();
    for listed in repository.backend().list(Kind::Index).await? {
        files.push((listed.id, repository.load_document(Kind::Index, listed.id).await?));
    }
    Ok(files)
}
