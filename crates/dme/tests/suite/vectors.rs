//! The original's own cases: five apps on five cloudlets.

use selvage_api::{
    distributed_match_engine::{
        VerifyLocationRequest, verify_location_reply::GpsLocationStatus as Status,
    },
    edgeproto::AppInst,
};
use selvage_dme::Engine;

use crate::lab::{app, engine, fill, find, instance, loc, name, session};

const APPS: [&str; 5] = ["1000realities", "Pokemon-go", "HarryPotter-go", "Ever.AI", "Untomt"];
/// Operator and name of a cloudlet, where it is, and what runs there.
type Place = ((&'static str, &'static str), (f64, f64), &'static str);

const PLACES: [Place; 5] = [
    (("TDG", "Bonn"), (50.7374, 7.0982), "10.1.10.1"),
    (("TDG", "Munich"), (52.7374, 13.4050), "11.1.11.1"),
    (("TDG", "Berlin"), (48.1351, 11.5820), "12.1.12.1"),
    (("TMUS", "San Francisco"), (47.6062, 122.3321), "13.1.13.1"),
    (("developer", "default"), (29.66, -82.33), "15.1.15.1"),
];

fn instances() -> Vec<AppInst> {
    let everywhere =
        |app: &&str| PLACES.map(|(place, at, uri)| instance(&name(app), place, at, uri));
    APPS.iter().flat_map(everywhere).collect()
}

async fn filled() -> Engine {
    let engine = engine().await;
    fill(&engine, &APPS.map(|app_name| app(&name(app_name))), &instances());
    engine
}

#[tokio::test]
async fn find_cloudlet() {
    let engine = filled().await;
    engine.feed().instances.remove(&instances()[0]).unwrap();
    engine.feed().publish();
    for (app, carrier, at, expected) in [
        ("1000realities", "TDG", (50.65, 6.341), "12.1.12.1"),
        ("1000realities", "TDG", (51.65, 9.341), "11.1.11.1"),
        ("1000realities", "ATT", (52.65, 10.341), "15.1.15.1"),
        ("1000realities", "TDG", (50.75, 7.905), "12.1.12.1"),
        ("Pokemon-go", "TDG", (52.75, 12.905), "11.1.11.1"),
        ("HarryPotter-go", "TDG", (50.75, 11.905), "11.1.11.1"),
        ("Ever.AI", "TMUS", (47.75, 122.905), "13.1.13.1"),
    ] {
        assert_eq!(find(&engine, &name(app), carrier, at), expected, "{app} {carrier} {at:?}");
    }
}

#[tokio::test]
async fn adding_everything_again_changes_nothing() {
    let engine = filled().await;
    let before = engine.feed().table().instance_count();
    assert_eq!(before, 25);
    fill(&engine, &APPS.map(|app_name| app(&name(app_name))), &instances());
    assert_eq!(engine.feed().table().instance_count(), before);
    for instance in instances() {
        engine.feed().instances.remove(&instance).unwrap();
    }
    engine.feed().publish();
    assert_eq!((engine.feed().table().instance_count(), engine.feed().table().app_count()), (0, 5));
}

#[tokio::test]
async fn verify_location() {
    let engine = filled().await;
    let verified = |km| Some((Status::LocVerified, km));
    for (app, carrier, at, expected) in [
        ("1000realities", "TDG", (50.73, 7.1), verified(2.0)),
        ("1000realities", "TDG", (52.65, 12.341), verified(100.0)),
        ("1000realities", "ATT", (52.65, 10.341), None),
        ("1000realities", "TDG", (50.75, 7.905), verified(100.0)),
        ("Pokemon-go", "TDG", (52.75, 12.905), verified(100.0)),
        ("HarryPotter-go", "TDG", (50.75, 11.905), Some((Status::LocMismatchSameCountry, -1.0))),
        ("Ever.AI", "TMUS", (47.75, 122.905), verified(100.0)),
    ] {
        let request = VerifyLocationRequest {
            carrier_name: carrier.into(),
            gps_location: Some(loc(at.0, at.1)),
            ..VerifyLocationRequest::default()
        };
        let reply = engine.verify_location(&session(&name(app)), &request).await;
        match expected {
            Some((status, km)) => {
                let reply = reply.unwrap();
                assert_eq!(reply.gps_location_status(), status, "{app} {at:?}");
                assert_eq!(reply.gps_location_accuracy_km, km, "{app} {at:?}");
                assert_eq!(reply.tower_status, 0);
            }
            None => {
                let error = reply.unwrap_err();
                assert_eq!(error.code(), selvage_api::Code::NotFound);
                assert_eq!(error.to_string(), format!("carrier not found for app: {app}"));
            }
        }
    }
}
