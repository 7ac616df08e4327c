//! Faults of a MaaS, each by itself and with the process ending in
//! the middle of it: nothing is leaked, nothing is used twice.

use std::time::Duration;

use selvage_kaas::Origin;

use super::{
    super::lab::{admin, request},
    lab::MaasLab,
    sim::{Call, Fault, Outcome, Sim},
};

/// A fault: what is scripted before, and what happens when the first machine
/// is deployed.
struct Scene {
    name: &'static str,
    before: fn(&Sim),
    during: fn(&Sim, &str),
}

const fn scripted(name: &'static str, before: fn(&Sim)) -> Scene {
    Scene { name, before, during: |_, _| {} }
}

const fn happens(name: &'static str, during: fn(&Sim, &str)) -> Scene {
    Scene { name, before: |_| {}, during }
}

const BUSY: Fault = Fault::Answer(409, Some(5), "<html>conflict</html>");
const AWAY: Fault = Fault::Answer(503, Some(10), "Unable to connect to any rack controller");
const POWER: Fault = Fault::Answer(503, None, "Power error: ipmi timed out");
const TIMEOUT: Fault = Fault::Answer(504, None, "RPC timed out");
const GONE_IMAGE: Fault =
    Fault::Answer(400, None, "{\"distro_series\": [\"'noble' is not a valid distro_series.\"]}");

const SCENES: [Scene; 27] = [
    scripted("no machine matches for a while", |sim| {
        for nth in 1..4 {
            sim.fault(Call::Allocate, nth, Fault::Answer(409, None, "No machine available."));
        }
    }),
    scripted("the tag is not known yet", |sim| {
        let text = "{\"tags\": [\"No such tag(s): 'standard'.\"]}";
        sim.fault(Call::Allocate, 1, Fault::Answer(400, None, text));
    }),
    scripted("another client takes the last machines", |sim| {
        for id in ["abc000", "abc001", "abc002"] {
            sim.change(id, |machine| machine.owner = Some("juju".into()));
            sim.change(id, |machine| machine.status = 10);
        }
    }),
    scripted("a deployment fails", |sim| sim.world.lock().deployments.push_back(Outcome::Fails)),
    scripted("a deployment sticks", |sim| sim.world.lock().deployments.push_back(Outcome::Sticks)),
    scripted("three deployments fail", |sim| {
        sim.world.lock().deployments.extend([Outcome::Fails; 3]);
    }),
    scripted("addresses never come", |sim| sim.world.lock().addresses.clear()),
    scripted("addresses of version 6 come first", |sim| {
        sim.world.lock().addresses = vec!["2001:db8::7".into(), "192.0.2.7".into()];
    }),
    scripted("allocations are refused for a while", |sim| {
        (1..5).for_each(|nth| sim.fault(Call::Allocate, nth, AWAY));
    }),
    scripted("lists are refused for a while", |sim| {
        (1..5).for_each(|nth| sim.fault(Call::List, nth, AWAY));
    }),
    scripted("deployments are refused for a while", |sim| {
        (1..5).for_each(|nth| sim.fault(Call::Deploy, nth, AWAY));
    }),
    scripted("releases are refused for a while", |sim| {
        (1..5).for_each(|nth| sim.fault(Call::Release, nth, AWAY));
    }),
    scripted("conflicts within MaaS", |sim| {
        for call in [Call::Allocate, Call::Deploy, Call::Release] {
            sim.fault(call, 1, BUSY);
        }
    }),
    scripted("the power cannot be switched", |sim| sim.fault(Call::Deploy, 1, POWER)),
    scripted("MaaS itself runs out of time", |sim| {
        for call in Call::ALL {
            sim.fault(call, 1, TIMEOUT);
        }
    }),
    scripted("the clock of MaaS is an hour ahead", |sim| sim.world.lock().ahead = 3_600_000),
    scripted("nonces were used before", |sim| sim.world.lock().nonce_used = 3),
    scripted("the image is deleted for a while", |sim| sim.fault(Call::Deploy, 1, GONE_IMAGE)),
    scripted("answers of allocations get lost", |sim| {
        (1..3).for_each(|nth| sim.fault(Call::Allocate, nth, Fault::LoseAnswer));
    }),
    scripted("answers of deployments get lost", |sim| {
        (1..3).for_each(|nth| sim.fault(Call::Deploy, nth, Fault::LoseAnswer));
    }),
    scripted("answers of releases get lost", |sim| {
        (1..3).for_each(|nth| sim.fault(Call::Release, nth, Fault::LoseAnswer));
    }),
    scripted("an answer is cut off", |sim| sim.fault(Call::Allocate, 1, Fault::Cut)),
    scripted("an allocation is done after it was given up", |sim| {
        sim.fault(Call::Allocate, 1, Fault::Late);
    }),
    scripted("giving back fails", |sim| {
        sim.world.lock().releases.extend([Outcome::Fails, Outcome::Sticks]);
    }),
    happens("a machine vanishes", |sim, id| {
        sim.world.lock().machines.remove(id);
    }),
    happens("an administrator takes a machine", |sim, id| {
        sim.change(id, |machine| machine.owner = Some("root".into()));
    }),
    happens("a machine is locked for a while", |sim, id| {
        sim.change(id, |machine| machine.locked = true);
    }),
];

const CRASHES: [Option<Call>; 4] =
    [None, Some(Call::Allocate), Some(Call::Deploy), Some(Call::Release)];

/// Works on the cluster, over a crash if there is one.
async fn work(lab: &mut MaasLab, then: impl AsyncFn(&MaasLab)) {
    for _ in 0..2 {
        let sim = lab.sim.clone();
        let crashed = tokio::select! {
            biased;
            () = sim.crashed() => true,
            () = then(&*lab) => false,
        };
        if !crashed {
            return;
        }
        lab.restart().await;
    }
}

async fn play(scene: &Scene, crash: Option<Call>) {
    let mut lab = MaasLab::new(3).await;
    let asked = request("demo", "1.35.8", 1, &[("web", 1)]);
    lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap();
    (scene.before)(&lab.sim);
    if let Some(call) = crash {
        // The second of its kind: the first may be the fault's own.
        lab.sim.fault(call, 2, Fault::CrashAfter);
    }
    work(&mut lab, async |lab| {
        for _ in 0..400 {
            if lab.round("demo").await || lab.sim.world.lock().user_data.len() >= 2 {
                break;
            }
        }
    })
    .await;
    // Others give back what they took.
    for id in ["abc000", "abc001", "abc002"] {
        lab.sim.change(id, |machine| {
            if machine.owner.as_deref() == Some("juju") {
                machine.owner = None;
                machine.status = 4;
            }
        });
    }
    let one = lab.sim.owned().first().cloned().unwrap_or_default();
    (scene.during)(&lab.sim, &one);
    work(&mut lab, async |lab| {
        for _ in 0..20 {
            lab.round("demo").await;
        }
    })
    .await;
    lab.sim.change(&one, |machine| machine.locked = false);
    work(&mut lab, async |lab| lab.delete("demo").await).await;
    // Whatever an administrator took is not ours to give back.
    lab.check_end(&format!("{} with a crash after {crash:?}", scene.name));
    assert!(lab.manager.snapshot("demo").is_none());
}

#[tokio::test]
async fn no_fault_leaks_a_machine_or_uses_one_twice() {
    for scene in &SCENES {
        for crash in CRASHES {
            Box::pin(play(scene, crash)).await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_never_comes_loses_no_machine() {
    let lab = MaasLab::with(2, |options| {
        options.timeout = selvage_kit::config::Duration(Duration::from_millis(300));
    })
    .await;
    lab.sim.fault(Call::Allocate, 1, Fault::Silence);
    let asked = request("demo", "1.35.8", 1, &[]);
    lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned().len(), 1);
    lab.delete("demo").await;
    lab.check_end("silence");
}
