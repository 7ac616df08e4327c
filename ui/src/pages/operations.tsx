// Long work: what is under way, and what was within a day.
import type { Operation } from "../contract";
import { plain } from "../format";
import { Badge, Empty, Trouble, Waiting, When } from "../parts/bits";
import { Cancel } from "../parts/operation";
import { Filter, Table } from "../parts/table";
import { operations } from "../resources";
import { operationState } from "../states";
import { Page } from "./frame";

/** The names in a key, without its structure. */
function names(operation: Operation): string {
  const found: string[] = [];
  try {
    JSON.parse(operation.key ?? "", (_, value: unknown) => {
      if (typeof value === "string" && value) found.push(value);
      return value;
    });
  } catch {
    return plain(operation.key, 120);
  }
  return plain(found.join(" / "), 160);
}

export function OperationsPage() {
  const { data, error, refresh } = operations.use();
  return (
    <Page title="Operations" actions={<Filter what="operations" />}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Operations" rows={data} id={(one) => one.id ?? ""} empty={<Empty title="No long work within a day">Starting, updating and deleting instances shows up here, and can be stopped here.</Empty>}
          columns={[
            { title: "What", value: (one) => one.kind ?? "" },
            { title: "State", value: (one) => operationState(one.state).word, show: (one) => <Badge state={operationState(one.state)} title={one.error} /> },
            { title: "On", value: names, wide: true },
            { title: "Step", value: (one) => (one.state === "RUNNING" || one.state === "UNDOING" ? `${one.step} (${one.stepsDone ?? 0}/${one.stepsTotal ?? 0})` : one.error ?? ""), wide: true },
            { title: "By", value: (one) => one.startedBy ?? "", wide: true },
            { title: "Began", value: (one) => one.startedAt ?? "", show: (one) => <When time={one.startedAt} /> },
            { title: "Stop", value: () => "", show: (one) => (one.state === "RUNNING" ? <Cancel operation={one} /> : null) },
          ]} />
      )}
    </Page>
  );
}
