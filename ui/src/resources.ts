// Lists that pages share. What the caller may not see is not asked for.
import { Resource } from "./live";
import { call, list } from "./rpc";
import { may } from "./session";

const when = <T>(allowed: () => boolean, load: () => Promise<T[]>) => async (): Promise<T[]> => (allowed() ? load() : []);

export const apps = new Resource(when(may.seeApps, () => list("edgeproto.AppApi/ShowApp", {})));
export const instances = new Resource(when(may.seeApps, () => list("edgeproto.AppInstApi/ShowAppInst", {})), 3000);
export const clusterInsts = new Resource(when(may.seeApps, () => list("edgeproto.ClusterInstApi/ShowClusterInst", {})));
export const cloudlets = new Resource(() => list("edgeproto.CloudletApi/ShowCloudlet", {}));
export const flavors = new Resource(() => list("edgeproto.FlavorApi/ShowFlavor", {}), 30000);
export const operators = new Resource(() => list("edgeproto.OperatorApi/ShowOperator", {}), 30000);
export const developers = new Resource(when(may.changeApps, () => list("edgeproto.DeveloperApi/ShowDeveloper", {})), 30000);
/** Developers may not see how cloudlets are; they see the places of the overview. */
export const cloudletInfos = new Resource(when(may.seeCloudletUse, () => list("edgeproto.CloudletInfoApi/ShowCloudletInfo", {})));
export const cloudletRefs = new Resource(when(may.seeCloudletUse, () => list("edgeproto.CloudletRefsApi/ShowCloudletRefs", {})));
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
