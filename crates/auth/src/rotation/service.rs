//! `selvage.pki.PkiService`.

use selvage_api::selvage::pki::{
    Authority, Certificate, FinishRotationRequest, Pki, Process, ShowRequest, StartRotationRequest,
    pki_service_server::PkiService,
};
use selvage_kit::pki::Ca;
use tonic::{Request, Response, Status};

use super::{Phase, Region};
use crate::{
    Auth,
    caller::Caller,
    clock,
    error::Result,
    records::{Member, from_millis},
};

/// Serves the contract.
#[derive(Debug, Clone)]
pub struct PkiApi(pub(crate) Auth);

#[tonic::async_trait]
impl PkiService for PkiApi {
    async fn show(&self, request: Request<ShowRequest>) -> Result<Response<Pki>, Status> {
        Caller::of(&request).require_known()?;
        Ok(Response::new(self.0.show_pki()?))
    }

    async fn start_rotation(
        &self,
        request: Request<StartRotationRequest>,
    ) -> Result<Response<Pki>, Status> {
        let caller = Caller::of(&request);
        caller.require_administrator("replace the certificate authority")?;
        self.0.start_rotation(&caller).await?;
        Ok(Response::new(self.0.show_pki()?))
    }

    async fn finish_rotation(
        &self,
        request: Request<FinishRotationRequest>,
    ) -> Result<Response<Pki>, Status> {
        let caller = Caller::of(&request);
        caller.require_administrator("replace the certificate authority")?;
        self.0.finish_rotation(&caller, request.get_ref().force).await?;
        Ok(Response::new(self.0.show_pki()?))
    }
}

impl Auth {
    fn show_pki(&self) -> Result<Pki> {
        let authorities = self.authorities()?.all();
        let region = self.inner.rotation.current().unwrap_or_default();
        let signs = |index: usize, ca: &Ca| authority(ca, index == 0);
        let mut processes: Vec<Process> =
            self.inner.rotation.processes.list().iter().map(|one| process(&one.value)).collect();
        processes.sort_by(|a, b| a.name.cmp(&b.name));
        let members = self.inner.members.list();
        Ok(Pki {
            stage: region.stage,
            certificates: members
                .iter()
                .filter_map(|member| self.certificate(&member.value, &region))
                .collect(),
            authorities: authorities.iter().enumerate().map(|(at, ca)| signs(at, ca)).collect(),
            processes,
            started_at: time(region.started_at),
            waits_for: self.waits_for(&region),
        })
    }

    fn certificate(&self, member: &Member, region: &Region) -> Option<Certificate> {
        let issue = self.inner.issues.get(&member.machine)?;
        let reports = member.last_seen != 0 && !member.authority.is_empty();
        let signing = region.stage().phase() == Phase::Signing;
        let waits = self.signer_of(region).filter(|_| signing);
        let waits = waits.and_then(|signer| self.why_wait(member, &signer));
        Some(Certificate {
            machine: member.machine.clone(),
            authority: if reports { &member.authority } else { &issue.value.authority }.clone(),
            issued_at: time(issue.value.issued_at),
            ends: time(issue.value.not_after),
            believes: member.believes.clone(),
            copy_suspected_at: time(member.copy_suspected_at),
            waits: waits.unwrap_or_default().to_owned(),
        })
    }
}

fn time(millis: i64) -> Option<prost_types::Timestamp> {
    (millis != 0).then(|| clock::to_wire(from_millis(millis)))
}

fn process(process: &super::Process) -> Process {
    Process { name: process.name.clone(), stage: process.stage }
}

fn authority(ca: &Ca, signs: bool) -> Authority {
    let (begins, ends) = ca.life();
    Authority {
        sha256: ca.sha256(),
        name: ca.name(),
        begins: time(begins.saturating_mul(1000)),
        ends: time(ends.saturating_mul(1000)),
        signs,
        certificate: ca.pem().to_owned(),
    }
}
