// Lists that pages share.
import { Resource } from "./live";
import { call, CallError, list } from "./rpc";

export const apps = new Resource(() => list("edgeproto.AppApi/ShowApp", {}));
export const instances = new Resource(() => list("edgeproto.AppInstApi/ShowAppInst", {}), 3000);
export const clusterInsts = new Resource(() => list("edgeproto.ClusterInstApi/ShowClusterInst", {}));
export const cloudlets = new Resource(() => list("edgeproto.CloudletApi/ShowCloudlet", {}));
export const flavors = new Resource(() => list("edgeproto.FlavorApi/ShowFlavor", {}), 30000);
export const operators = new Resource(() => list("edgeproto.OperatorApi/ShowOperator", {}), 30000);
export const developers = new Resource(() => orNothing(list("edgeproto.DeveloperApi/ShowDeveloper", {})), 30000);
/** Developers may not see how cloudlets are; they see the places of the overview. */
export const cloudletInfos = new Resource(() => orNothing(list("edgeproto.CloudletInfoApi/ShowCloudletInfo", {})));
export const cloudletRefs = new Resource(() => orNothing(list("edgeproto.CloudletRefsApi/ShowCloudletRefs", {})));
export const machines = new Resource(async () => (await call("selvage.identity.IdentityService/ListMachines", {})).machines ?? []);
export const operations = new Resource(async () => (await call("selvage.operations.OperationService/ListOperations", {})).operations ?? [], 3000);
export const users = new Resource(async () => (await call("selvage.identity.IdentityService/ListUsers", {})).users ?? [], 15000);
export const volumes = new Resource(async () => (await call("selvage.volumes.VolumesService/ListVolumes", {})).volumes ?? []);
export const deviceClasses = new Resource(async () => (await call("selvage.volumes.VolumesService/ListDeviceClasses", {})).deviceClasses ?? []);

/** What the caller may not see is as good as not there. */
async function orNothing<T>(rows: Promise<T[]>): Promise<T[]> {
  return rows.catch((error: unknown) => {
    if (error instanceof CallError && error.code === "permission_denied") return [];
    throw error;
  });
}
