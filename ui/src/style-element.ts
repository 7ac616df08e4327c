/**
 * What takes the place of a <style> element where inline styles are forbidden:
 * its text goes into a style sheet of the document.
 */
export function styleElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const element = document.createElement("template");
  Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text), get: () => "" });
  const remove = element.remove.bind(element);
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
    remove();
  };
  return element;
}
