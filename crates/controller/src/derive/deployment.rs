//! Deployments of Apps, and the kind of cluster that each goes into.

use selvage_api::edgeproto::{App, ClusterInst, ImageType, IpAccess};

use super::{Error, Result, names};
use crate::keys::AppKeyParts;

use selvage_edge::cloudlet_kind::{CONTAINERS, MACHINES};
pub(crate) use selvage_edge::deployment::{DOCKER, HELM, KUBERNETES, VM};

const KNOWN: [&str; 4] = [KUBERNETES, VM, HELM, DOCKER];

/// Other name of [`VM`], which the contract's own comment has.
const KVM: &str = "kvm";

pub(crate) fn needs_cluster(deployment: &str) -> bool {
    deployment != VM
}

/// The deployment of the cluster that an App of this deployment runs in.
pub(crate) fn of_cluster(deployment: &str) -> &str {
    match deployment {
        HELM => KUBERNETES,
        other => other,
    }
}

/// Checks that an App can go into a ClusterInst.
pub(crate) fn check_fits(app: &str, cluster: &str) -> Result<()> {
    if of_cluster(app) == of_cluster(cluster) {
        return Ok(());
    }
    Err(Error::new(
        selvage_api::Code::FailedPrecondition,
        format!("Cannot deploy {app} App into {cluster} ClusterInst"),
    ))
}

/// Deployment, numbers of nodes and ip_access of a new ClusterInst.
pub(crate) fn settle_cluster(inst: &mut ClusterInst) -> Result<()> {
    match inst.deployment.as_str() {
        "" | KUBERNETES | HELM => {
            inst.deployment = KUBERNETES.into();
            settle_kubernetes(inst)?;
        }
        DOCKER => settle_docker(inst)?,
        VM => {
            return Err(Error::invalid(
                "ClusterInst is not needed for deployment type vm, just create an AppInst directly",
            ));
        }
        other => {
            return Err(Error::invalid(format!("Invalid deployment type {other} for ClusterInst")));
        }
    }
    if inst.ip_access() == IpAccess::Unknown {
        inst.set_ip_access(IpAccess::Shared);
    }
    Ok(())
}

fn settle_kubernetes(inst: &mut ClusterInst) -> Result<()> {
    // Cloudlets that make clusters out of machines take what etcd can have a
    // majority of; others refuse more than one themselves.
    if ![0, 1, 3, 5].contains(&inst.num_masters) {
        return Err(Error::invalid("NumMasters cannot be greater than 1"));
    }
    check_nodes(inst.num_nodes)?;
    inst.num_masters = inst.num_masters.max(1);
    Ok(())
}

/// Also for an update of the number.
pub(crate) fn check_nodes(num_nodes: u32) -> Result<()> {
    if num_nodes == 0 {
        return Err(Error::new(
            selvage_api::Code::Unimplemented,
            "Zero NumNodes not supported yet",
        ));
    }
    Ok(())
}

fn settle_docker(inst: &mut ClusterInst) -> Result<()> {
    if inst.num_masters != 0 || inst.num_nodes != 0 {
        return Err(Error::invalid(
            "NumMasters and NumNodes not applicable for deployment type docker",
        ));
    }
    match inst.ip_access() {
        IpAccess::Unknown => inst.set_ip_access(IpAccess::Dedicated),
        IpAccess::Dedicated => {}
        IpAccess::DedicatedOrShared | IpAccess::Shared => {
            return Err(Error::invalid("IpAccess must be dedicated for deployment type docker"));
        }
    }
    Ok(())
}

/// Chooses containers for an App that says nothing else, where `kinds`, those of
/// all cloudlets, are such that Kubernetes runs on none of them.
pub(crate) fn prefer_docker<'a>(app: &mut App, kinds: impl Iterator<Item = &'a str>) {
    let says_nothing = app.deployment.is_empty()
        && app.deployment_generator.is_empty()
        && app.deployment_manifest.is_empty();
    if !says_nothing || app.image_type() != ImageType::Docker {
        return;
    }
    let kinds: Vec<&str> = kinds.collect();
    let is_known = |kind: &&str| [CONTAINERS, MACHINES].contains(kind);
    if kinds.contains(&CONTAINERS) && kinds.iter().all(is_known) {
        app.deployment = DOCKER.into();
    }
}

/// Chooses the deployment of an App that names none, and checks that it suits
/// the image.
pub(crate) fn settle(app: &mut App) -> Result<()> {
    if app.deployment.is_empty() {
        app.deployment = match app.image_type() {
            ImageType::Docker => KUBERNETES.into(),
            ImageType::Qcow => VM.into(),
            unknown @ ImageType::Unknown => {
                return Err(Error::invalid(format!(
                    "unknown image type {}",
                    unknown.as_str_name()
                )));
            }
        };
    }
    if app.deployment == KVM {
        app.deployment = VM.into();
    }
    if !KNOWN.contains(&app.deployment.as_str()) {
        return Err(Error::invalid(format!(
            "invalid deployment, must be one of [{}]",
            KNOWN.join(" ")
        )));
    }
    match (app.image_type(), app.deployment.as_str()) {
        (ImageType::Docker, KUBERNETES | DOCKER)
        | (ImageType::Qcow, VM)
        | (ImageType::Unknown, HELM) => Ok(()),
        _ => Err(Error::invalid("deployment is not valid for image type")),
    }
}

/// Image path of an App that names none; `registry` is a host.
pub(crate) fn default_image_path(app: &App, registry: &str) -> Result<String> {
    let key = app.key.clone().unwrap_or_default();
    let developer = names::docker(&key.developer_or_empty().name);
    let name = names::docker(&key.name);
    match app.image_type() {
        ImageType::Docker => {
            Ok(format!("{registry}/{developer}/images/{name}:{}", names::docker(&key.version)))
        }
        ImageType::Unknown if app.deployment == HELM => {
            Ok(format!("{registry}/{developer}/images/{name}"))
        }
        other => Err(Error::invalid(format!(
            "imagepath is required for imagetype {}",
            other.as_str_name()
        ))),
    }
}

/// Checks that the path can stand in a command line and in a manifest and be
/// taken for nothing but a path. Whether something is there only the crm finds
/// out.
pub(crate) fn check_image_path(app: &App) -> Result<()> {
    let path = &app.image_path;
    let of_reference = |letter: char| letter.is_ascii_alphanumeric() || "._-/:@+".contains(letter);
    let problem = if path.starts_with('-') {
        "it begins with -"
    } else if app.image_type() == ImageType::Docker && !path.chars().all(of_reference) {
        "it has other characters than letters, digits and . _ - / : @ +"
    } else if !path.chars().all(|letter| letter.is_ascii_graphic()) {
        "it has blanks or other characters that an address cannot have"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("Invalid image_path: {problem}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::edgeproto::{AppKey, DeveloperKey};

    use super::*;

    fn app(image_type: ImageType, deployment: &str) -> App {
        App {
            key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: "AT&T Inc.".into() }),
                name: "Pokemon Go!".into(),
                version: "1.0, b".into(),
            }),
            image_type: image_type.into(),
            deployment: deployment.into(),
            ..App::default()
        }
    }

    fn settled(image_type: ImageType, deployment: &str) -> Result<String, String> {
        let mut app = app(image_type, deployment);
        settle(&mut app).map_err(|error| error.to_string())?;
        Ok(app.deployment)
    }

    #[test]
    fn deployments_default_and_pair_with_images() {
        assert_eq!(settled(ImageType::Docker, "").unwrap(), "kubernetes");
        assert_eq!(settled(ImageType::Qcow, "").unwrap(), "vm");
        assert_eq!(
            settled(ImageType::Unknown, "").unwrap_err(),
            "unknown image type IMAGE_TYPE_UNKNOWN"
        );
        let valid = [
            (ImageType::Docker, "kubernetes"),
            (ImageType::Docker, "docker"),
            (ImageType::Qcow, "vm"),
            (ImageType::Unknown, "helm"),
        ];
        for image in [ImageType::Docker, ImageType::Qcow, ImageType::Unknown] {
            for deployment in KNOWN {
                let expected = if valid.contains(&(image, deployment)) {
                    Ok(deployment.to_owned())
                } else {
                    Err("deployment is not valid for image type".to_owned())
                };
                assert_eq!(settled(image, deployment), expected);
            }
            assert_eq!(
                settled(image, "lxc").unwrap_err(),
                "invalid deployment, must be one of [kubernetes vm helm docker]"
            );
        }
        assert_eq!(settled(ImageType::Qcow, "kvm").unwrap(), VM);
        assert!(settled(ImageType::Docker, "kvm").is_err());
    }

    #[test]
    fn docker_is_the_default_only_where_all_cloudlets_run_containers() {
        let default = |image, change: fn(&mut App), kinds: &[&str]| {
            let mut app = app(image, "");
            change(&mut app);
            prefer_docker(&mut app, kinds.iter().copied());
            app.deployment
        };
        let plain: fn(&mut App) = |_| {};
        assert_eq!(default(ImageType::Docker, plain, &["containers", "vm"]), DOCKER);
        for kinds in [&[][..], &["containers", "kubernetes"], &["containers", ""], &["vm"]] {
            assert_eq!(default(ImageType::Docker, plain, kinds), "", "{kinds:?}");
        }
        assert_eq!(default(ImageType::Qcow, plain, &["containers"]), "");
        // Who brings a manifest means Kubernetes, and who names a deployment means it.
        let changes: [fn(&mut App); 3] = [
            |app| app.deployment_manifest = "kind: Service".into(),
            |app| app.deployment_generator = "kubernetes-basic".into(),
            |app| app.deployment = KUBERNETES.into(),
        ];
        for change in changes {
            assert_ne!(default(ImageType::Docker, change, &["containers"]), DOCKER);
        }
    }

    #[test]
    fn images_have_a_path_in_the_registry() {
        let path = |image, deployment| {
            default_image_path(&app(image, deployment), "docker.mobiledgex.net")
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            path(ImageType::Docker, "kubernetes").unwrap(),
            "docker.mobiledgex.net/AT-TInc./images/PokemonGo.:1.0b"
        );
        assert_eq!(
            path(ImageType::Unknown, "helm").unwrap(),
            "docker.mobiledgex.net/AT-TInc./images/PokemonGo."
        );
        assert_eq!(
            path(ImageType::Qcow, "vm").unwrap_err(),
            "imagepath is required for imagetype IMAGE_TYPE_QCOW"
        );
    }

    fn cluster(
        deployment: &str,
        masters: u32,
        nodes: u32,
        access: IpAccess,
    ) -> Result<ClusterInst, String> {
        let mut inst = ClusterInst {
            deployment: deployment.into(),
            num_masters: masters,
            num_nodes: nodes,
            ip_access: access.into(),
            ..ClusterInst::default()
        };
        settle_cluster(&mut inst).map_err(|error| error.to_string())?;
        Ok(inst)
    }

    #[test]
    fn clusters_are_settled_in_the_order_of_the_original() {
        for deployment in ["", "kubernetes", "helm"] {
            let inst = cluster(deployment, 0, 3, IpAccess::Unknown).unwrap();
            assert_eq!(inst.deployment, "kubernetes");
            assert_eq!((inst.num_masters, inst.num_nodes), (1, 3));
            assert_eq!(inst.ip_access(), IpAccess::Shared);
        }
        for masters in [1, 3, 5] {
            let inst = cluster("", masters, 1, IpAccess::Unknown).unwrap();
            assert_eq!(inst.num_masters, masters);
        }
        let docker = cluster("docker", 0, 0, IpAccess::Unknown).unwrap();
        assert_eq!(docker.ip_access(), IpAccess::Dedicated);
        let refused = [
            (
                cluster("vm", 0, 0, IpAccess::Unknown),
                "ClusterInst is not needed for deployment type vm, just create an AppInst directly",
            ),
            (cluster("x", 0, 0, IpAccess::Unknown), "Invalid deployment type x for ClusterInst"),
            (cluster("", 2, 1, IpAccess::Unknown), "NumMasters cannot be greater than 1"),
            (cluster("", 7, 1, IpAccess::Unknown), "NumMasters cannot be greater than 1"),
            (cluster("", 1, 0, IpAccess::Unknown), "Zero NumNodes not supported yet"),
            (
                cluster("docker", 0, 1, IpAccess::Unknown),
                "NumMasters and NumNodes not applicable for deployment type docker",
            ),
            (
                cluster("docker", 0, 0, IpAccess::Shared),
                "IpAccess must be dedicated for deployment type docker",
            ),
        ];
        for (result, text) in refused {
            assert_eq!(result.unwrap_err(), text);
        }
    }

    #[test]
    fn helm_goes_into_kubernetes_and_nothing_else_crosses() {
        check_fits("helm", "kubernetes").unwrap();
        check_fits("docker", "docker").unwrap();
        assert_eq!(
            check_fits("docker", "kubernetes").unwrap_err().to_string(),
            "Cannot deploy docker App into kubernetes ClusterInst"
        );
        assert!(!needs_cluster("vm"));
    }
}
