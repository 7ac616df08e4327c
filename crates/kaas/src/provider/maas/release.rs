//! Machines on their way back to MaaS.

use selvage_api::selvage::identity::{
    RemoveMachineRequest, identity_service_client::IdentityServiceClient,
};

use super::{
    Allocation, Error, Failure, Maas, MaasMachine, NODE, OperationId, Owned, Status, TOKEN_SECONDS,
    Wipe, as_kaas,
};

/// Time after its end for which an operation is looked for, in milliseconds: as long
/// as its join token may be good, and longer than MaaS takes for any request.
const LATE: u64 = (TOKEN_SECONDS as u64 + 30 * 60) * 1000;
const COMMENT: &str = "given back";

impl Maas {
    /// Asks MaaS to take a machine back, and returns how it then is; `None`
    /// if it is not ours any more.
    pub(super) async fn give_back(
        &self,
        machine: &MaasMachine,
        wipe: Wipe,
    ) -> Result<Option<MaasMachine>, Error> {
        let id = &machine.system_id;
        match self.api.release(id, COMMENT, self.options.erase, wipe).await {
            Ok(released) => Ok(Some(released)),
            Err(Failure::NotFound(_)) => Ok(None),
            // Somebody else's now, or locked.
            Err(Failure::Denied(text)) => match self.api.machine(id).await? {
                Some(now) if now.owner == machine.owner => Err(Error::Unavailable(text)),
                _ => Ok(None),
            },
            Err(failure) => Err(failure.into()),
        }
    }

    /// Gives back all machines of an operation; true once MaaS has them.
    pub(super) async fn returned(
        &self,
        operation: &OperationId,
        allocation: &Allocation,
        wipe: Wipe,
    ) -> Result<bool, Error> {
        let own = self.own(operation).await?;
        let mut allocation = allocation.clone();
        let mut done = true;
        for machine in &own {
            allocation = self.ledger.add_other(allocation, &machine.system_id).await?;
            done &= match machine.status() {
                Status::Releasing => false,
                // One that is not ours any more is not in the next list.
                _ => {
                    let now = self.give_back(machine, wipe).await?;
                    now.is_some_and(|now| now.status() == Status::Ready)
                }
            };
        }
        for id in allocation.all() {
            if own.iter().all(|machine| machine.system_id != *id) {
                done &= self.is_back(operation, id, wipe).await?;
            }
        }
        Ok(done)
    }

    /// Returns whether a machine that MaaS no longer lists under its operation is back.
    async fn is_back(&self, operation: &OperationId, id: &str, wipe: Wipe) -> Result<bool, Error> {
        // MaaS gives a machine to the next only after it was back.
        if self.ledger.is_of_another(id, operation) {
            return Ok(true);
        }
        let Some(machine) = self.api.machine(id).await? else { return Ok(true) };
        let ours = machine.owner.as_deref() == Some(self.owner().await?);
        match machine.status() {
            Status::Releasing => Ok(false),
            Status::FailedReleasing if ours => {
                self.give_back(&machine, wipe).await?;
                Err(Error::Unavailable(format!("MaaS: {}", machine.detail())))
            }
            _ => Ok(true),
        }
    }

    /// Takes the agent of a machine off the list of those that joined.
    pub(super) async fn forget_agent(&self, allocation: &Allocation) -> Result<(), Error> {
        let name = format!("{NODE}{}", allocation.agent);
        if allocation.agent.is_empty() {
            return Ok(());
        }
        if !self.fleet.machines().iter().any(|machine| machine.machine == name) {
            return Ok(());
        }
        let mut identities = IdentityServiceClient::new(self.auth.identity_service());
        let removed = identities.remove_machine(as_kaas(RemoveMachineRequest { machine: name }));
        match removed.await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(Error::Unavailable(status.message().to_owned())),
        }
    }

    /// Operations that have a machine. Those that asked for one and got no
    /// answer, and those that ended a short time ago, are looked for at MaaS:
    /// a request that it was slow with may have brought them one.
    pub(super) async fn owned(&self) -> Result<Vec<Owned>, Error> {
        let now = self.clock.now();
        let mut owned = Vec::new();
        for allocation in self.ledger.list() {
            let operation = OperationId(allocation.operation.clone());
            if let Some(id) = allocation.all().next() {
                owned.push(Owned { operation, id: id.clone() });
                continue;
            }
            if allocation.ended_at > 0 {
                self.forget_agent(&allocation).await?;
            }
            match self.own(&operation).await?.first() {
                Some(found) => owned.push(Owned { operation, id: found.system_id.clone() }),
                None if allocation.ended_at > 0 && allocation.ended_at + LATE < now => {
                    self.ledger.forget(&allocation.operation).await?;
                }
                None => {}
            }
        }
        Ok(owned)
    }
}
