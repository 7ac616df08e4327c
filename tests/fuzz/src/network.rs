//! Data that comes over the network.

use std::sync::LazyLock;

use selvage_kit::{
    assertion::{self, Call},
    identity::Machine,
    pki::{Ca, Trust},
};

static TRUST: LazyLock<Trust> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let ca = Ca::open_or_create(&folder.path().join("pki")).unwrap();
    Trust::of(ca.pem()).unwrap()
});

/// An assertion of a caller: nobody is believed whom nobody signed for.
#[allow(clippy::disallowed_methods, reason = "assertions end by the time of the machine")]
pub(crate) fn assertion(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (by, to) = (Machine::Controller, Machine::Node { name: "a".into() });
    let call = Call { by: &by, to: &to, method: "/os.OSService/Memory" };
    assert!(assertion::verify(text, &TRUST, &call, jiff::Timestamp::now()).is_err());
}
