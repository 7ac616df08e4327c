//! Conformance of the platform on a cluster of Kubernetes.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use selvage_api::edgeproto::{App, CloudletKey, Flavor};
use selvage_crm::{
    Egress, FetchPolicy, ImageFolders, Platform, Registries,
    platform::{
        InstanceFacts,
        kubernetes::{Kubernetes, Options},
    },
};
use selvage_kube::kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind},
};

use super::fixture::{Cluster, IMAGE, command, manifest};
use crate::{
    conformance::{Fixture, STARTED, conforms},
    support::{TEST_TIMEOUT, TestCloudlet},
};

struct InNamespaces {
    place: TestCloudlet,
    cluster: &'static Cluster,
}

#[async_trait]
impl Fixture for InNamespaces {
    fn place(&self) -> &TestCloudlet {
        &self.place
    }

    async fn open(&self, cloudlet: &CloudletKey) -> Arc<dyn Platform> {
        let options = Options {
            kubeconfig: Some(self.cluster.kubeconfig.clone()),
            registries: Registries::default(),
            policy: FetchPolicy::default(),
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            images: ImageFolders::default(),
            data: self.place.directory.path().to_owned(),
            start_timeout: TEST_TIMEOUT,
            helm: self.cluster.helm(),
            egress: Egress::default(),
        };
        Arc::new(Kubernetes::open(cloudlet, options).unwrap())
    }

    fn flavor(&self) -> Flavor {
        Flavor { ram: 64, vcpus: 1, disk: 1, ..Flavor::default() }
    }

    fn app(&self) -> App {
        App { image_path: IMAGE.into(), deployment: "kubernetes".into(), ..self.place.app() }
    }

    /// Names of objects are of the app's name, as generated ones are.
    fn fitted(&self, app: App) -> App {
        let name = app.key.clone().unwrap().name.to_lowercase();
        let serve = format!("echo {STARTED}; exec httpd -f -p 8080 -h /www");
        let text = manifest("{image}", &command(&["/bin/sh", "-c", &serve]));
        let text = text.replace("hello", &name).replace("{image}", &app.image_path);
        App { deployment_manifest: text, ..app }
    }

    fn bad_image(&self) -> (String, &'static str) {
        ("127.0.0.1:1/nowhere/nothing:1".into(), "ErrImagePull: ")
    }

    async fn kill(&self, facts: &InstanceFacts) {
        let namespace = self.cluster.namespaces_of(self.place.name).await[0].metadata.name.clone();
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let client = self.cluster.client().await;
        let pods: Api<DynamicObject> = Api::namespaced_with(client, &namespace.unwrap(), &kind);
        pods.delete(&facts.containers[0], &DeleteParams::default()).await.unwrap();
    }

    async fn left(&self) -> Vec<String> {
        let namespaces = self.cluster.namespaces_of(self.place.name).await;
        let namespaces = namespaces.into_iter().filter_map(|found| found.metadata.name);
        let namespaces: Vec<String> = namespaces.collect();
        let mut left = namespaces.clone();
        for (group, kind) in
            [("", "Pod"), ("", "Service"), ("", "ConfigMap"), ("apps", "Deployment")]
        {
            let all = self.cluster.names(group, "v1", kind, "selvage.instance").await;
            let ours = |name: &String| namespaces.iter().any(|of| name.starts_with(of.as_str()));
            left.extend(all.into_iter().filter(ours));
        }
        left
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_of_kubernetes_conform() {
    let Some(cluster) = Cluster::shared().await else { return };
    conforms(&InNamespaces { place: TestCloudlet::new("conform-kube", 178), cluster }).await;
}
