//! The services of objects.

use selvage_api::edgeproto::{
    Result as Line, app_api_server::*, app_inst_api_server::*, cloudlet_api_server::*,
    cloudlet_info_api_server::*, cloudlet_refs_api_server::*, cluster_api_server::*,
    cluster_inst_api_server::*, developer_api_server::*, flavor_api_server::*,
    operator_api_server::*, *,
};
use tonic::Request;

use super::{Answers, Fake, Reply, derived::Derived};

macro_rules! plain {
    ($api:ident, $object:ident, $create:ident, $update:ident, $delete:ident, $show:ident, $stream:ident) => {
        #[tonic::async_trait]
        impl $api for Fake {
            type $stream = Answers<$object>;

            async fn $show(&self, request: Request<$object>) -> Reply<Self::$stream> {
                self.0.shown(concat!("Show", stringify!($object)), &request)
            }

            async fn $create(&self, request: Request<$object>) -> Reply<Line> {
                let dry = self.0.note(concat!("Create", stringify!($object)), &request)?;
                let mut object = request.into_inner();
                object.derive(&self.0);
                self.0.create(&object, dry)?;
                Ok(self.0.answer(Line::default(), dry))
            }

            async fn $update(&self, request: Request<$object>) -> Reply<Line> {
                let dry = self.0.note(concat!("Update", stringify!($object)), &request)?;
                self.0.update(request.get_ref(), dry)?;
                Ok(self.0.answer(Line::default(), dry))
            }

            async fn $delete(&self, request: Request<$object>) -> Reply<Line> {
                let dry = self.0.note(concat!("Delete", stringify!($object)), &request)?;
                self.0.delete(request.get_ref(), dry)?;
                Ok(self.0.answer(Line::default(), dry))
            }
        }
    };
}

macro_rules! streamed {
    ($api:ident, $object:ident, $create:ident, $update:ident, $delete:ident, $show:ident,
     $stream:ident, $creates:ident, $updates:ident, $deletes:ident, $lines:expr) => {
        #[tonic::async_trait]
        impl $api for Fake {
            type $stream = Answers<$object>;

            async fn $show(&self, request: Request<$object>) -> Reply<Self::$stream> {
                self.0.shown(concat!("Show", stringify!($object)), &request)
            }
            type $creates = Answers<Line>;
            type $updates = Answers<Line>;
            type $deletes = Answers<Line>;

            async fn $create(&self, request: Request<$object>) -> Reply<Answers<Line>> {
                let dry = self.0.note(concat!("Create", stringify!($object)), &request)?;
                let mut object = request.into_inner();
                if dry {
                    self.0.create(&object, dry)?;
                } else {
                    object.derive(&self.0);
                    self.0.create(&object, dry)?;
                }
                let lines: &[&str] = &["Creating", "Ready", "Created successfully"];
                Ok(self.0.lines(if $lines { lines } else { &[] }, dry))
            }

            async fn $update(&self, request: Request<$object>) -> Reply<Answers<Line>> {
                let dry = self.0.note(concat!("Update", stringify!($object)), &request)?;
                self.0.update(request.get_ref(), dry)?;
                Ok(self.0.lines(if $lines { &["Updating", "Ready"] } else { &[] }, dry))
            }

            async fn $delete(&self, request: Request<$object>) -> Reply<Answers<Line>> {
                let dry = self.0.note(concat!("Delete", stringify!($object)), &request)?;
                let mut object = request.into_inner();
                object.complete();
                self.0.delete(&object, dry)?;
                Ok(self.0.lines(if $lines { &["Deleting", "NotPresent"] } else { &[] }, dry))
            }
        }
    };
}

plain!(
    FlavorApi,
    Flavor,
    create_flavor,
    update_flavor,
    delete_flavor,
    show_flavor,
    ShowFlavorStream
);
plain!(
    OperatorApi,
    Operator,
    create_operator,
    update_operator,
    delete_operator,
    show_operator,
    ShowOperatorStream
);
plain!(
    DeveloperApi,
    Developer,
    create_developer,
    update_developer,
    delete_developer,
    show_developer,
    ShowDeveloperStream
);
plain!(
    ClusterApi,
    Cluster,
    create_cluster,
    update_cluster,
    delete_cluster,
    show_cluster,
    ShowClusterStream
);
plain!(AppApi, App, create_app, update_app, delete_app, show_app, ShowAppStream);
streamed!(
    CloudletApi,
    Cloudlet,
    create_cloudlet,
    update_cloudlet,
    delete_cloudlet,
    show_cloudlet,
    ShowCloudletStream,
    CreateCloudletStream,
    UpdateCloudletStream,
    DeleteCloudletStream,
    false
);
streamed!(
    ClusterInstApi,
    ClusterInst,
    create_cluster_inst,
    update_cluster_inst,
    delete_cluster_inst,
    show_cluster_inst,
    ShowClusterInstStream,
    CreateClusterInstStream,
    UpdateClusterInstStream,
    DeleteClusterInstStream,
    true
);
streamed!(
    AppInstApi,
    AppInst,
    create_app_inst,
    update_app_inst,
    delete_app_inst,
    show_app_inst,
    ShowAppInstStream,
    CreateAppInstStream,
    UpdateAppInstStream,
    DeleteAppInstStream,
    true
);

#[tonic::async_trait]
impl CloudletInfoApi for Fake {
    type ShowCloudletInfoStream = Answers<CloudletInfo>;

    async fn show_cloudlet_info(
        &self,
        request: Request<CloudletInfo>,
    ) -> Reply<Self::ShowCloudletInfoStream> {
        self.0.shown("ShowCloudletInfo", &request)
    }

    async fn inject_cloudlet_info(&self, request: Request<CloudletInfo>) -> Reply<Line> {
        let dry = self.0.note("InjectCloudletInfo", &request)?;
        if self.0.update(request.get_ref(), dry).is_err() {
            self.0.put(request.get_ref());
        }
        Ok(self.0.answer(Line::default(), dry))
    }

    async fn evict_cloudlet_info(&self, request: Request<CloudletInfo>) -> Reply<Line> {
        let dry = self.0.note("EvictCloudletInfo", &request)?;
        self.0.delete(request.get_ref(), dry)?;
        Ok(self.0.answer(Line::default(), dry))
    }
}

#[tonic::async_trait]
impl CloudletRefsApi for Fake {
    type ShowCloudletRefsStream = Answers<CloudletRefs>;

    async fn show_cloudlet_refs(
        &self,
        request: Request<CloudletRefs>,
    ) -> Reply<Self::ShowCloudletRefsStream> {
        self.0.shown("ShowCloudletRefs", &request)
    }
}
