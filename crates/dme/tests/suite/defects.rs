//! Defects of the original, and its own tests, each with the test here that
//! shows it. The numbers are those of the list that this engine was built
//! against.

#[path = "../../../../tests/shared/named.rs"]
mod named;

use named::assert_there_is;

const SUITE: &str = "crates/dme/tests/suite";
const STATS: &str = "crates/dme/src/stats.rs";
const WHOLE: &str = "tests/tests/dme";

const DEFECTS: &[(u32, &str, &str, &str, &str)] = &[
    (21, "IPv6", SUITE, "wire.rs", "a_device_with_an_address_of_the_new_kind_registers"),
    (
        22,
        "not ready",
        SUITE,
        "upstream.rs",
        "only_what_is_ready_on_a_cloudlet_that_is_up_is_offered",
    ),
    (22, "not ready, for real", WHOLE, "walk.rs", "only_what_is_there_is_offered"),
    (23, "other developers", SUITE, "rules.rs", "lists_are_of_ones_own_app_and_sorted"),
    (24, "slow location API", SUITE, "location.rs", "a_slow_api_holds_up_nobody_else"),
    (25, "latency", STATS, "", "what_takes_long_is_counted_once_as_longer_than_all"),
    (26, "idle", SUITE, "upstream.rs", "it_says_who_it_is_and_what_it_counted_and_nothing_else"),
    (26, "idle, counts", STATS, "", "nothing_is_told_while_nothing_happens"),
    (30, "ties", SUITE, "rules.rs", "of_equally_near_instances_the_first_by_name_is_found"),
];

const TESTS: &[(&str, &str, &str, &str)] = &[
    ("match-engine_test", SUITE, "vectors.rs", "find_cloudlet"),
    ("match-engine_test, counts", SUITE, "vectors.rs", "adding_everything_again_changes_nothing"),
    ("VerifyLoc", SUITE, "vectors.rs", "verify_location"),
    ("find_cloudlet", WHOLE, "walk.rs", "find_cloudlet"),
    ("get_appinstlist across a restart", WHOLE, "joined.rs", "a_second_engine"),
    ("verify_loc", SUITE, "location.rs", "what_the_api_refuses_or_garbles_is_an_error_of_its_own"),
    ("dme-notify_test", SUITE, "upstream.rs", "what_went_while_it_was_away_is_pruned"),
    ("dme-stats_test", STATS, "", "sums_are_exact_under_load"),
    ("jwk_test", SUITE, "cookies.rs", "engines_read_each_others_cookies_across_rotations"),
    ("app without its instances first", SUITE, "upstream.rs", "an_instance_waits_for_its_app"),
];

#[test]
fn every_defect_of_the_original_has_a_test() {
    for (number, what, folder, file, test) in DEFECTS {
        assert_there_is(&format!("{number}, {what}"), folder, file, test);
    }
    let numbers: Vec<u32> = DEFECTS.iter().map(|(number, ..)| *number).collect();
    assert!(numbers.is_sorted());
    for number in [21, 22, 23, 24, 25, 26, 30] {
        assert!(numbers.contains(&number), "{number}");
    }
}

#[test]
fn every_test_of_the_original_is_there() {
    for (what, folder, file, test) in TESTS {
        assert_there_is(what, folder, file, test);
    }
}
