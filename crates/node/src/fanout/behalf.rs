//! Proof of the caller that nodes are shown.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use http::{Extensions, HeaderMap, HeaderValue};
use selvage_api::selvage::identity::IssueAssertionsRequest;
use selvage_auth::Auth;
use selvage_kit::{
    assertion,
    dial::Endpoint,
    identity::{Identity, Machine, Secret},
    serve::relay,
};
use selvage_membership::Controller;
use tonic::Status;

/// Source of assertions by which a controller vouches for callers.
#[async_trait]
pub trait AssertionSource: Send + Sync + 'static {
    /// Assertions that this caller, who showed this token, wants a method of
    /// each of these machines to be called; by the name of the machine.
    async fn assertions(
        &self,
        caller: &Identity,
        token: Option<Secret>,
        method: &str,
        machines: Vec<String>,
    ) -> Result<Vec<(String, String)>, Status>;
}

/// The controller that this machine has joined.
pub(crate) struct Joined(pub(crate) Arc<dyn Controller>);

#[async_trait]
impl AssertionSource for Joined {
    async fn assertions(
        &self,
        _: &Identity,
        token: Option<Secret>,
        method: &str,
        machines: Vec<String>,
    ) -> Result<Vec<(String, String)>, Status> {
        let token = token.ok_or_else(without_token)?;
        let method = method.trim_start_matches('/').to_owned();
        let asked = IssueAssertionsRequest { method, machines };
        let issued = self.0.issue_assertions(&token, asked).await.map_err(|status| {
            let text =
                format!("the controller does not vouch for the caller: {}", status.message());
            Status::new(status.code(), text)
        })?;
        let issued = issued.assertions.into_iter();
        Ok(issued.map(|issued| (issued.machine, issued.assertion)).collect())
    }
}

/// This very process, which has the authority itself but is no controller.
pub(crate) struct Own {
    pub(crate) auth: Auth,
    pub(crate) machine: Machine,
}

#[async_trait]
impl AssertionSource for Own {
    async fn assertions(
        &self,
        caller: &Identity,
        _: Option<Secret>,
        method: &str,
        machines: Vec<String>,
    ) -> Result<Vec<(String, String)>, Status> {
        let issued = self.auth.issue_assertions(caller, &self.machine, method, machines).await?;
        Ok(issued.into_iter().map(|issued| (issued.machine, issued.assertion)).collect())
    }
}

fn without_token() -> Status {
    Status::permission_denied(
        "only the token of a login opens other machines through this one: log in, or call \
         through a controller",
    )
}

/// Headers that say for whom nodes are called.
pub(super) enum OnBehalf {
    /// A controller is believed.
    Named(HeaderValue),
    /// Assertions that a controller signed, by the name of the machine.
    Asserted(HashMap<String, HeaderValue>),
    /// Nobody vouches for the caller.
    Refused(Status),
}

impl OnBehalf {
    /// Says in the headers for whom this node is called.
    pub(super) fn write(&self, headers: &mut HeaderMap, to: &Endpoint) -> Result<(), Status> {
        match self {
            Self::Named(value) => {
                headers.insert(relay::CALLER, value.clone());
            }
            Self::Asserted(all) => {
                let found = to.machine.as_ref().and_then(|machine| all.get(machine));
                let value = found.ok_or_else(|| {
                    Status::not_found(format!("no machine is known that answers at {to}"))
                })?;
                headers.insert(assertion::HEADER, value.clone());
            }
            Self::Refused(status) => return Err(status.clone()),
        }
        Ok(())
    }
}

/// Finds out how to speak for the caller of a request at other machines.
pub(super) async fn on_behalf(
    source: Option<&dyn AssertionSource>,
    headers: &HeaderMap,
    extensions: &Extensions,
    method: &str,
    others: Vec<String>,
) -> Result<OnBehalf, Status> {
    let anonymous = Identity::anonymous();
    let caller = extensions.get::<Identity>().unwrap_or(&anonymous);
    let Some(source) = source else {
        return Ok(OnBehalf::Named(relay::caller_header(caller)?));
    };
    if others.is_empty() {
        return Ok(OnBehalf::Asserted(HashMap::new()));
    }
    let token = relay::token(headers);
    let issued = match source.assertions(caller, token, method, others).await {
        Ok(issued) => issued,
        Err(status) => return Ok(OnBehalf::Refused(status)),
    };
    let all = issued.into_iter().map(|(machine, assertion)| {
        let mut value = HeaderValue::try_from(assertion)
            .map_err(|_| Status::internal("the controller's assertion is not text"))?;
        value.set_sensitive(true);
        Ok((machine, value))
    });
    all.collect::<Result<_, Status>>().map(OnBehalf::Asserted)
}
