//! The certificate authority of running systems is replaced.
#![allow(clippy::unwrap_used)]

mod controllers;
mod hammer;
mod lab;

use std::fs;

use hammer::Hammer;
use lab::Lab;
use selvage_tests::process::wait_for;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_refused_while_an_authority_takes_over() {
    let mut lab = Lab::start(&[]);
    let node = lab.node("a");
    let crm = lab.crm();
    let before = lab.controller().ca().unwrap();
    let hammer = Hammer::start(&lab, &node).await;
    hammer.rounds(3);

    lab.admin.ok(&["pki", "rotate", "start"]);
    lab.wait_until_all_is_signed_anew();
    hammer.rounds(3);
    assert_eq!(lab.controller().ca().unwrap().matches("BEGIN").count(), 2);
    let shown = lab.admin.ok(&["pki", "show"]);
    assert!(shown.contains("old, believed") && shown.contains("node/a"), "{shown}");

    // People's own clients come to believe the new one in time.
    lab.admin.ok(&["pki", "trust"]);
    hammer.believe(&lab.controller().ca().unwrap());
    hammer.rounds(1);
    let done = lab.admin.run(&["pki", "rotate", "finish"]);
    assert!(done.code == 0 && done.stderr.contains("Stage 3: one authority"), "{done:?}");
    let after = lab.controller().ca().unwrap();
    assert!(after.matches("BEGIN").count() == 1 && !before.contains(after.trim()));
    hammer.rounds(3);
    hammer.stop();

    wait_for("the machines to drop the old one", || {
        let kept = |data: &std::path::Path, folder: &str| {
            fs::read_to_string(data.join(folder).join("ca.crt")).unwrap() == after
        };
        let crm_has = crm.as_ref().is_none_or(|crm| kept(crm.data(), "joined-cloudlet"));
        (kept(node.data(), "joined") && crm_has).then_some(())
    });
    // What each was given holds when it starts again.
    drop(node);
    let _node = lab.again("a");
    lab.restart_controller();
    wait_for("the machine to answer", || {
        (lab.admin.run(&["node", "memory", "-n", "a"]).code == 0).then_some(())
    });
    if crm.is_some() {
        lab.wait_for_cloudlet();
    }
}

#[test]
fn a_controller_that_is_killed_at_each_stage_ends_the_rotation() {
    let mut lab = Lab::start(&[]);
    let node = lab.node("a");
    lab.restart_controller();
    for stage in 1..=3 {
        match stage {
            1 => drop(lab.admin.ok(&["pki", "rotate", "start"])),
            2 => lab.wait_until_all_is_signed_anew(),
            _ => {
                lab.admin.ok(&["pki", "trust"]);
                lab.wait_until_all_is_signed_anew();
                lab.admin.ok(&["pki", "rotate", "finish"]);
            }
        }
        // As a power cut would, and with no time to put anything in order.
        lab.restart_controller();
    }
    let shown = lab.admin.json(&["pki", "show", "-o", "json"]);
    assert_eq!(lab::stage(&shown), 3, "{shown}");
    assert_eq!(shown["authorities"].as_array().unwrap().len(), 1);
    wait_for("the machine to answer", || {
        (lab.admin.run(&["node", "memory", "-n", "a"]).code == 0).then_some(())
    });
    drop(node);
}

#[test]
fn a_machine_that_is_away_keeps_the_old_authority_until_it_comes_back() {
    let lab = Lab::start(&[]);
    let mut away = lab.node("away");
    away.kill();
    lab.admin.ok(&["pki", "rotate", "start"]);
    let refused = wait_for("the refusal", || {
        let printed = lab.admin.run(&["pki", "rotate", "finish"]);
        assert_ne!(printed.code, 0, "the old one was dropped");
        printed.stderr.contains("node/away").then_some(printed.stderr)
    });
    assert!(refused.contains("the old authority stays"), "{refused}");

    // It never heard of the new one, and is let in and told all the same.
    let back = lab.again("away");
    lab.wait_until_all_is_signed_anew();
    lab.admin.ok(&["pki", "trust"]);
    lab.admin.ok(&["pki", "rotate", "finish"]);
    lab.admin.ok(&["node", "memory", "-n", "away"]);
    drop(back);
}

#[test]
fn one_who_is_left_behind_by_force_joins_again() {
    let lab = Lab::start(&[]);
    let mut lost = lab.node("lost");
    lost.kill();
    let token = lab.token("node/spare");
    lab.admin.ok(&["pki", "rotate", "start"]);
    wait_for("the new authority to sign", || {
        let printed = lab.admin.run(&["pki", "rotate", "finish"]);
        printed.stderr.contains("node/lost").then_some(())
    });
    // A token that names the old authority is good while that is believed.
    let spare = lab.join_with("spare", &token);
    lab.admin.ok(&["pki", "trust"]);
    lab.admin.ok(&["pki", "rotate", "finish", "--force"]);
    let lost = lab.again("lost");
    // Either end may be the first to find that it does not know the other.
    wait_for("it to be refused", || {
        let log = lost.log();
        let refusals = ["does not let this machine in", "UnknownIssuer", "BadSignature"];
        refusals.iter().any(|refusal| log.contains(refusal)).then_some(())
    });
    drop((lost, spare));
    fs::remove_dir_all(lab.place("lost").join("data")).unwrap();
    let token = lab.token("node/lost");
    let _joined = lab.join_with("lost", &token);
    wait_for("the machine to answer", || {
        (lab.admin.run(&["node", "memory", "-n", "lost"]).code == 0).then_some(())
    });
}
