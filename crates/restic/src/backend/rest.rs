//! A repository on a server that speaks restic's REST protocol.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::Method;
use serde::Deserialize;

use super::{
    Backend, File, Kind, Listed, StoreOptions,
    options::{client, endpoint},
    s3::encode_path,
    send::{Auth, Sender, StoreRequest, part},
};
use crate::{Error, Id, Result};

/// The answer to a list that has sizes.
const VERSION: &str = "application/vnd.x.restic.rest.v2";
/// Number of files whose sizes are asked for at a time, where the list has none.
const SIZES_AT_A_TIME: usize = 4;

/// A folder of such a server.
pub struct Rest {
    sender: Sender,
    /// Path of the repository, with a slash in front and none behind.
    base: String,
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").field("location", &self.location()).finish()
    }
}

/// A file as a server lists it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Sized {
        name: String,
        size: u64,
    },
    /// From servers that know the first version only.
    Bare(String),
}

impl Rest {
    /// Checks the options: bucket and prefix are the path of the repository on the
    /// server, the access key is the user and its secret the password. Nothing is asked
    /// yet.
    pub fn new(options: StoreOptions) -> Result<Self> {
        let (url, path) = endpoint(&options.endpoint)?;
        let parts = [path.as_str(), &options.location.bucket, &options.location.prefix];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let joined = parts.join("/");
        let base = format!("/{}", joined.trim_start_matches('/'));
        let auth = match options.access_key.as_str() {
            "" => Auth::None,
            user => Auth::Basic { user: user.to_owned(), password: options.secret_key.clone() },
        };
        let sender = Sender::new(client(&options)?, url, auth, options);
        Ok(Self { sender, base })
    }

    fn ask(&self, method: Method, path: &str) -> StoreRequest {
        let what = format!("{}/{path}", self.location());
        StoreRequest::new(method, encode_path(&format!("{}/{path}", self.base)), what)
    }

    async fn with_size(&self, kind: Kind, entry: Entry) -> Result<Option<Listed>> {
        let (name, size) = match entry {
            Entry::Sized { name, size } => (name, Some(size)),
            Entry::Bare(name) => (name, None),
        };
        let Ok(id) = name.parse::<Id>() else { return Ok(None) };
        let size = match size {
            Some(size) => Some(size),
            None => self.size(File::Named(kind, id)).await?,
        };
        Ok(size.map(|size| Listed { id, size }))
    }
}

/// Path of a file in the repository. The server has folders in folders of its own.
fn path(file: File) -> String {
    match file {
        File::Config => "config".to_owned(),
        File::Named(kind, id) => format!("{}/{id}", kind.folder()),
    }
}

#[async_trait]
impl Backend for Rest {
    fn location(&self) -> String {
        format!("rest:{}{}", self.sender.endpoint(), self.base)
    }

    async fn prepare(&self) -> Result<()> {
        let mut ask = self.ask(Method::POST, "");
        ask.query = "create=true".to_owned();
        self.sender.send(ask).await.map(|_| ())
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Listed>> {
        let mut ask = self.ask(Method::GET, &format!("{}/", kind.folder()));
        ask.accept = Some(VERSION);
        // Some have no folder for what has no files yet.
        ask.missing_is_fine = true;
        let entries = self.sender.send_for(ask, |answer| match answer.status {
            404 => Ok(Vec::new()),
            _ => serde_json::from_slice::<Option<Vec<Entry>>>(&answer.body)
                .map(Option::unwrap_or_default)
                .map_err(|_| "its list cannot be read".to_owned()),
        });
        let listed = entries.await?.into_iter().map(|entry| self.with_size(kind, entry));
        let listed: Vec<Option<Listed>> =
            stream::iter(listed).buffer_unordered(SIZES_AT_A_TIME).try_collect().await?;
        Ok(listed.into_iter().flatten().collect())
    }

    async fn size(&self, file: File) -> Result<Option<u64>> {
        let mut ask = self.ask(Method::HEAD, &path(file));
        ask.missing_is_fine = true;
        let answer = self.sender.send(ask).await?;
        Ok((answer.status != 404).then_some(answer.length.unwrap_or(0)))
    }

    async fn read(&self, file: File) -> Result<Bytes> {
        let mut ask = self.ask(Method::GET, &path(file));
        ask.missing_is_fine = true;
        let answer = self.sender.send(ask).await?;
        if answer.status == 404 { Err(Error::MissingFile(file)) } else { Ok(answer.body) }
    }

    async fn read_range(&self, file: File, offset: u64, length: u64) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let mut ask = self.ask(Method::GET, &path(file));
        ask.range = Some((offset, length));
        ask.missing_is_fine = true;
        part(self.sender.send(ask).await?, file, offset, length)
    }

    async fn write(&self, file: File, content: Bytes) -> Result<bool> {
        let mut ask = self.ask(Method::POST, &path(file));
        let length = content.len() as u64;
        ask.body = content;
        match self.sender.send(ask).await {
            Ok(_) => Ok(true),
            // That is what servers say to a file that is there, also if it was us who
            // wrote it and the answer was lost.
            Err(error @ Error::Refused { status: 403, .. }) => {
                let there = file != File::Config && self.size(file).await? == Some(length);
                if there || (file == File::Config && self.size(file).await?.is_some()) {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn remove(&self, file: File) -> Result<()> {
        let mut ask = self.ask(Method::DELETE, &path(file));
        ask.missing_is_fine = true;
        self.sender.send(ask).await.map(|_| ())
    }
}
