//! Ceph's answers as the original's own test data has them, and what existing
//! dashboards are told of it.

use selvage_api::{
    resources::stats::{
        ClusterStats, Crash, Data as Told, Io, MdsService, MgrService, MonService, Objects,
        OsdService, Pgs, Pools, RgwService, Usage,
    },
    stats::{GetClusterRadarRequest, GetClusterStatsRequest},
};
use selvage_dashboard::{facts::Data, source::ceph::decode_health};

use super::lab::Lab;

const GOLDEN: &[u8] = include_bytes!("../answers/health-full-golden.json");

async fn stats_of(body: &[u8]) -> ClusterStats {
    let lab = Lab::new().await;
    lab.tell(Data::Storage(decode_health(body).unwrap().into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    reply.into_inner().stats.unwrap()
}

fn time(text: &str) -> Option<prost_types::Timestamp> {
    let time: jiff::Timestamp = text.parse().unwrap();
    Some(prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
}

#[tokio::test]
async fn every_field_is_what_the_original_meant() {
    let stats = stats_of(GOLDEN).await;
    assert_eq!(stats.id, "da9e1007-387f-4fc5-bf5d-616119d8bd45");
    assert_eq!(stats.status, "HEALTH_WARN");
    let crash = Crash { description: "1 daemons have recently crashed".into() };
    assert_eq!(stats.crashes, [crash]);
    assert_eq!(stats.test, "");
    let services = stats.services.unwrap();
    let mon = MonService {
        daemon_count: 3,
        quorum: "a,b,c".into(),
        created_at: time("2023-06-01T08:00:00.5Z"),
        updated_at: time("2023-06-02T09:30:00Z"),
    };
    assert_eq!(services.mon, Some(mon));
    let mgr = MgrService {
        active: "a".into(),
        standbys: vec!["b".into()],
        updated_at: time("2023-09-14T10:11:12.314052Z"),
    };
    assert_eq!(services.mgr, Some(mgr));
    assert_eq!(services.mds, Some(MdsService { daemons_up: 1, hot_standby_count: 1 }));
    let osd = OsdService {
        osd_count: 3,
        osd_up: 3,
        osd_in: 3,
        osd_up_updated_at: time("2023-09-13T01:02:03.5Z"),
        osd_in_updated_at: time("2023-06-01T08:05:00Z"),
    };
    assert_eq!(services.osd, Some(osd));
    let rgw = RgwService { active_daemon: 1, host_count: 0, zone_count: 0 };
    assert_eq!(services.rgw, Some(rgw));
    let data = Told {
        volumes: 0,
        pools: Some(Pools { pools: 13, pgs: Some(Pgs { active_clean: 217 }) }),
        objects: Some(Objects { object_count: 2867, size: "777.32 GiB".into() }),
        usage: Some(Usage {
            used: 1_703_619_231_744,
            available: 2_332_992_946_176,
            total: 4_036_612_177_920,
        }),
    };
    assert_eq!(stats.data, Some(data));
    let io = Io {
        client_read: "853.00 B/s rd".into(),
        client_read_ops: "1 ops/s rd".into(),
        client_write_ops: "0 ops/s wr".into(),
    };
    assert_eq!(stats.io, Some(io));
}

#[tokio::test]
async fn the_marks_are_those_of_the_rules() {
    let lab = Lab::new().await;
    lab.tell(Data::Storage(decode_health(GOLDEN).unwrap().into()));
    let reply = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    let radar = reply.into_inner().radar.unwrap();
    assert_eq!(radar.capacity_used, 42.3);
    assert_eq!(radar.stability, 90.0);
    assert_eq!(radar.cluster_health, 50.0);
    // No nodes: nothing to divide by.
    assert_eq!(radar.nodes_health, 0.0);
    // Monitors, quorum, managers, 13 pools and the standby hold; one gateway
    // is too few.
    assert!((radar.reliability - 100.0 * 17.0 / 18.0).abs() < 0.01, "{}", radar.reliability);
}

#[tokio::test]
async fn a_healthy_cluster_has_full_marks() {
    let healthy = String::from_utf8(GOLDEN.to_vec()).unwrap();
    let mut healthy: serde_json::Value = serde_json::from_str(&healthy).unwrap();
    healthy["health"] = serde_json::json!({"status": "HEALTH_OK", "checks": []});
    let lab = Lab::new().await;
    lab.tell(Data::Storage(decode_health(healthy.to_string().as_bytes()).unwrap().into()));
    let reply = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    let radar = reply.into_inner().radar.unwrap();
    assert_eq!((radar.cluster_health, radar.stability), (100.0, 100.0));
}

/// The formulas of the original that were wrong.
#[tokio::test]
async fn what_was_wrong_is_right() {
    let mut answer: serde_json::Value = serde_json::from_slice(GOLDEN).unwrap();
    // One of three monitors does not agree.
    answer["mon_status"]["quorum"] = serde_json::json!([0, 2]);
    // Two file systems, with two and one daemons, and a cold standby.
    answer["fs_map"] = serde_json::json!({
        "standbys": [{"name": "spare"}],
        "filesystems": [
            {"mdsmap": {"fs_name": "one", "up": {"mds_0": 1, "mds_1": 2}, "info": {},
                        "standby_count_wanted": 7}},
            {"mdsmap": {"fs_name": "two", "up": {"mds_0": 3},
                        "info": {"gid_4": {"state": "up:standby-replay"}}}},
        ],
    });
    // A group that is scrubbed is clean all the same; one that is stale is not.
    answer["pg_info"]["statuses"] = serde_json::json!({
        "active+clean": 200, "active+clean+scrubbing+deep": 10, "active+undersized": 7,
        "stale+active+clean": 3, "peering": 9,
    });
    answer["health"]["checks"] = serde_json::json!([
        {"severity": "HEALTH_WARN", "type": "A", "muted": true, "summary": {"message": "muted"}},
        {"severity": "HEALTH_ERR", "type": "B", "muted": false, "summary": {"message": "broken"}},
    ]);
    answer["health"]["status"] = "HEALTH_ERR".into();
    answer["pg_info"]["object_stats"]["num_objects"] = 5_000_000_000_u64.into();
    let mut storage = decode_health(answer.to_string().as_bytes()).unwrap();
    storage.crashes = vec!["osd.3".into()];
    storage.volumes = Some(4);
    let lab = Lab::new().await;
    lab.tell(Data::Storage(storage.into()));
    let reply = lab.stats().get_cluster_stats(GetClusterStatsRequest {}).await.unwrap();
    let stats = reply.into_inner().stats.unwrap();
    let services = stats.services.unwrap();
    let mon = services.mon.unwrap();
    assert_eq!((mon.daemon_count, mon.quorum.as_str()), (3, "a,c"));
    assert_eq!(services.mds, Some(MdsService { daemons_up: 3, hot_standby_count: 2 }));
    let data = stats.data.unwrap();
    assert_eq!(data.pools.unwrap().pgs, Some(Pgs { active_clean: 210 }));
    assert_eq!(data.objects.unwrap().object_count, i32::MAX);
    assert_eq!(data.volumes, 4);
    let texts: Vec<&str> = stats.crashes.iter().map(|crash| crash.description.as_str()).collect();
    assert_eq!(texts, ["broken", "crash: osd.3"]);
    let reply = lab.stats().get_cluster_radar(GetClusterRadarRequest {}).await.unwrap();
    // 25 for what does not work, 5 for the crash, nothing for what is muted.
    assert_eq!(reply.into_inner().radar.unwrap().stability, 70.0);
}
