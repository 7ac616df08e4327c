//! Images of containerd's: blobs go into its content store and layers into
//! its snapshots, by the same calls that its own client makes.

use std::{collections::HashMap, fs::File, io::Read, path::Path};

use containerd_client::{
    services::v1::{
        ApplyRequest, CreateImageRequest, DeleteImageRequest, GetImageRequest, Image as Record,
        ListImagesRequest, ReadContentRequest, UpdateImageRequest, WriteAction,
        WriteContentRequest,
        content_client::ContentClient,
        diff_client::DiffClient,
        images_client::ImagesClient,
        leases_client::LeasesClient,
        snapshots::{CommitSnapshotRequest, PrepareSnapshotRequest, StatSnapshotRequest},
    },
    types,
};
use futures::StreamExt;
use selvage_api::Code;
use serde::Deserialize;
use tonic::{Request, transport::Channel};

use super::{
    Inner,
    connection::{is_missing, refused, within},
    control::WORK,
    inventory::{LARGEST_ANSWER, timestamp},
};
use crate::{
    Error, Image, Pull, REPLY_TIMEOUT, Result,
    error::During,
    image::{self, Blobs, Descriptor, Named, Resolved},
};

pub(super) const LEASE: &str = "containerd-lease";
/// A lease that we could not give back ends by itself.
const LEASE_LABEL: &str = "containerd.io/gc.expire";
const LEASE_HOURS: i64 = 1;
const CONTENT_LABEL: &str = "containerd.io/gc.ref.content";
const SNAPSHOT_LABEL: &str = "containerd.io/gc.ref.snapshot";
const PIECE: usize = 512 << 10;
/// Layers are unpacked by containerd, and some are large.
const UNPACKING: std::time::Duration = std::time::Duration::from_secs(600);

type Labels = HashMap<String, String>;

impl Inner {
    fn image_client(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.connection.channel()).max_decoding_message_size(LARGEST_ANSWER)
    }

    fn content(&self) -> ContentClient<Channel> {
        ContentClient::new(self.connection.channel()).max_decoding_message_size(LARGEST_ANSWER)
    }

    pub(super) async fn image_list(&self, namespace: &str) -> Result<Vec<Image>> {
        let request = within(namespace, ListImagesRequest::default())?;
        let answer = self.connection.ask(REPLY_TIMEOUT, self.image_client().list(request)).await?;
        let mut images: Vec<Image> = answer
            .into_inner()
            .images
            .into_iter()
            .map(|record| {
                let target = record.target.unwrap_or_default();
                Image {
                    name: record.name,
                    digest: target.digest,
                    size: 0,
                    created: record.created_at.and_then(timestamp),
                }
            })
            .collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    pub(super) async fn remove_image(&self, namespace: &str, name: &str) -> Result<()> {
        let request =
            DeleteImageRequest { name: name.to_owned(), sync: true, ..Default::default() };
        let request = within(namespace, request)?;
        let answer = self.connection.ask(WORK, self.image_client().delete(request)).await;
        self.inventory.changed(namespace);
        match answer {
            Err(error) if is_missing(&error) => Err(Error::ImageNotFound { name: name.to_owned() }),
            answer => answer.map(|_| ()),
        }
    }

    pub(super) async fn pull(&self, namespace: &str, pull: Pull) -> Result<Image> {
        let scratch = Scratch::new()?;
        let limit = pull.limit.unwrap_or(u64::MAX).min(image::LARGEST_IMAGE);
        let named = image::pull(&scratch.blobs, &pull, limit, &|_| false).await?;
        self.take(namespace, &scratch.blobs, named).await
    }

    pub(super) async fn import(
        &self,
        namespace: &str,
        path: &Path,
        name: Option<&str>,
    ) -> Result<Vec<Image>> {
        let scratch = Scratch::new()?;
        let (blobs, path) = (scratch.blobs.clone(), path.to_owned());
        let name = name.map(str::to_owned);
        let named =
            tokio::task::spawn_blocking(move || image::import(&path, &blobs, name.as_deref()))
                .await
                .map_err(|error| Error::state(error.to_string()))??;
        let mut images = Vec::new();
        for named in named {
            images.push(self.take(namespace, &scratch.blobs, named).await?);
        }
        Ok(images)
    }

    /// Brings one image in: blobs, layers, and the name last.
    async fn take(&self, namespace: &str, blobs: &Blobs, named: Named) -> Result<Image> {
        let resolved = blobs.resolve(&named.target)?;
        let lease = self.lease(namespace).await?;
        let work = Work { inner: self, namespace, lease: &lease };
        let taken = work.take(blobs, &named, &resolved).await;
        self.give_back(namespace, &lease).await;
        self.inventory.changed(namespace);
        taken?;
        Ok(Image {
            name: named.name,
            digest: resolved.target.digest.clone(),
            size: resolved.size(),
            created: None,
        })
    }

    /// Keeps the garbage collector away from what nothing refers to yet.
    pub(super) async fn lease(&self, namespace: &str) -> Result<String> {
        use containerd_client::services::v1::CreateRequest;
        let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(LEASE_HOURS);
        let id = format!("selvage-{}", crate::unique());
        let labels = [(LEASE_LABEL.to_owned(), until.to_string())].into();
        let request = within(namespace, CreateRequest { id: id.clone(), labels })?;
        let mut client = LeasesClient::new(self.connection.channel());
        self.connection.ask(WORK, client.create(request)).await?;
        Ok(id)
    }

    pub(super) async fn give_back(&self, namespace: &str, lease: &str) {
        use containerd_client::services::v1::DeleteRequest;
        let request = DeleteRequest { id: lease.to_owned(), sync: false };
        if let Ok(request) = within(namespace, request) {
            let mut client = LeasesClient::new(self.connection.channel());
            let _ = self.connection.ask(WORK, client.delete(request)).await;
        }
    }

    /// An image that containerd has, looked up in full.
    pub(super) async fn resolve(&self, namespace: &str, name: &str) -> Result<Resolved> {
        let not_found = || Error::ImageNotFound { name: name.to_owned() };
        let request = within(namespace, GetImageRequest { name: name.to_owned() })?;
        let answer = self.connection.ask(WORK, self.image_client().get(request)).await;
        let record = match answer {
            Ok(answer) => answer.into_inner().image.ok_or_else(not_found)?,
            Err(error) if is_missing(&error) => return Err(not_found()),
            Err(error) => return Err(error),
        };
        let target = record.target.unwrap_or_default();
        let mut target = Descriptor {
            media_type: target.media_type,
            digest: target.digest,
            size: u64::try_from(target.size).unwrap_or(0),
            ..Descriptor::default()
        };
        let bytes = self.blob(namespace, &target.digest).await?;
        let mut manifest = bytes;
        if let Ok(index) = serde_json::from_slice::<image::Index>(&manifest) {
            target = image::ours(index.manifests, name)?;
            manifest = self.blob(namespace, &target.digest).await?;
        }
        let manifest: image::Manifest = parse(&manifest, &target.digest)?;
        let config = self.blob(namespace, &manifest.config.digest).await?;
        let document = parse(&config, &manifest.config.digest)?;
        Ok(Resolved { target, manifest, document })
    }

    async fn blob(&self, namespace: &str, digest: &str) -> Result<Vec<u8>> {
        let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
        let request = within(namespace, request)?;
        let mut pieces =
            self.connection.ask(WORK, self.content().read(request)).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await {
            bytes.extend_from_slice(&piece.map_err(|status| refused(&status))?.data);
            if bytes.len() as u64 > image::LARGEST_DOCUMENT {
                let reason = "it is larger than 4 MiB".to_owned();
                return Err(Error::Damaged { what: digest.to_owned(), reason });
            }
        }
        Ok(bytes)
    }
}

fn parse<T: for<'a> Deserialize<'a>>(bytes: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Damaged { what: what.to_owned(), reason: error.to_string() })
}

/// Everything that is done under one lease.
struct Work<'a> {
    inner: &'a Inner,
    namespace: &'a str,
    lease: &'a str,
}

impl Work<'_> {
    fn within<T>(&self, message: T) -> Result<Request<T>> {
        let mut request = within(self.namespace, message)?;
        if let Ok(lease) = self.lease.parse() {
            request.metadata_mut().insert(LEASE, lease);
        }
        Ok(request)
    }

    async fn take(&self, blobs: &Blobs, named: &Named, resolved: &Resolved) -> Result<()> {
        let chain = image::chain_id(&resolved.document.rootfs.diff_ids).unwrap_or_default();
        let snapshot = format!("{SNAPSHOT_LABEL}.{}", self.inner.options.snapshotter);
        let mut references: Labels =
            [(format!("{CONTENT_LABEL}.config"), resolved.manifest.config.digest.clone())].into();
        for (number, layer) in resolved.manifest.layers.iter().enumerate() {
            self.write(blobs, layer, Labels::new()).await?;
            references.insert(format!("{CONTENT_LABEL}.l.{number}"), layer.digest.clone());
        }
        self.write(blobs, &resolved.manifest.config, [(snapshot, chain)].into()).await?;
        self.write(blobs, &resolved.target, references).await?;
        self.unpack(resolved).await?;
        self.name(&named.name, &resolved.target).await
    }

    async fn write(&self, blobs: &Blobs, descriptor: &Descriptor, labels: Labels) -> Result<()> {
        let file = File::open(blobs.path(&descriptor.digest)?).during("opening a blob")?;
        let total = i64::try_from(descriptor.size).unwrap_or(i64::MAX);
        let name = format!("selvage-{}", descriptor.digest);
        let pieces = Pieces {
            file,
            name,
            digest: descriptor.digest.clone(),
            total,
            labels,
            offset: 0,
            done: false,
        };
        let request = self.within(tokio_stream::iter(pieces))?;
        let answer =
            self.inner.connection.ask(UNPACKING, self.inner.content().write(request)).await;
        let mut answers = match answer {
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => return Ok(()),
            answer => answer?.into_inner(),
        };
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(_) => {}
                Err(status) if status.code() == tonic::Code::AlreadyExists => return Ok(()),
                Err(status) => return Err(refused(&status)),
            }
        }
        Ok(())
    }

    async fn unpack(&self, resolved: &Resolved) -> Result<()> {
        let ids = &resolved.document.rootfs.diff_ids;
        for (number, layer) in resolved.manifest.layers.iter().enumerate() {
            let parent = image::chain_id(&ids[..number]).unwrap_or_default();
            let name = image::chain_id(&ids[..=number]).unwrap_or_default();
            if !self.is_unpacked(&name).await? {
                self.apply(layer, &parent, &name).await?;
            }
        }
        Ok(())
    }

    async fn is_unpacked(&self, name: &str) -> Result<bool> {
        let request = StatSnapshotRequest {
            snapshotter: self.inner.options.snapshotter.clone(),
            key: name.to_owned(),
        };
        let request = self.within(request)?;
        match self.inner.connection.ask(WORK, self.inner.snapshots().stat(request)).await {
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn apply(&self, layer: &Descriptor, parent: &str, name: &str) -> Result<()> {
        let snapshotter = self.inner.options.snapshotter.clone();
        let key = format!("extract-{} {name}", crate::unique());
        let request = PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.clone(),
            parent: parent.to_owned(),
            ..Default::default()
        };
        let connection = &self.inner.connection;
        let request = self.within(request)?;
        let prepared = connection.ask(WORK, self.inner.snapshots().prepare(request)).await?;
        let request = ApplyRequest {
            diff: Some(wire(layer)),
            mounts: prepared.into_inner().mounts,
            ..Default::default()
        };
        let mut diff = DiffClient::new(connection.channel());
        let request = self.within(request)?;
        let applied = connection.ask(UNPACKING, diff.apply(request)).await;
        if let Err(error) = applied {
            let _ = self.inner.remove_snapshot(self.namespace, &snapshotter, &key).await;
            return Err(error);
        }
        let request = CommitSnapshotRequest {
            snapshotter: snapshotter.clone(),
            name: name.to_owned(),
            key: key.clone(),
            ..Default::default()
        };
        let request = self.within(request)?;
        match connection.ask(WORK, self.inner.snapshots().commit(request)).await {
            // Somebody else unpacked the same at the same time.
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => {
                self.inner.remove_snapshot(self.namespace, &snapshotter, &key).await
            }
            answer => answer.map(|_| ()),
        }
    }

    async fn name(&self, name: &str, target: &Descriptor) -> Result<()> {
        let record =
            Record { name: name.to_owned(), target: Some(wire(target)), ..Record::default() };
        let request = CreateImageRequest { image: Some(record.clone()), ..Default::default() };
        let request = self.within(request)?;
        let connection = &self.inner.connection;
        match connection.ask(WORK, self.inner.image_client().create(request)).await {
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => {
                let request = UpdateImageRequest { image: Some(record), ..Default::default() };
                let request = self.within(request)?;
                connection.ask(WORK, self.inner.image_client().update(request)).await?;
                Ok(())
            }
            answer => answer.map(|_| ()),
        }
    }
}

fn wire(descriptor: &Descriptor) -> types::Descriptor {
    types::Descriptor {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.clone(),
        size: i64::try_from(descriptor.size).unwrap_or(i64::MAX),
        ..types::Descriptor::default()
    }
}

/// A blob in the pieces in which it is sent, and the word to keep it.
struct Pieces {
    file: File,
    name: String,
    digest: String,
    total: i64,
    labels: Labels,
    offset: i64,
    done: bool,
}

impl Iterator for Pieces {
    type Item = WriteContentRequest;

    fn next(&mut self) -> Option<WriteContentRequest> {
        if self.done {
            return None;
        }
        let mut data = Vec::with_capacity(PIECE);
        // What cannot be read will not have the right digest.
        let _ = (&mut self.file).take(PIECE as u64).read_to_end(&mut data);
        self.done = data.len() < PIECE;
        let action = if self.done { WriteAction::Commit } else { WriteAction::Write };
        let offset = self.offset;
        self.offset += i64::try_from(data.len()).unwrap_or(0);
        Some(WriteContentRequest {
            action: action.into(),
            r#ref: self.name.clone(),
            total: self.total,
            expected: self.digest.clone(),
            offset,
            data,
            labels: if self.done { self.labels.clone() } else { Labels::new() },
        })
    }
}

/// Blobs on their way through.
struct Scratch {
    blobs: Blobs,
    directory: std::path::PathBuf,
}

impl Scratch {
    fn new() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("selvage-image-{}", crate::unique()));
        Ok(Self { blobs: Blobs::open(directory.clone())?, directory })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
