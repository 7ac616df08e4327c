// States in words, each with a tone. Tones are shown by shape, word and colour.
import type { Severity } from "./contract";

export type Tone = "good" | "busy" | "warn" | "bad" | "off";
export interface State { word: string; tone: Tone }

const TRACKED: Record<string, State> = {
  READY: { word: "ready", tone: "good" },
  CREATE_REQUESTED: { word: "waiting to start", tone: "busy" },
  CREATING: { word: "starting", tone: "busy" },
  CREATE_ERROR: { word: "could not start", tone: "bad" },
  UPDATE_REQUESTED: { word: "waiting to update", tone: "busy" },
  UPDATING: { word: "updating", tone: "busy" },
  UPDATE_ERROR: { word: "could not update", tone: "bad" },
  DELETE_REQUESTED: { word: "waiting to stop", tone: "busy" },
  DELETE_PREPARE: { word: "waiting to stop", tone: "busy" },
  DELETING: { word: "stopping", tone: "busy" },
  DELETE_ERROR: { word: "could not stop", tone: "bad" },
  NOT_PRESENT: { word: "gone", tone: "off" },
};

export function tracked(state: string | undefined, unhealthy?: string): State {
  if (state === "READY" && unhealthy) return { word: "not answering", tone: "warn" };
  return TRACKED[state ?? ""] ?? { word: "unknown", tone: "off" };
}

const CLOUDLET: Record<string, State> = {
  CLOUDLET_STATE_READY: { word: "ready", tone: "good" },
  CLOUDLET_STATE_ERRORS: { word: "has errors", tone: "bad" },
  CLOUDLET_STATE_OFFLINE: { word: "offline", tone: "bad" },
  CLOUDLET_STATE_NOT_PRESENT: { word: "never connected", tone: "off" },
};

export const cloudletState = (state: string | undefined): State => CLOUDLET[state ?? ""] ?? { word: "unknown", tone: "off" };

/** A state that another part has put in words already. */
export function worded(state: string | undefined, severity?: Severity): State {
  const tone = severity && severity !== "OK" ? severityTone(severity) : state === "ready" ? "good" : "off";
  return { word: state === "errors" ? "has errors" : (state ?? "unknown").replaceAll("_", " "), tone };
}

export function severityTone(severity: Severity | undefined): Tone {
  return ({ OK: "good", NOTICE: "busy", WARNING: "warn", CRITICAL: "bad" } as const)[severity ?? "OK"] ?? "good";
}

export const severityWord = (severity: Severity | undefined): string => (severity ?? "OK").toLowerCase();

const OPERATION: Record<string, State> = {
  RUNNING: { word: "running", tone: "busy" },
  UNDOING: { word: "undoing", tone: "warn" },
  SUCCEEDED: { word: "succeeded", tone: "good" },
  FAILED: { word: "failed", tone: "bad" },
};
export const operationState = (state: string | undefined): State => OPERATION[state ?? ""] ?? { word: "unknown", tone: "off" };

const JOB: Record<string, State> = {
  JOB_RUNNING: { word: "running", tone: "busy" },
  JOB_COMPLETE: { word: "done", tone: "good" },
  JOB_FAILED: { word: "failed", tone: "bad" },
};
export const jobState = (state: string | undefined): State => JOB[state ?? ""] ?? { word: "unknown", tone: "off" };
