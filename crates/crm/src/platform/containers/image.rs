//! Images of instances: from a registry, or from a file of this machine.

use std::{path::Path, sync::Arc};

use selvage_runtime::{Credentials, Pull, Runtime};

use super::Options;
use crate::{Error, Result, site::Registry};

/// What a path on this machine begins with.
const FILE: &str = "file://";

pub(super) struct Images {
    runtime: Arc<dyn Runtime>,
    namespace: String,
    registry: Option<Registry>,
}

impl Images {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            runtime: Arc::clone(&options.runtime),
            namespace: options.namespace.clone(),
            registry: options.registry.clone(),
        }
    }

    /// Sees that an image is there; what the runtime calls it. One that is
    /// there is fetched again only if its name may mean another by now.
    pub(super) async fn provide(&self, path: &str) -> Result<String> {
        if path.is_empty() {
            return Err(Error::invalid("image_path", "may not be empty"));
        }
        if let Some(file) = path.strip_prefix(FILE) {
            return self.import(path, file).await;
        }
        let reference = with_tag(path.trim_start_matches("https://"));
        let moves = reference.ends_with(":latest");
        if !moves && self.is_there(&reference).await? {
            return Ok(reference);
        }
        let pull = Pull {
            credentials: self.credentials(&reference),
            plain_http: is_local(&reference),
            reference: reference.clone(),
        };
        match self.runtime.pull(&self.namespace, pull).await {
            Ok(image) => Ok(image.name),
            // A registry that is away does not stop what is here.
            Err(error) if moves && self.is_there(&reference).await? => {
                tracing::warn!(image = reference, %error, "not fetched again, the one here is used");
                Ok(reference)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn is_there(&self, name: &str) -> Result<bool> {
        let images = self.runtime.images(&self.namespace).await?;
        Ok(images.iter().any(|image| image.name == name))
    }

    /// An OCI layout, a directory or a tar of one.
    async fn import(&self, name: &str, file: &str) -> Result<String> {
        let file = Path::new(file);
        if !file.is_absolute() {
            return Err(Error::invalid("image_path", "file:// needs an absolute path"));
        }
        let taken = self.runtime.import(&self.namespace, file, Some(name)).await?;
        let image = taken.into_iter().next();
        image.map(|image| image.name).ok_or_else(|| Error::missing(format!("image in {name}")))
    }

    fn credentials(&self, reference: &str) -> Option<Credentials> {
        let registry = self.registry.as_ref()?;
        let host = reference.split('/').next()?;
        (host == registry.host).then(|| Credentials {
            user: registry.user.clone(),
            password: registry.password.clone(),
        })
    }
}

/// A name without a tag means the newest.
fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains(':') || last.contains('@') {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

/// A registry on this machine speaks plain HTTP, as everybody has it.
fn is_local(reference: &str) -> bool {
    let host = reference.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost"
        || name.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn names_get_a_tag_and_local_registries_are_known() {
        assert_eq!(with_tag("reg:5000/a/b"), "reg:5000/a/b:latest");
        assert_eq!(with_tag("reg:5000/a/b:1"), "reg:5000/a/b:1");
        assert_eq!(with_tag("a/b@sha256:00"), "a/b@sha256:00");
        for local in ["localhost:5000/a", "127.0.0.1:5000/a", "[::1]:5000/a", "127.8.0.1/a"] {
            assert!(is_local(local), "{local}");
        }
        for far in ["reg.example/a", "10.0.0.1:5000/a", "localhost.example/a"] {
            assert!(!is_local(far), "{far}");
        }
    }
}
