//! Names, sizes and uses of volumes.

use std::{collections::BTreeMap, fmt, str::FromStr};

use sha2::{Digest, Sha256};

use crate::{
    DEVICE_CLASS, Error, Result,
    wire::csi::{
        CapacityRange, VolumeCapability,
        volume_capability::{AccessType, access_mode::Mode},
    },
};

pub(crate) const GIB: u64 = 1 << 30;
/// Size of volumes for which none is asked.
const USUAL: u64 = GIB;
/// Longest name that is taken over as it is; LVM takes 127.
const LONGEST: usize = 100;
/// Parameters that Kubernetes' own programs understand.
const KUBERNETES: &str = "csi.storage.k8s.io/";

/// Handle of a volume: its name at lvmd, and its device class before a slash
/// where that is not the default one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeId {
    pub(crate) class: String,
    pub(crate) name: String,
}

fn is_name(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    (1..=127).contains(&text.len()) && text.chars().all(fine) && !text.starts_with(['-', '.'])
}

impl VolumeId {
    /// Returns the handle for a name that somebody chose. One that LVM would not
    /// take is replaced by its digest: the same name gives the same volume.
    pub(crate) fn for_name(name: &str, class: &str) -> Self {
        let reserved =
            ["snapshot", "pvmove"].iter().any(|word| name.starts_with(word)) || name.contains('_');
        let name = match is_name(name) && name.len() <= LONGEST && !reserved {
            true => name.to_owned(),
            false => format!("volume-{}", hex::encode(&Sha256::digest(name)[..16])),
        };
        Self { class: class.to_owned(), name }
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class.as_str() {
            "" => f.write_str(&self.name),
            class => write!(f, "{class}/{}", self.name),
        }
    }
}

impl FromStr for VolumeId {
    type Err = Error;

    /// A handle that is not ours is a volume that is not there.
    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::invalid("volume_id", "is needed"));
        }
        let (class, name) = text.split_once('/').unwrap_or(("", text));
        let fine = is_name(name) && (is_name(class) || !text.contains('/'));
        let id = || Self { class: class.to_owned(), name: name.to_owned() };
        fine.then(id).ok_or_else(|| Error::NoVolume(text.to_owned()))
    }
}

/// Returns the size of a volume in GiB, which is what lvmd counts in.
pub(crate) fn size_gb(range: Option<&CapacityRange>) -> Result<u64> {
    let range = range.copied().unwrap_or_default();
    let bytes = |value: i64, what: &str| {
        u64::try_from(value)
            .map_err(|_| Error::invalid("capacity_range", format!("{what} is negative")))
    };
    let required = bytes(range.required_bytes, "required_bytes")?;
    let limit = bytes(range.limit_bytes, "limit_bytes")?;
    if limit > 0 && limit < required {
        return Err(Error::invalid("capacity_range", "limit_bytes is below required_bytes"));
    }
    let wanted = if required == 0 { USUAL } else { required };
    let size = wanted.div_ceil(GIB);
    if limit > 0 && size * GIB > limit {
        return Err(Error::Range(format!("volumes are whole GiB; {size} GiB is over the limit")));
    }
    Ok(size)
}

/// Returns whether a size is within a range.
pub(crate) fn fits(size: u64, range: Option<&CapacityRange>) -> bool {
    let range = range.copied().unwrap_or_default();
    let (required, limit) = (range.required_bytes.max(0) as u64, range.limit_bytes.max(0) as u64);
    size >= required && (limit == 0 || size <= limit)
}

/// Returns the device class that parameters name. Others than ours and
/// Kubernetes' own are refused: they would be lost without a word.
pub(crate) fn device_class(parameters: &BTreeMap<String, String>) -> Result<String> {
    for key in parameters.keys() {
        if key != DEVICE_CLASS && !key.starts_with(KUBERNETES) {
            return Err(Error::invalid("parameters", format!("{key:?} is not known")));
        }
    }
    let class = parameters.get(DEVICE_CLASS).cloned().unwrap_or_default();
    match class.is_empty() || is_name(&class) {
        true => Ok(class),
        false => Err(Error::invalid("parameters", format!("{class:?} is no device class"))),
    }
}

/// Checks parameters of a snapshot: there are none but Kubernetes' own.
pub(crate) fn snapshot_parameters(parameters: &BTreeMap<String, String>) -> Result<()> {
    match parameters.keys().find(|key| !key.starts_with(KUBERNETES)) {
        Some(key) => Err(Error::invalid("parameters", format!("{key:?} is not known"))),
        None => Ok(()),
    }
}

/// Refuses a copy in another device class: lvmd makes it in that of its source.
pub(crate) fn same_class(copy: &VolumeId, source: &VolumeId) -> Result<()> {
    let name = |class: &str| if class.is_empty() { "the default".to_owned() } else { class.into() };
    match copy.class == source.class {
        true => Ok(()),
        false => Err(Error::invalid(
            "parameters",
            format!(
                "{DEVICE_CLASS} is {}, and that of the content is {}: a copy is in the same one",
                name(&copy.class),
                name(&source.class)
            ),
        )),
    }
}

/// Use of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    Block,
    Mount { kind: crate::filesystem::Kind, flags: Vec<String> },
}

/// Checks one use that is asked for.
pub(crate) fn usage(capability: Option<&VolumeCapability>) -> Result<Use> {
    const FIELD: &str = "volume_capability";
    let capability = capability.ok_or_else(|| Error::invalid(FIELD, "is needed"))?;
    let mode = capability.access_mode.map(|mode| mode.mode()).unwrap_or_default();
    match mode {
        Mode::SingleNodeWriter
        | Mode::SingleNodeReaderOnly
        | Mode::SingleNodeSingleWriter
        | Mode::SingleNodeMultiWriter => {}
        Mode::Unknown => return Err(Error::invalid(FIELD, "access_mode is needed")),
        other => {
            let text = format!("{}: a volume is on one machine only", other.as_str_name());
            return Err(Error::invalid(FIELD, text));
        }
    }
    match &capability.access_type {
        None => Err(Error::invalid(FIELD, "block or mount is needed")),
        Some(AccessType::Block(_)) => Ok(Use::Block),
        Some(AccessType::Mount(mount)) => {
            crate::mounts::options(&mount.mount_flags)?;
            Ok(Use::Mount { kind: mount.fs_type.parse()?, flags: mount.mount_flags.clone() })
        }
    }
}

/// Checks all uses that are asked for; there has to be one.
pub(crate) fn usages(capabilities: &[VolumeCapability]) -> Result<()> {
    if capabilities.is_empty() {
        return Err(Error::invalid("volume_capabilities", "at least one is needed"));
    }
    capabilities.iter().try_for_each(|one| usage(Some(one)).map(drop))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_handle_says_class_and_name_and_nothing_else() {
        for (text, class, name) in [("pvc-1", "", "pvc-1"), ("thin/pvc-1", "thin", "pvc-1")] {
            let id: VolumeId = text.parse().unwrap();
            assert_eq!((id.class.as_str(), id.name.as_str()), (class, name));
            assert_eq!(id.to_string(), text);
        }
        for wrong in ["", "/a", "a/", "a/b/c", "../a", "a b", "-a", "a\n", &"a".repeat(128)] {
            assert!(wrong.parse::<VolumeId>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_that_lvm_refuses_become_others_that_stay() {
        assert_eq!(VolumeId::for_name("pvc-1", "").name, "pvc-1");
        for name in ["snapshot-1", "a_tmeta", "ä", "a/b", &"a".repeat(101), ""] {
            let id = VolumeId::for_name(name, "thin");
            assert!(id.name.starts_with("volume-") && is_name(&id.name), "{id:?}");
            assert_eq!(id, VolumeId::for_name(name, "thin"));
        }
        assert_ne!(VolumeId::for_name("ä", ""), VolumeId::for_name("ö", ""));
    }

    #[test]
    fn sizes_are_whole_gib_within_the_limits() {
        let range = |required_bytes, limit_bytes| CapacityRange { required_bytes, limit_bytes };
        assert_eq!(size_gb(None).unwrap(), 1);
        assert_eq!(size_gb(Some(&range(1, 0))).unwrap(), 1);
        assert_eq!(size_gb(Some(&range((1 << 30) + 1, 0))).unwrap(), 2);
        for (required, limit, code) in [
            (1, 5, tonic::Code::OutOfRange),
            (9, 5, tonic::Code::InvalidArgument),
            (-1, 0, tonic::Code::InvalidArgument),
            (0, -1, tonic::Code::InvalidArgument),
        ] {
            let refused = size_gb(Some(&range(required, limit))).unwrap_err();
            assert_eq!(tonic::Status::from(refused).code(), code);
        }
    }

    #[test]
    fn parameters_that_nobody_reads_are_refused() {
        let of = |key: &str, value: &str| {
            device_class(&BTreeMap::from([(key.to_owned(), value.to_owned())]))
        };
        assert_eq!(of(DEVICE_CLASS, "thin").unwrap(), "thin");
        assert_eq!(of("csi.storage.k8s.io/fstype", "xfs").unwrap(), "");
        assert!(of(DEVICE_CLASS, "a/b").is_err());
        assert!(of("devclass", "thin").unwrap_err().to_string().contains("devclass"));
    }
}
