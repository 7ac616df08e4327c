// Cloudlets on a drawn world. What is near each other at this scale is one
// mark in a ring, with the worst state of them and all their instances.
import { useRef, useState } from "preact/hooks";
import type { Place } from "../contract";
import { plain, plural } from "../format";
import { go } from "../router";
import { thingHref } from "../keys";
import { severityTone, type Tone } from "../states";

interface View { x: number; y: number; scale: number }
interface Spot { x: number; y: number; places: Place[]; tone: Tone }

const WIDTH = 3600;
const HEIGHT = 1740;
/** From the 82nd degree north to the 56th south: there is no cloudlet beyond. */
const NORTH = -1120;
const WHOLE: View = { x: 0, y: 0, scale: 1 };

const SHAPES: Record<Tone, string> = {
  good: "M-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0z",
  busy: "M0-8L8 0L0 8L-8 0z",
  warn: "M0-8L8.5 7H-8.5z",
  bad: "M-7-7H7V7H-7z",
  off: "M-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0zM-3.5 0h7",
};
const RANK: Tone[] = ["off", "good", "busy", "warn", "bad"];

export const placeTone = (place: Place): Tone =>
  place.severity && place.severity !== "OK" ? severityTone(place.severity) : place.state === "ready" ? "good" : place.state === "offline" ? "bad" : "off";

/** Miller's projection, as world.mjs has it. */
function miller(latitude: number): number {
  const angle = (Math.min(84, Math.max(-84, latitude)) * Math.PI) / 180;
  return (1.25 * Math.log(Math.tan(Math.PI / 4 + 0.4 * angle)) * 180) / Math.PI;
}

/** Puts together what would be drawn over each other. */
function spots(places: Place[], scale: number, pixel: number): Spot[] {
  const near = 15 * pixel / scale;
  const found: Spot[] = [];
  for (const place of places) {
    const x = (place.longitude ?? 0) * 10;
    const y = -10 * miller(place.latitude ?? 0);
    const spot = found.find((one) => Math.hypot(one.x - x, one.y - y) < near);
    if (spot) spot.places.push(place);
    else found.push({ x, y, places: [place], tone: "off" });
  }
  for (const spot of found) spot.tone = spot.places.map(placeTone).sort((a, b) => RANK.indexOf(b) - RANK.indexOf(a))[0] ?? "off";
  return found;
}

export function World({ places, zoomable }: { places: Place[]; zoomable?: boolean }) {
  const [view, setView] = useState<View>(WHOLE);
  const box = useRef<SVGSVGElement>(null);
  const drag = useRef<{ x: number; y: number; view: View } | null>(null);
  const width = WIDTH / view.scale;
  const height = HEIGHT / view.scale;
  const pixel = WIDTH / (box.current?.clientWidth || (zoomable ? 1000 : 480));
  const zoom = (factor: number, at = { x: view.x, y: view.y }) => {
    const scale = Math.max(1, Math.min(24, view.scale * factor));
    const share = 1 - view.scale / scale;
    setView(kept({ scale, x: view.x + (at.x - view.x) * share, y: view.y + (at.y - view.y) * share }));
  };
  const onKey = (event: KeyboardEvent) => {
    const step = 300 / view.scale;
    const moves: Record<string, [number, number]> = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const [x, y] = moves[event.key] ?? [0, 0];
    if (x || y) setView(kept({ ...view, x: view.x + x, y: view.y + y }));
    else if (event.key === "+") zoom(1.6);
    else if (event.key === "-") zoom(1 / 1.6);
    else if (event.key === "0") setView(WHOLE);
    else return;
    event.preventDefault();
  };
  const onMove = (event: PointerEvent) => {
    if (!drag.current) return;
    const { x, y, view: start } = drag.current;
    setView(kept({ ...start, x: start.x - (event.clientX - x) * pixel / start.scale, y: start.y - (event.clientY - y) * pixel / start.scale }));
  };
  const shown = spots(places, view.scale, pixel);
  const frame = `${view.x - width / 2} ${view.y - height / 2 + (NORTH + HEIGHT / 2)} ${width} ${height}`;
  const handlers = zoomable ? {
    tabIndex: 0, onKeyDown: onKey, onPointerMove: onMove,
    onPointerDown: (event: PointerEvent) => { drag.current = { x: event.clientX, y: event.clientY, view }; },
    onPointerUp: () => { drag.current = null; }, onPointerLeave: () => { drag.current = null; },
    onWheel: (event: WheelEvent) => { event.preventDefault(); zoom(event.deltaY < 0 ? 1.25 : 0.8); },
  } : {};
  return (
    <div class="world">
      <svg ref={box} viewBox={frame} role="img" aria-label={`Map of ${plural(places.length, "cloudlet")}. The same is in the list.`} {...handlers}>
        <path class="land" d={WORLD} />
        {shown.map((spot) => <SpotMark key={`${spot.x} ${spot.y}`} spot={spot} size={pixel / view.scale} named={zoomable === true && view.scale > 1.5} />)}
      </svg>
      {zoomable && (
        <p class="zoom">
          <button type="button" class="quiet small" aria-label="Zoom in" onClick={() => zoom(1.6)}>+</button>
          <button type="button" class="quiet small" aria-label="Zoom out" onClick={() => zoom(1 / 1.6)}>−</button>
          <button type="button" class="quiet small" onClick={() => setView(WHOLE)}>Whole world</button>
        </p>
      )}
    </div>
  );
}

/** Keeps the view on the world. */
function kept(view: View): View {
  const x = (WIDTH / 2) * (1 - 1 / view.scale);
  const y = (HEIGHT / 2) * (1 - 1 / view.scale);
  return { ...view, x: Math.max(-x, Math.min(x, view.x)), y: Math.max(-y, Math.min(y, view.y)) };
}

function SpotMark({ spot, size, named }: { spot: Spot; size: number; named: boolean }) {
  const [first] = spot.places;
  const several = spot.places.length > 1;
  const instances = spot.places.reduce((sum, place) => sum + (place.instances ?? 0), 0);
  const title = spot.places.slice(0, 12).map((place) =>
    `${plain(place.cloudlet?.name, 60)}: ${place.state ?? "unknown"}, ${place.readyInstances ?? 0} of ${plural(place.instances ?? 0, "instance")} ready`).join("\n");
  const open = () => go(several ? "#/cloudlets" : thingHref(first?.cloudlet) ?? "#/cloudlets");
  return (
    <g class={`spot ${spot.tone}`} transform={`translate(${spot.x} ${spot.y}) scale(${size})`} onClick={open}>
      <title>{title}</title>
      <circle class="halo" r="15" />
      {several && <circle class="ring" r="12" />}
      <path d={SHAPES[spot.tone]} />
      {instances > 0 && (
        <g class="tag" transform="translate(9 -9)">
          <rect x="-1" y="-8" width={String(instances).length * 6.5 + 8} height="14" rx="7" />
          <text x="3" y="3">{instances}</text>
        </g>
      )}
      {named && <text class="label" y="22" text-anchor="middle">{several ? plural(spot.places.length, "cloudlet") : plain(first?.cloudlet?.name, 30)}</text>}
    </g>
  );
}
