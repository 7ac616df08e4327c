import "./style.css";
import "./shown";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { watchOverview } from "./overview";
import { AboutPage } from "./pages/about";
import { AppPage, AppsPage } from "./pages/apps";
import { AuditPage } from "./pages/audit";
import { CloudletPage, CloudletsPage } from "./pages/cloudlets";
import { ClustersPage } from "./pages/clusters";
import { Frame, Page, PLACES } from "./pages/frame";
import { KubernetesPage } from "./pages/kubernetes-cluster";
import { InstancePage } from "./pages/instance";
import { InstancesPage } from "./pages/instances";
import { FirstPassword, Login } from "./pages/login";
import { MachinePage } from "./pages/machine";
import { MachinesPage } from "./pages/machines";
import { MapPage } from "./pages/map";
import { OperationsPage } from "./pages/operations";
import { OverviewPage } from "./pages/overview";
import { PeoplePage } from "./pages/people";
import { VolumesPage } from "./pages/volumes";
import { Empty, Waiting } from "./parts/bits";
import { path } from "./router";
import { reconnects, sessionEnded } from "./rpc";
import { me, meError, whoAmI } from "./session";

function App() {
  useEffect(watchOverview, []);
  if (me.value === undefined) {
    return <main class="login"><div class="login-card">{meError.value ? <p role="alert">The server cannot be reached; trying again.</p> : <Waiting what="One moment" />}</div></main>;
  }
  if (me.value === null) return <Login />;
  return <Frame><FirstPassword /><Current /></Frame>;
}

function Current() {
  const [first = "", ...rest] = path.value;
  const place = PLACES.find(({ to }) => to === first);
  const key = rest.join("\n");
  if (place?.may && !place.may()) {
    return <Page title={place.name}><Empty title="This page is not for your role">An admin can give you one that sees it. <a href="#/">Back to the overview</a></Empty></Page>;
  }
  switch (first) {
    case "": return <OverviewPage />;
    case "map": return <MapPage />;
    case "apps": return rest.length ? <AppPage key={key} parts={rest} /> : <AppsPage />;
    case "instances": return rest.length ? <InstancePage key={key} parts={rest} /> : <InstancesPage />;
    case "clusters": return rest.length ? <KubernetesPage key={key} name={rest.join("/")} /> : <ClustersPage />;
    case "operations": return <OperationsPage />;
    case "cloudlets": return rest.length ? <CloudletPage key={key} parts={rest} /> : <CloudletsPage />;
    case "machines": return rest.length ? <MachinePage key={key} parts={rest} /> : <MachinesPage />;
    case "volumes": return <VolumesPage />;
    case "people": return <PeoplePage />;
    case "audit": return <AuditPage />;
    case "about": return <AboutPage />;
    default: return <Page title="No such page"><Empty title="There is no such page"><a href="#/">Back to the overview</a></Empty></Page>;
  }
}

sessionEnded.subscribe((ended) => {
  if (ended && me.peek()) me.value = null;
});
reconnects.subscribe((count) => count > 0 && void whoAmI());
void whoAmI();
render(<App />, document.getElementById("app")!);
