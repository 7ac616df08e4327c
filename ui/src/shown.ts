// The last word on text that is drawn: whatever a page forgot to clean cannot turn
// the direction of what follows it, in the page, on hover, or where it is read aloud.
import { options, type VNode } from "preact";
import { calm } from "./format";

const TOLD = ["title", "aria-label", "placeholder"];

const before = options.vnode;
options.vnode = (node: VNode) => {
  const { type, props } = node as { type: unknown; props: unknown };
  // What is between elements is a node of its own, whose properties are its text.
  if (typeof props === "string") (node as { props: unknown }).props = calm(props);
  else if (typeof type === "string") {
    const told = props as Record<string, unknown>;
    for (const name of TOLD) if (typeof told[name] === "string") told[name] = calm(told[name]);
  }
  before?.(node);
};
