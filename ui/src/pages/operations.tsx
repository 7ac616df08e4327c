// Long work: what is under way, and what was within a day.
import type { Operation } from "../contract";
import { operationText } from "../keys";
import { Badge, Empty, Trouble, Waiting, When } from "../parts/bits";
import { Cancel, OperationName } from "../parts/operation";
import { Filter, Table } from "../parts/table";
import { operations } from "../resources";
import { operationState } from "../states";
import { Page } from "./frame";

export function OperationsPage() {
  const { data, error, refresh } = operations.use();
  return (
    <Page title="Operations" actions={<Filter what="operations" />}>
      <Trouble error={error} retry={refresh} />
      {!data ? !error && <Waiting /> : (
        <Table label="Operations" rows={data} id={(one) => one.id ?? ""} empty={<Empty title="No operations in the last 24 hours">Starting, updating or deleting an instance shows up here, and can be cancelled here.</Empty>}
          columns={[
            { title: "Operation", value: operationText, show: (one) => <OperationName operation={one} /> },
            { title: "State", value: (one) => operationState(one.state).word, show: (one) => <Badge state={operationState(one.state)} title={one.error} /> },
            { title: "Step or error", value: (one) => (one.state === "RUNNING" || one.state === "UNDOING" ? `${one.step} (${one.stepsDone ?? 0}/${one.stepsTotal ?? 0})` : one.error ?? ""), wide: true },
            { title: "Started by", value: (one) => one.startedBy ?? "", wide: true },
            { title: "Started", value: (one) => one.startedAt ?? "", show: (one) => <When time={one.startedAt} /> },
            ...(data.some((one) => one.state === "RUNNING") ? [{ title: "Actions", value: () => "", show: (one: Operation) => (one.state === "RUNNING" ? <Cancel operation={one} /> : null) }] : []),
          ]} />
      )}
    </Page>
  );
}
