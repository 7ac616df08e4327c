// Lines over time, drawn by uPlot, which is loaded on demand.
import type uPlot from "uplot";
import { useEffect, useRef } from "preact/hooks";
import { measured } from "../format";
import { lazy } from "../lazy";
import { theme } from "../theme";

export interface Line { label: string; values: (number | null)[] }

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** A colour of the page as the canvas can draw it, in the theme of now. */
function resolved(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
const LINES = ["--teal", "--amber", "--good", "--bad"];
/** Steps of an axis of bytes: powers of two, so that its marks are round. */
const BINARY = Array.from({ length: 50 }, (_, at) => 2 ** at);
const clock = (seconds: number, step: number) =>
  new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" } : {}) });
const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4]];

export function Chart({ title, of, times, lines, unit, top, height = 170 }: {
  title: string; of?: string; times: number[]; lines: Line[]; unit?: string; top?: number; height?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = theme.value;
  // One sample is no line, and an axis without an extent has no times.
  const drawn = times.length > 1;
  useEffect(() => {
    if (!drawn) return undefined;
    let live = true;
    const watch = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height }));
    void lazy<{ default: typeof uPlot }>("chart").then(({ default: Plot }) => {
      if (!live || !box.current) return;
      plot.current = new Plot(options(lines, unit, top, box.current.clientWidth, height), data(times, lines), box.current);
      watch.observe(box.current);
    }, () => undefined);
    return () => {
      live = false;
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [lines.map((line) => line.label).join(), unit, dark, drawn]);
  useEffect(() => plot.current?.setData(data(times, lines)), [times, lines]);
  return (
    <figure class="chart">
      <figcaption>{title} <span class="soft fine">{lines.map((line, at) => (
        <span key={line.label}>{at > 0 && " · "}{lines.length > 1 && <><Swatch at={at} /> {line.label} </>}{last(line, unit)}</span>
      ))}{of && ` of ${of}`}</span></figcaption>
      {!drawn && <p class="soft fine">Drawn from the second sample on.</p>}
      <div ref={box} role="img" hidden={!drawn} aria-label={`${title}: ${lines.map((line) => `${line.label} now ${last(line, unit)}`).join(", ")}`} style={{ minHeight: `${height}px` }} />
    </figure>
  );
}

/** A piece of the line as it is drawn, so that nobody must guess which is which. */
const Swatch = ({ at }: { at: number }) => (
  <svg class="swatch" viewBox="0 0 26 6" aria-hidden="true"><path d="M1 3H25" stroke-dasharray={DASHES[at % 4]!.join(" ") || undefined} style={{ stroke: `var(${LINES[at % 4]})` }} /></svg>
);

function last(line: Line, unit: string | undefined): string {
  const value = [...line.values].reverse().find((one) => one !== null && one !== undefined);
  return value === undefined || value === null ? "no values yet" : measured(value, unit);
}

const data = (times: number[], lines: Line[]): uPlot.AlignedData => [times.map((time) => time / 1000), ...lines.map((line) => line.values)];

function options(lines: Line[], unit: string | undefined, top: number | undefined, width: number, height: number): uPlot.Options {
  const axis = { stroke: resolved("--soft"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--sans")}` };
  return {
    width, height, legend: { show: false }, cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, __, highest) => [0, Math.max(top ?? 0, (highest ?? 0) * 1.1, 1e-9)] } },
    axes: [{ ...axis, space: 70, size: 26, values: (_, splits, __, ___, step) => splits.map((time) => clock(time, step)) }, {
      incrs: unit?.startsWith("bytes") ? BINARY : undefined, ...axis, size: 74, values: (_, splits) => splits.map((value) => measured(value, unit)) }],
    series: [{}, ...lines.map((line, at) => ({
      label: line.label, spanGaps: true, stroke: resolved(LINES[at % 4]!), width: 1.8, dash: DASHES[at % 4], points: { show: false },
      fill: lines.length === 1 ? resolved(LINES[0]!).replace("rgb(", "rgba(").replace(")", ", 0.13)") : undefined,
    }))],
  };
}
