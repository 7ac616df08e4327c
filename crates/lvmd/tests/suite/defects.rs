//! Defects and tests of the original, each with the
//! test that shows it here. What is the business of other parts is not in
//! the list: the operator's controller, its metrics of a node, and the file
//! systems of its volumes.

use super::named::assert_there_is;

const SUITE: &str = "crates/lvmd/tests/suite";
const CONFIG: &str = "crates/lvmd/src/config/tests.rs";
const LVM: &str = "crates/lvmd/src/backend/lvm";
const SYSTEM: &str = "tests/tests";
const BACKUPS: &str = "tests/tests/backups";
const JOBS: &str = "crates/lvmd/src/backup/tests.rs";

type Row = (&'static str, &'static str, &'static str, &'static str);

/// The original's test, where ours is, and its name. What is in
/// `conformance.rs` is run on LVM and on files alike.
const REPLAYED: &[Row] = &[
    ("TestLVService", SUITE, "conformance.rs", "a_life"),
    ("TestLVService, on LVM", SUITE, "lvm.rs", "a_life"),
    ("TestLVService, on files", SUITE, "loop_files.rs", "a_life"),
    ("TestLVService_ThinLV", SUITE, "conformance.rs", "thin"),
    ("TestLVService_ThinSnapshots", SUITE, "conformance.rs", "snapshots_of_snapshots"),
    ("TestLVService_ThinSnapshots, content", SUITE, "lvm.rs", "thin_snapshots"),
    ("testWatch", SUITE, "loop_files.rs", "every_watcher_is_told_once_of_a_change"),
    ("testVGService", SUITE, "lvm.rs", "a_volume_of_several_pieces_is_listed_once"),
    ("TestVGService_GetLVList, thick and thin", SUITE, "conformance.rs", "thin"),
    (
        "TestVGService_GetFreeBytes, thin",
        SUITE,
        "loop_files.rs",
        "the_spare_of_a_pool_is_kept_back",
    ),
    (
        "TestValidateDeviceClasses",
        CONFIG,
        "",
        "the_first_failure_is_told_in_the_words_of_the_original",
    ),
    (
        "TestValidateDeviceClasses, thin",
        CONFIG,
        "",
        "thin_classes_and_stripes_have_rules_of_their_own",
    ),
    (
        "TestValidateDeviceClasses, no default",
        CONFIG,
        "",
        "without_a_default_an_empty_name_finds_nothing",
    ),
    ("TestDeviceClassManager", CONFIG, "", "the_spare_is_ten_gib_unless_told"),
    ("TestDeviceClassManager, lookup", CONFIG, "", "a_file_of_the_original_is_read"),
    ("TestVG_CreateVolume, stripes", SUITE, "lvm.rs", "kinds_of_volumes_that_options_make"),
    ("TestVG_CreateVolume, sizes", SUITE, "conformance.rs", "bad_input"),
    ("TestLogicalVolume_IsThin", SUITE, "lvm.rs", "kinds_of_volumes_that_options_make"),
    ("TestCallLVM", LVM, "command.rs", "failures_are_told_apart_by_what_was_said"),
    ("TestCallLVMStreamed", LVM, "command.rs", "a_program_that_is_not_there_is_named"),
    ("TestCommandReadCloserClose", LVM, "command.rs", "much_that_is_said_is_read_to_its_end"),
    ("TestLvmJSON", LVM, "group.rs", "a_group_is_read_as_lvm_tells_of_it"),
    ("TestLvmJSONBad", LVM, "group.rs", "what_is_no_group_is_refused"),
    ("TestLvmInactiveMajorMinor", SUITE, "lvm.rs", "what_is_read_is_what_lvm_says"),
    ("TestLvmRetrieval", SUITE, "lvm.rs", "what_is_read_is_what_lvm_says"),
    ("attributes, a snapshot that is lost", SUITE, "lvm.rs", "a_full_snapshot_is_known"),
    ("TestNewEmbeddedServiceClients", SYSTEM, "volumes.rs", "topolvms_calls_on_loop_files"),
    ("the node plugin's calls", SYSTEM, "volumes.rs", "topolvms_calls_on_lvm"),
    ("e2e: overprovisioning", SUITE, "conformance.rs", "thin"),
    ("e2e: restored, without its source", SUITE, "conformance.rs", "snapshots_of_snapshots"),
    ("e2e: clones", SUITE, "conformance.rs", "snapshots"),
    ("e2e: mirrors by option class", SUITE, "lvm.rs", "kinds_of_volumes_that_options_make"),
    ("e2e: several groups", SUITE, "lvm.rs", "groups_may_come_and_grow"),
    ("e2e: health", SYSTEM, "volumes.rs", "in_the_place_of_lvmd"),
];

/// Decisions about the original's ways, kept or mended.
const DECISIONS: &[Row] = &[
    ("texts and codes are kept", SUITE, "conformance.rs", "bad_input"),
    ("and so over the wire", SYSTEM, "volumes.rs", "in_the_place_of_lvmd"),
    ("sizes are rounded as there", SUITE, "conformance.rs", "bad_input"),
    ("removing nothing is no failure", SUITE, "conformance.rs", "a_life"),
    (
        "watchers are told less the spare",
        SYSTEM,
        "volumes.rs",
        "a_changed_configuration_is_taken_over",
    ),
    ("a missing group is not found", SUITE, "conformance.rs", "bad_input"),
    ("no tags are none", SUITE, "lvm.rs", "what_is_read_is_what_lvm_says"),
    ("huge sizes do not wrap", SYSTEM, "volumes.rs", "topolvms_calls_on_loop_files"),
    (
        "nothing crashes a backup",
        BACKUPS,
        "lvmds_clients.rs",
        "what_cannot_be_backed_up_is_a_state_and_leaves_nothing",
    ),
    ("how a backup ended is told again", BACKUPS, "lvmds_clients.rs", "to_a_directory_and_back"),
    (
        "so is a failure, for a while",
        BACKUPS,
        "lvmds_clients.rs",
        "a_failure_is_told_for_a_while_and_leaves_no_snapshot",
    ),
    ("the same size is told", SUITE, "conformance.rs", "a_life"),
    ("two do not get the same space", SUITE, "conformance.rs", "many_at_once"),
    ("others' changes are seen", SUITE, "conformance.rs", "outside_changes"),
    ("reading runs no program", SUITE, "lvm.rs", "reading_runs_no_program"),
    ("what is in use stays", SUITE, "conformance.rs", "in_use"),
    ("what is worked on stays", SUITE, "jobs.rs", "are_left_alone"),
    ("a full snapshot is a failure", SUITE, "room.rs", "an_overflow_is_a_failure_with_its_reason"),
    ("room grows in time", SUITE, "room.rs", "room_grows_before_a_writer_has_filled_it"),
    ("and is made for writers", SUITE, "room.rs", "room_is_made_for_what_is_being_written"),
    ("and without LVM", JOBS, "", "a_snapshot_gets_more_room_before_it_is_full"),
    ("half a restore is not adopted", BACKUPS, "crashes.rs", "half_a_restore_is_never_adopted"),
    ("no eternal progress", BACKUPS, "crashes.rs", "a_backup_goes_on_after_a_sudden_end"),
    (
        "keys are nowhere",
        BACKUPS,
        "secrets.rs",
        "keys_are_in_no_file_no_log_no_error_and_no_argument",
    ),
];

/// Disks that fail, in the middle of everything.
const FAILURES: &[Row] = &[
    (
        "at any call",
        SUITE,
        "failing_disks.rs",
        "a_disk_that_fails_takes_its_class_along_until_it_is_back",
    ),
    (
        "writes only",
        SUITE,
        "failing_disks.rs",
        "a_disk_that_cannot_be_written_leaves_everything_as_it_was",
    ),
    (
        "one of several",
        SUITE,
        "failing_disks.rs",
        "a_group_that_has_lost_a_disk_is_listed_and_takes_nothing_new",
    ),
    (
        "under a backup",
        SUITE,
        "failing_disks.rs",
        "a_disk_that_fails_under_a_backup_fails_the_backup_alone",
    ),
    (
        "half way through",
        SUITE,
        "failing_disks.rs",
        "what_a_failure_left_is_removed_and_what_others_made_is_not",
    ),
    ("our own end", SYSTEM, "volumes.rs", "kills_at_any_point_leave_nothing_half_done"),
    ("the machine's", SUITE, "loop_files.rs", "after_a_reboot_volumes_have_their_devices_again"),
];

#[test]
fn everything_has_its_test() {
    for (what, folder, file, test) in [REPLAYED, DECISIONS, FAILURES].concat() {
        assert_there_is(what, folder, file, test);
    }
}
