// Backups that are made again and again.
import { useState } from "preact/hooks";
import type { BackupJob, Repository, Retention, Schedule, Volume } from "../contract";
import { number, plain, span } from "../format";
import type { Live } from "../live";
import { Badge, Trouble, When } from "../parts/bits";
import { Confirm, Dialog, note } from "../parts/dialog";
import { Choice, Form, Text } from "../parts/form";
import { Table } from "../parts/table";
import { call } from "../rpc";
import { jobState, type State } from "../states";
import { useRepository } from "./backups";

const HOUR = 3600;
const DAY = 24 * HOUR;
const PERIODS: [number, string][] = [[HOUR, "every hour"], [6 * HOUR, "every six hours"], [DAY, "every day"], [7 * DAY, "every week"]];
const period = (seconds: number) => PERIODS.find(([every]) => every === seconds)?.[1] ?? `every ${span(seconds)}`;

/** "7 daily, 12 monthly" */
const KEPT: [keyof Retention, string][] = [["last", "last"], ["hourly", "hourly"], ["daily", "daily"], ["weekly", "weekly"], ["monthly", "monthly"], ["yearly", "yearly"]];
const kept = (keep: Retention | undefined) => KEPT.filter(([rule]) => keep?.[rule]).map(([rule, word]) => `${keep![rule]} ${word}`).join(", ") || "all";

/** How the last backup of a schedule went. */
function result(schedule: Schedule, jobs: BackupJob[]): { state: State; why?: string } {
  if (schedule.error) return { state: { word: "failed", tone: "bad" }, why: schedule.error };
  const job = jobs.find(({ id }) => id && id === schedule.lastJob);
  if (job) return { state: jobState(job.state), why: job.error };
  return { state: { word: schedule.lastJob ? "ended" : "none yet", tone: "off" } };
}

export function Schedules({ live, jobs, change, show }: {
  live: Live<Schedule[]>; jobs: BackupJob[]; change: (schedule: Schedule) => void; show: (repository: Repository) => void;
}) {
  const [ending, setEnding] = useState<Schedule>();
  const buttons = (one: Schedule) => (
    <span class="row acts">
      <button type="button" class="quiet small" aria-label={`Backups of ${one.name}`} onClick={() => show(one.repository ?? {})}>Backups</button>
      <button type="button" class="quiet small" aria-label={`Change ${one.name}`} onClick={() => change(one)}>Change</button>
      <button type="button" class="quiet danger small" aria-label={`Delete ${one.name}`} onClick={() => setEnding(one)}>Delete</button>
    </span>
  );
  return (
    <>
      <h2 class="section">Schedules</h2>
      <Trouble error={live.error} retry={live.refresh} />
      <Table label="Schedules" rows={live.data ?? []} id={(one) => one.name ?? ""} order={[0, 1]} empty={<p class="soft">None yet. <b>Schedule</b> next to a volume has it backed up automatically.</p>} columns={[
        { title: "Schedule", value: (one) => one.name ?? "", show: (one) => <b>{plain(one.name, 60)}</b> },
        { title: "Volume", value: (one) => one.volume ?? "" },
        { title: "How often", value: (one) => number(one.everySeconds), show: (one) => period(number(one.everySeconds)), wide: true },
        { title: "Next", value: (one) => one.nextAt ?? "", show: (one) => <When time={one.nextAt} />, wide: true },
        { title: "Last backup", value: (one) => result(one, jobs).state.word, show: (one) => <Result schedule={one} jobs={jobs} /> },
        { title: "Keeps", value: (one) => kept(one.keep), wide: true },
        { title: "Repository", value: (one) => one.repository?.path ?? "", wide: true },
        { title: "Actions", value: () => "", show: buttons },
      ]} />
      {ending && (
        <Confirm title={`Delete the schedule ${plain(ending.name, 60)}?`} yes="Delete it" close={() => setEnding(undefined)} act={async () => {
          await call("selvage.volumes.BackupsService/DeleteSchedule", { name: ending.name ?? "" });
          note(`${ending.name} is deleted.`);
          await live.refresh();
        }}><p>Its backups stay. {plain(ending.volume, 60)} is no longer backed up automatically.</p></Confirm>
      )}
    </>
  );
}

function Result({ schedule, jobs }: { schedule: Schedule; jobs: BackupJob[] }) {
  const { state, why } = result(schedule, jobs);
  return <span class="row"><Badge state={state} title={why} />{why && <span class="wrong fine">{plain(why, 120)}</span>}</span>;
}

const count = (text: string) => (/^\d{0,4}$/.test(text) ? undefined : "A whole number, or empty.");

/** A new schedule of a volume, or another way for one that is there. */
export function ScheduleDialog({ volume, before, done, close }: { volume?: Volume; before?: Schedule; done: () => Promise<void>; close: () => void }) {
  const [name, setName] = useState(before?.name ?? `${volume?.name}-daily`);
  const [every, setEvery] = useState(String(before?.everySeconds ?? DAY));
  const [at, setAt] = useState(String(number(before?.offsetSeconds ?? 2 * HOUR) / HOUR));
  const [daily, setDaily] = useState(String(before ? before.keep?.daily ?? "" : 7));
  const [weekly, setWeekly] = useState(String(before ? before.keep?.weekly ?? "" : 4));
  const repository = useRepository(true, before?.repository);
  const often = (seconds: string) => {
    setEvery(seconds);
    if (Number(at) * HOUR >= Number(seconds)) setAt("0");
  };
  const of = before?.volume ?? `${volume?.group}/${volume?.name}`;
  const wrong = {
    name: /^[A-Za-z0-9_.-]+$/.test(name) ? undefined : "Letters, digits and - _ . only.",
    at: Number(at) >= 0 && at.trim() !== "" && Number(at) * HOUR < Number(every) ? undefined : `Hours from 0 to less than ${Number(every) / HOUR}.`,
  };
  const send = async () => {
    const keep: Retention = { ...before?.keep, daily: Number(daily), weekly: Number(weekly) };
    const schedule: Schedule = {
      ...(before && { verifyEverySeconds: before.verifyEverySeconds, verifyReadPercent: before.verifyReadPercent }),
      name, volume: of, repository: { ...before?.repository, ...repository.value }, everySeconds: every, offsetSeconds: String(Math.round(Number(at) * HOUR)),
      ...(Object.values(keep).some(Boolean) ? { keep } : {}),
    };
    await call("selvage.volumes.BackupsService/SetSchedule", { schedule });
    note(`${of} is backed up ${period(Number(every))}.`);
    await done();
    close();
  };
  const periods = PERIODS.some(([seconds]) => String(seconds) === every) ? PERIODS : [...PERIODS, [Number(every), period(Number(every))] as const];
  return (
    <Dialog title={before ? `Change ${plain(before.name, 60)}` : `Schedule backups of ${plain(volume?.name, 60)}`} wide close={close} testid="schedule-dialog">
      <Form send={send} submit={before ? "Save" : "Create it"} cancel={close} problems={[wrong.name, wrong.at, count(daily), count(weekly), ...repository.problems]}>
        {(tried) => (
          <>
            <Text label="Name" value={name} set={setName} disabled={Boolean(before)} wrong={tried ? wrong.name : undefined} testid="schedule-name" />
            <div class="two">
              <Choice label="How often" value={every} set={often} options={periods.map(([seconds, text]) => ({ value: String(seconds), text }))} testid="schedule-every" />
              <Text label="Hours after midnight UTC" type="number" value={at} set={setAt} wrong={tried ? wrong.at : undefined} testid="schedule-at" />
            </div>
            <div class="two">
              <Text label="Daily backups to keep" type="number" value={daily} set={setDaily} wrong={tried ? count(daily) : undefined} testid="schedule-daily" />
              <Text label="Weekly backups to keep" type="number" value={weekly} set={setWeekly} hint="Leave both empty to keep all backups" wrong={tried ? count(weekly) : undefined} />
            </div>
            {repository.fields(tried, "It is created if there is none yet.")}
          </>
        )}
      </Form>
    </Dialog>
  );
}
