//! The spec on the disk, and the mark that it is to be forgotten.

use std::{fs, io, path::Path};

use prost::Message;
use selvage_api::selvage::kubernetes::MemberSpec;
use selvage_kit::pki::replace_private;

use crate::{Error, Result};

const SPEC: &str = "member.binpb";
const RESETTING: &str = "resetting";

pub(super) fn read(root: &Path) -> Result<Option<MemberSpec>> {
    if is_resetting(root) { Ok(None) } else { last(root) }
}

/// The last spec, also of a cluster that is being left.
pub(super) fn last(root: &Path) -> Result<Option<MemberSpec>> {
    let path = root.join(SPEC);
    match fs::read(&path) {
        Ok(bytes) => match MemberSpec::decode(bytes.as_slice()) {
            Ok(spec) => Ok(Some(spec)),
            Err(error) => {
                Err(Error::Damaged { path: path.display().to_string(), reason: error.to_string() })
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path)(error)),
    }
}

pub(super) fn write(root: &Path, spec: &MemberSpec) -> Result<()> {
    selvage_runtime::private_directory(root).map_err(Error::file(root))?;
    Ok(replace_private(&root.join(SPEC), &spec.encode_to_vec())?)
}

/// From now on the machine is to be a member of nothing, whatever happens.
pub(super) fn begin_reset(root: &Path, cluster: &str) -> Result<()> {
    selvage_runtime::private_directory(root).map_err(Error::file(root))?;
    Ok(replace_private(&root.join(RESETTING), cluster.as_bytes())?)
}

pub(super) fn is_resetting(root: &Path) -> bool {
    root.join(RESETTING).exists()
}

/// Name of the cluster that is being left.
pub(super) fn resetting(root: &Path) -> String {
    fs::read_to_string(root.join(RESETTING)).unwrap_or_default()
}
