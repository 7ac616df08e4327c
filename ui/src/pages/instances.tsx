// Instances: apps that run.
import type { AppInst, AppPort } from "../contract";
import { number, plain } from "../format";
import { appName, cloudletName, developerOf, instanceHref, instanceId } from "../keys";
import { Badge, Empty, Trouble, Waiting, When } from "../parts/bits";
import { Filter, Table, type Column } from "../parts/table";
import { instances } from "../resources";
import { query, setQuery } from "../router";
import { may } from "../session";
import { tracked } from "../states";
import { Page } from "./frame";
import { NewInstance } from "./instance-form";

const created = (one: AppInst) => number(one.createdAt?.seconds) * 1000;

export const instanceColumns: Column<AppInst>[] = [
  { title: "App", value: (one) => appName(one.key?.appKey) },
  { title: "Cloudlet", value: (one) => cloudletName(one.key?.clusterInstKey?.cloudletKey) },
  { title: "State", value: (one) => tracked(one.state, one.runtimeInfo?.unhealthy).word, show: (one) => <Badge state={tracked(one.state, one.runtimeInfo?.unhealthy)} title={one.runtimeInfo?.unhealthy || one.errors?.join("\n")} /> },
  { title: "Developer", value: (one) => developerOf(one.key?.appKey), wide: true },
  { title: "Address", value: (one) => links(one)[0]?.text ?? "", show: (one) => <FirstLink instance={one} />, wide: true },
  { title: "Cluster", value: (one) => one.key?.clusterInstKey?.clusterKey?.name ?? "", wide: true },
  { title: "Created", value: created, show: (one) => <When time={created(one) || undefined} fallback="" />, wide: true },
];

export interface PortLink { text: string; href?: string }

/** Where clients reach an instance: each public port, by address where one is known, else by name. */
export function links(instance: AppInst): PortLink[] {
  const hosts = instance.runtimeInfo?.addresses ?? [];
  return hosts.length > 0 ? ports(instance, () => hosts) : named(instance);
}

/** The same by the names that match engines tell devices, and that this system's name server knows. */
export function named(instance: AppInst): PortLink[] {
  return instance.uri ? ports(instance, (port) => [`${port.fqdnPrefix ?? ""}${instance.uri}`]) : [];
}

function ports(instance: AppInst, hosts: (port: AppPort) => string[]): PortLink[] {
  return (instance.mappedPorts ?? []).flatMap((port) => {
    const kind = (port.proto ?? "").replace("L_PROTO_", "").toLowerCase();
    const names = hosts(port);
    return names.map((name) => {
      const host = name.includes(":") && !name.startsWith("[") ? `[${name}]` : name;
      const text = `${kind}://${host}:${port.publicPort}${port.pathPrefix ? `/${port.pathPrefix}` : ""}`;
      const href = browsable(text);
      return { text: plain(href ?? text, 160), href };
    });
  });
}

/** An address of http on tcp; anything else, such as a script, is no link. */
function browsable(address: string): string | undefined {
  const [, kind, host, port, rest = ""] = /^(?:(tcp|udp|http):\/\/)?([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(\d+)(\/[\w./-]*)?$/.exec(address) ?? [];
  if (!host || kind === "udp") return undefined;
  const secure = port === "443";
  return `${secure ? "https" : "http"}://${host}${port === "80" || port === "443" ? "" : `:${port}`}${rest || "/"}`;
}

function FirstLink({ instance }: { instance: AppInst }) {
  const [first] = links(instance);
  if (!first) return <span class="soft">none</span>;
  return first.href ? <a href={first.href} target="_blank" rel="noopener noreferrer">{first.text}</a> : <>{first.text}</>;
}

export function InstancesPage() {
  const { data, error, refresh } = instances.use();
  const create = may.changeApps() && <button type="button" data-new data-testid="new-instance" onClick={() => setQuery("new", "instance")}>New instance</button>;
  return (
    <Page title="Instances" actions={<><Filter what="instances" />{create}</>}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Instances" rows={data} id={instanceId} href={(one) => instanceHref(one.key)} columns={instanceColumns} order={[0, 1]}
          empty={<Empty title="Nothing runs yet">{may.changeApps() ? <>Press <b>New instance</b>: choose an app and a cloudlet, and it starts there.</> : "Developers start instances of their apps."}</Empty>} />
      )}
      {may.changeApps() && query.value.get("new") === "instance" && <NewInstance close={() => setQuery("new", "")} />}
    </Page>
  );
}

