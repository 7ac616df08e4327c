//! Volumes in the cluster: whose they are, and what is to become of them.

use selvage_kube::{
    k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    kube::ResourceExt,
    quantity,
};

use super::claim;
use crate::{DRIVER, TOPOLOGY};

/// Keeps the object until its volume is gone.
pub(super) const FINALIZER: &str = "lvm.selvage.io/volume";
/// Annotation that names the provisioner.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Handle of the volume.
pub(crate) fn handle(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == DRIVER).then_some(csi.volume_handle.as_str())
}

/// Returns whether it was made by the driver of this machine.
pub(crate) fn is_on(volume: &PersistentVolume, node: &str) -> bool {
    let made = volume.annotations().get(PROVISIONED_BY).map(String::as_str);
    made == Some(DRIVER) && handle(volume).is_some() && node_of(volume) == Some(node)
}

/// Machine that has it.
pub(crate) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let terms = required.node_selector_terms.iter();
    let mut all = terms.flat_map(|term| term.match_expressions.iter().flatten());
    let values = all.find(|one| one.key == TOPOLOGY)?.values.as_ref()?;
    match values.as_slice() {
        [node] => Some(node),
        _ => None,
    }
}

fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns whether the data go with the object.
pub(super) fn is_deleted_with(volume: &PersistentVolume) -> bool {
    let policy =
        volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy == Some("Delete")
}

/// Returns whether its time is over: released by its claim and not to be kept, or removed
/// by somebody while no claim has it.
pub(super) fn is_to_go(volume: &PersistentVolume) -> bool {
    let released = matches!(phase(volume), "Released" | "Failed");
    let removed = volume.metadata.deletion_timestamp.is_some();
    let ours = volume.finalizers().iter().any(|one| one == FINALIZER);
    match removed {
        true => ours && phase(volume) != "Bound",
        false => released && is_deleted_with(volume),
    }
}

/// Bytes that its claim asks for, where they are more than it has.
pub(super) fn wanted_size(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<u64> {
    let spec = volume.spec.as_ref()?;
    let has = quantity::whole(&spec.capacity.as_ref()?.get("storage")?.0);
    let bound = claim.spec.as_ref()?.volume_name.as_deref() == Some(volume.name_any().as_str());
    let wants = claim::requested(claim)?;
    (bound && phase(volume) == "Bound" && wants > has).then_some(wants)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::{
        super::claim::tests::{claim, class},
        *,
    };
    use crate::volume::VolumeId;

    fn volume(phase: &str, change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let (claim, class) = (claim(|_| {}), class(&json!({})));
        let id = VolumeId::for_name("pvc-u-1", "");
        let plan = claim::plan(&claim, &class).unwrap();
        let made = plan.volume(&claim, &class, &id, 2 << 30, "a");
        let mut value = serde_json::to_value(made).unwrap();
        value["status"] = json!({ "phase": phase });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn volumes_of_other_machines_and_makers_are_left_alone() {
        assert!(is_on(&volume("Bound", |_| {}), "a"));
        assert!(!is_on(&volume("Bound", |_| {}), "b"));
        let foreign = volume("Bound", |volume| volume["metadata"]["annotations"] = json!({}));
        assert!(!is_on(&foreign, "a"), "made by hand");
        let other = volume("Bound", |volume| volume["spec"]["csi"]["driver"] = json!("x"));
        assert!(!is_on(&other, "a"));
    }

    #[test]
    fn data_go_only_when_nobody_claims_them_and_the_policy_says_so() {
        let removed = |volume: &mut Value| {
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        };
        let retained = |volume: &mut Value| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        };
        for (phase, goes) in
            [("Bound", false), ("Available", false), ("", false), ("Released", true)]
        {
            assert_eq!(is_to_go(&volume(phase, |_| {})), goes, "{phase}");
        }
        assert!(!is_to_go(&volume("Released", retained)));
        assert!(!is_to_go(&volume("Bound", removed)), "a claim has it");
        let both = volume("Released", |volume| {
            removed(volume);
            retained(volume);
        });
        assert!(is_to_go(&both) && !is_deleted_with(&both), "the object goes, the data stay");
    }

    #[test]
    fn a_claim_that_asks_for_more_gets_more() {
        let asks = |storage: &str| {
            let bound = claim(|claim| {
                claim["spec"]["volumeName"] = json!("pvc-u-1");
                claim["spec"]["resources"]["requests"]["storage"] = json!(storage);
            });
            wanted_size(&volume("Bound", |_| {}), &bound)
        };
        assert_eq!(asks("3Gi"), Some(3 << 30));
        assert_eq!(asks("2Gi"), None);
        assert_eq!(asks("1Gi"), None);
        assert_eq!(wanted_size(&volume("Bound", |_| {}), &claim(|_| {})), None, "not bound");
    }
}
