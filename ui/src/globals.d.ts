/** Addresses of what is loaded on demand; written by the build. */
declare const LAZY: Record<"chart" | "terminal" | "licences", { code: string; style?: string }>;
/** Outline of the world's land, an SVG path in tenths of a degree. */
declare const WORLD: string;

declare module "*.css";
