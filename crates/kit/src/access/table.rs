//! The access table: one row for every method of every contract.
//!
//! A method without a row is refused, and a test that walks the descriptors
//! fails for it. Admins may call everything and appear in no row.

use super::{Delegates, Effect, Effect::*, MachineKind, Who};
use crate::identity::Role;

/// The rows of one service: method, what calling it does, who may besides
/// admins.
pub(super) type Rows = &'static [(&'static str, Effect, &'static [Who])];

const NOBODY_ELSE: &[Who] = &[];
const ANYONE: &[Who] = &[Who::Anyone];
/// People who logged in; machines are named by their kind.
const SIGNED_IN: &[Who] = &[Who::Person];
/// Everybody who is known. The reply is about the caller and nobody else.
const EVERYBODY_KNOWN: &[Who] = &[
    Who::Person,
    Who::Machine(MachineKind::Controller),
    Who::Machine(MachineKind::Cloudlet),
    Who::Machine(MachineKind::Node),
    Who::Machine(MachineKind::Dme),
];

const EVERY_MACHINE: &[Who] = &[
    Who::Machine(MachineKind::Controller),
    Who::Machine(MachineKind::Cloudlet),
    Who::Machine(MachineKind::Node),
    Who::Machine(MachineKind::Dme),
];

const APP: &[Who] = &[Who::Member(Role::Developer, "key.developer_key.name")];
const APP_INST: &[Who] = &[Who::Member(Role::Developer, "key.app_key.developer_key.name")];
const CLUSTER_INST: &[Who] = &[Who::Member(Role::Developer, "key.developer")];
/// Operators see what runs on their sites, whosever it is.
const APP_INST_READERS: &[Who] = &[
    Who::Member(Role::Developer, "key.app_key.developer_key.name"),
    Who::Member(Role::Operator, "key.cluster_inst_key.cloudlet_key.operator_key.name"),
];
const CLUSTER_INST_READERS: &[Who] = &[
    Who::Member(Role::Developer, "key.developer"),
    Who::Member(Role::Operator, "key.cloudlet_key.operator_key.name"),
];
/// Controllers ask each other for what agents told only one of them.
const APP_INST_AND_PEERS: &[Who] = &[
    Who::Member(Role::Developer, "key.app_key.developer_key.name"),
    Who::Member(Role::Operator, "key.cluster_inst_key.cloudlet_key.operator_key.name"),
    Who::Machine(MachineKind::Controller),
];
const CLUSTER_INST_AND_PEERS: &[Who] = &[
    Who::Member(Role::Developer, "key.developer"),
    Who::Member(Role::Operator, "key.cloudlet_key.operator_key.name"),
    Who::Machine(MachineKind::Controller),
];
const CLOUDLET: &[Who] = &[Who::Member(Role::Operator, "key.operator_key.name")];
const EXEC: &[Who] = &[Who::Member(Role::Developer, "app_inst_key.app_key.developer_key.name")];
const PEOPLE_AND_CRMS: &[Who] = &[Who::Person, Who::Machine(MachineKind::Cloudlet)];
const OWN_DEVELOPER: &[Who] = &[Who::Member(Role::Developer, "key.name")];

const CONTROLLER: &[Who] = &[Who::Machine(MachineKind::Controller)];
/// The service shows each caller those of the caller's organisations.
const SAMPLES: &[Who] = &[
    Who::Holder(Role::Developer),
    Who::Holder(Role::Operator),
    Who::Machine(MachineKind::Controller),
];
const AGENTS: &[Who] = &[Who::Machine(MachineKind::Cloudlet), Who::Machine(MachineKind::Dme)];
/// Machines and their volumes are steered by controllers only. A cloudlet's
/// agent reaches the volumes of its own machine by lvmd's unix socket.
const STEERING: &[Who] = &[Who::Machine(MachineKind::Controller)];
const STEERING_AND_OPERATORS: &[Who] =
    &[Who::Machine(MachineKind::Controller), Who::Holder(Role::Operator)];

/// Those who have clusters: developers their organisation's.
const CLUSTER_OWNERS: &[Who] =
    &[Who::Holder(Role::Developer), Who::Machine(MachineKind::Controller)];
const CLUSTER_READERS: &[Who] = &[
    Who::Holder(Role::Developer),
    Who::Holder(Role::Operator),
    Who::Machine(MachineKind::Controller),
];
/// A crm makes clusters for its cloudlet, and has those and no others.
const CLUSTER_OWNERS_AND_CRMS: &[Who] = &[
    Who::Holder(Role::Developer),
    Who::Machine(MachineKind::Controller),
    Who::Machine(MachineKind::Cloudlet),
];
const CLUSTER_READERS_AND_CRMS: &[Who] = &[
    Who::Holder(Role::Developer),
    Who::Holder(Role::Operator),
    Who::Machine(MachineKind::Controller),
    Who::Machine(MachineKind::Cloudlet),
];

pub(super) const TABLE: &[(&str, Rows)] = &[
    // The controller.
    (
        "edgeproto.AppApi",
        &[
            ("CreateApp", Write, APP),
            ("DeleteApp", Write, APP),
            ("UpdateApp", Write, APP),
            ("ShowApp", Read, APP),
        ],
    ),
    (
        "edgeproto.AppInstApi",
        &[
            ("CreateAppInst", Write, APP_INST),
            ("DeleteAppInst", Write, APP_INST),
            ("UpdateAppInst", Write, APP_INST),
            ("ShowAppInst", Read, APP_INST_READERS),
        ],
    ),
    (
        "selvage.revisions.RevisionService",
        &[("ListRevisions", Read, APP_INST), ("RollBack", Write, APP_INST)],
    ),
    ("edgeproto.AppInstInfoApi", &[("ShowAppInstInfo", Read, APP_INST_AND_PEERS)]),
    ("edgeproto.AppInstMetricsApi", &[("ShowAppInstMetrics", Read, SAMPLES)]),
    (
        "edgeproto.CloudletApi",
        &[
            ("CreateCloudlet", Write, CLOUDLET),
            ("DeleteCloudlet", Write, CLOUDLET),
            ("UpdateCloudlet", Write, CLOUDLET),
            ("ShowCloudlet", Read, SIGNED_IN),
        ],
    ),
    (
        "edgeproto.CloudletInfoApi",
        &[
            // The service shows others than its operators whether a site is up, and
            // no more.
            ("ShowCloudletInfo", Read, SIGNED_IN),
            ("InjectCloudletInfo", Write, NOBODY_ELSE),
            ("EvictCloudletInfo", Write, NOBODY_ELSE),
        ],
    ),
    ("edgeproto.CloudletMetricsApi", &[("ShowCloudletMetrics", Read, SAMPLES)]),
    ("edgeproto.CloudletRefsApi", &[("ShowCloudletRefs", Read, CLOUDLET)]),
    (
        "edgeproto.ClusterApi",
        &[
            ("CreateCluster", Write, NOBODY_ELSE),
            ("DeleteCluster", Write, NOBODY_ELSE),
            ("UpdateCluster", Write, NOBODY_ELSE),
            ("ShowCluster", Read, SIGNED_IN),
        ],
    ),
    (
        "edgeproto.ClusterInstApi",
        &[
            ("CreateClusterInst", Write, CLUSTER_INST),
            ("DeleteClusterInst", Write, CLUSTER_INST),
            ("UpdateClusterInst", Write, CLUSTER_INST),
            ("ShowClusterInst", Read, CLUSTER_INST_READERS),
        ],
    ),
    ("edgeproto.ClusterInstInfoApi", &[("ShowClusterInstInfo", Read, CLUSTER_INST_AND_PEERS)]),
    ("edgeproto.ClusterRefsApi", &[("ShowClusterRefs", Read, CLUSTER_INST_READERS)]),
    ("edgeproto.ControllerApi", &[("ShowController", Read, CONTROLLER)]),
    (
        "edgeproto.DeveloperApi",
        &[
            ("CreateDeveloper", Write, NOBODY_ELSE),
            ("DeleteDeveloper", Write, NOBODY_ELSE),
            ("UpdateDeveloper", Write, NOBODY_ELSE),
            // Carries password hashes and addresses: no viewers.
            ("ShowDeveloper", ReadSecret, OWN_DEVELOPER),
        ],
    ),
    // The token of the first piece says to which command.
    ("selvage.shell.ShellService", &[("Attach", Write, PEOPLE_AND_CRMS)]),
    ("edgeproto.ExecApi", &[("RunCommand", Write, EXEC), ("SendLocalRequest", Write, CONTROLLER)]),
    (
        "edgeproto.FlavorApi",
        &[
            ("CreateFlavor", Write, NOBODY_ELSE),
            ("DeleteFlavor", Write, NOBODY_ELSE),
            ("UpdateFlavor", Write, NOBODY_ELSE),
            ("ShowFlavor", Read, SIGNED_IN),
        ],
    ),
    ("edgeproto.NodeApi", &[("ShowNodeLocal", Read, CONTROLLER), ("ShowNode", Read, NOBODY_ELSE)]),
    ("edgeproto.NotifyApi", &[("StreamNotice", Write, AGENTS)]),
    (
        "edgeproto.OperatorApi",
        &[
            ("CreateOperator", Write, NOBODY_ELSE),
            ("DeleteOperator", Write, NOBODY_ELSE),
            ("UpdateOperator", Write, NOBODY_ELSE),
            ("ShowOperator", Read, SIGNED_IN),
        ],
    ),
    // The match engine: devices bring the cookies of its own messages.
    (
        "distributed_match_engine.MatchEngineApi",
        &[
            ("RegisterClient", Read, ANYONE),
            ("FindCloudlet", Read, ANYONE),
            ("VerifyLocation", Read, ANYONE),
            ("GetLocation", Read, ANYONE),
            ("AddUserToGroup", Write, ANYONE),
            ("GetAppInstList", Read, ANYONE),
            ("GetFqdnList", Read, ANYONE),
        ],
    ),
    ("distributed_match_engine.DynamicLocGroupApi", &[("SendToGroup", Write, ANYONE)]),
    (
        "selvage.matching.MatchingService",
        &[("ListCookieKeys", ReadSecret, &[Who::Machine(MachineKind::Dme)])],
    ),
    // Clusters. The service shows each caller those of the caller's
    // organisations, and judges whose a cluster is.
    (
        "cnct.kaas.api.Cluster",
        &[
            ("CreateCluster", Write, CLUSTER_OWNERS_AND_CRMS),
            // The reply carries a kubeconfig for owners alone.
            ("GetCluster", Read, CLUSTER_READERS_AND_CRMS),
            ("DeleteCluster", Write, CLUSTER_OWNERS_AND_CRMS),
            ("GetClusterList", Read, CLUSTER_READERS_AND_CRMS),
            ("GetClusterNodesStatus", Read, CLUSTER_READERS),
            ("GetVersionInformation", Read, SIGNED_IN),
            ("AddNodePool", Write, CLUSTER_OWNERS),
            ("DeleteNodePool", Write, CLUSTER_OWNERS),
            ("ScaleNodePool", Write, CLUSTER_OWNERS_AND_CRMS),
            ("GetUpgradeClusterInformation", Read, CLUSTER_READERS),
            ("UpgradeCluster", Write, CLUSTER_OWNERS),
        ],
    ),
    (
        "selvage.clusters.ClusterService",
        &[
            ("GetCluster", Read, CLUSTER_READERS_AND_CRMS),
            ("WatchCluster", Read, CLUSTER_READERS_AND_CRMS),
            ("ListEvents", Read, CLUSTER_READERS),
            ("PlanCluster", Read, CLUSTER_READERS),
            ("PauseCluster", Write, CLUSTER_OWNERS),
            ("ResumeCluster", Write, CLUSTER_OWNERS),
            ("AbortUpgrade", Write, CLUSTER_OWNERS),
            ("HibernateCluster", Write, CLUSTER_OWNERS),
            ("WakeCluster", Write, CLUSTER_OWNERS),
            ("RotateCertificates", Write, CLUSTER_OWNERS),
            ("ListQuarantinedMachines", Read, NOBODY_ELSE),
            ("ReleaseQuarantinedMachine", Write, NOBODY_ELSE),
            ("BackupCluster", Write, CLUSTER_OWNERS),
            ("ListBackups", Read, CLUSTER_READERS),
            ("DeleteBackup", Write, CLUSTER_OWNERS),
            ("RestoreCluster", Write, CLUSTER_OWNERS),
            ("ListVersions", Read, PEOPLE_AND_CRMS),
        ],
    ),
    // Volumes.
    (
        "proto.LVService",
        &[
            ("CreateLV", Write, STEERING),
            ("RemoveLV", Write, STEERING),
            ("ResizeLV", Write, STEERING),
            ("CreateBackup", Write, STEERING),
        ],
    ),
    (
        "proto.VGService",
        &[
            ("GetLVList", Read, STEERING_AND_OPERATORS),
            ("GetFreeBytes", Read, STEERING_AND_OPERATORS),
            ("Watch", Read, STEERING_AND_OPERATORS),
        ],
    ),
    (
        "selvage.volumes.VolumesService",
        &[
            ("ListVolumes", Read, STEERING_AND_OPERATORS),
            ("ListDeviceClasses", Read, STEERING_AND_OPERATORS),
            ("CreateSnapshot", Write, STEERING),
            ("CreateClone", Write, STEERING),
            ("RevertVolume", Write, STEERING),
        ],
    ),
    (
        "selvage.volumes.BackupsService",
        &[
            ("StartBackup", Write, STEERING),
            ("StartRestore", Write, STEERING),
            ("WatchBackup", Read, STEERING_AND_OPERATORS),
            // Opens a repository for the caller.
            ("ListBackups", Read, STEERING),
            ("CancelBackup", Write, STEERING),
            ("VerifyBackup", Write, STEERING),
            ("DeleteBackup", Write, STEERING),
            ("PruneBackups", Write, STEERING),
            ("SetSchedule", Write, STEERING),
            ("ListSchedules", Read, STEERING_AND_OPERATORS),
            ("DeleteSchedule", Write, STEERING),
            ("SetBackupLimits", Write, STEERING),
            ("GetBackupLimits", Read, STEERING_AND_OPERATORS),
            ("UnlockRepository", Write, STEERING),
            // These open a repository for the caller.
            ("GetRepositoryStats", Read, STEERING),
            ("ListRepositoryKeys", Read, STEERING),
            ("AddRepositoryKey", Write, STEERING),
            ("DeleteRepositoryKey", Write, STEERING),
            ("DiffBackups", Read, STEERING),
            ("ListOrphans", Read, STEERING_AND_OPERATORS),
        ],
    ),
    // The machine. Viewers look, operators also restart and turn off, admins
    // also read files, reset and upgrade.
    (
        "os.OSService",
        &[
            ("Containers", Read, STEERING_AND_OPERATORS),
            ("Dmesg", Read, STEERING_AND_OPERATORS),
            ("Memory", Read, STEERING_AND_OPERATORS),
            ("Processes", Read, STEERING_AND_OPERATORS),
            ("Restart", Write, STEERING_AND_OPERATORS),
            ("Stats", Read, STEERING_AND_OPERATORS),
        ],
    ),
    (
        "selvage.node.NodeService",
        &[
            ("WatchStats", Read, STEERING_AND_OPERATORS),
            ("WatchProcesses", Read, STEERING_AND_OPERATORS),
            ("WatchHost", Read, STEERING_AND_OPERATORS),
            ("GetHost", Read, STEERING_AND_OPERATORS),
            ("GetHistory", Read, STEERING_AND_OPERATORS),
        ],
    ),
    (
        "selvage.kubernetes.MemberService",
        &[
            ("RequestCertificates", Write, CONTROLLER),
            ("Apply", Write, CONTROLLER),
            ("GetMember", Read, CONTROLLER),
            ("WatchMember", Read, CONTROLLER),
            ("Reset", Write, CONTROLLER),
            ("ListEtcdMembers", Read, CONTROLLER),
            ("AddEtcdMember", Write, CONTROLLER),
            ("PromoteEtcdMember", Write, CONTROLLER),
            ("RemoveEtcdMember", Write, CONTROLLER),
            // All secrets of the cluster.
            ("SnapshotEtcd", ReadSecret, CONTROLLER),
            ("RestoreEtcd", Write, CONTROLLER),
            ("PutArtifact", Write, CONTROLLER),
        ],
    ),
    (
        "machine.MachineService",
        &[
            // File contents and credentials: admins and controllers.
            ("Copy", ReadSecret, STEERING),
            ("Kubeconfig", ReadSecret, STEERING),
            ("Read", ReadSecret, STEERING),
            ("List", Read, STEERING_AND_OPERATORS),
            // What tenants' programs write.
            ("Logs", ReadSecret, STEERING_AND_OPERATORS),
            ("Mounts", Read, STEERING_AND_OPERATORS),
            ("Reboot", Write, STEERING_AND_OPERATORS),
            ("Reset", Write, NOBODY_ELSE),
            ("ServiceList", Read, STEERING_AND_OPERATORS),
            ("ServiceRestart", Write, STEERING_AND_OPERATORS),
            ("ServiceStart", Write, STEERING_AND_OPERATORS),
            ("ServiceStop", Write, STEERING_AND_OPERATORS),
            ("Shutdown", Write, STEERING_AND_OPERATORS),
            ("Upgrade", Write, NOBODY_ELSE),
            ("Start", Write, STEERING_AND_OPERATORS),
            ("Stop", Write, STEERING_AND_OPERATORS),
            ("Version", Read, SIGNED_IN),
        ],
    ),
    (
        "network.NetworkService",
        &[("Routes", Read, STEERING_AND_OPERATORS), ("Interfaces", Read, STEERING_AND_OPERATORS)],
    ),
    ("time.TimeService", &[("Time", Read, SIGNED_IN), ("TimeCheck", Read, STEERING_AND_OPERATORS)]),
    (
        "securityapi.SecurityService",
        &[
            // Judges the join token in its metadata itself.
            ("Certificate", Write, ANYONE),
            ("ReadFile", ReadSecret, NOBODY_ELSE),
            ("WriteFile", Write, NOBODY_ELSE),
        ],
    ),
    // The dashboard.
    (
        "stats.StatsService",
        &[
            ("GetClusterStats", Read, &[Who::Holder(Role::Operator)]),
            ("GetClusterResources", Read, &[Who::Holder(Role::Operator)]),
            ("GetClusterNodes", Read, &[Who::Holder(Role::Operator)]),
            ("GetClusterRadar", Read, &[Who::Holder(Role::Operator)]),
        ],
    ),
    // The service shows each caller what belongs to their organisations.
    (
        "selvage.dashboard.DashboardService",
        &[
            ("GetOverview", Read, SIGNED_IN),
            ("WatchOverview", Read, SIGNED_IN),
            ("ListEvents", Read, SIGNED_IN),
            ("ListSeries", Read, SIGNED_IN),
            ("GetSeries", Read, SIGNED_IN),
            // Requests and addresses of others: admins; everybody else their own.
            ("ListAudit", ReadSecret, SIGNED_IN),
            ("GetProcess", Read, NOBODY_ELSE),
        ],
    ),
    // Identity. Logout and CheckToken judge the token themselves.
    (
        "services.auth.AuthService",
        &[("Login", Write, ANYONE), ("Logout", Write, ANYONE), ("CheckToken", Read, ANYONE)],
    ),
    (
        "selvage.identity.IdentityService",
        &[
            ("WhoAmI", Read, EVERYBODY_KNOWN),
            ("AddUser", Write, NOBODY_ELSE),
            ("ListUsers", ReadSecret, NOBODY_ELSE),
            ("UpdateUser", Write, NOBODY_ELSE),
            ("RemoveUser", Write, NOBODY_ELSE),
            // The caller's own; the service itself tells whose.
            ("SetPassword", Write, SIGNED_IN),
            ("ListSessions", ReadSecret, SIGNED_IN),
            ("RevokeSession", Write, SIGNED_IN),
            ("ListLoginProviders", Read, ANYONE),
            ("FinishLogin", Write, ANYONE),
            // The caller's own, too.
            ("CreateToken", Write, SIGNED_IN),
            ("CreateCertificate", Write, SIGNED_IN),
            ("ListCredentials", ReadSecret, SIGNED_IN),
            ("DeleteCredential", Write, SIGNED_IN),
            ("CheckCertificate", ReadSecret, EVERY_MACHINE),
            // With the certificate of a node besides; the service judges whether
            // the caller may call the method that the request names.
            ("IssueAssertions", ReadSecret, SIGNED_IN),
            ("CheckAssertion", ReadSecret, &[Who::Machine(MachineKind::Node)]),
            // The service lets operators make those of their own cloudlets.
            ("CreateJoinToken", Write, &[Who::Holder(Role::Operator)]),
            ("Join", Write, ANYONE),
            ("Renew", Write, EVERY_MACHINE),
            ("BlockMachine", Write, NOBODY_ELSE),
            ("UnblockMachine", Write, NOBODY_ELSE),
            ("ListBlockedMachines", ReadSecret, NOBODY_ELSE),
            (
                "WatchBlockedMachines",
                ReadSecret,
                &[
                    Who::Machine(MachineKind::Cloudlet),
                    Who::Machine(MachineKind::Node),
                    Who::Machine(MachineKind::Dme),
                ],
            ),
            // Said several times a minute: no audit line. Which machines are
            // blocked is in the reply.
            (
                "Report",
                ReadSecret,
                &[
                    Who::Machine(MachineKind::Cloudlet),
                    Who::Machine(MachineKind::Node),
                    Who::Machine(MachineKind::Dme),
                ],
            ),
            ("ListMachines", Read, STEERING_AND_OPERATORS),
            ("RemoveMachine", Write, NOBODY_ELSE),
        ],
    ),
    // Certificates of authorities are for everybody who has to believe them.
    (
        "selvage.pki.PkiService",
        &[
            ("Show", Read, SIGNED_IN),
            ("StartRotation", Write, NOBODY_ELSE),
            ("FinishRotation", Write, NOBODY_ELSE),
        ],
    ),
    // Long work. The service shows each caller its own.
    (
        "selvage.operations.OperationService",
        &[
            ("ListOperations", Read, SIGNED_IN),
            ("FollowOperation", Read, SIGNED_IN),
            ("CancelOperation", Write, SIGNED_IN),
        ],
    ),
    ("selvage.metrics.MetricsService", &[("ListSamples", Read, SAMPLES)]),
    ("selvage.system.SystemService", &[("GetStatus", Read, SIGNED_IN)]),
];

/// Methods that make, change or end credentials, and how far tokens and
/// certificates of people reach there. A test wants every method of
/// [`IdentityService`](selvage_api::selvage::identity) that changes something
/// to be here, or to be named in the test.
pub(super) const DELEGATES: &[(&str, Delegates)] = &[
    ("/selvage.identity.IdentityService/AddUser", Delegates::Never),
    ("/selvage.identity.IdentityService/UpdateUser", Delegates::Never),
    ("/selvage.identity.IdentityService/RemoveUser", Delegates::Never),
    ("/selvage.identity.IdentityService/SetPassword", Delegates::Never),
    ("/selvage.identity.IdentityService/ListSessions", Delegates::Never),
    ("/selvage.identity.IdentityService/RevokeSession", Delegates::Never),
    ("/selvage.identity.IdentityService/CreateToken", Delegates::Never),
    ("/selvage.identity.IdentityService/CreateCertificate", Delegates::Never),
    ("/selvage.identity.IdentityService/ListCredentials", Delegates::Never),
    ("/selvage.identity.IdentityService/DeleteCredential", Delegates::Never),
    ("/selvage.identity.IdentityService/CheckCertificate", Delegates::Never),
    ("/selvage.identity.IdentityService/UnblockMachine", Delegates::Never),
    ("/selvage.identity.IdentityService/CreateJoinToken", Delegates::IfNamed),
    ("/selvage.identity.IdentityService/BlockMachine", Delegates::IfNamed),
];

/// Limits of what machines reach by a method that is open to their kind: each
/// gets at what is its own. Controllers are not limited. A test wants a limit
/// for every method that is open to another kind.
pub(super) const OWN: &[(&str, &str)] = &[
    (
        "/cnct.kaas.api.Cluster/CreateCluster",
        "a cluster of the cloudlet, with a name of its own prefix",
    ),
    ("/cnct.kaas.api.Cluster/DeleteCluster", "clusters of the cloudlet"),
    ("/cnct.kaas.api.Cluster/GetCluster", "clusters of the cloudlet, with a kubeconfig"),
    ("/cnct.kaas.api.Cluster/GetClusterList", "clusters of the cloudlet"),
    ("/cnct.kaas.api.Cluster/ScaleNodePool", "clusters of the cloudlet"),
    ("/selvage.clusters.ClusterService/GetCluster", "clusters of the cloudlet"),
    ("/selvage.clusters.ClusterService/ListVersions", "versions on offer, which all people see"),
    ("/selvage.clusters.ClusterService/WatchCluster", "clusters of the cloudlet"),
    (
        "/edgeproto.NotifyApi/StreamNotice",
        "a cloudlet sends and receives what lies on it; a match engine sends its own state and \
         samples and receives public objects without secrets",
    ),
    (
        "/selvage.shell.ShellService/Attach",
        "with a token that was made for a command on this cloudlet",
    ),
    ("/selvage.matching.MatchingService/ListCookieKeys", "the keys that all match engines share"),
    ("/selvage.identity.IdentityService/WhoAmI", "the machine's own name"),
    ("/selvage.identity.IdentityService/Renew", "a certificate for the machine's own name"),
    (
        "/selvage.identity.IdentityService/CheckCertificate",
        "whose the certificate is that somebody showed to the machine",
    ),
    (
        "/selvage.identity.IdentityService/CheckAssertion",
        "whether the caller of a stream at this machine may go on",
    ),
    (
        "/selvage.identity.IdentityService/Report",
        "the machine's own address; the reply lists machines",
    ),
    (
        "/selvage.identity.IdentityService/WatchBlockedMachines",
        "names of machines whose certificates must not be accepted",
    ),
];
