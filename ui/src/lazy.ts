// What few pages need is loaded when one of them is opened.
const loaded = new Map<string, Promise<unknown>>();

export function lazy<T>(name: keyof typeof LAZY): Promise<T> {
  const { code, style } = LAZY[name];
  let module = loaded.get(name);
  if (!module) {
    module = Promise.all([import(/* @vite-ignore */ code), style && sheet(style)]).then(([exports]) => exports as unknown);
    module.catch(() => loaded.delete(name));
    loaded.set(name, module);
  }
  return module as Promise<T>;
}

function sheet(address: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = address;
    link.onload = () => resolve();
    link.onerror = () => reject(new Error(`${address} could not be loaded`));
    document.head.append(link);
  });
}
