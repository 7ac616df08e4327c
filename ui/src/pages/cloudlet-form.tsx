// Registering a cloudlet, and a size.
import { useState } from "preact/hooks";
import type { Cloudlet } from "../contract";
import { note } from "../parts/dialog";
import { Choice, Form, nameProblem, Text } from "../parts/form";
import type { Work } from "../follow";
import { flavors, operators } from "../resources";
import { call } from "../rpc";
import { isAdmin, organisations } from "../session";

const within = (text: string, most: number, what: string) =>
  text !== "" && Math.abs(Number(text)) <= most ? undefined : `${what} is a number from -${most} to ${most}.`;

export function CloudletForm({ cloudlet, begin, close }: { cloudlet?: Cloudlet; begin: (work: Work) => void; close: () => void }) {
  const known = (operators.use().data ?? []).map((one) => one.key?.name ?? "");
  const own = organisations("operator").filter(Boolean);
  const [operator, setOperator] = useState(cloudlet?.key?.operatorKey?.name ?? own[0] ?? "");
  const [name, setName] = useState(cloudlet?.key?.name ?? "");
  const [latitude, setLatitude] = useState(String(cloudlet?.location?.latitude ?? ""));
  const [longitude, setLongitude] = useState(String(cloudlet?.location?.longitude ?? ""));
  const [addresses, setAddresses] = useState(String(cloudlet?.numDynamicIps ?? "254"));
  const [fixed, setFixed] = useState(cloudlet?.staticIps ?? "");
  const wrong = {
    operator: cloudlet ? undefined : nameProblem(operator, "operator"),
    name: cloudlet ? undefined : nameProblem(name, "cloudlet"),
    latitude: within(latitude, 90, "Latitude"),
    longitude: within(longitude, 180, "Longitude"),
    addresses: /^\d{1,6}$/.test(addresses) ? undefined : "A whole number.",
  };
  const send = async () => {
    if (!cloudlet && isAdmin.value && !known.includes(operator)) await call("edgeproto.OperatorApi/CreateOperator", { key: { name: operator } });
    const request: Cloudlet = {
      key: cloudlet?.key ?? { operatorKey: { name: operator }, name },
      location: { latitude: Number(latitude), longitude: Number(longitude) }, numDynamicIps: Number(addresses), staticIps: fixed,
      ...(cloudlet ? { fields: ["5.1", "5.2", "7", "8"] } : {}),
    };
    begin({ method: cloudlet ? "edgeproto.CloudletApi/UpdateCloudlet" : "edgeproto.CloudletApi/CreateCloudlet", request, what: `cloudlet ${request.key?.name}`, done: cloudlet ? "changed" : "registered", isMine: () => false });
  };
  return (
    <Form send={send} submit={cloudlet ? "Save" : "Register it"} cancel={close} problems={Object.values(wrong)} testid="cloudlet-form">
      {(tried) => (
        <>
          {!cloudlet && (
            <div class="two">
              {isAdmin.value
                ? <Text label="Operator" value={operator} set={setOperator} list={known} hint="A new name is registered automatically." wrong={tried ? wrong.operator : undefined} testid="cloudlet-operator" />
                : <Choice label="Operator" value={operator} set={setOperator} options={own.map((one) => ({ value: one, text: one }))} testid="cloudlet-operator" />}
              <Text label="Name" value={name} set={setName} wrong={tried ? wrong.name : undefined} testid="cloudlet-name" />
            </div>
          )}
          <div class="two">
            <Text label="Latitude" type="number" value={latitude} set={setLatitude} hint="North is positive" wrong={tried ? wrong.latitude : undefined} testid="cloudlet-latitude" />
            <Text label="Longitude" type="number" value={longitude} set={setLongitude} hint="East is positive" wrong={tried ? wrong.longitude : undefined} testid="cloudlet-longitude" />
          </div>
          <div class="two">
            <Text label="Dynamic addresses" type="number" value={addresses} set={setAddresses} hint="How many it can give out" wrong={tried ? wrong.addresses : undefined} />
            <Text label="Static addresses" value={fixed} set={setFixed} placeholder="203.0.113.10-203.0.113.20" hint="Optional" />
          </div>
        </>
      )}
    </Form>
  );
}

export function FlavorForm({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [ram, setRam] = useState("1024");
  const [vcpus, setVcpus] = useState("1");
  const [disk, setDisk] = useState("1");
  const whole = (text: string) => (/^[1-9]\d{0,8}$/.test(text) ? undefined : "A whole number of at least 1.");
  const wrong = { name: nameProblem(name, "size"), ram: whole(ram), vcpus: whole(vcpus), disk: whole(disk) };
  const send = async () => {
    await call("edgeproto.FlavorApi/CreateFlavor", { key: { name }, ram, vcpus, disk });
    note(`Size ${name} is created.`);
    await flavors.refresh();
    close();
  };
  return (
    <Form send={send} submit="Create it" cancel={close} problems={Object.values(wrong)} testid="flavor-form">
      {(tried) => (
        <>
          <Text label="Name" value={name} set={setName} placeholder="x1.small" wrong={tried ? wrong.name : undefined} testid="flavor-name" />
          <Text label="Memory, MB" type="number" value={ram} set={setRam} wrong={tried ? wrong.ram : undefined} />
          <div class="two">
            <Text label="Virtual processors" type="number" value={vcpus} set={setVcpus} wrong={tried ? wrong.vcpus : undefined} />
            <Text label="Disk, GB" type="number" value={disk} set={setDisk} wrong={tried ? wrong.disk : undefined} />
          </div>
        </>
      )}
    </Form>
  );
}
