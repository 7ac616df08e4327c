// Dark or light: as the system has it, until somebody says otherwise.
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const NAME = "selvage-theme";

const kept = (() => {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
})();
export const theme = signal<Theme>(kept === "light" || kept === "dark" ? kept : "system");

theme.subscribe((value) => {
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
  try {
    if (value === "system") localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, value);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
});

export const isDark = () =>
  theme.value === "dark" || (theme.value === "system" && matchMedia("(prefers-color-scheme: dark)").matches);

export function nextTheme(): void {
  theme.value = isDark() ? "light" : "dark";
}
