//! The services of objects that are created, updated, deleted and shown.

use selvage_api::edgeproto as wire;
use tonic::{Request, Response};

use super::streams::{streamed, with_progress};
use super::{Api, Reply, Streamed, confirmed, done, taken};

/// A service whose changes answer with one Result.
macro_rules! plain_service {
    ($module:ident::$service:ident, $message:ident, $stream:ident, $show:ident,
     $create:ident, $update:ident, $delete:ident) => {
        #[tonic::async_trait]
        impl wire::$module::$service for Api {
            async fn $create(&self, request: Request<wire::$message>) -> Reply<wire::Result> {
                let (object, mode) = taken(request)?;
                Ok(done(self.controller.$create(object, mode).await?, mode))
            }

            async fn $update(&self, request: Request<wire::$message>) -> Reply<wire::Result> {
                let (object, mode) = taken(request)?;
                Ok(done(self.controller.$update(object, mode).await?, mode))
            }

            async fn $delete(&self, request: Request<wire::$message>) -> Reply<wire::Result> {
                let (object, mode) = taken(request)?;
                Ok(done(self.controller.$delete(&object, mode).await?, mode))
            }

            type $stream = Streamed<wire::$message>;

            async fn $show(&self, request: Request<wire::$message>) -> Reply<Self::$stream> {
                Ok(streamed(self.controller.show(request.get_ref())?))
            }
        }
    };
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
        let (cloudlet, mode) = taken(request)?;
        Ok(confirmed(told(self.controller.create_cloudlet(cloudlet, mode).await?), mode))
    }

    async fn update_cloudlet(
        &self,
        request: Request<wire::Cloudlet>,
    ) -> Reply<Self::UpdateCloudletStream> {
        let (cloudlet, mode) = taken(request)?;
        Ok(confirmed(told(self.controller.update_cloudlet(cloudlet, mode).await?), mode))
    }

    async fn delete_cloudlet(
        &self,
        request: Request<wire::Cloudlet>,
    ) -> Reply<Self::DeleteCloudletStream> {
        let (cloudlet, mode) = taken(request)?;
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
fn told(told: String) -> Response<Streamed<wire::Result>> {
    let message = (!told.is_empty()).then_some(Ok(wire::Result { message: told, code: 0 }));
    streamed(tokio_stream::iter(message))
}
