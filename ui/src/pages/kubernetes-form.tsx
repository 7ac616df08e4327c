// A new Kubernetes cluster, with the rules of the contract beside the fields.
import { useState } from "preact/hooks";
import type { NewPool, NodeLabel, Request } from "../contract";
import { plain } from "../format";
import { useLoad } from "../live";
import { Trouble, Waiting } from "../parts/bits";
import { Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { developers, kubeClusters, machines } from "../resources";
import { go } from "../router";
import { call } from "../rpc";
import { isAdmin, organisations } from "../session";
import { kubernetesHref } from "./kubernetes";

const LONGEST_NAME = 40;
const STANDARD = "standard";
/** Header by which the owner of a new cluster is chosen. */
const ORGANISATION = "x-selvage-organisation";

/** Rules of names of clusters and pools. */
export function labelProblem(name: string, what: string): string | undefined {
  if (!name) return `Give the ${what} a name.`;
  if (name.length > LONGEST_NAME) return `${LONGEST_NAME} letters at most.`;
  return /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(name) ? undefined : "Small letters, digits and -, with a letter or digit at both ends.";
}

export function countProblem(count: string): string | undefined {
  return /^\d{1,4}$/.test(count.trim()) && Number(count) <= 5000 ? undefined : "A whole number from 0 to 5000.";
}

const typeProblem = (type: string) => (/^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/.test(type) ? undefined : "Up to 63 letters, digits and . _ -");

const LABEL = /^([a-z0-9]([-a-z0-9.]*[a-z0-9])?\/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$/;
const labelWords = (text: string) => text.split(/[\s,]+/).filter(Boolean);

function labelsProblem(text: string): string | undefined {
  const bad = labelWords(text).find((word) => !LABEL.test(word));
  return bad === undefined ? undefined : `"${plain(bad, 40)}" is no label: write name=value, such as tier=front.`;
}

const labelsOf = (text: string): NodeLabel[] => labelWords(text).map((word) => {
  const at = word.indexOf("=");
  return { name: word.slice(0, at), value: word.slice(at + 1) };
});

/** A pool as it is typed. */
export interface PoolDraft { name: string; count: string; type: string; labels: string }

export const poolOf = ({ name, count, type, labels }: PoolDraft): NewPool => ({ name, instanceType: type, count: Number(count), labels: labelsOf(labels) });

/** What is wrong with each pool; a name is taken once. */
export function poolProblems(drafts: PoolDraft[], taken: string[] = []): Partial<Record<keyof PoolDraft, string>>[] {
  return drafts.map((draft, at) => {
    const twice = taken.includes(draft.name) || drafts.some((other, index) => index < at && other.name === draft.name);
    const reserved = draft.name === "control-plane" ? "That is the name of the control plane." : undefined;
    return {
      name: labelProblem(draft.name, "pool") ?? reserved ?? (twice ? "There is a pool of that name already." : undefined),
      count: countProblem(draft.count), type: typeProblem(draft.type), labels: labelsProblem(draft.labels),
    };
  });
}

/** Types of machines that are known here, to choose from. */
function useTypes(): string[] {
  const known = machines.use().data ?? [];
  return [...new Set([STANDARD, ...known.map((one) => one.labels?.["instance-type"] ?? "")])].filter(Boolean);
}

export function PoolFields({ drafts, set, tried, problems, least = 0 }: {
  drafts: PoolDraft[]; set: (drafts: PoolDraft[]) => void; tried: boolean; problems: ReturnType<typeof poolProblems>; least?: number;
}) {
  const types = useTypes();
  const change = (at: number, part: Partial<PoolDraft>) => set(drafts.map((old, index) => (index === at ? { ...old, ...part } : old)));
  return (
    <>
      {drafts.map((draft, at) => {
        const wrong = tried ? problems[at] : undefined;
        return (
          <fieldset class="pool" key={at}>
            <legend>Pool {plain(draft.name, 40) || at + 1}</legend>
            <div class="three">
              <Text label="Name" value={draft.name} set={(name) => change(at, { name })} wrong={wrong?.name} testid={`pool-name-${at}`} />
              <Text label="Machines" type="number" value={draft.count} set={(count) => change(at, { count })} wrong={wrong?.count} testid={`pool-count-${at}`} />
              <Text label="Instance type" value={draft.type} set={(type) => change(at, { type })} wrong={wrong?.type} list={types} testid={`pool-type-${at}`} />
            </div>
            <Text label="Node labels" value={draft.labels} set={(labels) => change(at, { labels })} wrong={wrong?.labels} hint="Optional: name=value, separated by spaces" testid={`pool-labels-${at}`} />
            {drafts.length > least && <button type="button" class="link fine" onClick={() => set(drafts.filter((_, index) => index !== at))}>Remove this pool</button>}
          </fieldset>
        );
      })}
    </>
  );
}

/** Lines of a plan that are shown; the rest is counted. */
const MOST_STEPS = 200;

/** What would be done, in order, before it is. */
export function Plan({ request, planned }: { request: Request<"selvage.clusters.ClusterService/PlanCluster">; planned?: (steps: number) => void }) {
  const text = JSON.stringify(request);
  const { data, error } = useLoad(async (signal) => {
    const { steps = [] } = await call("selvage.clusters.ClusterService/PlanCluster", request, { signal });
    planned?.(steps.length);
    return { text, steps };
  }, [text]);
  if (error) return <Trouble error={error} doing="This cannot be planned." />;
  if (data?.text !== text) return <Waiting what="Planning" />;
  const more = data.steps.length - MOST_STEPS;
  if (data.steps.length === 0) return <p class="soft" data-testid="plan">Nothing has to be done for that.</p>;
  return (
    <ol class="steps numbered" tabIndex={0} aria-label="Plan" data-testid="plan">
      {data.steps.slice(0, MOST_STEPS).map((step, at) => <li key={at}>{plain(step, 300)}</li>)}
      {more > 0 && <li class="soft">and {more.toLocaleString("en")} more</li>}
    </ol>
  );
}

/** Sizes of a control plane, and what each is for. */
const MEMBERS: Record<string, string> = {
  1: "For trying out: the cluster stops with its machine.", 3: "The cluster goes on without any one of them.", 5: "The cluster goes on without any two of them.",
};

/** Whose the new cluster is: asked where there is a choice. */
function Owner({ value, set }: { value: string; set: (value: string) => void }) {
  const own = organisations("developer").filter(Boolean);
  const known = (developers.use().data ?? []).map((one) => one.key?.name ?? "");
  if (isAdmin.value) return <Text label="Organisation" value={value} set={set} list={known} hint="Its developers may change the cluster. Leave empty for admins only." testid="kubernetes-organisation" />;
  if (own.length < 2) return null;
  return <Choice label="Organisation" value={value || own[0]!} set={set} options={own.map((one) => ({ value: one, text: one }))} testid="kubernetes-organisation" />;
}

export function NewCluster({ close }: { close: () => void }) {
  const offered = useLoad((signal) => call("selvage.clusters.ClusterService/ListVersions", {}, { signal }), []);
  const existing = kubeClusters.data.value ?? [];
  const [name, setName] = useState("");
  const [organisation, setOrganisation] = useState(isAdmin.value ? "" : organisations("developer")[0] ?? "");
  const [version, setVersion] = useState("");
  const [members, setMembers] = useState("1");
  const [type, setType] = useState(STANDARD);
  const [drafts, setDrafts] = useState<PoolDraft[]>([{ name: "workers", count: "1", type: STANDARD, labels: "" }]);
  const [planning, setPlanning] = useState(false);
  const types = useTypes();
  const pools = poolProblems(drafts);
  const wrong = {
    name: labelProblem(name, "cluster") ?? (existing.some((one) => one.name === name) ? "There is a cluster of that name already." : undefined),
    type: typeProblem(type),
  };
  const problems = [wrong.name, wrong.type, ...pools.flatMap((one) => Object.values(one))];
  const send = async () => {
    await call("cnct.kaas.api.Cluster/CreateCluster", {
      name, k8sVersion: version, controlPlaneNodes: { instanceType: type, count: Number(members) }, workerNodePools: drafts.map(poolOf),
    }, organisation ? { headers: { [ORGANISATION]: organisation } } : {});
    note(`${name} is on its way.`);
    await kubeClusters.refresh();
    close();
    go(kubernetesHref(name));
  };
  return (
    <Dialog title="New Kubernetes cluster" wide close={close} testid="kubernetes-dialog">
      <Trouble error={offered.error} />
      {offered.data?.problem && <p class="banner warn" data-testid="no-machines">{plain(offered.data.problem, 400)}</p>}
      <Form send={send} submit="Create the cluster" cancel={close} problems={problems}>
        {(tried) => (
          <>
            <div class="two">
              <Text label="Name" value={name} set={setName} wrong={tried ? wrong.name : undefined} testid="kubernetes-name" />
              <Choice label="Kubernetes version" value={version} set={setVersion} testid="kubernetes-version"
                options={[{ value: "", text: "Newest" }, ...(offered.data?.versions ?? []).map((one) => ({ value: one.kubernetes ?? "", text: one.kubernetes ?? "" })).reverse()]} />
            </div>
            <Owner value={organisation} set={setOrganisation} />
            <div class="two">
              <Choice label="Control plane machines" value={members} set={setMembers} hint={MEMBERS[members]} options={Object.keys(MEMBERS).map((value) => ({ value, text: value }))} testid="kubernetes-members" />
              <Text label="Control plane instance type" value={type} set={setType} list={types} wrong={tried ? wrong.type : undefined} testid="kubernetes-type" />
            </div>
            <PoolFields drafts={drafts} set={setDrafts} tried={tried} problems={pools} />
            <p class="row">
              <button type="button" class="quiet small" data-testid="more-pools" onClick={() => setDrafts([...drafts, { name: "", count: "1", type: STANDARD, labels: "" }])}>Add a pool</button>
              <button type="button" class="quiet small" aria-expanded={planning} data-testid="show-plan" onClick={() => setPlanning(!planning)}>{planning ? "Hide the plan" : "Show the plan"}</button>
            </p>
            {planning && (problems.some(Boolean) ? <p class="soft" data-testid="plan">The plan is shown once the form is right.</p>
              : <Plan request={{ name, version, controlPlaneCount: Number(members), pools: drafts.map(poolOf).map(({ labels: _, ...pool }) => pool) }} />)}
          </>
        )}
      </Form>
    </Dialog>
  );
}
