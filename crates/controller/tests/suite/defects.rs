//! Defects of the original, and the test that it would fail. The numbers are
//! those of the list that this controller was built against.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_controller::{Dependencies, EdgeController, Settings};
use selvage_store::{Error, Overlay, RangeReply, RangeRequest, Result, SharedStore, StoreExt};

use super::{harness::*, named::assert_there_is};

pub(crate) const SUITE: &str = "crates/controller/tests/suite";
pub(crate) const INSTANCES: &str = "crates/controller/src/instances/tests";
const DERIVE: &str = "crates/controller/src/derive";
pub(crate) const NOTIFY: &str = "crates/notify/tests/notify";
pub(crate) const SYSTEM: &str = "tests/tests";

/// Number, what was wrong, where the proof is, and its name. What number 30
/// says, that instances were offered in any state, is the match engine's.
const DEFECTS: &[(u32, &str, &str, &str, &str)] = &[
    (1, "a slow reader stalls everybody", SUITE, "show.rs", "a_slow_reader_stalls_nobody"),
    (
        1,
        "so does a slow caller",
        INSTANCES,
        "defects.rs",
        "a_caller_who_does_not_read_stalls_nobody",
    ),
    (2, "flavors go under apps", SUITE, "races.rs", "apps_and_their_flavor"),
    (2, "developers go under apps", SUITE, "races.rs", "apps_and_their_developer"),
    (2, "operators go under cloudlets", SUITE, "races.rs", "cloudlets_and_their_operator"),
    (
        2,
        "cloudlets go under clusters",
        INSTANCES,
        "defects.rs",
        "clusters_race_with_their_cloudlet",
    ),
    (2, "flavors go under clusters", INSTANCES, "defects.rs", "clusters_race_with_their_flavor"),
    (2, "apps go under instances", INSTANCES, "defects.rs", "instances_race_with_their_app"),
    (
        2,
        "clusters go under instances",
        INSTANCES,
        "defects.rs",
        "instances_race_with_their_cluster",
    ),
    (
        3,
        "an early error waits for the timeout",
        INSTANCES,
        "clusters.rs",
        "a_report_before_the_wait_counts",
    ),
    (4, "DELETING for ever", INSTANCES, "upkeep.rs", "a_forgotten_deletion_is_asked_for_again"),
    (
        5,
        "a failed update is a success",
        INSTANCES,
        "clusters.rs",
        "the_wrong_error_of_an_old_crm_ends_an_update_at_once",
    ),
    (
        5,
        "UPDATE_ERROR is the end",
        INSTANCES,
        "clusters.rs",
        "a_failed_update_can_be_tried_again_or_deleted",
    ),
    (6, "an ignored crm updates", INSTANCES, "overrides.rs", "the_crm_can_be_left_out"),
    (7, "resized clusters are counted wrong", INSTANCES, "clusters.rs", "updates_are_counted"),
    (
        8,
        "a failed deletion leaves DELETE_PREPARE",
        INSTANCES,
        "apps.rs",
        "an_app_that_will_not_go_keeps_its_cluster_as_it_was",
    ),
    (
        9,
        "undo tells no crm",
        INSTANCES,
        "clusters.rs",
        "a_failed_creation_tells_the_crm_to_remove_what_there_is",
    ),
    (
        9,
        "auto-clusters leak",
        INSTANCES,
        "auto_clusters.rs",
        "a_failed_app_takes_its_cluster_along_and_the_crm_knows",
    ),
    (
        9,
        "slow auto-clusters are forgotten",
        INSTANCES,
        "defects.rs",
        "an_auto_cluster_that_takes_too_long_is_not_forgotten",
    ),
    (10, "orphans of cloudlets", INSTANCES, "defects.rs", "a_cloudlet_goes_after_what_is_on_it"),
    (
        11,
        "shared ports are freed by others",
        INSTANCES,
        "apps.rs",
        "dedicated_instances_touch_no_shared_ports",
    ),
    (
        12,
        "checks after side effects",
        INSTANCES,
        "auto_clusters.rs",
        "a_wrong_request_is_refused_before_anything_is_made",
    ),
    (
        13,
        "auto-clusters stay without a crm",
        INSTANCES,
        "overrides.rs",
        "without_the_crm_auto_clusters_come_and_go_too",
    ),
    (14, "conflicts are not found", SUITE, "lifecycle.rs", "concurrent_updates_are_merged"),
    (
        15,
        "instances move without their cloudlet",
        SUITE,
        "cloudlets.rs",
        "instances_move_with_their_cloudlet",
    ),
    (
        15,
        "some stay behind",
        SUITE,
        "cloudlets.rs",
        "instances_that_were_left_behind_are_moved_at_start",
    ),
    (16, "addresses below zero", DERIVE, "ips.rs", "what_takes_no_address_gives_none_back"),
    (
        16,
        "and in the usage records",
        INSTANCES,
        "clusters.rs",
        "clouds_with_an_address_per_service_count_none",
    ),
    (
        17,
        "generated manifests win",
        DERIVE,
        "app_tests.rs",
        "a_later_manifest_of_the_developer_stays",
    ),
    (
        18,
        "updates are not checked",
        DERIVE,
        "app_tests.rs",
        "the_merged_app_of_an_update_is_checked",
    ),
    (18, "downloads have no end", DERIVE, "remote/fetch.rs", "silence_ends_in_time"),
    (
        18,
        "downloads from anywhere",
        DERIVE,
        "remote/fetch.rs",
        "what_is_not_public_is_not_even_connected_to",
    ),
    (18, "redirects to anywhere", DERIVE, "remote/fetch.rs", "every_redirect_is_judged_again"),
    (
        19,
        "nothing is taken over",
        INSTANCES,
        "overrides.rs",
        "instances_in_the_middle_of_something_can_be_taken_over",
    ),
    (
        20,
        "stored and sent are mixed",
        INSTANCES,
        "defects.rs",
        "a_new_life_has_nothing_of_the_old_one",
    ),
    (
        20,
        "what only the server may say",
        INSTANCES,
        "apps.rs",
        "what_only_the_controller_may_set_is_not_taken_from_the_request",
    ),
    (
        21,
        "an empty start after a failed read",
        SUITE,
        "defects.rs",
        "a_controller_that_cannot_read_does_not_open",
    ),
    (
        22,
        "foreign keys stop updates",
        SUITE,
        "defects.rs",
        "what_others_write_keeps_nobody_waiting",
    ),
    (
        23,
        "upgrades in one transaction",
        "crates/controller/src/version",
        "tests.rs",
        "an_older_store_is_upgraded_when_that_is_wanted",
    ),
    (
        23,
        "upgrades that stop half way",
        "crates/controller/src/version",
        "tests.rs",
        "an_upgrade_that_was_interrupted_goes_on_where_it_was",
    ),
    (24, "a lost lease is lost", SUITE, "several.rs", "a_lost_lease_is_made_good"),
    (
        25,
        "dead peers crash ShowNode",
        SUITE,
        "several.rs",
        "nodes_of_all_controllers_are_shown_and_dead_ones_named",
    ),
    (
        26,
        "commands go to everybody",
        SUITE,
        "exec.rs",
        "a_command_goes_to_the_agent_of_its_cloudlet_only",
    ),
    (26, "complaints get lost", SUITE, "exec.rs", "what_the_agent_complains_of_comes_back"),
    (26, "no answer in time", SUITE, "exec.rs", "without_an_agent_or_an_answer_it_fails_in_time"),
    (
        26,
        "a controller without the agent crashes",
        SUITE,
        "exec.rs",
        "a_command_finds_its_agent_through_another_controller",
    ),
    (
        27,
        "manifests are cut anywhere",
        DERIVE,
        "manifest/yaml.rs",
        "documents_are_split_where_they_begin",
    ),
    (
        28,
        "evicted infos come back",
        SUITE,
        "infos.rs",
        "an_evicted_info_is_not_brought_back_by_the_end_of_its_agent",
    ),
    (28, "infos of others go offline", SUITE, "infos.rs", "a_cloudlet_that_moved_on_is_left_alone"),
    (29, "the higher version", NOTIFY, "quirks.rs", "versions"),
    (
        31,
        "REST is open to all",
        SYSTEM,
        "bad_objects/main.rs",
        "nobody_gets_in_by_rest_without_saying_who_he_is",
    ),
    (
        32,
        "other ports after a failed deletion",
        INSTANCES,
        "apps.rs",
        "a_failed_deletion_keeps_the_very_ports",
    ),
    (
        33,
        "everything is looked at",
        "crates/controller/src/objects",
        "show.rs",
        "an_index_spares_looking_at_everything",
    ),
];

/// The list above names tests that there are, and leaves nothing out.
#[test]
fn every_defect_of_the_original_has_a_test() {
    for (number, what, folder, file, test) in DEFECTS {
        assert_there_is(&format!("{number}, {what}"), folder, file, test);
    }
    let numbers: Vec<u32> = DEFECTS.iter().map(|(number, ..)| *number).collect();
    assert!(numbers.is_sorted());
    let missing: Vec<u32> = (1..=33).filter(|number| !numbers.contains(number)).collect();
    assert_eq!(missing, [30]);
}

/// A store that cannot read what lies under some keys.
struct Unreadable {
    store: SharedStore,
    within: &'static str,
}

#[async_trait]
impl Overlay for Unreadable {
    fn below(&self) -> &SharedStore {
        &self.store
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        if format!("{:?}", request.range).contains(self.within) {
            return Err(Error::Unavailable { reason: "the disk is gone".into() });
        }
        self.store.range(request).await
    }
}

/// The original started empty, and would have let everything be created anew.
#[tokio::test]
async fn a_controller_that_cannot_read_does_not_open() {
    let store = memory().await;
    let open = |within: &'static str| {
        let store: SharedStore = Arc::new(Unreadable { store: store.clone(), within });
        EdgeController::open(store, Settings::default(), Dependencies::default())
    };
    open("nothing has this name").await.unwrap();
    for kind in ["app-inst", "cluster-inst", "cloudlet", "flavor"] {
        let error = open(kind).await.unwrap_err();
        assert_eq!(error.code(), selvage_api::Code::Unavailable, "{kind}: {error}");
    }
}

/// A call that writes nothing has nothing to wait for, whatever else is
/// written to the same store.
#[tokio::test]
async fn what_others_write_keeps_nobody_waiting() {
    let store = memory().await;
    let house = house_on(store.clone(), |_| {}).await;
    house.furnish().await;
    for round in 0..20 {
        store.put(format!("not/ours/{round}"), "anything").await.unwrap();
        let mut nothing = developer("Acme");
        nothing.fields = vec!["6".into()];
        let mut client = house.developers();
        let update = client.update_developer(nothing);
        tokio::time::timeout(Duration::from_secs(120), update).await.unwrap().unwrap();
        let filter = wire::Developer::default();
        let shown = drain(house.developers().show_developer(filter).await).await.unwrap();
        assert_eq!(shown, [developer("Acme")]);
    }
}
