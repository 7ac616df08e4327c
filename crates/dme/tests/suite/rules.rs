//! Answers to devices, rule by rule.

use selvage_api::{
    Code,
    distributed_match_engine::{
        AppInstListRequest, FindCloudletRequest, Loc, VerifyLocationRequest,
        find_cloudlet_reply::FindStatus,
    },
    edgeproto::App,
};
use selvage_dme::AppName;

use crate::lab::{
    app, asked, engine, fill, find, in_cluster, instance, listed, loc, name, register, session,
};

const CLOUDLET1: ((&str, &str), (f64, f64)) = (("dmuus", "cloud1"), (31.0, -91.0));
const CLOUDLET2: ((&str, &str), (f64, f64)) = (("dmuus", "cloud2"), (35.0, -95.0));
const AZURE: ((&str, &str), (f64, f64)) = (("azure", "azure1"), (32.0, -91.0));
const GCP: ((&str, &str), (f64, f64)) = (("gcp", "gcp1"), (31.9, -91.0));
const DEFAULT: ((&str, &str), (f64, f64)) = (("developer", "default"), (0.0, 0.0));

fn samsung() -> AppName {
    AppName::new("Samsung", "SamsungEnablingLayer", "1.0")
}

/// The original's walk through everything that makes one instance better than
/// another.
#[tokio::test]
async fn the_carrier_wins_unless_a_public_cloud_is_much_nearer() {
    let engine = engine().await;
    let some = name("some");
    let put = |(place, at): ((&str, &str), (f64, f64)), uri: &str| {
        engine.feed().instances.put(instance(&some, place, at, uri)).unwrap();
        engine.feed().publish();
    };
    let find_at = |at| find(&engine, &some, "dmuus", at);
    assert_eq!(find_at((31.0, -91.0)), "", "the app is not there");
    fill(&engine, &[app(&some)], &[]);
    assert_eq!(find_at((31.0, -91.0)), "", "and runs nowhere");
    put(DEFAULT, "default.some.example");
    let reply = engine.find(&session(&some), &asked("dmuus", 31.0, -91.0)).unwrap();
    assert_eq!(reply.fqdn, "default.some.example");
    assert_eq!(reply.cloudlet_location, Some(Loc::default()));
    put(CLOUDLET1, "cloud1");
    assert_eq!(find_at((31.0, -91.0)), "cloud1");
    put(CLOUDLET2, "cloud2");
    put(AZURE, "azure");
    assert_eq!(find_at((36.0, -96.0)), "cloud2");
    assert_eq!(find_at((31.6, -91.0)), "cloud1", "67 km, and azure is at 44");
    engine.feed().instances.remove(&instance(&some, CLOUDLET1.0, CLOUDLET1.1, "cloud1")).unwrap();
    engine.feed().publish();
    assert_eq!(find_at((31.6, -91.0)), "azure", "530 km, and azure is at 44");
    put(GCP, "gcp");
    assert_eq!(find_at((31.6, -91.0)), "gcp", "which is at 33");
    assert_eq!(find_at((32.0, -91.0)), "azure");
    assert_eq!(find(&engine, &some, "other", (31.6, -91.0)), "gcp", "of a carrier that has none");
}

/// Ports and places come with the answer.
#[tokio::test]
async fn the_answer_says_where_and_how() {
    let engine = engine().await;
    let some = name("some");
    let there = instance(&some, CLOUDLET1.0, CLOUDLET1.1, "cloud1");
    fill(&engine, &[app(&some)], std::slice::from_ref(&there));
    let reply = engine.find(&session(&some), &asked("dmuus", 36.0, -96.0)).unwrap();
    assert_eq!(reply.ports, there.mapped_ports);
    assert_eq!(reply.cloudlet_location, there.cloudlet_loc);
    assert_eq!(reply.status(), FindStatus::FindFound);
}

#[tokio::test]
async fn platform_apps_find_those_that_let_them() {
    let engine = engine().await;
    let (open, closed) = (name("open"), name("closed"));
    let permitting = App { permits_platform_apps: true, ..app(&open) };
    let places = [
        instance(&open, CLOUDLET1.0, CLOUDLET1.1, "open.example"),
        instance(&closed, CLOUDLET1.0, CLOUDLET1.1, "closed.example"),
        instance(&samsung(), CLOUDLET1.0, CLOUDLET1.1, "samsung.example"),
    ];
    fill(&engine, &[permitting, app(&closed), app(&samsung())], &places);
    let for_app = |wanted: &AppName| FindCloudletRequest {
        dev_name: wanted.developer.clone(),
        app_name: wanted.name.clone(),
        app_vers: wanted.version.clone(),
        ..asked("dmuus", 31.0, -91.0)
    };
    let found = |own: &AppName, wanted: &AppName| {
        engine.find(&session(own), &for_app(wanted)).map(|reply| reply.fqdn)
    };
    assert_eq!(found(&samsung(), &open).unwrap(), "open.example");
    assert_eq!(found(&closed, &closed).unwrap(), "closed.example", "its own name is no other");
    for (own, wanted) in [(&samsung(), &closed), (&open, &closed), (&samsung(), &name("none"))] {
        let error = found(own, wanted).unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{error}");
        assert!(error.to_string().contains(&format!("Appname: {} ", wanted.name)), "{error}");
    }
    let own = engine.find(&session(&samsung()), &asked("dmuus", 31.0, -91.0)).unwrap();
    assert_eq!(own.status(), FindStatus::FindNotfound, "a platform app runs on the device");
}

#[tokio::test]
async fn addresses_of_apps_are_for_platform_apps() {
    let engine = engine().await;
    let names = ["b", "a", "closed", "elsewhere"].map(name);
    let mut apps: Vec<App> = names
        .iter()
        .map(|one| App {
            permits_platform_apps: one.name != "closed",
            android_package_name: format!("com.{}", one.name),
            ..app(one)
        })
        .collect();
    apps.push(App { permits_platform_apps: true, ..app(&samsung()) });
    let default = |one: &AppName| instance(one, DEFAULT.0, DEFAULT.1, "one.example,two.example");
    let places = [
        default(&names[0]),
        default(&names[1]),
        default(&names[2]),
        default(&samsung()),
        instance(&names[3], CLOUDLET1.0, CLOUDLET1.1, "cloud1"),
    ];
    fill(&engine, &apps, &places);
    let reply = engine.fqdns(&session(&samsung())).unwrap();
    let shown: Vec<_> = reply.app_fqdns.iter().map(|app| app.app_name.as_str()).collect();
    assert_eq!(shown, ["a", "b"]);
    assert_eq!(reply.app_fqdns[0].fqdns, ["one.example", "two.example"]);
    assert_eq!(reply.app_fqdns[0].android_package_name, "com.a");
    assert_eq!(reply.app_fqdns[0].dev_name, "a Inc");
    let refused = engine.fqdns(&session(&names[0])).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(refused.to_string(), "API Not allowed for developer: b Inc");
}

/// The same name and version of another developer is another app; nearer
/// comes first; distances are exact.
#[tokio::test]
async fn lists_are_of_ones_own_app_and_sorted() {
    let engine = engine().await;
    let mine = AppName::new("mine", "app", "1.0");
    let other = AppName::new("other", "app", "1.0");
    let places = [
        instance(&mine, ("dmuus", "a"), (1.0, 10.0), "a"),
        instance(&mine, ("dmuus", "b"), (1.0, 9.0), "b"),
        in_cluster(&mine, ("gcp", "c"), (1.0, 1.0), "c2", "two"),
        in_cluster(&mine, ("gcp", "c"), (1.0, 1.0), "c1", "one"),
        instance(&mine, ("att", "d"), (36.0, -96.0), "d"),
        instance(&mine, DEFAULT.0, DEFAULT.1, "default"),
        instance(&other, ("dmuus", "a"), (36.0, -96.0), "stranger"),
    ];
    fill(&engine, &[app(&mine), app(&other)], &places);
    let near = |name: &str, km: f64, there: &[&str]| {
        (name.to_owned(), km, there.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let public = [
        near("gcp/c", 10570.971178689932, &["c1", "c2"]),
        near("dmuus/b", 11284.535631750952, &["b"]),
        near("dmuus/a", 11373.10678046936, &["a"]),
    ];
    assert_eq!(listed(&engine, &mine, "dmuus", (36.0, -96.0)), public);
    let all = listed(&engine, &mine, "", (36.0, -96.0));
    assert_eq!(all[0], near("att/d", 0.0, &["d"]));
    assert_eq!(all[1..], public);
    assert_eq!(listed(&engine, &other, "", (36.0, -96.0)), [near("dmuus/a", 0.0, &["stranger"])]);
    assert_eq!(listed(&engine, &name("gone"), "", (36.0, -96.0)), []);
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_by_name() {
    let engine = engine().await;
    let some = name("some");
    fill(&engine, &[app(&some)], &[instance(&some, CLOUDLET1.0, CLOUDLET1.1, "cloud1")]);
    let own = session(&some);
    let nan = f64::NAN;
    let without = |carrier: &str| FindCloudletRequest {
        carrier_name: carrier.into(),
        ..FindCloudletRequest::default()
    };
    for (request, expected) in [
        (without(""), "Missing carrierName"),
        (without("dmuus"), "Missing GpsLocation"),
        (asked("dmuus", 0.0, 0.0), "Missing GpsLocation"),
        (asked("dmuus", 90.5, 1.0), "Invalid GpsLocation"),
        (asked("dmuus", 1.0, -180.5), "Invalid GpsLocation"),
        (asked("dmuus", nan, 1.0), "Invalid GpsLocation"),
        (asked("dmuus", 1.0, f64::INFINITY), "Invalid GpsLocation"),
    ] {
        let error = engine.find(&own, &request).unwrap_err();
        assert_eq!((error.code(), &*error.to_string()), (Code::InvalidArgument, expected));
        let request = VerifyLocationRequest {
            carrier_name: "dmuus".into(),
            gps_location: request.gps_location,
            ..VerifyLocationRequest::default()
        };
        let error = engine.verify_location(&own, &request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let known = ["Missing GPS location", "Invalid GpsLocation"];
        assert!(known.contains(&&*error.to_string()), "{error}");
    }
    for (at, expected) in
        [(None, "Missing GpsLocation"), (Some(loc(nan, nan)), "Invalid GpsLocation")]
    {
        let request = AppInstListRequest { gps_location: at, ..AppInstListRequest::default() };
        let error = engine.list(&own, &request).unwrap_err();
        assert_eq!((error.code(), &*error.to_string()), (Code::InvalidArgument, expected));
    }
    assert_eq!(listed(&engine, &some, "", (0.0, 0.0)).len(), 1, "a list may be asked from there");
    let gone = session(&name("gone"));
    let request = VerifyLocationRequest { gps_location: Some(loc(1.0, 1.0)), ..Default::default() };
    let error = engine.verify_location(&gone, &request).await.unwrap_err();
    assert_eq!(error.to_string(), "app not found: gone Inc gone 1.0");
    assert_eq!(error.code(), Code::NotFound);

    for (developer, app, version, expected) in [
        ("", "some", "1.0", "DevName cannot be empty"),
        ("some Inc", "", "1.0", "AppName cannot be empty"),
        ("some Inc", "some", "", "AppVers cannot be empty"),
    ] {
        let error =
            engine.register(&register(&AppName::new(developer, app, version)), "").unwrap_err();
        assert_eq!((error.code(), &*error.to_string()), (Code::InvalidArgument, expected));
    }
    let error = engine.register(&register(&name("gone")), "").unwrap_err();
    assert_eq!((error.code(), &*error.to_string()), (Code::NotFound, "app not found"));
}

/// Whatever the order in which they came, the same question has the same
/// answer.
#[tokio::test]
async fn of_equally_near_instances_the_first_by_name_is_found() {
    let some = name("some");
    let at = (50.0, 7.0);
    let mut places: Vec<_> = ["two", "one", "three"]
        .into_iter()
        .flat_map(|cloudlet| {
            ["y", "x"].map(|cluster| {
                let uri = format!("{cloudlet}-{cluster}");
                in_cluster(&some, ("TDG", cloudlet), at, &uri, cluster)
            })
        })
        .collect();
    for _ in 0..places.len() {
        places.rotate_left(1);
        let engine = engine().await;
        fill(&engine, &[app(&some)], &places);
        for _ in 0..3 {
            assert_eq!(find(&engine, &some, "TDG", (51.0, 8.0)), "one-x");
        }
        let listed = listed(&engine, &some, "TDG", (51.0, 8.0));
        let names: Vec<_> = listed.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["TDG/one", "TDG/three", "TDG/two"]);
        assert_eq!(listed[0].2, ["one-x", "one-y"]);
    }
}
