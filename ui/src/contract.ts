// What the page uses of the contracts under proto/, in the JSON form of
// proto3: lowerCamelCase, zero values left out, 64-bit numbers as text, times
// in RFC 3339. tests/browser checks every name here against /openapi.json.

export type Time = string;
export type Big = string | number;

export interface Named { name?: string }
export interface Grant { role?: string; organisation?: string }
export interface User { username?: string; grants?: Grant[]; disabled?: boolean; createdAt?: Time; passwordChangedAt?: Time; source?: string }
export interface Session { id?: string; username?: string; createdAt?: Time; lastUsedAt?: Time; expires?: Time; peer?: string; kind?: string; current?: boolean }
export interface Credential {
  id?: string; kind?: string; name?: string; username?: string; grants?: Grant[]; methods?: string[]; createdAt?: Time; expires?: Time; lastUsedAt?: Time; createdBy?: string;
}
export interface WhoAmI { name?: string; kind?: string; grants?: Grant[]; expires?: Time; firstPassword?: boolean; idleEnd?: Time }
export interface Machine {
  machine?: string; address?: string; labels?: Record<string, string>; joinedAt?: Time; lastSeen?: Time;
  certificateEnds?: Time; blocked?: boolean; version?: string;
}

export interface AppKey { developerKey?: Named; name?: string; version?: string }
export interface App {
  fields?: string[]; key?: AppKey; imagePath?: string; imageType?: string; accessPorts?: string; defaultFlavor?: Named;
  command?: string; deployment?: string; deploymentManifest?: string; deploymentGenerator?: string;
  configs?: { kind?: string; config?: string }[]; delOpt?: string;
}
export interface CloudletKey { operatorKey?: Named; name?: string }
export interface ClusterInstKey { clusterKey?: Named; cloudletKey?: CloudletKey; developer?: string }
export interface AppInstKey { appKey?: AppKey; clusterInstKey?: ClusterInstKey }
export interface AppPort { proto?: string; internalPort?: number; publicPort?: number; pathPrefix?: string; fqdnPrefix?: string }
export interface Location { latitude?: number; longitude?: number }
export interface AppInst {
  fields?: string[]; key?: AppInstKey; cloudletLoc?: Location; uri?: string; liveness?: string; mappedPorts?: AppPort[];
  flavor?: Named; state?: string; errors?: string[]; crmOverride?: string;
  runtimeInfo?: { containerIds?: string[]; addresses?: string[]; unhealthy?: string };
  createdAt?: { seconds?: Big; nanos?: number };
}
export interface ClusterInst {
  key?: ClusterInstKey; flavor?: Named; state?: string; errors?: string[]; ipAccess?: string; allocatedIp?: string;
  liveness?: string; auto?: boolean; nodeFlavor?: string; numMasters?: number; numNodes?: number; deployment?: string;
}
export interface Cloudlet {
  fields?: string[]; key?: CloudletKey; accessUri?: string; location?: Location; ipSupport?: string; staticIps?: string; numDynamicIps?: number;
}
export interface CloudletInfo {
  key?: CloudletKey; state?: string; osMaxRam?: Big; osMaxVcores?: Big; osMaxVolGb?: Big; errors?: string[]; dnsZone?: string;
}
export interface CloudletRefs { key?: CloudletKey; clusters?: Named[]; usedRam?: Big; usedVcores?: Big; usedDisk?: Big; usedDynamicIps?: number }
export interface ClusterRefs { key?: ClusterInstKey; usedRam?: Big; usedVcores?: Big; usedDisk?: Big }
export interface Flavor { key?: Named; ram?: Big; vcpus?: Big; disk?: Big }
export interface Result { message?: string }
export interface Keyed { key?: Named }
export interface ExecRequest {
  appInstKey?: AppInstKey; words?: string[]; terminal?: boolean; containerId?: string;
  logs?: { follow?: boolean; tail?: Big }; answer?: string; err?: string;
}

export interface Operation {
  id?: string; kind?: string; key?: string; organisation?: string; startedBy?: string; state?: string; step?: string;
  stepsDone?: number; stepsTotal?: number; error?: string; cancelling?: boolean; startedAt?: Time; updatedAt?: Time;
}

export interface Metadata { hostname?: string; error?: string }
export interface ProcessInfo {
  pid?: number; ppid?: number; state?: string; threads?: number; cpuTime?: number; residentMemory?: Big; command?: string; args?: string;
}
export interface ContainerInfo { namespace?: string; id?: string; image?: string; pid?: number; status?: string; podId?: string; name?: string; problem?: string }
export interface Host {
  metadata?: Metadata; time?: Time; name?: string; started?: Time; cpuPercent?: number; cpus?: unknown[];
  load1?: number; load5?: number; load15?: number; memory?: { memtotal?: Big; memavailable?: Big };
  filesystems?: { device?: string; mountedOn?: string; kind?: string; sizeBytes?: Big; availableBytes?: Big }[];
  interfaces?: { name?: string; receivedBytes?: Big; sentBytes?: Big }[];
  disks?: { name?: string; readBytes?: Big; writtenBytes?: Big }[];
  runningProcesses?: Big;
}
export interface History {
  metadata?: Metadata; times?: Big[]; cpu?: Big[]; memory?: Big[]; receivedBytes?: Big[]; sentBytes?: Big[];
}
export interface ServiceInfo { id?: string; state?: string; health?: { unknown?: boolean; healthy?: boolean; lastMessage?: string } }

export interface Volume {
  name?: string; deviceClass?: string; group?: string; sizeBytes?: Big; tags?: string[]; path?: string; pool?: string;
  origin?: string; readOnly?: boolean; pending?: boolean; devMajor?: number; devMinor?: number;
}
export interface DeviceClass { name?: string; group?: string; pool?: string; default?: boolean; sizeBytes?: Big; freeBytes?: Big; usedBytes?: Big; missing?: boolean }
export interface Repository { path?: string; endpoint?: string; accessKeyId?: string; secretAccessKey?: string; encryptionKey?: string; credentials?: string }
export interface BackupJob {
  id?: string; kind?: string; state?: string; name?: string; volume?: string; repository?: string; phase?: string; message?: string;
  error?: string; totalBytes?: Big; doneBytes?: Big; bytesPerSecond?: Big; secondsLeft?: Big; snapshot?: string; startedAt?: Time; endedAt?: Time;
}
export interface Retention { last?: number; hourly?: number; daily?: number; weekly?: number; monthly?: number; yearly?: number }
export interface Schedule {
  name?: string; volume?: string; repository?: Repository; everySeconds?: Big; offsetSeconds?: Big; keep?: Retention; lastJob?: string;
  nextAt?: Time; error?: string; verifyEverySeconds?: Big; verifyReadPercent?: number; verifiedAt?: Time; verifyReport?: string;
}
export interface StoredBackup { snapshot?: string; name?: string; volume?: string; sizeBytes?: Big; hostname?: string; time?: Time }

export type Severity = "OK" | "NOTICE" | "WARNING" | "CRITICAL";
export interface Thing { kind?: string; name?: string; key?: string; organisation?: string }
export interface Problem {
  id?: string; rule?: string; severity?: Severity; object?: Thing; summary?: string; detail?: string; since?: Time;
  command?: string; runbook?: string; source?: string;
}
export interface Reason { rule?: string; object?: Thing; text?: string; command?: string; points?: number }
export interface Mark { name?: string; value?: number; reasons?: Reason[] }
export interface Count { kind?: string; total?: number; healthy?: number; states?: Record<string, number> }
export interface Capacity {
  name?: string; object?: Thing; usedBytes?: Big; availableBytes?: Big; totalBytes?: Big; nearFull?: number; full?: number;
  bytesPerDay?: number; fullAt?: Time; fullEarliest?: Time; fullLatest?: Time; knownFor?: string;
}
export interface Source { name?: string; section?: string; fetchedAt?: Time; stale?: boolean; error?: string }
export interface Place {
  cloudlet?: Thing; latitude?: number; longitude?: number; state?: string; severity?: Severity; instances?: number; readyInstances?: number;
}
export interface Overview {
  version?: Big; time?: Time; verdict?: { severity?: Severity; sentence?: string }; problems?: Problem[]; problemsTotal?: number;
  counts?: Count[]; radar?: Mark[]; capacity?: Capacity[]; sources?: Source[]; places?: Place[];
}
export interface Happening { id?: string; time?: Time; what?: string; object?: Thing; text?: string; state?: string; severity?: Severity }
export interface OverviewUpdate {
  version?: Big; time?: Time; changed?: string[]; overview?: Overview; problems?: Problem[]; problemsEnded?: string[]; events?: Happening[];
}
export interface Series { name?: string; unit?: string; object?: Thing; times?: Big[]; values?: number[]; lows?: number[]; highs?: number[] }
export interface AuditLine {
  id?: string; time?: Time; who?: string; peer?: string; protocol?: string; method?: string; code?: string; request?: string; why?: string; outcome?: string; requestId?: string;
}
export interface OwnProcess {
  version?: string; commit?: string; startedAt?: Time; residentBytes?: Big; cpuSeconds?: number;
  tasks?: { name?: string; state?: string; restarts?: Big }[]; watchers?: number; operations?: number; stuckOperations?: number;
  auditDays?: number; auditLines?: Big;
}
export interface Status {
  version?: string; commit?: string; parts?: { name?: string; state?: string; services?: string[] }[]; store?: string;
  storeRevision?: Big; uptimeSeconds?: Big; insecure?: boolean; storeFailure?: string; reconcilers?: Reconciler[];
}
export interface Reconciler { name?: string; runs?: Big; failures?: Big; running?: boolean; queue?: Big; lastRun?: Big; lastError?: string; failing?: number }

export interface KubeCluster { name?: string; statusMessage?: string; status?: string }
export interface KubeDetails {
  name?: string; organisation?: string; createdBy?: string; createdAt?: Time; version?: string; status?: string; statusMessage?: string;
  uid?: string; endpoint?: string; provider?: string; paused?: boolean; hibernated?: boolean;
  conditions?: { type?: string; status?: boolean; reason?: string; message?: string; since?: Time }[];
  pools?: KubePool[]; machines?: KubeMachine[];
}
export interface KubePool { name?: string; instanceType?: string; count?: number; ready?: number; labels?: Record<string, string>; deleting?: boolean }
export interface KubeMachine {
  name?: string; pool?: string; phase?: string; since?: Time; message?: string; version?: string; targetVersion?: string; hostname?: string; address?: string;
}
export interface KubeBackup { id?: string; cluster?: string; clusterUid?: string; organisation?: string; takenAt?: Time; version?: string; size?: Big; reason?: string }
export interface QuarantinedMachine { providerId?: string; hostname?: string; failures?: number; reason?: string; failedAt?: Time; cluster?: string }
export interface NodePool { name?: string; instanceType?: string; count?: number }
export interface NodeLabel { name?: string; value?: string }
export interface NewPool extends NodePool { labels?: NodeLabel[] }

type Empty = Record<string, never>;

/** Request and reply of every method that the page calls. */
export interface Methods {
  "services.auth.AuthService/Login": [{ username: string; password: string }, { expires?: unknown }];
  "services.auth.AuthService/Logout": [Empty, Empty];
  "selvage.identity.IdentityService/WhoAmI": [Empty, WhoAmI];
  "selvage.identity.IdentityService/ListUsers": [Empty, { users?: User[] }];
  "selvage.identity.IdentityService/AddUser": [{ user: User; password?: string }, { user?: User; generatedPassword?: string }];
  "selvage.identity.IdentityService/UpdateUser": [{ username: string; grants: Grant[]; disabled?: boolean }, { user?: User }];
  "selvage.identity.IdentityService/RemoveUser": [{ username: string }, Empty];
  "selvage.identity.IdentityService/SetPassword": [{ username?: string; currentPassword?: string; newPassword: string }, { sessionsEnded?: number }];
  "selvage.identity.IdentityService/ListSessions": [{ username?: string }, { sessions?: Session[] }];
  "selvage.identity.IdentityService/RevokeSession": [{ id: string }, Empty];
  "selvage.identity.IdentityService/CreateToken": [{ name: string; username?: string; grants: Grant[]; methods?: string[]; ttlSeconds?: number }, { credential?: Credential; token?: string }];
  "selvage.identity.IdentityService/ListCredentials": [{ username?: string }, { credentials?: Credential[] }];
  "selvage.identity.IdentityService/DeleteCredential": [{ id: string }, Empty];
  "selvage.identity.IdentityService/CreateJoinToken": [{ machine: string; ttlSeconds?: number; names?: string[] }, { token?: string; expires?: Time; caSha256?: string }];
  "selvage.identity.IdentityService/ListMachines": [{ selector?: string }, { machines?: Machine[] }];
  "selvage.identity.IdentityService/RemoveMachine": [{ machine: string }, Empty];
  "selvage.identity.IdentityService/BlockMachine": [{ machine: string }, Empty];
  "selvage.identity.IdentityService/UnblockMachine": [{ machine: string }, Empty];
  "edgeproto.AppApi/ShowApp": [App, App];
  "edgeproto.AppApi/CreateApp": [App, Result];
  "edgeproto.AppApi/UpdateApp": [App, Result];
  "edgeproto.AppApi/DeleteApp": [App, Result];
  "edgeproto.AppInstApi/ShowAppInst": [AppInst, AppInst];
  "edgeproto.AppInstApi/CreateAppInst": [AppInst, Result];
  "edgeproto.AppInstApi/UpdateAppInst": [AppInst, Result];
  "edgeproto.AppInstApi/DeleteAppInst": [AppInst, Result];
  "edgeproto.ClusterInstApi/ShowClusterInst": [ClusterInst, ClusterInst];
  "edgeproto.ClusterInstApi/CreateClusterInst": [ClusterInst, Result];
  "edgeproto.ClusterInstApi/DeleteClusterInst": [ClusterInst, Result];
  "edgeproto.CloudletApi/ShowCloudlet": [Cloudlet, Cloudlet];
  "edgeproto.CloudletApi/CreateCloudlet": [Cloudlet, Result];
  "edgeproto.CloudletApi/UpdateCloudlet": [Cloudlet, Result];
  "edgeproto.CloudletApi/DeleteCloudlet": [Cloudlet, Result];
  "edgeproto.CloudletInfoApi/ShowCloudletInfo": [CloudletInfo, CloudletInfo];
  "edgeproto.CloudletRefsApi/ShowCloudletRefs": [CloudletRefs, CloudletRefs];
  "edgeproto.ClusterRefsApi/ShowClusterRefs": [ClusterRefs, ClusterRefs];
  "edgeproto.FlavorApi/ShowFlavor": [Flavor, Flavor];
  "edgeproto.FlavorApi/CreateFlavor": [Flavor, Result];
  "edgeproto.FlavorApi/DeleteFlavor": [Flavor, Result];
  "edgeproto.OperatorApi/ShowOperator": [Keyed, Keyed];
  "edgeproto.OperatorApi/CreateOperator": [Keyed, Result];
  "edgeproto.DeveloperApi/ShowDeveloper": [Keyed, Keyed];
  "edgeproto.DeveloperApi/CreateDeveloper": [Keyed, Result];
  "edgeproto.ExecApi/RunCommand": [ExecRequest, ExecRequest];
  "selvage.operations.OperationService/ListOperations": [{ active?: boolean; kind?: string; key?: string }, { operations?: Operation[] }];
  "selvage.operations.OperationService/FollowOperation": [{ id: string }, { message?: string; operation?: Operation }];
  "selvage.operations.OperationService/CancelOperation": [{ id: string }, { operation?: Operation }];
  "selvage.metrics.MetricsService/ListSamples": [{ name?: string; tags?: Record<string, string>; since?: Time; limit?: number }, {
    name?: string; timestamp?: Time; tags?: { name?: string; val?: string }[]; vals?: { name?: string; dval?: number; ival?: Big }[];
  }];
  "selvage.system.SystemService/GetStatus": [Empty, Status];
  "selvage.node.NodeService/WatchHost": [{ period?: string }, Host];
  "selvage.node.NodeService/WatchProcesses": [{ period?: string }, { metadata?: Metadata; time?: Time; changed?: ProcessInfo[]; gone?: number[] }];
  "os.OSService/Containers": [{ namespace: string; driver?: string }, { messages?: { metadata?: Metadata; containers?: ContainerInfo[] }[] }];
  "os.OSService/Dmesg": [{ follow?: boolean; last?: number }, { metadata?: Metadata; bytes?: string }];
  "os.OSService/Restart": [{ namespace: string; id: string; driver?: string }, { messages?: { metadata?: Metadata }[] }];
  "machine.MachineService/ServiceList": [Empty, { messages?: { metadata?: Metadata; services?: ServiceInfo[] }[] }];
  "machine.MachineService/ServiceRestart": [{ id: string }, { messages?: { metadata?: Metadata }[] }];
  "machine.MachineService/Reboot": [Empty, { messages?: { metadata?: Metadata }[] }];
  "proto.LVService/CreateLV": [{ name: string; sizeGb: string; tags?: string[]; deviceClass?: string }, unknown];
  "proto.LVService/RemoveLV": [{ name: string; deviceClass?: string }, unknown];
  "proto.LVService/ResizeLV": [{ name: string; sizeGb: string; deviceClass?: string }, unknown];
  "selvage.volumes.VolumesService/ListVolumes": [Empty, { volumes?: Volume[] }];
  "selvage.volumes.VolumesService/ListDeviceClasses": [Empty, { deviceClasses?: DeviceClass[] }];
  "selvage.volumes.VolumesService/CreateSnapshot": [{ source: string; name: string; deviceClass?: string }, Volume];
  "selvage.volumes.BackupsService/ListBackups": [{ repository?: Repository; volume?: string }, { jobs?: BackupJob[]; backups?: StoredBackup[] }];
  "selvage.volumes.BackupsService/StartBackup": [{ name: string; volume: string; repository: Repository }, BackupJob];
  "selvage.volumes.BackupsService/DeleteBackup": [{ repository: Repository }, { backup?: StoredBackup }];
  "selvage.volumes.BackupsService/ListSchedules": [Empty, { schedules?: Schedule[] }];
  "selvage.volumes.BackupsService/SetSchedule": [{ schedule: Schedule }, Schedule];
  "selvage.volumes.BackupsService/DeleteSchedule": [{ name: string }, Empty];
  "selvage.volumes.BackupsService/StartRestore": [{ repository: Repository; volume: string; deviceClass?: string }, BackupJob];
  "selvage.volumes.BackupsService/CancelBackup": [{ id: string }, BackupJob];
  "selvage.volumes.BackupsService/WatchBackup": [{ id: string }, BackupJob];
  "cnct.kaas.api.Cluster/GetClusterList": [Empty, { clusters?: KubeCluster[] }];
  "cnct.kaas.api.Cluster/GetCluster": [{ name: string }, { cluster?: KubeCluster & { kubeconfig?: string } }];
  "cnct.kaas.api.Cluster/GetUpgradeClusterInformation": [{ name: string }, { versions?: string[] }];
  "cnct.kaas.api.Cluster/CreateCluster": [{ name: string; k8sVersion?: string; controlPlaneNodes: Omit<NodePool, "name">; workerNodePools: NewPool[] }, { cluster?: KubeCluster }];
  "cnct.kaas.api.Cluster/DeleteCluster": [{ name: string }, { status?: string }];
  "cnct.kaas.api.Cluster/UpgradeCluster": [{ name: string; version: string }, { ok?: boolean }];
  "cnct.kaas.api.Cluster/AddNodePool": [{ clusterName: string; workerNodePools: NewPool[] }, { ok?: boolean }];
  "cnct.kaas.api.Cluster/DeleteNodePool": [{ clusterName: string; nodePoolNames: string[] }, { ok?: boolean }];
  "cnct.kaas.api.Cluster/ScaleNodePool": [{ clusterName: string; nodePools: { name: string; count: number }[] }, { ok?: boolean }];
  "selvage.clusters.ClusterService/WatchCluster": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/ListEvents": [{ name: string }, { events?: { at?: Time; machine?: string; message?: string }[] }];
  "selvage.clusters.ClusterService/PlanCluster": [{
    name: string; version?: string; controlPlaneCount?: number; pools?: NodePool[]; deletePools?: string[]; delete?: boolean;
  }, { steps?: string[] }];
  "selvage.clusters.ClusterService/PauseCluster": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/ResumeCluster": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/AbortUpgrade": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/HibernateCluster": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/WakeCluster": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/RotateCertificates": [{ name: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/BackupCluster": [{ name: string }, { backup?: KubeBackup }];
  "selvage.clusters.ClusterService/ListBackups": [{ name?: string }, { backups?: KubeBackup[] }];
  "selvage.clusters.ClusterService/DeleteBackup": [{ id: string }, Empty];
  "selvage.clusters.ClusterService/RestoreCluster": [{ id: string; name?: string }, { cluster?: KubeDetails }];
  "selvage.clusters.ClusterService/ListQuarantinedMachines": [Empty, { machines?: QuarantinedMachine[] }];
  "selvage.clusters.ClusterService/ReleaseQuarantinedMachine": [{ providerId: string }, Empty];
  "selvage.clusters.ClusterService/ListVersions": [Empty, { versions?: { kubernetes?: string; etcd?: string; containerd?: string; coredns?: string }[]; provider?: string; problem?: string }];
  "selvage.dashboard.DashboardService/WatchOverview": [{ eventsSince?: Time }, OverviewUpdate];
  "selvage.dashboard.DashboardService/ListEvents": [{ since?: Time; kind?: string; name?: string; limit?: number }, { events?: Happening[] }];
  "selvage.dashboard.DashboardService/GetSeries": [{ names: string[]; kind?: string; name?: string; range?: string; step?: string }, { series?: Series[] }];
  "selvage.dashboard.DashboardService/ListAudit": [{ who?: string; method?: string; text?: string; outcome?: string; since?: Time; pageSize?: number; pageToken?: string }, { lines?: AuditLine[]; nextPageToken?: string }];
  "selvage.dashboard.DashboardService/GetProcess": [Empty, OwnProcess];
}

export type Method = keyof Methods;
export type Request<M extends Method> = Methods[M][0];
export type Reply<M extends Method> = Methods[M][1];
