//! The services of objects that are created, updated, deleted and shown.

use futures::TryStreamExt;
use selvage_api::edgeproto as wire;
use selvage_kit::identity::{Identity, Role};
use tonic::{Request, Response};

use super::streams::{streamed, with_progress};
use super::{Api, Reply, Streamed, caller, confirmed, done, unpack_request};
use crate::objects::conceal;

/// A service whose changes answer with one Result.
macro_rules! plain_service {
    ($module:ident::$service:ident, $message:ident, $stream:ident, $show:ident,
     $create:ident, $update:ident, $delete:ident) => {
        #[tonic::async_trait]
        impl wire::$module::$service for Api {
            async fn $create(&self, request: Request<wire::$message>) -> Reply<wire::Result> {
                let (object, mode) = unpack_request(request)?;
                Ok(done(self.controller.$create(object, mode).await?, mode))
            }

            async fn $update(&self, request: Request<wire::$message>) -> Reply<wire::Result> {
                let (object, mode) = unpack_request(request)?;
                Ok(done(self.controller.$update(object, mode).await?, mode))
            }

            async fn $delete(&self, request: Request<wire::$message>) -> Reply<wire::Result> {
                let (object, mode) = unpack_request(request)?;
                Ok(done(self.controller.$delete(&object, mode).await?, mode))
            }

            type $stream = Streamed<wire::$message>;

            async fn $show(&self, request: Request<wire::$message>) -> Reply<Self::$stream> {
                let caller = caller(&request);
                let mut filter = request.into_inner();
                // Nor can the caller find out by asking for it.
                filter.hide_from(&caller);
                let shown = self.controller.show(&filter)?;
                Ok(streamed(shown.map_ok(move |mut object| {
                    object.hide_from(&caller);
                    object
                })))
            }
        }
    };
}

/// An object that may hold what not everybody may see who may see the object.
trait Discreet {
    fn hide_from(&mut self, _caller: &Identity) {}
}

impl Discreet for wire::Developer {}
impl Discreet for wire::Operator {}
impl Discreet for wire::Flavor {}
impl Discreet for wire::Cluster {}

impl Discreet for wire::App {
    /// Hides the start arguments of an app from all but its developers and
    /// admins.
    fn hide_from(&mut self, caller: &Identity) {
        let developer = self.key.as_ref().and_then(|key| key.developer_key.as_ref());
        let developer = developer.map_or("", |key| key.name.as_str());
        let own = caller.organisations(Role::Developer).any(|name| name == developer);
        if !own && !caller.has_role(Role::Admin) {
            conceal(self);
        }
    }
}

plain_service!(
    developer_api_server::DeveloperApi,
    Developer,
    ShowDeveloperStream,
    show_developer,
    create_developer,
    update_developer,
    delete_developer
);
plain_service!(
    operator_api_server::OperatorApi,
    Operator,
    ShowOperatorStream,
    show_operator,
    create_operator,
    update_operator,
    delete_operator
);
plain_service!(
    flavor_api_server::FlavorApi,
    Flavor,
    ShowFlavorStream,
    show_flavor,
    create_flavor,
    update_flavor,
    delete_flavor
);
plain_service!(
    cluster_api_server::ClusterApi,
    Cluster,
    ShowClusterStream,
    show_cluster,
    create_cluster,
    update_cluster,
    delete_cluster
);
plain_service!(
    app_api_server::AppApi,
    App,
    ShowAppStream,
    show_app,
    create_app,
    update_app,
    delete_app
);

#[tonic::async_trait]
impl wire::cloudlet_api_server::CloudletApi for Api {
    type CreateCloudletStream = Streamed<wire::Result>;
    type UpdateCloudletStream = Streamed<wire::Result>;
    type DeleteCloudletStream = Streamed<wire::Result>;
    type ShowCloudletStream = Streamed<wire::Cloudlet>;

    async fn create_cloudlet(
        &self,
        request: Request<wire::Cloudlet>,
    ) -> Reply<Self::CreateCloudletStream> {
        let (cloudlet, mode) = unpack_request(request)?;
        Ok(confirmed(summary_stream(self.controller.create_cloudlet(cloudlet, mode).await?), mode))
    }

    async fn update_cloudlet(
        &self,
        request: Request<wire::Cloudlet>,
    ) -> Reply<Self::UpdateCloudletStream> {
        let (cloudlet, mode) = unpack_request(request)?;
        Ok(confirmed(summary_stream(self.controller.update_cloudlet(cloudlet, mode).await?), mode))
    }

    async fn delete_cloudlet(
        &self,
        request: Request<wire::Cloudlet>,
    ) -> Reply<Self::DeleteCloudletStream> {
        let (cloudlet, mode) = unpack_request(request)?;
        let controller = self.controller.clone();
        let reply = with_progress(move |progress| async move {
            controller.delete_cloudlet(&cloudlet, mode, progress).await
        });
        Ok(confirmed(reply, mode))
    }

    async fn show_cloudlet(
        &self,
        request: Request<wire::Cloudlet>,
    ) -> Reply<Self::ShowCloudletStream> {
        Ok(streamed(self.controller.show(request.get_ref())?))
    }
}

/// A stream that says nothing, or what a dry run found.
fn summary_stream(summary: String) -> Response<Streamed<wire::Result>> {
    let message = (!summary.is_empty()).then_some(Ok(wire::Result { message: summary, code: 0 }));
    streamed(tokio_stream::iter(message))
}
