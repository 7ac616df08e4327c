//! The CA of a region: controllers that share a store share its keys.

use std::path::Path;

use anyhow::{Context as _, bail};
use selvage_auth::Auth;
use selvage_kit::pki::Authorities;
use selvage_store::{Compare, Op, SharedStore, StoreExt as _, Txn};

/// Key of the CA's certificate in the store, PEM.
const KEY: &str = "region/ca";

/// Checks that our authorities are those of the controllers that share this
/// store, and writes ours down where it is the first: agents of one controller
/// would not believe the others. Those that are being replaced are another
/// matter: one of them is enough to get the other.
pub(super) async fn check_authorities(
    store: &SharedStore,
    authorities: &Authorities,
) -> anyhow::Result<()> {
    let mut known = Auth::region_certificates(store).await.context("authorities of the region")?;
    if known.is_empty() {
        known.push(first_of_all(store, authorities).await.context("CA of the region")?);
    }
    let ours = authorities.all();
    if ours.iter().any(|ca| known.iter().any(|known| known.trim() == ca.pem().trim())) {
        return Ok(());
    }
    let signer = authorities.signer();
    bail!(
        "{} holds another CA than the controllers that share this store have: copy pki/ from one \
         of them, or give this one a store.namespace of its own",
        signer.path().parent().unwrap_or(Path::new(".")).display()
    )
}

/// The CA of the first controller that used this store.
async fn first_of_all(
    store: &SharedStore,
    authorities: &Authorities,
) -> Result<String, selvage_store::Error> {
    let own = authorities.signer().pem().to_owned();
    let first = Txn::new().when(Compare::missing(KEY)).then(Op::put(KEY, own.clone()));
    if store.txn(first).await?.succeeded {
        return Ok(own);
    }
    let known = store.get(KEY).await?;
    Ok(known.map(|item| String::from_utf8_lossy(&item.value).into_owned()).unwrap_or_default())
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
        let open = |name: &str| Authorities::open_or_create(&folder.path().join(name)).unwrap();
        let own = open("a/pki");
        check_authorities(&store, &own).await.unwrap();
        check_authorities(&store, &own).await.unwrap();
        let foreign = open("b/pki");
        let refused = check_authorities(&store, &foreign).await.unwrap_err().to_string();
        assert!(refused.contains("b/pki holds another CA"), "{refused}");
    }
}
