//! Answers that were recorded of real clusters, by version.

use selvage_dashboard::source::ceph::{decode_health, decode_status};

const FULL_16: &[u8] = include_bytes!("../answers/health-full-16.2.15.json");
const STATUS_16: &[u8] = include_bytes!("../answers/status-16.2.15.json");

/// Both were taken of one cluster with an OSD down.
#[test]
fn version_16_tells_the_same_by_its_manager_and_its_monitors() {
    let (full, status) = (decode_health(FULL_16).unwrap(), decode_status(STATUS_16).unwrap());
    assert_eq!((full.status.as_str(), full.id.len()), ("HEALTH_WARN", 36));
    assert_eq!((&full.id, &full.status), (&status.id, &status.status));
    let codes = |storage: &selvage_dashboard::facts::Storage| -> Vec<String> {
        storage.checks.iter().map(|check| check.code.clone()).collect()
    };
    assert_eq!(codes(&full), ["OSD_DOWN", "PG_DEGRADED"]);
    assert_eq!(codes(&full), codes(&status));
    assert_eq!(full.checks[0].detail, ["osd.0 (root=default,host=vm) is down"]);
    let (one, other) = (full.osd.unwrap(), status.osd.unwrap());
    assert_eq!((one.count, one.up, one.r#in), (3, 2, 3));
    assert_eq!((other.count, other.up, other.r#in), (3, 2, 3));
    assert!(one.up_changed.is_some() && other.up_changed.is_some());
    assert_eq!((full.clean_pgs, status.clean_pgs), (Some(0), Some(0)));
    assert_eq!(full.mon.unwrap().quorum, status.mon.unwrap().quorum);
    assert_eq!(full.usage.unwrap().total, status.usage.unwrap().total);
    let mgr = full.mgr.unwrap();
    assert_eq!((mgr.active.as_str(), mgr.standbys.as_slice()), ("x", &["y".to_owned()][..]));
    assert!(mgr.changed.is_some(), "its time has an offset without a colon");
    let pool = &full.pools.unwrap()[0];
    assert!(pool.replicated && pool.size == 3 && pool.min_size == 2);
}
