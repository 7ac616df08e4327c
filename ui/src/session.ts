// Who is logged in, and what that allows. The server decides; the page only
// leaves out what it would refuse.
import { computed, signal } from "@preact/signals";
import type { WhoAmI } from "./contract";
import { call, CallError, reachable, sessionEnded } from "./rpc";

/** undefined: not asked yet; null: nobody. */
export const me = signal<WhoAmI | null | undefined>(undefined);
/** Why nobody can be told, such as a server that is away. */
export const meError = signal<CallError | null>(null);

const grants = computed(() => me.value?.grants ?? []);
const holds = (role: string, organisation?: string) =>
  grants.value.some((grant) => grant.role === role && (organisation === undefined || grant.organisation === organisation));

export const isAdmin = computed(() => me.value?.kind === "insecure" || me.value?.kind === "local" || holds("admin"));
export const isViewer = computed(() => isAdmin.value || holds("viewer"));

/** What the caller may do: one line for each row of crates/kit/src/access/table.rs that the page needs. */
export const may = {
  admin: () => isAdmin.value,
  changeApps: (organisation?: string): boolean => isAdmin.value || holds("developer", organisation),
  seeApps: () => isViewer.value || holds("developer"),
  changeCloudlets: (organisation?: string) => isAdmin.value || holds("operator", organisation),
  seeCloudletUse: () => isViewer.value || holds("operator"),
  seeMachines: () => isViewer.value || holds("operator"),
  steerMachines: () => isAdmin.value || holds("operator"),
  seeClusters: () => isViewer.value || holds("developer") || holds("operator"),
  seeKubernetes: () => isViewer.value || holds("operator") || holds("developer"),
  changeKubernetes: (organisation?: string): boolean => isAdmin.value || holds("developer", organisation),
  seeVolumes: () => isViewer.value || holds("operator"),
  changeVolumes: () => isAdmin.value,
  seeSamples: () => isViewer.value || holds("operator") || holds("developer"),
  seeProcess: () => isViewer.value,
  listUsers: () => isAdmin.value,
};

/** Organisations in which the caller has a role; empty for those who have it everywhere. */
export const organisations = (role: string): string[] =>
  grants.value.filter((grant) => grant.role === role).map((grant) => grant.organisation ?? "");

export const roleWords = (list: { role?: string; organisation?: string }[] | undefined): string =>
  (list ?? []).map(({ role, organisation }) => (organisation ? `${role} of ${organisation}` : role)).join(", ");

export async function whoAmI(): Promise<void> {
  try {
    me.value = await call("selvage.identity.IdentityService/WhoAmI", {});
    meError.value = null;
    sessionEnded.value = false;
  } catch (error) {
    const failure = error as CallError;
    // Whoever comes for the first time has lost nothing.
    if (me.peek() === undefined) sessionEnded.value = false;
    if (failure.code === "unauthenticated") me.value = null;
    meError.value = failure.code === "unauthenticated" ? null : failure;
    if (me.value === undefined && failure.code !== "unavailable") me.value = null;
  }
}

/** The end of an idle session moves whenever somebody does something. */
const REFRESH_MS = 60_000;
setInterval(() => {
  if (me.peek()?.idleEnd && reachable.peek()) void whoAmI();
}, REFRESH_MS);

export async function logIn(username: string, password: string): Promise<void> {
  await call("services.auth.AuthService/Login", { username, password }, { headers: { "X-Session": "cookie" } });
  await whoAmI();
}

export async function logOut(): Promise<void> {
  await call("services.auth.AuthService/Logout", {}).catch(() => undefined);
  me.value = null;
}
