//! Flavors that change while instances of them exist.

use super::support::*;
use crate::controller::Mode;
use selvage_api::Code;
use selvage_api::edgeproto::{ClusterInst, Flavor};
use selvage_api::selvage::flavors::FlavorSize;

async fn change(world: &World, flavor: Flavor) -> crate::Result<String> {
    let fields = ["3", "4", "5"].map(str::to_owned).to_vec();
    world.controller.update_flavor(Flavor { fields, ..flavor }, Mode::Real).await
}

fn used(world: &World) -> (u64, u64, u64) {
    let refs = world.refs("tmus", "cloud-1");
    (refs.used_ram, refs.used_vcores, refs.used_disk)
}

fn with_nodes(name: &str, num_nodes: u32) -> ClusterInst {
    over(&cluster(name), |inst| {
        inst.num_nodes = num_nodes;
        inst.fields = vec!["14".into()];
    })
}

#[tokio::test]
async fn what_exists_keeps_its_size_until_its_next_update() {
    let world = World::with_cloudlet().await;
    world.add_app(app("app", "tcp:80")).await;
    world.create_cluster(&cluster("one")).await.ok();
    let inst = app_inst("app", "one");
    world.create_app(&inst).await.ok();
    assert_eq!(used(&world), (4096, 4, 4));

    change(&world, flavor("x1.small", 3000, 3, 3)).await.unwrap();
    let made = Some(FlavorSize { ram: 2048, vcpus: 2, disk: 2 });
    assert_eq!(world.cluster(&cluster("one")).unwrap().size, made);
    assert_eq!(world.app(&inst).unwrap().size, made);
    assert_eq!(used(&world), (4096, 4, 4));
    world.check();

    // What is new has the new amounts, and says nothing about it.
    world.create_cluster(&cluster("two")).await.ok();
    assert_eq!(world.cluster(&cluster("two")).unwrap().size, None);
    assert_eq!(used(&world), (4096 + 6000, 4 + 6, 4 + 6));
    world.check();

    world.update_app(&inst).await.ok();
    let now = Some(FlavorSize { ram: 3000, vcpus: 3, disk: 3 });
    assert_eq!(world.app(&inst).unwrap().size, now);
    world.check();
    world.update_cluster(&with_nodes("one", 2)).await.ok();
    assert_eq!(world.cluster(&cluster("one")).unwrap().size, now);
    assert_eq!(used(&world), (9000 + 6000, 9 + 6, 9 + 6));
    world.check();

    // Once more, to what has a size of its own and to what has none.
    change(&world, flavor("x1.small", 1000, 1, 1)).await.unwrap();
    assert_eq!(used(&world), (9000 + 6000, 9 + 6, 9 + 6));
    world.check();
    world.delete_app(&inst).await.ok();
    world.delete_cluster(&cluster("one")).await.ok();
    world.delete_cluster(&cluster("two")).await.ok();
    assert_eq!(used(&world), (0, 0, 0));
    world.check();
}

#[tokio::test]
async fn amounts_that_a_cloudlet_could_not_carry_are_refused() {
    let world = World::with_cloudlet().await;
    world.create_cluster(&cluster("one")).await.ok();
    let error = change(&world, flavor("x1.small", 2048, 11, 2)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(
        error.to_string(),
        "Flavor x1.small cannot have these amounts: cloudlet cloud-1 of tmus has 1 made of it: no \
         suitable platform flavor found for x1.small, please try a smaller flavor"
    );
    assert_eq!(world.cluster(&cluster("one")).unwrap().size, None);
    // Nobody has any of this one.
    change(&world, flavor("x1.tiny", 2048, 11, 2)).await.unwrap();
    world.check();
}

#[tokio::test]
async fn bad_changes_are_refused_and_change_nothing() {
    let world = World::with_cloudlet().await;
    let refused = |flavor: Flavor| async {
        let error = change(&world, flavor).await.unwrap_err();
        (error.code(), error.to_string())
    };
    let nameless = refused(flavor("", 1, 1, 1)).await;
    assert_eq!(nameless, (Code::InvalidArgument, "Invalid flavor name".into()));
    let none = refused(flavor("none", 1, 1, 1)).await;
    assert_eq!(none, (Code::NotFound, "Key not found".into()));
    let nothing = refused(flavor("x1.small", 0, 1, 1)).await;
    assert_eq!(nothing, (Code::InvalidArgument, "Ram cannot be 0".into()));
    let held = world.controller.tables.get::<Flavor>(&flavor_key("x1.small")).unwrap();
    assert_eq!(held.value.0, flavor("x1.small", 2048, 2, 2));
    let some = Flavor { fields: vec!["3".into()], ..flavor("x1.small", 77, 9, 9) };
    let tried = world.controller.update_flavor(some.clone(), Mode::DryRun).await.unwrap();
    assert!(tried.starts_with("dry run: would update"), "{tried}");
    world.controller.update_flavor(some, Mode::Real).await.unwrap();
    let held = world.controller.tables.get::<Flavor>(&flavor_key("x1.small")).unwrap();
    assert_eq!(held.value.0, flavor("x1.small", 77, 2, 2), "the masked leaf only");
}
