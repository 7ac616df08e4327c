//! By the API: what is another's is neither seen nor touched.

use selvage_api::Code;
use serde_json::json;

use selvage_tests::cloudlet::can_run;

use crate::site::{CANARY, Site, app_key};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_anothers_is_neither_seen_nor_touched() {
    if !can_run() {
        return;
    }
    let site = Site::start(106).await;
    site.run_both(&site.image());
    let refusals =
        [Code::PermissionDenied, Code::InvalidArgument].map(|code| i32::from(code.exit()));
    let acme = || site.instance_key("acme", "acme");
    let logs = json!({"app_inst_key": acme(), "logs": {"tail": 5}});
    for (method, message) in [
        ("edgeproto.ExecApi/RunCommand", json!({"app_inst_key": acme(), "command": "env"})),
        ("edgeproto.ExecApi/RunCommand", json!({"app_inst_key": acme(), "offer": "{}"})),
        ("edgeproto.ExecApi/RunCommand", logs),
        ("edgeproto.ExecApi/SendLocalRequest", json!({"app_inst_key": acme(), "command": "env"})),
        ("edgeproto.AppApi/DeleteApp", json!({"key": app_key("acme")})),
        (
            "edgeproto.AppApi/UpdateApp",
            json!({"fields": ["13"], "key": app_key("acme"), "command": "sleep 9"}),
        ),
        ("edgeproto.AppInstApi/DeleteAppInst", json!({"key": acme()})),
        ("edgeproto.AppInstApi/UpdateAppInst", json!({"key": acme()})),
        // An instance of ours in their cluster, and one of theirs in ours.
        ("edgeproto.AppInstApi/CreateAppInst", json!({"key": site.instance_key("evil", "acme")})),
        ("edgeproto.AppInstApi/CreateAppInst", json!({"key": site.instance_key("acme", "evil")})),
        // The operator's, and the machine's.
        ("edgeproto.CloudletApi/DeleteCloudlet", json!({"key": site.cloudlet_key()})),
        ("machine.MachineService/Read", json!({"path": "/etc/hostname"})),
        ("os.OSService/Containers", json!({})),
        ("proto.LVService/RemoveLV", json!({"name": "x"})),
        ("selvage.identity.IdentityService/ListUsers", json!({})),
    ] {
        let printed = site.call(method, &message);
        assert!(refusals.contains(&printed.code), "{method}: {printed:?}");
        assert!(!format!("{printed:?}").contains(CANARY), "{method}: {printed:?}");
    }
    for shown in ["app", "appinst", "clusterinst", "appinstinfo"] {
        let printed = site.evil(&[shown, "show", "-o", "json"]);
        let output = printed.stdout + &printed.stderr;
        assert!(!output.contains(CANARY) && !output.contains("acme"), "{shown}: {output}");
    }
    // Nothing happened to what is theirs, and everything to what is ours works.
    let acme = site.admin.ok(&["exec", "web", "--developer", "acme", "--", "env"]);
    assert!(acme.contains(CANARY), "{acme}");
    let own = site.inside("id -u");
    assert_eq!((own.stdout.trim(), own.code), ("0", 0), "{own:?}");
    site.end();
}
