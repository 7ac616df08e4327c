//! Whom a rotation waits for.

use std::sync::Arc;

use selvage_kit::pki::Ca;

use super::{Phase, Region, Stage};
use crate::{
    Auth,
    records::{Issue, Member},
};

impl Auth {
    /// Processes that are up and have not come to this stage.
    pub(super) fn processes_behind(&self, stage: Stage) -> Vec<String> {
        let processes = self.inner.rotation.processes.list();
        let behind = processes.iter().filter(|process| process.value.stage < stage.0);
        behind.map(|process| format!("the controller at {}", process.value.name)).collect()
    }

    /// Returns whom the next step of the rotation waits for, in words.
    pub(super) fn waits_for(&self, region: &Region) -> Vec<String> {
        let mut waits = self.processes_behind(region.stage());
        match region.stage().phase() {
            Phase::Alone => waits.clear(),
            Phase::Introduced => waits.push("the new authority to sign".to_owned()),
            Phase::Signing => {
                let Some(signer) = self.signer_of(region) else {
                    waits.push("this controller to have the new authority".to_owned());
                    return waits;
                };
                waits.extend(self.inner.members.list().iter().filter_map(|member| {
                    let why = self.why_wait(&member.value, &signer)?;
                    Some(format!("{}: {why}", member.value.machine))
                }));
            }
        }
        waits
    }

    /// The authority that signs at the region's stage, which this process may not
    /// have come to yet.
    pub(super) fn signer_of(&self, region: &Region) -> Option<Arc<Ca>> {
        let authorities = region.authorities();
        let signer = &authorities.first()?.certificate_pem;
        self.authorities().ok()?.all().into_iter().find(|ca| ca.pem() == signer)
    }

    /// Why the old authority cannot be dropped because of this machine.
    pub(super) fn why_wait(&self, member: &Member, signer: &Ca) -> Option<&'static str> {
        // A process with the authorities' keys gives itself certificates.
        let issue = self.inner.issues.get(&member.machine)?;
        let over = issue.value.not_after <= self.now().as_millisecond();
        if over || self.inner.blocked.get(&member.machine).is_some() {
            return None;
        }
        why_behind(member, &issue.value, &signer.sha256())
    }
}

fn why_behind(member: &Member, issue: &Issue, signer: &str) -> Option<&'static str> {
    if member.last_seen == 0 {
        return (issue.authority != signer)
            .then_some("has a certificate of the old authority and does not report");
    }
    if !member.believes.iter().any(|one| one == signer) {
        return Some("does not say that it believes the new authority");
    }
    (member.authority != signer).then_some("shows a certificate of the old authority")
}
