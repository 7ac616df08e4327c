// A small line over time.
import { measured } from "../format";

export interface Points { times: number[]; values: number[] }

export function Sparkline({ points, unit, label, floor = 0, top }: { points: Points; unit?: string; label: string; floor?: number; top?: number }) {
  const { times, values } = points;
  const last = values[values.length - 1];
  const [from, until] = [times[0] ?? 0, times[times.length - 1] ?? 1];
  const highest = Math.max(top ?? 0, ...values, floor + 1e-9);
  const x = (time: number) => (until > from ? ((time - from) / (until - from)) * 100 : 100);
  const y = (value: number) => 29 - ((value - floor) / (highest - floor)) * 27;
  const line = values.map((value, at) => `${at ? "L" : "M"}${x(times[at]!).toFixed(2)} ${y(value).toFixed(2)}`).join("");
  return (
    <div class="spark">
      <p class="soft">{label}</p>
      <p class="big">{last === undefined ? <span class="soft fine">no data yet</span> : measured(last, unit)}</p>
      <svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label={last === undefined ? `${label}: no values yet` : `${label}: now ${measured(last, unit)}, at most ${measured(Math.max(...values), unit)}`}>
        {values.length > 1 && <path class="under" d={`${line}L${x(until).toFixed(2)} 30L${x(from).toFixed(2)} 30z`} />}
        {values.length > 1 && <path class="over" d={line} vector-effect="non-scaling-stroke" />}
      </svg>
    </div>
  );
}
