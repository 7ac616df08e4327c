//! The CA of a region: controllers that share a store share its keys.

use std::path::Path;

use anyhow::{Context as _, bail};
use selvage_kit::pki::Ca;
use selvage_store::{Compare, Op, SharedStore, StoreExt as _, Txn};

/// Key of the CA's certificate in the store, PEM.
const KEY: &str = "region/ca";

/// Checks that our CA is the one of the controllers that share this store, and
/// writes it down where it is the first: agents of one controller would not
/// believe the others.
pub(super) async fn check_ca(store: &SharedStore, ca: &Ca) -> anyhow::Result<()> {
    let first = Txn::new().when(Compare::missing(KEY)).then(Op::put(KEY, ca.pem().to_owned()));
    let written = store.txn(first).await.context("CA of the region")?;
    if written.succeeded {
        return Ok(());
    }
    let known = store.get(KEY).await.context("CA of the region")?;
    let known = known.map(|item| String::from_utf8_lossy(&item.value).into_owned());
    let known = known.unwrap_or_default();
    let folder = ca.path().parent().unwrap_or(Path::new("."));
    if !holds(folder, known.trim()) {
        bail!(
            "{} holds another CA than the controllers that share this store have: copy pki/ from \
             one of them, or give this one a store.namespace of its own",
            folder.display()
        );
    }
    // After a change of the CA the old one is still among ours.
    if known != ca.pem() {
        store.put(KEY, ca.pem().to_owned()).await.context("CA of the region")?;
    }
    Ok(())
}

/// Returns whether a file of the folder has the certificate.
fn holds(folder: &Path, certificate: &str) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts.any(|text| text.contains(certificate))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_store::embedded::{Embedded, Options};

    use super::*;

    #[tokio::test]
    async fn a_controller_with_keys_of_its_own_is_no_part_of_the_region() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("store"), Options::default()).await.unwrap();
        let store: SharedStore = store;
        let own = Ca::open_or_create(&folder.path().join("a/pki")).unwrap();
        check_ca(&store, &own).await.unwrap();
        check_ca(&store, &own).await.unwrap();
        let foreign = Ca::open_or_create(&folder.path().join("b/pki")).unwrap();
        let refused = check_ca(&store, &foreign).await.unwrap_err().to_string();
        assert!(refused.contains("b/pki holds another CA"), "{refused}");
        // One that was changed and still trusts the old one.
        std::fs::write(folder.path().join("b/pki/old.crt"), own.pem()).unwrap();
        check_ca(&store, &foreign).await.unwrap();
        let gone = check_ca(&store, &own).await.unwrap_err().to_string();
        assert!(gone.contains("a/pki"), "{gone}");
    }
}
