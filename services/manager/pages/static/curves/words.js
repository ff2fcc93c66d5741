// Numbers and times as people read them.

export function figure(value, unit) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-4 || size >= 1e7)
    ? value.toExponential(3)
    : value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return unit === "s" ? `${text} s` : text;
}

export function elapsed(seconds) {
  const minutes = Math.round(seconds / 60);
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (minutes < 100) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
  return `${(minutes / 1440).toFixed(1)} d`;
}
