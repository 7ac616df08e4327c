//! Requests of devices that make no sense, and the answers.

use selvage_tests::Selvage;
use serde_json::{Value, json};

use crate::site::{Device, Site};

/// Bodies to every method by REST, the code and a part of the text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_refused_with_a_reason() {
    let selvage = Selvage::up(&[]);
    let site = Site::of(selvage).await;
    site.create_app(&crate::site::APP);
    let mut device = Device::of(&site.selvage).await;
    let cookie = device.cookie(&crate::site::APP).await;
    let place = |latitude: Value, longitude: Value| {
        json!({"session_cookie": cookie, "carrier_name": "dmuus",
               "gps_location": {"latitude": latitude, "longitude": longitude}})
    };
    let names = |developer: &str, app: &str, version: &str, token: &str| json!({"dev_name": developer, "app_name": app, "app_vers": version, "auth_token": token});
    let (long, too_long) = ("x".repeat(60_000), "x".repeat(70_000));
    let find = "/v1/findcloudlet";
    let register = "/v1/registerclient";
    for (path, body, code, text) in [
        (register, names("", "a", "1", ""), 400, "DevName cannot be empty"),
        (register, names("d", "", "1", ""), 400, "AppName cannot be empty"),
        (register, names("d", "a", "", ""), 400, "AppVers cannot be empty"),
        (register, names("d", "a", "1", ""), 404, "app not found"),
        (register, names(&long, "a", "1", ""), 404, "app not found"),
        (register, names("AcmeAppCo", "someapplication", "1.0", "x"), 401, "No authkey found"),
        (register, names(&too_long, "a", "1", ""), 429, "larger than 65536 bytes"),
        (register, json!({"dev_name": 1}), 400, "dev_name"),
        (register, json!({"devname": "x"}), 400, "DevName cannot be empty"),
        (register, json!([]), 400, ""),
        (find, json!({}), 401, "VerifyCookie failed: missing cookie"),
        (find, json!({"session_cookie": "x"}), 401, "VerifyCookie failed"),
        (find, json!({"session_cookie": long}), 401, "VerifyCookie failed"),
        (find, json!({"session_cookie": format!("{cookie}x")}), 401, "VerifyCookie failed"),
        (find, json!({"session_cookie": cookie}), 400, "Missing carrierName"),
        (find, place(json!(0), json!(0)), 400, "Missing GpsLocation"),
        (find, place(json!(91), json!(0)), 400, "Invalid GpsLocation"),
        (find, place(json!(1), json!(181)), 400, "Invalid GpsLocation"),
        (find, place(json!("NaN"), json!(1)), 400, "Invalid GpsLocation"),
        (find, place(json!("Infinity"), json!(1)), 400, "Invalid GpsLocation"),
        (find, place(json!("here"), json!(1)), 400, "latitude"),
        ("/v1/verifylocation", json!({"session_cookie": cookie}), 400, "Missing GPS location"),
        ("/v1/verifylocation", place(json!(1), json!(1)), 404, "carrier not found for app"),
        ("/v1/getappinstlist", json!({"session_cookie": cookie}), 400, "Missing GpsLocation"),
        ("/v1/getfqdnlist", json!({"session_cookie": cookie}), 403, "API Not allowed"),
        ("/v1/getlocation", json!({}), 401, "missing cookie"),
        ("/v1/addusertogroup", json!({"lg_id": 1}), 401, "missing cookie"),
        ("/v1/addusertogroup", json!({"lg_id": -1}), 400, "lg_id"),
    ] {
        let short: String = body.to_string().chars().take(80).collect();
        let (got, reply) = device.rest(path, &body).await;
        assert_eq!(got, code, "{path} {short}: {reply}");
        let message = reply["message"].as_str().unwrap_or_default();
        assert!(message.contains(text), "{path} {short}: {reply}");
        assert!(!message.contains(&cookie), "a cookie is not repeated");
    }
    assert!(!site.selvage.log().contains(&cookie), "nor written down");
}
