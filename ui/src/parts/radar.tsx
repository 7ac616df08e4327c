// The five scores as a drawing, and as a list for those who cannot see it.
import type { Mark } from "../contract";
import { plain } from "../format";
import { sentenceAbout, thingHref } from "../keys";
import { Copy } from "./bits";

const NAMES: Record<string, string> = {
  cluster_health: "Health", nodes_health: "Machines", capacity_used: "Capacity", stability: "Stability", reliability: "Reliability",
};
/** Of capacity in use less is better; drawn is what is left. */
const drawn = (mark: Mark) => Math.max(0, Math.min(100, mark.name === "capacity_used" ? 100 - (mark.value ?? 0) : mark.value ?? 0));
export const markName = (mark: Mark) => NAMES[mark.name ?? ""] ?? (mark.name ?? "").replaceAll("_", " ");

const SIZE = 74;

function corner(at: number, count: number, share: number): string {
  const angle = (at / count) * 2 * Math.PI - Math.PI / 2;
  return `${(Math.cos(angle) * SIZE * share).toFixed(1)},${(Math.sin(angle) * SIZE * share).toFixed(1)}`;
}

const ring = (count: number, share: number) => Array.from({ length: count }, (_, at) => corner(at, count, share)).join(" ");

export function Radar({ marks }: { marks: Mark[] }) {
  const shape = marks.map((mark, at) => corner(at, marks.length, Math.max(0.03, drawn(mark) / 100))).join(" ");
  const text = marks.map((mark) => `${markName(mark)} ${Math.round(drawn(mark))}`).join(", ");
  return (
    <svg class="radar" viewBox="-150 -94 300 172" role="img" aria-label={`Scores out of 100: ${text}`}>
      {[1, 0.75, 0.5, 0.25].map((share) => <polygon key={share} class="web" points={ring(marks.length, share)} />)}
      {marks.map((mark, at) => <line key={mark.name} class="web" x2={corner(at, marks.length, 1).split(",")[0]} y2={corner(at, marks.length, 1).split(",")[1]} />)}
      <polygon class="shape" points={shape} />
      {marks.map((mark, at) => {
        const [x, y] = corner(at, marks.length, 1.16).split(",").map(Number) as [number, number];
        return (
          <text key={mark.name} x={x} y={y + 4} text-anchor={Math.abs(x) < 8 ? "middle" : x > 0 ? "start" : "end"}>
            <tspan class="value">{Math.round(drawn(mark))}</tspan> {markName(mark)}
          </text>
        );
      })}
    </svg>
  );
}

/** Why the scores are not higher. */
export function Reasons({ marks }: { marks: Mark[] }) {
  // What takes next to nothing is not worth a line.
  const lost = marks.flatMap((mark) => (mark.reasons ?? []).map((reason, rank) => ({ mark, reason, rank }))).filter(({ reason }) => (reason.points ?? 0) >= 0.5)
    // The worst of each mark first, so that no mark is without a reason in sight.
    .sort((a, b) => a.rank - b.rank || (b.reason.points ?? 0) - (a.reason.points ?? 0));
  if (lost.length === 0) return <p class="soft fine">All five scores are as high as they can be.</p>;
  return (
    <ul class="reasons" tabIndex={0} aria-label="Why the scores are not higher">
      {lost.slice(0, 12).map(({ mark, reason }, at) => (
        <li key={at}>
          <span class="points">−{(reason.points ?? 0).toFixed((reason.points ?? 0) < 10 ? 1 : 0)}</span>
          <span><span class="soft">{markName(mark)}:</span> {thingHref(reason.object)
            ? <a href={thingHref(reason.object)}>{plain(sentenceAbout(reason.object, reason.text), 160)}</a> : plain(reason.text, 160)} <code class="rule">{plain(reason.rule, 40)}</code></span>
          {reason.command && <p class="fix"><code>{plain(reason.command, 200)}</code><Copy text={reason.command} /></p>}
        </li>
      ))}
    </ul>
  );
}
