//! The original's walk through a region, by gRPC and by REST, and what a
//! device must not be told.

use selvage_api::distributed_match_engine::{
    AppInstListRequest, FindCloudletRequest, Loc, VerifyLocationRequest,
    find_cloudlet_reply::FindStatus, verify_location_reply::GpsLocationStatus,
};
use selvage_sim::{Fault, FaultRule, ObjectKind, Verb};
use selvage_tests::real::python;
use serde_json::json;
use tonic::Code;

use crate::site::{APP, Device, SAMSUNG, Site, question, registration};

const CLOUD1: &str = "cloud-1.dmuus.selvage.internal";
const CLOUD2: &str = "cloud-2.dmuus.selvage.internal";
const AZURE: &str = "acmeappcosomeapplication10.autocluster.cloud-9.azure.selvage.internal";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn find_cloudlet() {
    let site = Site::open(&[]).await;
    let mut device = Device::of(&site.selvage).await;
    let refused = device.grpc.register_client(registration(&APP)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "app not found"));
    let names = json!({"dev_name": "AcmeAppCo", "app_name": "someapplication", "app_vers": "1.0"});
    let (code, reply) = device.rest("/v1/registerclient", &names).await;
    assert_eq!((code, &reply["message"]), (404, &json!("app not found")));

    site.create_app(&APP);
    site.create_app(&SAMSUNG);
    let cookie = device.cookie(&APP).await;
    let (code, reply) = device.rest("/v1/registerclient", &names).await;
    assert_eq!((code, &reply["status"], &reply["ver"]), (200, &json!("RS_SUCCESS"), &json!(0)));
    let by_rest = reply["session_cookie"].as_str().unwrap().to_owned();
    let at = |latitude, longitude| question(&cookie, latitude, longitude);
    let nothing = device.find(at(31.0, -91.0)).await;
    assert_eq!(nothing.status(), FindStatus::FindNotfound);
    assert_eq!(nothing.cloudlet_location, Some(Loc::default()));

    site.create("developer", "default");
    device.is_sent(at(31.0, -91.0), "default.someapplication.acme.com").await;
    assert_eq!(device.find(at(31.0, -91.0)).await.cloudlet_location, Some(Loc::default()));
    site.create("dmuus", "cloud-1");
    device.is_sent(at(31.0, -91.0), CLOUD1).await;
    site.create("dmuus", "cloud-2");
    site.create("azure", "cloud-9");
    device.is_sent(at(36.0, -96.0), CLOUD2).await;
    device.is_sent(question(&by_rest, 36.0, -96.0), CLOUD2).await;
    let samsung = device.cookie(&SAMSUNG).await;
    let through = FindCloudletRequest {
        dev_name: "AcmeAppCo".into(),
        app_name: "someapplication".into(),
        app_vers: "1.0".into(),
        ..question(&samsung, 36.0, -96.0)
    };
    device.is_sent(through, CLOUD2).await;
    device.is_sent(at(31.6, -91.0), CLOUD1).await;
    site.delete("dmuus", "cloud-1");
    device.is_sent(at(31.6, -91.0), AZURE).await;

    let listed = AppInstListRequest {
        session_cookie: cookie.clone(),
        carrier_name: "dmuus".into(),
        gps_location: Some(Loc { latitude: 36.0, longitude: -96.0, ..Loc::default() }),
        ..AppInstListRequest::default()
    };
    let listed = device.grpc.get_app_inst_list(listed).await.unwrap().into_inner();
    let names: Vec<_> = listed.cloudlets.iter().map(|one| one.cloudlet_name.as_str()).collect();
    assert_eq!(names, ["cloud-2", "cloud-9"], "the nearest first, and none by default");
    let verify = VerifyLocationRequest {
        session_cookie: cookie,
        carrier_name: "dmuus".into(),
        gps_location: Some(Loc { latitude: 35.01, longitude: -95.0, ..Loc::default() }),
        ..VerifyLocationRequest::default()
    };
    let verified = device.grpc.verify_location(verify).await.unwrap().into_inner();
    assert_eq!(verified.gps_location_status(), GpsLocationStatus::LocVerified);
    assert_eq!(verified.gps_location_accuracy_km, 2.0);
    by_command(&site);
    by_python(&site);
}

/// The same through the command line.
fn by_command(site: &Site) {
    let place = ["--carrier", "dmuus", "--latitude", "36", "--longitude", "-96"];
    let found = site.cli.ok(&[&["dme", "find"][..], &APP, &place].concat());
    assert!(found.contains(CLOUD2) && found.contains("tcp:"), "{found}");
    let listed = site.cli.ok(&[&["dme", "list"][..], &APP, &place].concat());
    let lines: Vec<_> = listed.lines().collect();
    assert!(lines[1].contains("cloud-2") && lines[2].contains("cloud-9"), "{listed}");
    let cookie = site.cli.json(&[&["dme", "register", "-o", "json"][..], &APP].concat());
    let file = site.cli.home().join("cookie");
    std::fs::write(&file, cookie["session_cookie"].as_str().unwrap()).unwrap();
    let with_cookie = ["--cookie-file", file.to_str().unwrap()];
    let verified =
        site.cli.ok(&[&["dme", "verify", "-o", "json"][..], &with_cookie, &place].concat());
    assert!(verified.contains("LOC_MISMATCH_SAME_COUNTRY"), "{verified}");
    let unknown = ["dme", "find", "--developer", "x", "--appname", "y", "--appvers", "z"];
    let refused = site.cli.run(&[&unknown[..], &place].concat());
    assert!(refused.code != 0 && refused.stderr.contains("app not found"), "{refused:?}");
}

/// The same through a client that knows numbers and names alone.
fn by_python(site: &Site) {
    let Some(python) = python() else { return };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign");
    let output = std::process::Command::new(python)
        .arg(folder.join("dme.py"))
        .arg(folder.join("dme_wire.proto"))
        .arg(site.selvage.address())
        .arg(site.selvage.ready()["ca"].as_str().unwrap())
        .output()
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(stdout.lines().last(), Some("ok"), "{stdout}\n{stderr}");
}

/// An instance that is being made, and one whose cloudlet is away, are not
/// what a device is sent to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_there_is_offered() {
    let site = Site::open(&[]).await;
    site.create_app(&APP);
    let mut device = Device::of(&site.selvage).await;
    let cookie = device.cookie(&APP).await;
    let here = question(&cookie, 31.0, -91.0);
    let crm = &site.crms[0];
    crm.script(FaultRule::once(
        ObjectKind::Instance,
        Verb::Create,
        Fault::Late(std::time::Duration::from_secs(2)),
    ));
    std::thread::scope(|scope| {
        let creating = scope.spawn(|| site.instance("create", "dmuus", "cloud-1"));
        let show = ["appinst", "show", "-o", "json"];
        while !site.cli.ok(&show).contains("\"CREATING\"") {
            assert!(!creating.is_finished(), "it was never seen in the making");
        }
        let offered = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(device.find(here.clone()))
        });
        let made = site.cli.ok(&show).contains("\"READY\"");
        assert!(made || offered.status() == FindStatus::FindNotfound, "{offered:?}");
        assert_eq!(creating.join().unwrap().code, 0);
    });
    device.is_sent(here.clone(), CLOUD1).await;
    crm.go_offline().await;
    device.is_sent(here.clone(), "").await;
    crm.go_online();
    device.is_sent(here, CLOUD1).await;
}
