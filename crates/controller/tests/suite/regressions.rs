//! Properties of the notify protocol, the agents' side of the contract and the
//! failures between them, and the test that shows each. Numbers and letters are
//! those of the lists that this controller was built against; what is the
//! business of other parts is named as such.

use super::{
    defects::{INSTANCES, NOTIFY, SUITE, SYSTEM},
    named::assert_there_is,
};

const NOTIFY_SOURCE: &str = "crates/notify/src";
const SIM: &str = "crates/sim/tests";

type Row = (&'static str, &'static str, &'static str, &'static str);

/// Tests that the original fails.
const REPAIRED: &[(u32, Row)] = &[
    (1, ("the lower version is spoken", NOTIFY, "quirks.rs", "versions")),
    (
        2,
        (
            "a delete carries the key only",
            NOTIFY_SOURCE,
            "kind.rs",
            "a_delete_carries_the_key_and_nothing_else",
        ),
    ),
    (
        2,
        (
            "on the wire too",
            NOTIFY,
            "quirks.rs",
            "an_original_client_gets_clean_notices_and_none_of_ours",
        ),
    ),
    (3, ("messages have an action", NOTIFY, "quirks.rs", "an_original_crm_with_all_its_habits")),
    (
        4,
        (
            "match engines get no commands",
            NOTIFY,
            "crm.rs",
            "a_message_goes_to_the_crm_it_concerns",
        ),
    ),
    (5, ("changes of an app reach crms", NOTIFY, "crm.rs", "apps_follow_their_instances")),
    (
        6,
        (
            "a mirror is not emptied",
            NOTIFY,
            "crm.rs",
            "a_crm_that_comes_back_never_sees_its_mirror_emptied",
        ),
    ),
    (
        7,
        (
            "ids differ between lives",
            NOTIFY,
            "reconnect.rs",
            "ids_differ_between_lives_of_a_server",
        ),
    ),
    (
        8,
        (
            "who is refused waits",
            NOTIFY,
            "reconnect.rs",
            "a_client_that_is_refused_waits_longer_and_longer",
        ),
    ),
    (
        9,
        (
            "a failed update ends at once",
            INSTANCES,
            "clusters.rs",
            "the_wrong_error_of_an_old_crm_ends_an_update_at_once",
        ),
    ),
    (10, ("UpdateAppInst is answered", INSTANCES, "apps.rs", "an_update_applies_the_app_anew")),
    (
        16,
        (
            "five crms, first try",
            SUITE,
            "exec.rs",
            "a_command_goes_to_the_agent_of_its_cloudlet_only",
        ),
    ),
    (
        17,
        (
            "a controller without a crm",
            SUITE,
            "exec.rs",
            "a_command_finds_its_agent_through_another_controller",
        ),
    ),
    (
        28,
        (
            "nobody speaks for another",
            NOTIFY,
            "tls.rs",
            "a_certificate_says_for_which_cloudlet_a_crm_speaks",
        ),
    ),
    (28, ("nor in the whole system", SYSTEM, "cloudlet.rs", "a_cloudlet_cannot_speak_for_another")),
    (
        29,
        (
            "two clients of one connection",
            NOTIFY,
            "quirks.rs",
            "two_clients_of_one_connection_both_get_changes",
        ),
    ),
    (
        30,
        (
            "same request, same answer",
            INSTANCES,
            "failures.rs",
            "the_same_requests_get_the_same_answers",
        ),
    ),
];

/// Of crms and their platforms, of match engines, of the far end of commands.
const OTHERS: [u32; 15] = [11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27];

/// The original's own tests of the protocol, and the protocol itself.
const PROTOCOL: &[Row] = &[
    (
        "one connection, with the numbers",
        NOTIFY,
        "basic.rs",
        "everything_is_sent_again_to_a_client_that_does_not_resume",
    ),
    ("the same for a crm", NOTIFY, "crm.rs", "a_crm_gets_its_own_cloudlet_only"),
    ("a tree", NOTIFY, "tree.rs", "a_tree_of_three_levels"),
    (
        "the worker",
        NOTIFY_SOURCE,
        "worker.rs",
        "changes_of_a_busy_key_become_one_with_the_oldest_before",
    ),
    ("a crm with the fake platform", SIM, "sim/life.rs", "a_cloudlet_like_the_originals_fake_one"),
    ("nodes", SUITE, "several.rs", "twelve_nodes_are_shown_through_any_controller"),
    (
        "two controllers restart",
        SYSTEM,
        "controllers.rs",
        "all_controllers_answer_alike_and_survive_one_of_them",
    ),
    ("a crm restarts", SYSTEM, "cloudlet.rs", "a_cloudlet_that_restarts_goes_on"),
    ("bytes", NOTIFY, "quirks.rs", "the_bytes_on_the_wire"),
    ("type names", NOTIFY_SOURCE, "frame.rs", "the_type_is_what_follows_the_last_slash"),
    ("the end of send-all", NOTIFY_SOURCE, "frame.rs", "the_end_of_send_all_is_four_bytes"),
    ("the opening", NOTIFY_SOURCE, "frame.rs", "the_opening_of_a_match_engine"),
    ("an original server", NOTIFY, "quirks.rs", "an_original_server_with_all_its_habits"),
    ("dirty keys", NOTIFY, "reconnect.rs", "a_slow_peer_gets_the_newest_only"),
    ("bounded messages", NOTIFY, "basic.rs", "objects_and_messages_travel_up"),
    (
        "the end is held back",
        NOTIFY,
        "crm.rs",
        "a_crm_that_announces_nothing_gets_an_end_all_the_same",
    ),
    ("resuming", NOTIFY, "basic.rs", "only_changes_are_sent_to_a_client_that_resumes"),
    ("resuming elsewhere", SUITE, "resume.rs", "another_controller_on_etcd_sends_what_changed"),
    ("jitter", NOTIFY_SOURCE, "client.rs", "delays_double_up_to_a_bound_and_spread_over_all_of_it"),
    ("garbage", NOTIFY, "hostile.rs", "garbage_is_counted_and_the_stream_lives"),
    ("who may speak", SUITE, "whole.rs", "an_agent_speaks_for_its_own_cloudlet_only"),
];

/// The original's own tests of the controller, and its scenarios.
const REPLAYS: &[Row] = &[
    ("the smoke order", SYSTEM, "edge.rs", "the_smoke_order"),
    ("add_delete", SYSTEM, "replay/made_and_gone.rs", "add_delete_twice"),
    ("appinst1 again", SYSTEM, "replay/made_and_gone.rs", "an_instance_is_deleted_and_made_again"),
    ("add_delete_2apps", SYSTEM, "replay/made_and_gone.rs", "objects_named_twice_are_made_once"),
    (
        "get_appinstlist",
        SYSTEM,
        "replay/made_and_gone.rs",
        "ten_cloudlets_with_twenty_auto_clusters",
    ),
    ("crminfo", SYSTEM, "replay/made_and_gone.rs", "crminfo_is_as_it_was_to_the_letter"),
    (
        "update_move_cloudlet1",
        SYSTEM,
        "replay/made_and_gone.rs",
        "instances_follow_a_cloudlet_that_moves",
    ),
    (
        "default_cluster_test",
        SYSTEM,
        "replay/references.rs",
        "references_count_what_is_there_and_nothing_after",
    ),
    ("ctrl_restart", SYSTEM, "edge.rs", "kill_9_keeps_objects_and_finishes_operations"),
    (
        "restarts_2ctrls",
        SYSTEM,
        "controllers.rs",
        "nothing_acknowledged_is_lost_while_plugs_are_pulled",
    ),
    ("restartCrm", SYSTEM, "cloudlet.rs", "a_cloudlet_that_restarts_goes_on"),
    ("check_nodes", SUITE, "several.rs", "twelve_nodes_are_shown_through_any_controller"),
    ("masked updates", SUITE, "lifecycle.rs", "a_masked_update_changes_that_leaf_only"),
    ("TestAppApi", SUITE, "apps.rs", "an_app_needs_its_flavor"),
    ("TestCloudletApi", SUITE, "cloudlets.rs", "what_a_new_cloudlet_must_be"),
    ("TestCloudletInfo", SUITE, "infos.rs", "inject_and_evict"),
    (
        "TestClusterInstApi",
        INSTANCES,
        "clusters.rs",
        "a_failed_creation_tells_the_crm_to_remove_what_there_is",
    ),
    ("with overrides", INSTANCES, "overrides.rs", "errors_of_the_crm_can_be_ignored"),
    ("TestAppInstApi", INSTANCES, "apps.rs", "an_app_lives_and_dies_with_the_canonical_words"),
    (
        "TestAutoClusterInst",
        INSTANCES,
        "auto_clusters.rs",
        "an_auto_cluster_comes_before_its_app_and_goes_after_it",
    ),
    ("TestController", SYSTEM, "cloudlet.rs", "a_region_is_built_up_and_taken_down"),
    ("flavors", SYSTEM, "replay/references.rs", "the_closest_flavor_is_taken"),
    ("sums", SYSTEM, "replay/references.rs", "the_golden_sums_of_references"),
    (
        "TestAllUpgradeFuncs",
        "crates/controller/src/version",
        "tests.rs",
        "an_older_store_is_upgraded_when_that_is_wanted",
    ),
];

/// Failures between controllers and agents, from end to end.
const FAILURES: &[Row] = &[
    ("a crm dies", SUITE, "infos.rs", "a_cloudlet_is_offline_when_its_agent_leaves"),
    ("then nothing is begun", INSTANCES, "apps.rs", "a_cloudlet_that_is_away_takes_nothing"),
    (
        "and nobody waits for long",
        INSTANCES,
        "failures.rs",
        "a_caller_hears_that_the_cloudlet_is_gone_and_the_work_goes_on",
    ),
    (
        "a crm restarts at work",
        SIM,
        "sim/faults.rs",
        "a_crm_that_dies_forgets_remembers_or_does_it_again",
    ),
    ("a crm restarts before work", SYSTEM, "cloudlet.rs", "a_cloudlet_that_restarts_goes_on"),
    (
        "the network is cut",
        SYSTEM,
        "cloudlet.rs",
        "a_cloudlet_that_is_cut_off_says_later_how_far_it_got",
    ),
    (
        "a controller dies",
        SYSTEM,
        "controllers/agents.rs",
        "an_agent_is_found_from_everywhere_and_moves_when_its_controller_dies",
    ),
    ("a crm moves", SUITE, "infos.rs", "a_cloudlet_that_moved_on_is_left_alone"),
    (
        "the old stream ends late",
        NOTIFY,
        "reconnect.rs",
        "the_old_stream_does_not_flush_what_the_new_one_brought",
    ),
    (
        "two streams of one address",
        NOTIFY,
        "quirks.rs",
        "two_clients_of_one_connection_both_get_changes",
    ),
    ("a slow receiver", NOTIFY, "reconnect.rs", "a_slow_peer_gets_the_newest_only"),
];

#[test]
fn everything_of_the_lists_has_a_test() {
    for (number, (what, folder, file, test)) in REPAIRED {
        assert_there_is(&format!("{number}, {what}"), folder, file, test);
    }
    let numbers: Vec<u32> = REPAIRED.iter().map(|(number, _)| *number).collect();
    assert!(numbers.is_sorted());
    let missing: Vec<u32> = (1..=30).filter(|number| !numbers.contains(number)).collect();
    assert_eq!(missing, OTHERS);
    for (what, folder, file, test) in PROTOCOL.iter().chain(REPLAYS).chain(FAILURES) {
        assert_there_is(what, folder, file, test);
    }
}
