//! The crm with a real cluster of Kubernetes: control plane, kubelet,
//! containerd, kube-proxy and helm, in namespaces of their own.

mod conform;
mod fixture;
mod hostile;

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::StreamExt;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, AppKey, CloudletState, ConfigFile, TrackedState,
};
use selvage_crm::{
    Crm, FetchPolicy, ImageFolders, Platform, Registries,
    platform::kubernetes::{Kubernetes, Options},
};
use selvage_kit::tasks::Tasks;
use selvage_kube::kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind},
};
use selvage_runtime::{ExecInput, ExecSpec, LogOptions, TerminalSize};
use tokio_util::sync::CancellationToken;

use self::fixture::{Cluster, Edge, IMAGE, collect, command, manifest};
use crate::support::{ANSWER, TEST_TIMEOUT, TestController, fetch, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_runs_answers_survives_and_goes_without_a_trace() {
    let Some(cluster) = Cluster::shared().await else { return };
    let edge = Edge::new(cluster, "whole", 24101);
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    let answered = wait_for("the cloudlet's report", || async {
        controller.cloudlet_infos.find(&edge.cloudlet())
    })
    .await;
    assert_eq!(answered.state(), CloudletState::Ready, "{:?}", answered.errors);
    assert!(
        answered.os_max_ram > 0 && answered.os_max_vcores > 0 && answered.flavors[0].name == "node"
    );

    edge.make_cluster(&controller).await;
    let namespaces = edge.namespaces(cluster).await;
    let namespace = namespaces[0].metadata.name.clone().unwrap();
    assert!(namespaces.len() == 1 && namespace.starts_with("slv-acme-edge-"), "{namespace}");
    let quota = &cluster.list("", "v1", "ResourceQuota", "").await;
    let quota = quota.iter().find(|of| of.metadata.namespace.as_ref() == Some(&namespace)).unwrap();
    let hard = &quota.data["spec"]["hard"];
    assert_eq!(hard["requests.memory"], "512Mi");
    assert_eq!(hard["limits.memory"], "2Gi");
    assert_eq!(hard["requests.storage"], "2G");
    let secrets = cluster.names("", "v1", "Secret", "").await;
    // The password of the site's registry is the operator's.
    assert!(!secrets.contains(&format!("{namespace}/mexgitlabsecret")), "{secrets:?}");

    let mut app = edge.app(&manifest(IMAGE, ""));
    let variables = "- name: GREETING\n  value: good day\n";
    app.configs = vec![ConfigFile { kind: "envVarsYaml".into(), config: variables.into() }];
    let info = edge.make(&controller, app, TrackedState::Ready).await;
    let pods = info.runtime_info.clone().unwrap().container_ids;
    assert!(pods.len() == 1 && pods[0].starts_with("hello-deployment-"), "{pods:?}");
    let labelled = cluster.names("", "v1", "Pod", "mex-app=hello-deployment").await;
    assert!(labelled.contains(&format!("{namespace}/{}", pods[0])), "{labelled:?}");
    let answer = fetch(edge.at()).await.expect("an answer at the public port");
    assert!(answer.contains(ANSWER), "{answer}");

    commands_and_logs(&edge, running.platform.as_ref(), &pods[0]).await;
    wait_for("what it uses", || async {
        let usage = running.platform.usage(&edge.key()).await.unwrap();
        (usage.memory_bytes > 0 && usage.cpu_ns > 0).then_some(())
    })
    .await;

    // The crm is away while the pod dies: the cluster brings it back, and the
    // crm finds it under its new name.
    running.stop().await;
    let gone: Api<DynamicObject> = Api::namespaced_with(
        cluster.client().await,
        &namespace,
        &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod")),
    );
    gone.delete(&pods[0], &DeleteParams::default()).await.unwrap();
    let running = edge.start(&controller).await;
    wait_for("the new pod", || async {
        let info = controller.instance_infos.find(&edge.key())?;
        let now = info.runtime_info.clone()?.container_ids;
        (now.len() == 1 && now != pods).then_some(())
    })
    .await;
    wait_for("an answer", || fetch(edge.at())).await;

    edge.unmake(&controller).await;
    assert_eq!(fetch(edge.at()).await, None);
    for (group, kind) in [("apps", "Deployment"), ("", "Service"), ("", "Pod"), ("", "ConfigMap")] {
        let left = cluster.names(group, "v1", kind, "selvage.instance").await;
        assert!(left.iter().all(|name| !name.starts_with(&namespace)), "{left:?}");
    }
    edge.unmake_cluster(&controller).await;
    assert!(edge.namespaces(cluster).await.is_empty());
    running.stop().await;
}

async fn commands_and_logs(edge: &Edge, platform: &dyn Platform, pod: &str) {
    let words = |argv: &[&str]| ExecSpec {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        ..ExecSpec::default()
    };
    let strange = "a; b | c & $(touch /tmp/p) `id` > < ' \" \\ * ?\nnext";
    let mut exec = platform.exec(&edge.key(), pod, words(&["echo", strange])).await.unwrap();
    assert_eq!(collect(&mut exec).await, (format!("{strange}\n"), 0));
    let mut exec =
        platform.exec(&edge.key(), "", words(&["sh", "-c", "echo $GREETING; exit 7"])).await;
    assert_eq!(collect(exec.as_mut().unwrap()).await, ("good day\n".to_owned(), 7));

    let spec = ExecSpec { stdin: true, ..words(&["cat"]) };
    let mut exec = platform.exec(&edge.key(), pod, spec).await.unwrap();
    exec.input.send(ExecInput::Stdin("to and fro".into())).await.unwrap();
    exec.input.send(ExecInput::CloseStdin).await.unwrap();
    assert_eq!(collect(&mut exec).await, ("to and fro".to_owned(), 0));

    let size = TerminalSize { width: 101, height: 33 };
    let spec =
        ExecSpec { stdin: true, tty: Some(size), ..words(&["sh", "-c", "sleep 0.5; stty size"]) };
    let mut exec = platform.exec(&edge.key(), pod, spec).await.unwrap();
    assert_eq!(collect(&mut exec).await, ("33 101\r\n".to_owned(), 0));

    let other = platform.exec(&edge.key(), "coredns", words(&["id"])).await.unwrap_err();
    assert_eq!(other.to_string(), "container \"coredns\" of the instance not found");

    let said = words(&["sh", "-c", "echo one >/proc/1/fd/1; echo two >/proc/1/fd/1"]);
    let mut exec = platform.exec(&edge.key(), pod, said).await.unwrap();
    collect(&mut exec).await;
    wait_for("the log", || async {
        let options = LogOptions { tail: Some(1), ..LogOptions::default() };
        let mut log = platform.logs(&edge.key(), pod, options).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = log.next().await {
            text.extend_from_slice(&piece.unwrap());
        }
        (text == b"two\n").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_run_says_why_and_leaves_nothing() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut edge = Edge::new(cluster, "why", 24102);
    edge.start_timeout = Duration::from_secs(5);
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    edge.make_cluster(&controller).await;
    let namespace = edge.namespaces(cluster).await[0].metadata.name.clone().unwrap();
    let good = manifest(IMAGE, "");
    let crash = manifest(IMAGE, &command(&["/bin/sh", "-c", "echo the disk is on fire; exit 3"]));
    // Without it the moment before it ends may count as well.
    let crash = crash.replace("replicas: 1", "replicas: 1\n  minReadySeconds: 3");
    let large =
        |what: &str| manifest(IMAGE, &format!("        resources: {{requests: {{{what}}}}}\n"));
    let with = |text: &str| format!("{good}---\n{text}\n");
    let docker = App { deployment: "docker".into(), ..edge.app("") };
    for (app, says) in [
        (edge.app(&manifest("127.0.0.1:1/nowhere/nothing:1", "")), "ErrImagePull: "),
        (edge.app(&crash), "ended with code 3: the disk is on fire"),
        (edge.app(&large("memory: 200Mi").replace("replicas: 1", "replicas: 3")), "exceeded quota"),
        (edge.app(&large("memory: 512Mi")), "must be less than or equal to memory limit"),
        (edge.app(&manifest(IMAGE, "      nodeSelector: {nowhere: here}\n")), "Unschedulable: 0/1 nodes"),
        (edge.app(&manifest(IMAGE, "      hostNetwork: true\n")), "hostNetwork: an app may not set this"),
        (edge.app(&with("{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: kube-system}}")),
            "ConfigMap c: namespace \"kube-system\" is not that of the cluster"),
        (edge.app(&with("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}}")),
            "ClusterRole r: an app may not make this kind"),
        (edge.app(&with("{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: d}}")),
            "Deployment d: apiVersion \"extensions/v1beta1\" is not possible: use apps/v1"),
        (edge.app(&with("{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: x}]}}")),
            "Service s: "),
        (docker, "deployment \"docker\" cannot run on a cloudlet of kind kubernetes: it takes kubernetes and helm"),
    ] {
        edge.fail(&controller, app, says).await;
        edge.unmake(&controller).await;
        let left = cluster.names("", "v1", "Pod", "selvage.instance").await;
        assert!(left.iter().all(|name| !name.starts_with(&namespace)), "{says}: {left:?}");
    }
    edge.unmake_cluster(&controller).await;
    assert!(edge.namespaces(cluster).await.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_replaces_prunes_and_failing_leaves_the_old_one() {
    let Some(cluster) = Cluster::shared().await else { return };
    let edge = Edge::new(cluster, "change", 24103);
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    edge.make_cluster(&controller).await;
    let namespace = edge.namespaces(cluster).await[0].metadata.name.clone().unwrap();
    let more = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: extra}, data: {a: b}}\n";
    let first = edge.app(&(manifest(IMAGE, "") + more));
    edge.make(&controller, first, TrackedState::Ready).await;
    let extra = format!("{namespace}/extra");
    assert!(cluster.names("", "v1", "ConfigMap", "selvage.instance").await.contains(&extra));

    // Not what another instance has.
    let stolen = AppInstKey {
        app_key: Some(AppKey { name: "Thief".into(), ..edge.key().app_key.unwrap() }),
        ..edge.key()
    };
    let thief = App { key: stolen.app_key.clone(), ..edge.app(&manifest(IMAGE, "")) };
    controller.apps.put(thief).unwrap();
    let taking =
        AppInst { key: Some(stolen.clone()), ..edge.instance(TrackedState::CreateRequested) };
    controller.instances.put(taking.clone()).unwrap();
    let info = controller.instance_state(&stolen, TrackedState::CreateError).await;
    assert!(info.errors[0].contains("belongs to something else"), "{:?}", info.errors);
    controller.instances.remove(&taking).unwrap();

    let serve = ["/bin/sh", "-c", "echo new >/www/index.html; exec httpd -f -p 8080 -h /www"];
    controller.apps.put(edge.app(&manifest(IMAGE, &command(&serve)))).unwrap();
    controller.instances.put(edge.instance(TrackedState::UpdateRequested)).unwrap();
    wait_for("the new answer", || async {
        fetch(edge.at()).await.filter(|answer| answer.ends_with("new\n"))
    })
    .await;
    controller.instance_state(&edge.key(), TrackedState::Ready).await;
    controller.instances.put(edge.instance(TrackedState::Ready)).unwrap();
    assert!(!cluster.names("", "v1", "ConfigMap", "selvage.instance").await.contains(&extra));

    controller.apps.put(edge.app(&manifest("127.0.0.1:1/no/thing:1", ""))).unwrap();
    controller.instances.put(edge.instance(TrackedState::UpdateRequested)).unwrap();
    let info = controller.instance_state(&edge.key(), TrackedState::UpdateError).await;
    assert!(info.errors[0].contains("ErrImagePull"), "{:?}", info.errors);
    wait_for("the answer of before", || async {
        fetch(edge.at()).await.filter(|answer| answer.ends_with("new\n"))
    })
    .await;
    // Nor does the cluster go on trying: the version of before is what it wants.
    wait_for("the version of before", || async {
        let all = cluster.list("apps", "v1", "Deployment", "selvage.instance").await;
        let mut mine = all.iter().filter(|of| of.metadata.namespace.as_ref() == Some(&namespace));
        let of = mine.next()?;
        let image = &of.data["spec"]["template"]["spec"]["containers"][0]["image"];
        (*image == IMAGE && of.data["status"]["unavailableReplicas"].is_null()).then_some(())
    })
    .await;

    // More nodes, more to use.
    controller.clusters.put(edge.cluster(TrackedState::UpdateRequested, 5)).unwrap();
    wait_for("the larger quota", || async {
        let quotas = cluster.list("", "v1", "ResourceQuota", "").await;
        let mut quotas = quotas.into_iter();
        let mine = quotas.find(|of| of.metadata.namespace.as_ref() == Some(&namespace))?;
        (mine.data["spec"]["hard"]["requests.cpu"] == "5").then_some(())
    })
    .await;
    edge.unmake(&controller).await;
    edge.unmake_cluster(&controller).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_developers_have_two_clusters_and_only_ours_is_swept() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut edge = Edge::new(cluster, "two", 24104);
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    edge.make_cluster(&controller).await;
    edge.developer = "Bmce".into();
    edge.make_cluster(&controller).await;
    let app = edge.app(&manifest(IMAGE, ""));
    edge.make(&controller, app, TrackedState::Ready).await;
    assert_eq!(edge.namespaces(cluster).await.len(), 2);
    let neighbour = Edge::new(cluster, "neighbour", 24105);
    let beside = neighbour.start(&controller).await;
    neighbour.make_cluster(&controller).await;

    // A crm that has lost its memory keeps what it is told of, and no more.
    let platform = Arc::clone(&running.platform);
    running.stop().await;
    let swept = platform.sweep(&[edge.cluster_key()], &[]).await.unwrap();
    assert_eq!(swept.len(), 2, "{swept:?}");
    let left = edge.namespaces(cluster).await;
    assert_eq!(left.len(), 1);
    assert!(left[0].metadata.name.as_ref().unwrap().starts_with("slv-bmce-edge-"));
    let pods = cluster.names("", "v1", "Pod", "selvage.instance").await;
    assert!(pods.iter().all(|name| !name.starts_with("slv-bmce-edge-")), "{pods:?}");
    assert_eq!(neighbour.namespaces(cluster).await.len(), 1);

    // What is gone and still wanted comes back.
    let running = edge.start(&controller).await;
    wait_for("the cluster and the instance again", || async {
        if edge.namespaces(cluster).await.len() < 2 {
            return None;
        }
        fetch(edge.at()).await
    })
    .await;
    edge.unmake(&controller).await;
    edge.unmake_cluster(&controller).await;
    edge.developer = "Acme".into();
    edge.unmake_cluster(&controller).await;
    neighbour.unmake_cluster(&controller).await;
    running.stop().await;
    beside.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_cannot_be_reached_is_said_and_tried_again() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut edge = Edge::new(cluster, "away", 24106);
    let there = edge.kubeconfig.clone();
    edge.kubeconfig = edge.directory.path().join("kubeconfig");
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    let report = |says: &'static str| {
        let (controller, edge) = (&controller, &edge);
        wait_for(says, move || async move {
            let info = controller.cloudlet_infos.find(&edge.cloudlet())?;
            let bad = info.state() == CloudletState::Errors;
            (bad && info.errors[0].contains(says)).then(|| info.errors[0].clone())
        })
    };
    let error = report("failed to read kubeconfig").await;
    assert!(error.starts_with("get limits failed: crm.kubeconfig ("), "{error}");

    let text = std::fs::read_to_string(&there).unwrap();
    let closed = text.replace(":6443", ":6444");
    std::fs::write(&edge.kubeconfig, closed).unwrap();
    report("the cluster does not answer").await;
    controller.flavors.put(edge.flavor()).unwrap();
    controller.clusters.put(edge.cluster(TrackedState::CreateRequested, 1)).unwrap();
    let errors = wait_for("the failure", || async {
        let info = controller.cluster_infos.find(&edge.cluster_key())?;
        (info.state() == TrackedState::CreateError).then(|| info.errors.clone())
    })
    .await;
    assert!(errors[0].contains("the cluster does not answer"), "{errors:?}");
    controller.clusters.remove(&edge.cluster(TrackedState::Ready, 1)).unwrap();

    std::fs::write(&edge.kubeconfig, text.replace("token: admin-", "token: nobody-")).unwrap();
    report("Unauthorized").await;
    std::fs::write(&edge.kubeconfig, text).unwrap();
    wait_for("the cloudlet", || async {
        let info = controller.cloudlet_infos.find(&edge.cloudlet())?;
        (info.state() == CloudletState::Ready && info.errors.is_empty()).then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chart_is_installed_with_its_values_and_goes() {
    let Some(cluster) = Cluster::shared().await else { return };
    let edge = Edge::new(cluster, "chart", 24107);
    let chart = edge.directory.path().join("chart");
    std::fs::create_dir_all(chart.join("templates")).unwrap();
    std::fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: hello\nversion: 0.1.0\n")
        .unwrap();
    std::fs::write(chart.join("values.yaml"), "image: none\n").unwrap();
    let template =
        manifest("{{ .Values.image }}", "").replace("run: hello", "run: {{ .Release.Name }}");
    std::fs::write(chart.join("templates/all.yaml"), template).unwrap();

    let controller = TestController::start().await;
    let mut settings = edge.settings(controller.address);
    settings.images = ImageFolders::new([edge.directory.path().to_owned()]);
    let options = Options {
        kubeconfig: settings.site.kubeconfig.clone(),
        registries: Registries::default(),
        policy: FetchPolicy::default(),
        addresses: settings.addresses.clone(),
        images: settings.images.clone(),
        data: settings.data.clone(),
        start_timeout: settings.start_timeout,
        helm: cluster.helm(),
        egress: settings.egress.clone(),
    };
    let open = |helm: PathBuf| {
        let options = Options { helm, ..options.clone() };
        Kubernetes::open(&edge.cloudlet(), options).unwrap()
    };
    let platform = Arc::new(open(cluster.helm()));
    let crm =
        Crm::with_platform(settings, Arc::clone(&platform) as Arc<dyn Platform>).await.unwrap();
    let (crm, tasks) = (Arc::new(crm), Tasks::new(CancellationToken::new()));
    crm.spawn(&tasks);
    edge.make_cluster(&controller).await;
    let namespace = edge.namespaces(cluster).await[0].metadata.name.clone().unwrap();

    let mut app = edge.app("");
    app.deployment = "helm".into();
    app.image_path = format!("file://{}", chart.display());
    // In the original's spelling.
    let values = format!("image: {IMAGE}\n");
    app.configs = vec![ConfigFile { kind: "hemlCustomizationYaml".into(), config: values }];
    let info = edge.make(&controller, app.clone(), TrackedState::Ready).await;
    let pods = info.runtime_info.clone().unwrap().container_ids;
    assert!(pods.len() == 1 && pods[0].starts_with("hello-deployment-"), "{pods:?}");
    assert!(fetch(edge.at()).await.is_some_and(|answer| answer.contains(ANSWER)));
    edge.unmake(&controller).await;
    for (group, kind) in [("apps", "Deployment"), ("", "Service"), ("", "Secret")] {
        let left = cluster.names(group, "v1", kind, "").await;
        let mut left = left.into_iter().filter(|name| name.starts_with(&namespace));
        assert_eq!(left.find(|name| name.contains("hello") || name.contains("helm")), None);
    }

    for (image_path, says) in
        [("nowhere/nothing".to_owned(), "a chart is"), ("--help".to_owned(), "a chart is")]
    {
        let broken = App { image_path, ..app.clone() };
        edge.fail(&controller, broken, says).await;
        edge.unmake(&controller).await;
    }
    let outside = "{apiVersion: v1, kind: Namespace, metadata: {name: mine}}";
    std::fs::write(chart.join("templates/outside.yaml"), outside).unwrap();
    edge.fail(&controller, app.clone(), "Namespace mine: an app may not make this kind").await;
    edge.unmake(&controller).await;
    edge.unmake_cluster(&controller).await;
    tasks.token().cancel();
    let _ = tasks.shutdown(TEST_TIMEOUT).await;
}
