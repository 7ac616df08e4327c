// Lists: sorted, filtered, and drawn only where one looks.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { plain, plural } from "../format";
import { go, query, setQuery } from "../router";

export interface Column<T> {
  title: string;
  /** What it is sorted and filtered by, and shown as unless `show` is given. */
  value: (row: T) => string | number;
  show?: (row: T) => ComponentChildren;
  /** Left out on narrow screens. */
  wide?: boolean;
  right?: boolean;
}

export interface TableProps<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  id: (row: T) => string;
  /** Page of a row. */
  href?: (row: T) => string;
  /** Shown when there are no rows at all. */
  empty: ComponentChildren;
  /** Sorting before anybody chose one: column and direction. */
  order?: [number, 1 | -1];
}

const ROW = 41;
/** Lists up to this length are drawn whole. */
const WHOLE = 120;
const MARGIN = 8;

export function Table<T>({ label, rows, columns, id, href, empty, order }: TableProps<T>) {
  const [chosen, setChosen] = useState<[number, 1 | -1] | undefined>(order);
  const words = (query.value.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const texts = useMemo(() => rows.map((row) => columns.map((column) => column.value(row)).join(" ").toLowerCase()), [rows]);
  const shown = useMemo(() => {
    const found = words.length ? rows.filter((_, at) => words.every((word) => texts[at]!.includes(word))) : [...rows];
    return chosen ? sorted(found, columns[chosen[0]]!, chosen[1]) : found;
  }, [rows, words.join(" "), chosen]);
  const box = useRef<HTMLDivElement>(null);
  const view = useWindow(box, shown.length);

  if (rows.length === 0) return <>{empty}</>;
  const head = columns.map((column, at) => (
    <th key={column.title} scope="col" class={classes(column)} aria-sort={chosen?.[0] === at ? (chosen[1] > 0 ? "ascending" : "descending") : undefined}>
      <button type="button" class="sort" onClick={() => setChosen([at, chosen?.[0] === at ? (-chosen[1] as 1 | -1) : 1])}>
        {column.title}<span aria-hidden="true">{chosen?.[0] === at ? (chosen[1] > 0 ? " ▲" : " ▼") : ""}</span>
      </button>
    </th>
  ));
  return (
    <>
      <p class="count" role="status" data-testid="count">
        {words.length ? `${shown.length.toLocaleString("en")} of ${plural(rows.length, "row")}` : rows.length > 20 && plural(rows.length, "row")}
      </p>
      <div class={view.virtual ? "sheet scroller" : "sheet"} ref={box} onScroll={view.onScroll}
        onKeyDown={(event) => move(event, box.current!, shown.length)}>
        <table aria-label={label} aria-rowcount={shown.length + 1}>
          <thead><tr>{head}</tr></thead>
          <tbody>
            {view.before > 0 && <tr class="space" aria-hidden="true" style={{ height: `${view.before}px` }} />}
            {shown.slice(view.from, view.to).map((row, at) => (
              <Row key={id(row)} row={row} index={view.from + at} columns={columns} href={href?.(row)} />
            ))}
            {view.after > 0 && <tr class="space" aria-hidden="true" style={{ height: `${view.after}px` }} />}
          </tbody>
        </table>
        {shown.length === 0 && (
          <p class="nothing">Nothing matches the filter. <button type="button" class="link" onClick={() => setQuery("q", "")}>Show all</button></p>
        )}
      </div>
    </>
  );
}

function Row<T>({ row, index, columns, href }: { row: T; index: number; columns: Column<T>[]; href?: string }) {
  const open = (event: MouseEvent) => {
    if (!href || (event.target as Element).closest("a, button, input, select")) return;
    if (!getSelection()?.toString()) go(href);
  };
  return (
    <tr data-index={index} aria-rowindex={index + 2} class={href ? "opens" : undefined} onClick={open}>
      {columns.map((column, at) => {
        const content = column.show ? column.show(row) : plain(String(column.value(row)));
        return (
          <td key={column.title} class={classes(column)}>
            {at === 0 && href ? <a href={href}>{content}</a> : content}
          </td>
        );
      })}
    </tr>
  );
}

const classes = (column: { wide?: boolean; right?: boolean }) =>
  [column.wide && "wide", column.right && "right"].filter(Boolean).join(" ") || undefined;

function sorted<T>(rows: T[], column: Column<T>, direction: 1 | -1): T[] {
  const collator = new Intl.Collator("en", { numeric: true });
  const keyed = rows.map((row) => [column.value(row), row] as const);
  keyed.sort(([a], [b]) => direction * (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b))));
  return keyed.map(([, row]) => row);
}

/** Which rows of a long list are in sight. */
function useWindow(box: { current: HTMLDivElement | null }, count: number) {
  const [at, setAt] = useState({ top: 0, height: 800 });
  const virtual = count > WHOLE;
  useLayoutEffect(() => {
    if (virtual && box.current) setAt({ top: box.current.scrollTop, height: box.current.clientHeight });
  }, [virtual, count]);
  const from = virtual ? Math.max(0, Math.floor(at.top / ROW) - MARGIN) : 0;
  const to = virtual ? Math.min(count, Math.ceil((at.top + at.height) / ROW) + MARGIN) : count;
  return {
    virtual, from, to, before: from * ROW, after: (count - to) * ROW,
    onScroll: (event: Event) => {
      const target = event.currentTarget as HTMLDivElement;
      if (virtual) setAt({ top: target.scrollTop, height: target.clientHeight });
    },
  };
}

/** Arrow keys go from row to row, also to those that are not drawn yet. */
function move(event: KeyboardEvent, box: HTMLElement, count: number): void {
  const row = (event.target as Element).closest<HTMLElement>("tr[data-index]");
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[event.key];
  if (!row || !step || (event.target as Element).matches("input, select, textarea")) return;
  event.preventDefault();
  const next = Math.min(count - 1, Math.max(0, Number(row.dataset.index) + step));
  const focus = () => box.querySelector<HTMLElement>(`tr[data-index="${next}"] :is(a, button)`)?.focus({ preventScroll: false });
  if (box.classList.contains("scroller")) {
    if (next * ROW < box.scrollTop + ROW) box.scrollTop = next * ROW;
    else if ((next + 3) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (next + 3) * ROW - box.clientHeight;
    requestAnimationFrame(() => requestAnimationFrame(focus));
  } else focus();
}

/** The filter of the page's list, kept in the address. */
export function Filter({ what }: { what: string }) {
  const value = query.value.get("q") ?? "";
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      setQuery("q", "");
      (event.target as HTMLElement).blur();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      document.querySelector<HTMLElement>("tbody :is(a, button)")?.focus();
    }
  };
  return (
    <div class="filter">
      <label class="unseen" for="filter">Filter {what}</label>
      <input id="filter" data-testid="filter" type="search" placeholder={`Filter ${what}`} autocomplete="off" spellcheck={false}
        value={value} onInput={(event) => setQuery("q", event.currentTarget.value)} onKeyDown={onKey} />
      <kbd aria-hidden="true">/</kbd>
    </div>
  );
}
