// Keys of objects: as one text, as an address, and back.
import type { AppInst, AppInstKey, AppKey, CloudletKey, ClusterInstKey, Operation, Thing } from "./contract";
import { to } from "./router";

export const appName = (key: AppKey | undefined) => `${key?.name ?? ""} ${key?.version ?? ""}`.trim();
export const developerOf = (key: AppKey | undefined) => key?.developerKey?.name ?? "";
export const cloudletName = (key: CloudletKey | undefined) => `${key?.operatorKey?.name ?? ""}/${key?.name ?? ""}`;

export const appHref = (key: AppKey | undefined) => to("apps", developerOf(key), key?.name, key?.version);
export const cloudletHref = (key: CloudletKey | undefined) => to("cloudlets", key?.operatorKey?.name, key?.name);
export const machineHref = (name: string | undefined) => to("machines", ...(name ?? "").split("/"));

const instanceParts = (key: AppInstKey | undefined): string[] => [
  developerOf(key?.appKey), key?.appKey?.name ?? "", key?.appKey?.version ?? "",
  key?.clusterInstKey?.cloudletKey?.operatorKey?.name ?? "", key?.clusterInstKey?.cloudletKey?.name ?? "",
  key?.clusterInstKey?.clusterKey?.name ?? "", key?.clusterInstKey?.developer ?? "",
];

export const instanceId = (instance: AppInst) => instanceParts(instance.key).join("\n");
export const instanceHref = (key: AppInstKey | undefined) => to("instances", ...instanceParts(key));

/** Key of the instance that an address names. */
export function instanceKey(parts: string[]): AppInstKey {
  const [developer, name, version, operator, cloudlet, cluster, clusterDeveloper] = parts;
  return {
    appKey: { developerKey: { name: developer }, name, version },
    clusterInstKey: clusterKey(operator, cloudlet, cluster, clusterDeveloper),
  };
}

export function clusterKey(operator = "", cloudlet = "", cluster = "", developer = ""): ClusterInstKey {
  return { clusterKey: { name: cluster }, cloudletKey: { operatorKey: { name: operator }, name: cloudlet }, developer };
}

/** An instance's key as its operations carry it. */
export function sameInstance(operationKey: string | undefined, key: AppInstKey | undefined): boolean {
  return JSON.stringify(instanceParts(parsed<AppInstKey>(operationKey))) === JSON.stringify(instanceParts(key));
}

function parsed<T>(text: string | undefined): T | undefined {
  try {
    return camel(JSON.parse(text ?? "")) as T;
  } catch {
    return undefined;
  }
}

/** Names as JSON has them, also where the proto file's are used. */
function camel(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(camel);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()), camel(inner)]));
}

const VERBS: Record<string, string> = { Create: "Create", Update: "Update", Delete: "Delete", Refresh: "Refresh" };
const NOUNS: Record<string, string> = { AppInst: "instance", ClusterInst: "cluster", Cloudlet: "cloudlet", App: "app" };

/** "Create instance" of "CreateAppInst"; what is not known stays as it is. */
function operationKind(kind = ""): string {
  const [, verb = "", noun = ""] = /^([A-Z][a-z]+)([A-Z]\w*)$/.exec(kind) ?? [];
  return VERBS[verb] && NOUNS[noun] ? `${VERBS[verb]} ${NOUNS[noun]}` : kind;
}

/** The object of an operation as people call it, and its page. */
function operationObject({ kind = "", key }: Operation): { name: string; href?: string } {
  const found = parsed<Partial<AppInstKey & ClusterInstKey & CloudletKey>>(key);
  if (kind.endsWith("AppInst") && found?.appKey) return { name: `${appName(found.appKey)} on ${cloudletName(found.clusterInstKey?.cloudletKey)}`, href: instanceHref(found) };
  if (kind.endsWith("ClusterInst") && found?.clusterKey) return { name: `${found.clusterKey.name} on ${cloudletName(found.cloudletKey)}`, href: "#/clusters" };
  if (kind.endsWith("Cloudlet") && found?.operatorKey) return { name: cloudletName(found), href: cloudletHref(found) };
  return { name: (key ?? "").replace(/[{}"]/g, " ").trim() };
}

export const operationWords = (operation: Operation) => ({ verb: operationKind(operation.kind), ...operationObject(operation) });

export function operationText(operation: Operation): string {
  const { verb, name } = operationWords(operation);
  return `${verb} ${name}`;
}

const NOUNS_OF_THINGS: Record<string, string> = { appinst: "Instance", clusterinst: "Cluster", cloudlet: "Cloudlet", kaas: "Kubernetes cluster", machine: "Machine" };
const DONE: Record<string, string> = { creating: "created", updating: "updated", deleting: "deleted" };

/** Name of something as people call it. */
function thingName(thing: Thing): string {
  const key = parsed<Partial<AppInstKey & ClusterInstKey>>(thing.key);
  if (thing.kind === "appinst" && key?.appKey) return `${appName(key.appKey)} on ${cloudletName(key.clusterInstKey?.cloudletKey)}`;
  if (thing.kind === "clusterinst" && key?.clusterKey) return `${key.clusterKey.name} on ${cloudletName(key.cloudletKey)}`;
  return thing.name ?? "";
}

/** A sentence of the server's about something, with its noun and the name that people call it by. */
export function sentenceAbout(thing: Thing | undefined, text = ""): string {
  if (!thing?.name) return text;
  const noun = NOUNS_OF_THINGS[thing.kind ?? ""];
  const whole = noun && text.startsWith(thing.name) ? `${noun} ${text}` : text;
  return whole.replace(thing.name, () => thingName(thing))
    .replace(/ is (creating|updating|deleting)$/, (_, word: string) => ` is being ${DONE[word]}`)
    .replace(/ is joined$/, " joined");
}

/** Page about something that the overview names. */
export function thingHref(thing: Thing | undefined): string | undefined {
  switch (thing?.kind) {
    case "appinst": {
      const key = parsed<AppInstKey>(thing.key);
      return key ? instanceHref(key) : "#/instances";
    }
    case "clusterinst": return "#/clusters";
    case "kaas": return to("clusters", thing.name);
    case "filesystem": case "exporter": return "#/machines";
    case "cloudlet": {
      const key = parsed<CloudletKey>(thing.key);
      return key ? cloudletHref(key) : "#/cloudlets";
    }
    // A machine that has not joined is the server's own.
    case "machine": return thing.name?.includes("/") ? machineHref(thing.name) : "#/machines/here";
    case "certificate": return "#/machines";
    case "volume_group": return "#/volumes";
    case "backup": return "#/volumes";
    case "operation": return "#/operations";
    case "store": case "source": case "process": return "#/about";
    default: return undefined;
  }
}
