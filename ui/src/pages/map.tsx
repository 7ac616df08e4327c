// Cloudlets on the world, and the same as a list.
import { plain } from "../format";
import { thingHref } from "../keys";
import { overview, overviewError } from "../overview";
import { Badge, Empty, Trouble, Waiting } from "../parts/bits";
import { Filter, Table } from "../parts/table";
import { placeTone, World } from "../parts/world";
import { may } from "../session";
import { worded } from "../states";
import { Page } from "./frame";

export function MapPage() {
  const places = overview.value?.places;
  if (!overview.value) return <Page title="Map"><Trouble error={overviewError.value} />{!overviewError.value && <Waiting />}</Page>;
  const state = (place: NonNullable<typeof places>[number]) => ({ ...worded(place.state, place.severity), tone: placeTone(place) });
  return (
    <Page title="Map" actions={<Filter what="cloudlets" />}>
      {!places?.length ? (
        <Empty title="No cloudlets on the map yet">{may.changeCloudlets() ? <a href="#/cloudlets?new=cloudlet">Register the first one.</a> : "Operators register them."}</Empty>
      ) : (
        <div class="split">
          <div>
            <World places={places} zoomable />
            <p class="legend soft">
              <Badge state={{ word: "ready", tone: "good" }} /><Badge state={{ word: "warning", tone: "warn" }} /><Badge state={{ word: "offline or failing", tone: "bad" }} /><Badge state={{ word: "never connected", tone: "off" }} />
              <span>Numbers count instances; a ring holds several cloudlets. Drag to move; zoom with + and −.</span>
            </p>
          </div>
          <div>
            <Table label="Cloudlets on the map" rows={places} id={(place) => place.cloudlet?.name ?? ""} href={(place) => thingHref({ kind: "cloudlet", ...place.cloudlet }) ?? "#/cloudlets"} empty={null} order={[0, 1]}
              columns={[
                { title: "Cloudlet", value: (place) => plain(place.cloudlet?.name, 40) },
                { title: "State", value: (place) => place.state ?? "", show: (place) => <Badge state={state(place)} /> },
                { title: "Ready", value: (place) => `${place.readyInstances ?? 0}/${place.instances ?? 0}`, right: true },
              ]} />
          </div>
        </div>
      )}
    </Page>
  );
}
