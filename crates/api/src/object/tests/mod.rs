#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod filters;
mod keys;
mod masks;
mod random;

use super::{Filter, Object};
use crate::distributed_match_engine::{AppPort, Loc};
use crate::edgeproto::{
    App, AppInst, AppInstKey, AppInstRuntime, AppKey, CloudletKey, ClusterInstKey, ClusterKey,
    ConfigFile, DeveloperKey, FlavorKey, Liveness, OperatorKey, TrackedState,
};

fn app_inst() -> AppInst {
    AppInst {
        key: Some(app_inst_key()),
        cloudlet_loc: Some(Loc { latitude: 31.0, longitude: -91.0, ..Loc::default() }),
        uri: "tmus-cloud-1.tmus.mobiledgex.net".into(),
        liveness: Liveness::Static.into(),
        mapped_ports: vec![
            AppPort { proto: 1, internal_port: 80, public_port: 80, ..AppPort::default() },
            AppPort { proto: 2, internal_port: 10002, ..AppPort::default() },
        ],
        flavor: Some(FlavorKey { name: "x1.small".into() }),
        state: TrackedState::Ready.into(),
        errors: vec!["one".into(), "two".into()],
        runtime_info: Some(AppInstRuntime {
            container_ids: vec!["a".into()],
            ..AppInstRuntime::default()
        }),
        ..AppInst::default()
    }
}

fn app_inst_key() -> AppInstKey {
    AppInstKey {
        app_key: Some(AppKey {
            developer_key: Some(DeveloperKey { name: "AcmeAppCo".into() }),
            name: "someapplication1".into(),
            version: "1.0".into(),
        }),
        cluster_inst_key: Some(ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "SmallCluster".into() }),
            cloudlet_key: Some(CloudletKey {
                operator_key: Some(OperatorKey { name: "tmus".into() }),
                name: "tmus-cloud-1".into(),
            }),
            developer: "AcmeAppCo".into(),
        }),
    }
}

fn app() -> App {
    App {
        key: app_inst_key().app_key,
        access_ports: "tcp:80".into(),
        configs: vec![
            ConfigFile { kind: "envVarsYaml".into(), config: "a".into() },
            ConfigFile { kind: "helmCustomizationYaml".into(), config: "b".into() },
        ],
        ..App::default()
    }
}

fn matches<M: Object>(filter: &M, object: &M) -> bool {
    let compiled = Filter::of(filter).unwrap();
    let matched = compiled.matches(object);
    assert_eq!(compiled.matches_encoded(&object.encode_to_vec()).unwrap(), matched);
    matched
}
