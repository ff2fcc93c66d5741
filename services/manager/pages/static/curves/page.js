// The page of curves: asks for the rows of its runs again and again, and draws their charts.

import { ChartFigure } from "./chart.js";
import { Choice } from "./choice.js";
import { onTheme } from "./colours.js";
import { RunRows } from "./tables.js";

const POLL_MS = 3000;
const form = document.getElementById("curves");
const place = document.getElementById("charts");
const reading = document.getElementById("reading");
const density = document.getElementById("density");
const whole = document.getElementById("whole");
const { from, to, x } = form.elements;

const others = [...form.querySelectorAll(".laid input")].map((box) => box.value);
const runs = [form.dataset.run, ...others].map((name) => ({ name, rows: new RunRows(), word: "", isOver: false }));
const choice = new Choice(new URLSearchParams(location.search).getAll("chart"), restart);
const figures = new Map();
let turn = 0; // Answers to an earlier wish do not count.

function range() {
  return [from.value === "" ? null : Number(from.value), to.value === "" ? null : Number(to.value)];
}

function wish(run) {
  const query = new URLSearchParams(choice.asked.map((name) => ["chart", name]));
  const [first, last] = range();
  // By time another run has other steps there.
  if (x.value === "step" || run === runs[0]) {
    if (first !== null) query.set("from", first);
    if (last !== null) query.set("to", last);
  }
  if (runs.length > 1) query.set("bands", "false");
  if (run.rows.since) query.set("since", run.rows.since);
  return query;
}

// Once more for one run. Returns whether there is more to read at once.
async function ask(run) {
  const address = `/runs/${encodeURIComponent(run.name)}/series?${wish(run)}`;
  const began = turn;
  const answer = await fetch(address, { headers: { "HX-Request": "true" } });
  if (answer.headers.has("HX-Redirect")) location.assign(answer.headers.get("HX-Redirect"));
  if (!answer.ok) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    run.word = `${run.name}: ${page.body.textContent.trim()}`;
    return false;
  }
  const tree = await answer.json();
  if (began !== turn) return false;
  run.word = tree.share < 1 ? `${run.name}: ${Math.floor(tree.share * 100)} % is read` : "";
  if (tree.share < 1) return true;
  run.isOver = tree.is_over;
  run.rows.take(tree);
  if (tree.choice && run === runs[0]) choice.offer(tree.choice);
  return false;
}

async function follow(run) {
  for (;;) {
    let hasMore = false;
    try {
      if (!document.hidden) {
        hasMore = await ask(run);
        show();
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // fetch's, when nobody answers
      run.word = "The server does not answer. The page goes on when it does.";
      show();
    }
    await wait(hasMore ? 0 : run.isOver ? 10 * POLL_MS : POLL_MS); // one that is over may be resumed
  }
}

const waiting = new Set();

function wait(milliseconds) {
  return new Promise((go) => {
    waiting.add(go);
    setTimeout(go, milliseconds);
  }).then(() => waiting.clear());
}

function show() {
  const words = runs.map((run) => run.word).filter(Boolean);
  if (!words.length && !runs[0].rows.charts.length && runs[0].rows.since) words.push("No step has been trained yet.");
  reading.textContent = words.join(" · ");
  const known = runs.filter((run) => run.rows.charts.length).map((run) => [run.name, run.rows]);
  density.textContent = densityOf(known);
  const charts = new Map(known.flatMap(([, rows]) => rows.charts).map((chart) => [chart.name, chart]));
  for (const [name, chart] of figures)
    if (!charts.has(name)) {
      chart.element.remove();
      figures.delete(name);
    }
  for (const [name, chart] of charts) {
    if (!figures.has(name)) figures.set(name, new ChartFigure(chart, zoom, all));
    const figure = figures.get(name);
    if (!figure.element.isConnected) place.append(figure.element);
    figure.draw(known, x.value, axisRange());
  }
}

// What a point is, where it is not a step.
function densityOf(known) {
  const stride = Math.max(1, ...known.map(([, rows]) => rows.tables[0].stride));
  if (stride === 1) return "";
  const band = runs.length === 1 ? ", and the band around a first line is from the least to the greatest" : "";
  return `A point is the mean of up to ${stride} steps${band}; zoomed in, there are more points.`;
}

// The part of the axis that all charts show; null: all.
function axisRange() {
  const rows = runs.map((run) => run.rows).filter((one) => one.tables[0]?.step.length);
  if (!rows.length) return null;
  const [first, last] = range();
  const column = x.value === "time" ? "seconds" : "step";
  const firsts = rows.flatMap((one) => one.tables.map((table) => table[column][0])).filter((one) => one !== undefined);
  const lasts = rows.map((one) => one.tables[0][column].at(-1));
  const of = (step) => (x.value === "time" ? rows[0].secondsAt(step) : step);
  return [first === null ? Math.min(...firsts) : of(first), last === null ? Math.max(...lasts) : of(last)];
}

// Marks a part of the axis; all charts are synchronised, and each says so.
function zoom(begin, end) {
  const stepOf = (value) => (x.value === "time" ? runs[0].rows.stepAt(value) : value);
  const [first, last] = [Math.max(0, Math.floor(stepOf(begin))), Math.ceil(stepOf(end))];
  if (String(first) === from.value && String(last) === to.value) return;
  [from.value, to.value] = [first, last];
  restart();
}

function all() {
  if (from.value === "" && to.value === "") return;
  from.value = to.value = "";
  restart();
}

// Something else is wanted: the address says it, and the rows come again.
function restart() {
  turn += 1;
  history.replaceState(null, "", address());
  whole.hidden = from.value === "" && to.value === "";
  for (const run of runs) run.rows.since = "";
  show();
  for (const go of waiting) go();
}

function address() {
  const query = new URLSearchParams(choice.asked.map((name) => ["chart", name]));
  for (const [name, value] of new FormData(form))
    if (value !== "" && !(name === "x" && value === "step")) query.append(name, value);
  return query.size ? `${location.pathname}?${query}` : location.pathname;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  location.assign(address());
});
for (const box of form.querySelectorAll(".laid input")) box.addEventListener("change", () => location.assign(address()));
for (const field of [from, to, ...form.querySelectorAll("input[name=x]")]) field.addEventListener("change", restart);
document.getElementById("other").addEventListener("change", (event) => {
  const isKnown = [...document.getElementById("others").options].some((one) => one.value === event.target.value);
  if (isKnown) location.assign(address());
});
whole.addEventListener("click", all);
whole.hidden = from.value === "" && to.value === "";
onTheme(() => figures.forEach((figure) => figure.redraw()));
runs.forEach(follow);
