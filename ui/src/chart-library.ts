// Loaded when a page with a chart is opened.
import "uplot/dist/uPlot.min.css";
export { default } from "uplot";
