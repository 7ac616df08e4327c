//! Fields that a server fills in.

use selvage_api::{
    distributed_match_engine::AppPort,
    edgeproto::{
        App, AppInst, Cloudlet, Cluster, ClusterInst, Developer, Flavor, Liveness, Operator,
        TrackedState,
    },
};

use super::ControllerState;

/// Fills what the server fills.
pub(super) trait Derived {
    /// Completes a key.
    fn complete(&mut self) {}
    fn derive(&mut self, _: &ControllerState) {}
}

impl Derived for Flavor {}
impl Derived for Operator {}
impl Derived for Developer {}
impl Derived for Cluster {}
impl Derived for Cloudlet {}

impl Derived for App {
    fn derive(&mut self, _: &ControllerState) {
        if self.deployment_manifest.is_empty() {
            self.deployment_generator = "kubernetes-basic".into();
            self.deployment_manifest = "kind: Service\n---\nkind: Deployment\n".into();
        }
        if self.deployment.is_empty() {
            self.deployment = "kubernetes".into();
        }
    }
}

impl Derived for ClusterInst {
    fn derive(&mut self, _: &ControllerState) {
        self.liveness = Liveness::Static.into();
        self.state = TrackedState::Ready.into();
        self.node_flavor = "flavor1".into();
        self.crm_override = 0;
    }
}

impl Derived for AppInst {
    fn complete(&mut self) {
        let key = self.key.as_mut().unwrap();
        let app = key.app_key.clone().unwrap();
        let cluster = key.cluster_inst_key.as_mut().unwrap();
        if cluster.developer.is_empty() {
            cluster.developer = app.developer_key.unwrap().name;
        }
    }

    fn derive(&mut self, state: &ControllerState) {
        self.complete();
        let cluster = self.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap();
        let name = &mut cluster.cluster_key.as_mut().unwrap().name;
        if name.starts_with("autocluster") {
            *name = name.to_lowercase();
            let mut auto =
                ClusterInst { key: Some(cluster.clone()), auto: true, ..Default::default() };
            auto.derive(state);
            state.put(&auto);
        }
        if self.uri.is_empty() {
            self.uri = "tmus-cloud-1.tmus.mobiledgex.net".into();
        }
        self.mapped_ports = vec![
            AppPort { proto: 1, internal_port: 80, public_port: 80, ..Default::default() },
            AppPort { proto: 3, internal_port: 8443, public_port: 443, ..Default::default() },
        ];
        self.liveness = Liveness::Static.into();
        self.state = TrackedState::Ready.into();
        self.crm_override = 0;
    }
}
