// Lists that pages share. What the caller may not see is not asked for.
import type { CloudletKey, ClusterInstKey } from "./contract";
import { number } from "./format";
import { Resource } from "./live";
import { cloudletName } from "./keys";
import { call, list } from "./rpc";
import { isViewer, may, organisations } from "./session";

const when = <T>(allowed: () => boolean, load: () => Promise<T[]>) => async (): Promise<T[]> => (allowed() ? load() : []);

/** Memory in MB, processors, disk in GB. */
export interface CloudletUse { ram: number; vcores: number; disk: number }

/** Use by name of cloudlet. Machines of a cluster count on its cloudlet; one of docker has none, so what runs in it counts instead. */
async function loadCloudletUse(): Promise<Map<string, CloudletUse>> {
  // Operators name their organisation: they may be of several, and developers as well.
  const operators = isViewer.peek() ? [undefined] : organisations("operator");
  const ofAll = async <T>(load: (cloudlet: CloudletKey | undefined) => Promise<T[]>) =>
    (await Promise.all(operators.map((name) => load(name === undefined ? undefined : { operatorKey: { name } })))).flat();
  const [machines, clusters, contents] = await Promise.all([
    ofAll((key) => list("edgeproto.CloudletRefsApi/ShowCloudletRefs", { key })),
    ofAll((cloudletKey) => list("edgeproto.ClusterInstApi/ShowClusterInst", { key: cloudletKey && { cloudletKey } })),
    ofAll((cloudletKey) => list("edgeproto.ClusterRefsApi/ShowClusterRefs", { key: cloudletKey && { cloudletKey } })),
  ]);
  const id = (key: ClusterInstKey | undefined) => [cloudletName(key?.cloudletKey), key?.clusterKey?.name, key?.developer].join("\n");
  const withoutMachines = new Set(clusters.filter(({ numMasters, numNodes }) => !numMasters && !numNodes).map(({ key }) => id(key)));
  const containers = contents.filter(({ key }) => withoutMachines.has(id(key)));
  const use = new Map<string, CloudletUse>();
  for (const { cloudlet, refs } of [...machines.map((refs) => ({ cloudlet: refs.key, refs })), ...containers.map((refs) => ({ cloudlet: refs.key?.cloudletKey, refs }))]) {
    const { ram, vcores, disk } = use.get(cloudletName(cloudlet)) ?? { ram: 0, vcores: 0, disk: 0 };
    use.set(cloudletName(cloudlet), { ram: ram + number(refs.usedRam), vcores: vcores + number(refs.usedVcores), disk: disk + number(refs.usedDisk) });
  }
  return use;
}

export const apps = new Resource(when(may.seeApps, () => list("edgeproto.AppApi/ShowApp", {})));
export const instances = new Resource(when(may.seeApps, () => list("edgeproto.AppInstApi/ShowAppInst", {})), 3000);
export const clusterInsts = new Resource(when(may.seeApps, () => list("edgeproto.ClusterInstApi/ShowClusterInst", {})));
export const cloudlets = new Resource(() => list("edgeproto.CloudletApi/ShowCloudlet", {}));
export const flavors = new Resource(() => list("edgeproto.FlavorApi/ShowFlavor", {}), 30000);
export const operators = new Resource(() => list("edgeproto.OperatorApi/ShowOperator", {}), 30000);
export const developers = new Resource(when(may.changeApps, () => list("edgeproto.DeveloperApi/ShowDeveloper", {})), 30000);
/** Developers may not see how cloudlets are; they see the places of the overview. */
export const cloudletInfos = new Resource(when(may.seeCloudletUse, () => list("edgeproto.CloudletInfoApi/ShowCloudletInfo", {})));
export const cloudletUse = new Resource(async () => (may.seeCloudletUse() ? loadCloudletUse() : new Map<string, CloudletUse>()));
export const machines = new Resource(when(may.seeMachines, async () => (await call("selvage.identity.IdentityService/ListMachines", {})).machines ?? []));
export const operations = new Resource(async () => (await call("selvage.operations.OperationService/ListOperations", {})).operations ?? [], 3000);
export const users = new Resource(async () => (await call("selvage.identity.IdentityService/ListUsers", {})).users ?? [], 15000);
export const volumes = new Resource(async () => (await call("selvage.volumes.VolumesService/ListVolumes", {})).volumes ?? []);
export const deviceClasses = new Resource(async () => (await call("selvage.volumes.VolumesService/ListDeviceClasses", {})).deviceClasses ?? []);
/** null where this server has no such part. */
export const kubeClusters = new Resource(async () => {
  const { parts } = await call("selvage.system.SystemService/GetStatus", {});
  if (!may.seeKubernetes() || !parts?.some(({ name, state }) => name === "kaas" && state === "serving")) return null;
  return (await call("cnct.kaas.api.Cluster/GetClusterList", {})).clusters ?? [];
});
