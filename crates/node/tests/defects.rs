//! Defects of the original, and bad input, each with the test that proves
//! us better. The numbers are those of the list that this agent was built
//! against; 12 is of a method that the contract does not have.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../tests/shared/named.rs"]
mod named;

use named::assert_there_is;

const NODE: &str = "crates/node/src";
const FANOUT: &str = "crates/node/tests/fanout/main.rs";
const RUNTIMES: &str = "crates/runtime/tests/conformance";
const CLI: &str = "crates/cli/src/commands/node";

/// Number, what was wrong, where the proof is, and its name.
const DEFECTS: &[(u32, &str, &str, &str, &str)] = &[
    (
        1,
        "a process that vanishes fails all",
        NODE,
        "proc/scanner/tests.rs",
        "a_fork_storm_fails_no_scan",
    ),
    (2, "kernel threads are lost", NODE, "proc/scanner/tests.rs", "kernel_threads_are_there"),
    (
        2,
        "zombies are lost",
        NODE,
        "proc/scanner/tests.rs",
        "zombies_are_there_and_lose_their_arguments",
    ),
    (
        3,
        "facilities misnamed, and a panic",
        NODE,
        "kmsg/record.rs",
        "facilities_have_their_own_names_and_no_number_is_too_high",
    ),
    (
        4,
        "times drift",
        NODE,
        "kmsg/stream/tests.rs",
        "two_streams_tell_the_same_records_and_times_to_the_end",
    ),
    (5, "answers in any order", FANOUT, "", "answers_come_in_the_order_of_the_request"),
    (6, "the slowest node holds up all", FANOUT, "", "each_node_answers_for_itself_alone"),
    (
        6,
        "no deadline for each",
        FANOUT,
        "",
        "the_callers_own_deadline_leaves_the_answers_of_others",
    ),
    (
        7,
        "an empty reply breaks the call",
        NODE,
        "fanout/splice.rs",
        "a_reply_without_messages_still_says_who_answered",
    ),
    (
        8,
        "failures of nodes are swallowed",
        "crates/cli/tests/node",
        "main.rs",
        "what_was_to_be_done_is_done_everywhere_or_is_a_failure",
    ),
    (9, "a restart that is none", RUNTIMES, "main.rs", "restart"),
    (9, "and so at containerd", RUNTIMES, "containerd.rs", "containerd_conforms"),
    (
        10,
        "memory of cgroup v2 is not the working set",
        "crates/runtime/src/cgroup",
        "parse.rs",
        "memory_of_the_unified_layout",
    ),
    (
        11,
        "one bad mount fails all",
        NODE,
        "machine/mounts.rs",
        "a_mount_that_hangs_costs_its_own_row",
    ),
    (13, "no IPv6", FANOUT, "", "ipv6_and_wrong_names"),
    (
        14,
        "no token is a good token",
        NODE,
        "security/mod.rs",
        "only_one_good_token_gets_a_certificate",
    ),
    (14, "tokens open all files", NODE, "security/mod.rs", "files_are_nobodys"),
    (
        14,
        "a token is good for ever",
        "tests/tests/joining",
        "main.rs",
        "bad_invitations_are_refused",
    ),
    (15, "archives lead out", CLI, "unpack_tests.rs", "names_that_lead_out_are_left_out"),
    (15, "by links too", CLI, "unpack_tests.rs", "links_that_lead_out_are_left_out"),
    (
        16,
        "depth is off by one at /",
        NODE,
        "machine/list.rs",
        "depth_at_the_root_of_the_machine_is_not_off_by_one",
    ),
    (
        17,
        "a connection for every call",
        RUNTIMES,
        "containerd.rs",
        "containerd_is_connected_to_once_and_not_asked_what_is_known",
    ),
    (
        18,
        "six calls for every container",
        RUNTIMES,
        "containerd.rs",
        "containerd_is_connected_to_once_and_not_asked_what_is_known",
    ),
    (
        19,
        "modes in a layout that nobody is told",
        NODE,
        "machine/list.rs",
        "modes_are_laid_out_as_go_has_them",
    ),
    (
        20,
        "arguments tell secrets",
        NODE,
        "os_service/tests.rs",
        "only_admins_are_told_secrets_of_processes",
    ),
];

/// Fault of the input, path of the proof, and its name.
const BAD_INPUT: &[(&str, &str, &str, &str)] = &[
    (
        "empty and unknown namespaces, unknown drivers",
        NODE,
        "os_service/tests.rs",
        "drivers_and_namespaces_are_told_apart_in_the_words_of_the_contract",
    ),
    (
        "ids with slashes, colons and newlines",
        "crates/runtime/src",
        "identity.rs",
        "bad_names_are_not_found_and_quoted",
    ),
    (
        "sockets that are missing, or somebody else's",
        RUNTIMES,
        "containerd.rs",
        "sockets_that_are_missing_or_mute_are_unavailable_soon",
    ),
    (
        "a runtime that is not there, by the wire",
        "tests/tests",
        "agent.rs",
        "a_runtime_that_is_not_there_is_unavailable_and_soon",
    ),
    ("1 GB of arguments", NODE, "proc/scanner/tests.rs", "long_arguments_are_cut"),
    ("pids that vanish", NODE, "sampler/tests.rs", "a_process_that_vanishes_fails_no_look"),
    ("ids by the wire", "tests/tests", "agent.rs", "bad_names_are_refused_in_words_and_soon"),
    (
        "names so long that what is said of them does not fit",
        "crates/kit/tests",
        "serve.rs",
        "a_failure_with_a_megabyte_of_text_reaches_the_client_in_brief",
    ),
    (
        "one runtime of several that is dead",
        NODE,
        "os_service/tests.rs",
        "one_runtime_of_two_that_is_dead_is_said_beside_what_the_other_tells",
    ),
];

#[test]
fn every_defect_of_the_original_has_a_test() {
    for (number, what, folder, file, test) in DEFECTS {
        assert_there_is(&format!("{number}, {what}"), folder, file, test);
    }
    let numbers: Vec<u32> = DEFECTS.iter().map(|(number, ..)| *number).collect();
    assert!(numbers.is_sorted());
    let missing: Vec<u32> = (1..=20).filter(|number| !numbers.contains(number)).collect();
    assert_eq!(missing, [12]);
    assert!(selvage_api::method("/machine.MachineService/DiskUsage").is_none());
}

#[test]
fn every_kind_of_bad_input_has_a_test() {
    for (what, folder, file, test) in BAD_INPUT {
        assert_there_is(what, folder, file, test);
    }
}
