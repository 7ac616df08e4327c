// What is done with a Kubernetes cluster: each change is shown as a plan first.
import { useState } from "preact/hooks";
import type { KubeDetails, KubePool } from "../contract";
import { plain, plural } from "../format";
import { asCallError, useLoad } from "../live";
import { Command, Trouble, Waiting } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { kubeClusters } from "../resources";
import { call, type CallError } from "../rpc";
import { countProblem, Plan, PoolFields, poolOf, poolProblems, type PoolDraft } from "./kubernetes-form";

interface Props { cluster: KubeDetails; close: () => void }

export function Upgrade({ cluster, close }: Props) {
  const name = cluster.name ?? "";
  const { data, error } = useLoad((signal) => call("cnct.kaas.api.Cluster/GetUpgradeClusterInformation", { name }, { signal }), [name]);
  const [version, setVersion] = useState("");
  const [planned, setPlanned] = useState("");
  const versions = data?.versions ?? [];
  const chosen = version || versions[versions.length - 1] || "";
  const send = async () => {
    await call("cnct.kaas.api.Cluster/UpgradeCluster", { name, version: chosen });
    note(`${name} is on its way to ${chosen}.`);
    close();
  };
  return (
    <Dialog title={`Upgrade ${plain(name, 60)}`} wide close={close} testid="upgrade-dialog">
      <Trouble error={error} />
      {!data && !error && <Waiting />}
      {data && versions.length === 0 && <p>It runs {plain(cluster.version)}. This server offers no newer version that one upgrade reaches.</p>}
      {versions.length > 0 && (
        <Form send={send} submit={`Upgrade to ${plain(chosen)}`} cancel={close} problems={[planned === chosen ? undefined : "Wait for the plan."]}>
          {() => (
            <>
              <Choice label="Version" value={chosen} set={setVersion} options={versions.map((one) => ({ value: one, text: one }))} testid="upgrade-version"
                hint={`It runs ${plain(cluster.version)}. The control plane goes first, one machine at a time; then nodes are drained and upgraded.`} />
              <Plan request={{ name, version: chosen }} planned={() => setPlanned(chosen)} />
            </>
          )}
        </Form>
      )}
    </Dialog>
  );
}

export function AddPool({ cluster, close }: Props) {
  const name = cluster.name ?? "";
  const [drafts, setDrafts] = useState<PoolDraft[]>([{ name: "", count: "1", type: "standard", labels: "" }]);
  const problems = poolProblems(drafts, (cluster.pools ?? []).map((pool) => pool.name ?? ""));
  const send = async () => {
    await call("cnct.kaas.api.Cluster/AddNodePool", { clusterName: name, workerNodePools: drafts.map(poolOf) });
    note(`${name} gets the pool ${drafts[0]!.name}.`);
    close();
  };
  return (
    <Dialog title={`Add a pool to ${plain(name, 60)}`} wide close={close} testid="pool-dialog">
      <Form send={send} submit="Add the pool" cancel={close} problems={problems.flatMap((one) => Object.values(one))}>
        {(tried) => <PoolFields drafts={drafts} set={setDrafts} tried={tried} problems={problems} least={1} />}
      </Form>
    </Dialog>
  );
}

export function ScalePool({ cluster, pool, close }: Props & { pool: KubePool }) {
  const [name, title] = [cluster.name ?? "", pool.name ?? ""];
  const [count, setCount] = useState(String(pool.count ?? 0));
  const wrong = countProblem(count);
  const send = async () => {
    await call("cnct.kaas.api.Cluster/ScaleNodePool", { clusterName: name, nodePools: [{ name: title, count: Number(count) }] });
    note(`Pool ${title} is to have ${plural(Number(count), "machine")}.`);
    close();
  };
  return (
    <Dialog title={`Scale pool ${plain(title, 60)}`} wide close={close} testid="scale-dialog">
      <Form send={send} submit={wrong ? "Scale it" : `Scale to ${plural(Number(count), "machine")}`} cancel={close} problems={[wrong]}>
        {() => (
          <>
            <Text label="Machines" type="number" value={count} set={setCount} wrong={wrong} hint={`${plural(pool.count ?? 0, "machine")} now. Those that go are drained first.`} testid="scale-count" />
            {!wrong && <Plan request={{ name, pools: [{ name: title, instanceType: pool.instanceType, count: Number(count) }] }} />}
          </>
        )}
      </Form>
    </Dialog>
  );
}

export function DeletePool({ cluster, pool, close }: Props & { pool: KubePool }) {
  const [name, title] = [cluster.name ?? "", pool.name ?? ""];
  const act = async () => {
    await call("cnct.kaas.api.Cluster/DeleteNodePool", { clusterName: name, nodePoolNames: [title] });
    note(`Pool ${title} is being deleted.`);
  };
  return (
    <Confirm title={`Delete pool ${plain(title, 60)} of ${plain(name, 60)}?`} yes="Delete the pool" close={close} act={act}>
      <p>Its {plural(pool.count ?? 0, "machine")} {pool.count === 1 ? "is" : "are"} drained, wiped and given back. Pods that fit nowhere else stop.</p>
      <Plan request={{ name, deletePools: [title] }} />
    </Confirm>
  );
}

export function DeleteCluster({ cluster, close }: Props) {
  const name = cluster.name ?? "";
  const pools = (cluster.pools ?? []).filter((pool) => pool.name);
  const act = async () => {
    await call("cnct.kaas.api.Cluster/DeleteCluster", { name });
    note(`${name} is being deleted.`);
    await kubeClusters.refresh();
  };
  return (
    <Confirm title={`Delete the cluster ${plain(name, 60)}?`} yes="Delete the cluster" close={close} act={act}>
      <p>With it go, for good:</p>
      <ul class="bullets" data-testid="goes-too">
        <li>everything that runs in it, and what it stores: pods, services, secrets, volumes on its machines</li>
        <li>{plural((cluster.machines ?? []).length, "machine")}, wiped and given back{pools.length > 0 && <>, with {pools.length === 1 ? "pool" : "pools"} {plain(pools.map((pool) => pool.name).join(", "), 200)}</>}</li>
        <li>every kubeconfig of it: the keys that signed them are forgotten</li>
      </ul>
      <Plan request={{ name, delete: true }} />
    </Confirm>
  );
}

/** A file of the caller's own, by a call and never by an address. */
function save(text: string, file: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function Kubeconfig({ cluster, close }: Props) {
  const name = cluster.name ?? "";
  const file = `${name}.kubeconfig`;
  const [error, setError] = useState<CallError>();
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState("");
  const take = (use: (text: string) => unknown, said: string) => async () => {
    setBusy(true);
    setError(undefined);
    try {
      const { cluster: found } = await call("cnct.kaas.api.Cluster/GetCluster", { name });
      if (found?.kubeconfig) {
        await use(found.kubeconfig);
        setDone(said);
      } else setDone("Its API has not answered yet. Try again when the cluster runs.");
    } catch (failure) {
      setError(asCallError(failure));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Kubeconfig of ${plain(name, 60)}`} close={close} testid="kubeconfig-dialog">
      <p><b>Whoever has this file is admin of the cluster.</b> It is made for you, carries your name, and ends by itself, after a day unless this server is set otherwise.</p>
      <div class="actions">
        <button type="button" disabled={busy} data-testid="kubeconfig-download" onClick={take((text) => save(text, file), `${file} is downloaded.`)}>Download</button>
        <button type="button" class="quiet" disabled={busy} data-testid="kubeconfig-copy" onClick={take((text) => navigator.clipboard.writeText(text), "It is in your clipboard.")}>Copy</button>
      </div>
      <p role="status" data-testid="kubeconfig-state">{done}</p>
      <Trouble error={error} />
      <p class="soft">Then, where you saved it:</p>
      <Command text={`kubectl --kubeconfig ${file} get nodes`} />
    </Dialog>
  );
}
