// Loaded when a shell is opened.
import "@xterm/xterm/css/xterm.css";
export { Terminal } from "@xterm/xterm";
export { FitAddon } from "@xterm/addon-fit";
