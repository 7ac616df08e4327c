// Outline of the world's land as one SVG path: Natural Earth 1:110m (public
// domain), in tenths of a degree of Miller's projection with north up,
// simplified to what a screen can show.
import { readFileSync } from "node:fs";

/** Least area, in square degrees, of an island that is drawn. */
const SMALLEST = 2.2;
/** How far, in degrees, a line may stray from the real one. */
const TOLERANCE = 0.42;

export function outline() {
  const file = new URL("node_modules/world-atlas/land-110m.json", import.meta.url);
  const { arcs, objects, transform } = JSON.parse(readFileSync(file, "utf8"));
  const lines = arcs.map((arc) => decode(arc, transform));
  const polygons = objects.land.geometries.flatMap((shape) => (shape.type === "Polygon" ? [shape.arcs] : shape.arcs));
  return polygons.flat().map((ring) => unrolled(join(ring, lines)))
    .filter((ring) => Math.abs(area(ring)) >= SMALLEST && ring.some(([, latitude]) => latitude > -60))
    .flatMap(bothSides).map((ring) => path(simplify(ring.map(projected)))).join("");
}

/** As src/parts/world.tsx has it. */
function projected([longitude, latitude]) {
  const angle = Math.min(84, Math.max(-84, latitude)) * Math.PI / 180;
  return [longitude, 1.25 * Math.log(Math.tan(Math.PI / 4 + 0.4 * angle)) * 180 / Math.PI];
}

/** A ring over the date line goes on beyond 180 degrees instead of jumping. */
function unrolled(ring) {
  let turn = 0;
  return ring.map(([x, y], at) => {
    const step = at === 0 ? 0 : x - ring[at - 1][0];
    if (Math.abs(step) > 180) turn -= Math.sign(step) * 360;
    return [x + turn, y];
  });
}

/** What lies beyond the date line is drawn on the other side too. */
function bothSides(ring) {
  const shift = ring.some(([x]) => x > 180.5) ? -360 : ring.some(([x]) => x < -180.5) ? 360 : 0;
  return shift ? [ring, ring.map(([x, y]) => [x + shift, y])] : [ring];
}

/** Arcs are stored as steps on a grid. */
function decode(arc, { scale, translate }) {
  let x = 0;
  let y = 0;
  return arc.map(([dx, dy]) => {
    x += dx;
    y += dy;
    return [x * scale[0] + translate[0], y * scale[1] + translate[1]];
  });
}

function join(ring, lines) {
  return ring.flatMap((index, at) => {
    const line = index < 0 ? [...lines[~index]].reverse() : lines[index];
    return at === 0 ? line : line.slice(1);
  });
}

function area(ring) {
  return ring.reduce((sum, [x, y], at) => {
    const [nextX, nextY] = ring[(at + 1) % ring.length];
    return sum + (x * nextY - nextX * y) / 2;
  }, 0);
}

/** Douglas and Peucker's, on a ring cut at its first point. */
function simplify(points) {
  if (points.length < 3) return points;
  const [start, end] = [points[0], points[points.length - 1]];
  let farthest = 0;
  let distance = 0;
  points.forEach((point, at) => {
    const away = offLine(point, start, end);
    if (away > distance) [farthest, distance] = [at, away];
  });
  if (distance <= TOLERANCE) return [start, end];
  return [...simplify(points.slice(0, farthest + 1)), ...simplify(points.slice(farthest)).slice(1)];
}

function offLine([x, y], [x1, y1], [x2, y2]) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  if (length === 0) return Math.hypot(x - x1, y - y1);
  return Math.abs((x2 - x1) * (y1 - y) - (x1 - x) * (y2 - y1)) / length;
}

/** Relative steps in tenths of a degree are the shortest text. */
function path(ring) {
  const whole = ring.map(([x, y]) => [Math.round(x * 10), Math.round(-y * 10)]);
  let text = `M${whole[0][0]} ${whole[0][1]}l`;
  whole.slice(1).forEach(([x, y], at) => {
    const step = `${x - whole[at][0]} ${y - whole[at][1]}`;
    text += (at === 0 || step.startsWith("-") ? "" : " ") + step.replace(" -", "-");
  });
  return text + "z";
}
