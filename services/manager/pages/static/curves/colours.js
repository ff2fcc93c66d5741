// The style sheet's colours, as a canvas takes them. They change with the theme.

const known = new Map();
const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

// Example: colour("--ink")
export function colour(name) {
  if (!known.has(name)) {
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

// The same, almost clear: for bands.
export function tint(name) {
  return colour(name).replace(/^rgb\((.+)\)$/, "rgba($1, 0.16)");
}

export function onTheme(redraw) {
  const change = () => {
    known.clear();
    redraw();
  };
  document.addEventListener("theme", change);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", change);
}
