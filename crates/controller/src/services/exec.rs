//! Commands in instances.

use selvage_api::edgeproto as wire;
use selvage_kit::identity::{Identity, Kind};
use selvage_kit::serve::AUTHORITY;
use tonic::{Request, Response};

use super::shell::WEB_SOCKET;
use super::{Api, Reply};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};

impl Api {
    /// Runs a command whose caller comes to this controller to talk to it.
    async fn relayed(
        &self,
        mut request: wire::ExecRequest,
        caller: Identity,
        asked_at: Option<String>,
    ) -> crate::Result<wire::ExecRequest> {
        let controller = &self.controller;
        let own = &controller.settings.external_address;
        let key = request.app_inst_key.as_ref().unwrap_or(KeyText::empty());
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty().clone();
        let scheme = if caller.kind == Kind::Insecure { "ws" } else { "wss" };
        let relays = &controller.memory.relays;
        let tokens = relays.prepare(caller, cloudlet)?;
        request.relay = format!("{own}/{}", tokens.agent);
        let reply = match controller.run_command(request).await {
            Ok(reply) if reply.err.is_empty() => reply,
            outcome => {
                relays.cancel(&tokens);
                return outcome.map(|reply| wire::ExecRequest { relay: String::new(), ..reply });
            }
        };
        let (host, token) = (asked_at.as_deref().unwrap_or(own), &tokens.caller);
        Ok(wire::ExecRequest {
            relay: format!("{host}/{token}"),
            answer: format!("{scheme}://{host}{WEB_SOCKET}?token={token}"),
            ..reply
        })
    }
}

#[tonic::async_trait]
impl wire::exec_api_server::ExecApi for Api {
    async fn run_command(&self, request: Request<wire::ExecRequest>) -> Reply<wire::ExecRequest> {
        let caller = request.extensions().get::<Identity>().cloned();
        let caller = caller.unwrap_or_else(Identity::anonymous);
        // By the name that the caller knows us by he reaches us again.
        let asked_at = request.metadata().get(AUTHORITY).and_then(|host| host.to_str().ok());
        let asked_at = asked_at.map(str::to_owned);
        let request = wire::ExecRequest { relay: String::new(), ..request.into_inner() };
        let reply = match request.offer.as_str() {
            "" => self.relayed(request, caller, asked_at).await?,
            _ => self.controller.run_command(request).await?,
        };
        Ok(Response::new(reply))
    }

    async fn send_local_request(
        &self,
        request: Request<wire::ExecRequest>,
    ) -> Reply<wire::ExecRequest> {
        let reply = self.controller.run_command_here(request.into_inner()).await?;
        Ok(Response::new(reply))
    }
}
