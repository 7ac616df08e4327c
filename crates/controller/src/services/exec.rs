//! Commands in instances.

use selvage_api::edgeproto as wire;
use selvage_kit::identity::{Identity, Kind};
use selvage_kit::serve::{AUTHORITY, Standing};
use tonic::{Request, Response};

use super::shell::WEB_SOCKET;
use super::{Api, Reply};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::relay::Seat;

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

    /// Runs a command whose caller talks to the crm without this controller.
    /// The crm stays attached here meanwhile, and hangs up when that ends.
    async fn direct(
        &self,
        mut request: wire::ExecRequest,
        caller: Identity,
        standing: Option<Standing>,
    ) -> crate::Result<wire::ExecRequest> {
        let controller = &self.controller;
        let Some(standing) = standing else { return controller.run_command(request).await };
        let key = request.app_inst_key.as_ref().unwrap_or(KeyText::empty());
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty().clone();
        let relays = &controller.memory.relays;
        let tokens = relays.prepare(caller.clone(), cloudlet)?;
        let seat = relays.take(&tokens.caller, &caller)?;
        request.relay = format!("{}/{}", controller.settings.external_address, tokens.agent);
        tokio::spawn(supervise(seat, standing));
        let outcome = controller.run_command(request).await;
        if !outcome.as_ref().is_ok_and(|reply| reply.err.is_empty()) {
            relays.cancel(&tokens);
        }
        outcome.map(|reply| wire::ExecRequest { relay: String::new(), ..reply })
    }
}

/// Keeps a crm attached for as long as the caller has the right to the command.
async fn supervise(seat: Seat, standing: Standing) {
    // Agents of the original do not come.
    if seat.taken().await.is_err() {
        return;
    }
    tokio::select! {
        () = seat.outgoing.closed() => {}
        status = standing.lost() => {
            tracing::info!(target: "audit", why = status.message(), "shell ended");
        }
    }
}

#[tonic::async_trait]
impl wire::exec_api_server::ExecApi for Api {
    async fn run_command(&self, request: Request<wire::ExecRequest>) -> Reply<wire::ExecRequest> {
        let caller = request.extensions().get::<Identity>().cloned();
        let caller = caller.unwrap_or_else(Identity::anonymous);
        // By the name that the caller used it reaches us again.
        let asked_at = request.metadata().get(AUTHORITY).and_then(|host| host.to_str().ok());
        let asked_at = asked_at.map(str::to_owned);
        let standing = Standing::of_call(&request);
        let request = wire::ExecRequest { relay: String::new(), ..request.into_inner() };
        let reply = match request.offer.as_str() {
            "" => self.relayed(request, caller, asked_at).await?,
            _ => self.direct(request, caller, standing).await?,
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
