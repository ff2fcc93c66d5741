// The timeline: a lane a process, a colour an activity. Asks again while its window ends now and the run goes on.

import { colour, onTheme } from "./curves/colours.js";

const POLL_MS = 5000;
const LANE = 24;
const AXIS = 22;
const LEAST_SECONDS = 1;
const COLOURS = {
  generating: "--line-7", scoring: "--line-6", training: "--line-4", syncing: "--line-2", validating: "--line-3",
};
const place = document.getElementById("timeline");
const canvas = place.querySelector("canvas");
const facts = document.getElementById("span-facts");
const shares = document.getElementById("shares");
const pen = canvas.getContext("2d");

let shown = { start: 0, end: 1, first: 0, lanes: [], activities: [], spans: [], grows: false };
let seconds = Number(place.dataset.seconds);
let until = 0; // 0: now, or the run's end.
let labels = 0; // Width of the lanes' names.
let drag = null;
let timer = 0;
let turn = 0; // Answers to an earlier wish do not count.

async function ask() {
  clearTimeout(timer);
  const mine = ++turn;
  try {
    const answer = await fetch(`${place.dataset.address}?seconds=${seconds}&until=${until}`);
    if (mine !== turn) return;
    if (answer.ok) {
      shown = await answer.json();
      draw();
      tell();
    } else facts.textContent = `The timeline cannot be read (${answer.status}).`;
  } catch {
    // The server is away; pages.js says so. The timeline asks again.
  }
  if (mine === turn && !until && shown.grows) timer = setTimeout(ask, POLL_MS);
}

function width() {
  return canvas.clientWidth - labels;
}

function xOf(time) {
  return labels + (time / (shown.end - shown.start)) * width();
}

function secondsAt(x) {
  return ((x - labels) / width()) * (shown.end - shown.start);
}

function draw() {
  const scale = window.devicePixelRatio || 1;
  const height = Math.max(shown.lanes.length, 1) * LANE + AXIS;
  canvas.style.height = `${height}px`;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = height * scale;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = `13px ${getComputedStyle(canvas).fontFamily}`;
  pen.textBaseline = "middle";
  labels = Math.max(40, ...shown.lanes.map((name) => pen.measureText(name).width)) + 12;
  pen.clearRect(0, 0, canvas.clientWidth, height);
  shown.lanes.forEach((name, lane) => {
    pen.fillStyle = colour("--ink");
    pen.fillText(name, 0, lane * LANE + LANE / 2);
    pen.fillStyle = colour("--panel");
    pen.fillRect(labels, lane * LANE + 3, width(), LANE - 6);
  });
  for (const [lane, activity, start, length, , , share] of shown.spans) {
    const left = Math.max(xOf(start), labels);
    const right = Math.min(xOf(start + length), canvas.clientWidth);
    pen.globalAlpha = 0.25 + 0.75 * share;
    pen.fillStyle = colour(COLOURS[shown.activities[activity]] || "--line-9");
    pen.fillRect(left, lane * LANE + 3, Math.max(right - left, 1), LANE - 6);
  }
  pen.globalAlpha = 1;
  drawAxis(height);
  if (drag) {
    pen.fillStyle = colour("--accent");
    pen.globalAlpha = 0.2;
    pen.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), height - AXIS);
    pen.globalAlpha = 1;
  }
}

function drawAxis(height) {
  const most = Math.max(Math.floor(width() / 90), 1);
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400, 604800];
  const apart = steps.find((step) => (shown.end - shown.start) / step <= most) || 2592000;
  pen.fillStyle = colour("--quiet");
  pen.strokeStyle = colour("--line");
  for (let time = Math.ceil(shown.start / apart) * apart; time < shown.end; time += apart) {
    const x = xOf(time - shown.start);
    pen.beginPath();
    pen.moveTo(x, 0);
    pen.lineTo(x, height - AXIS + 4);
    pen.stroke();
    const text = clock(time, apart);
    if (x + pen.measureText(text).width < canvas.clientWidth) pen.fillText(text, x + 3, height - AXIS / 2);
  }
}

function clock(time, apart = 1) {
  const moment = new Date(time * 1000);
  if (apart >= 86400) return moment.toLocaleDateString();
  const digits = { hour: "2-digit", minute: "2-digit" };
  if (apart < 60) digits.second = "2-digit";
  if (apart < 1) digits.fractionalSecondDigits = 1;
  return moment.toLocaleTimeString([], digits);
}

// The same in words: which share of the window each process was at what.
function tell() {
  const busy = shown.lanes.map(() => shown.activities.map(() => 0));
  const whole = shown.end - shown.start || 1;
  for (const [lane, activity, start, length, , , share] of shown.spans)
    busy[lane][activity] += Math.max(Math.min(start + length, whole) - Math.max(start, 0), 0) * share;
  const row = (cell, texts) => {
    const line = document.createElement("tr");
    for (const text of texts) line.append(Object.assign(document.createElement(cell), { textContent: text }));
    return line;
  };
  shares.replaceChildren(
    row("th", ["Share of the time", ...shown.activities]),
    ...shown.lanes.map((name, lane) => row("td", [name, ...busy[lane].map((time) => (time ? `${((100 * time) / whole).toFixed(1)} %` : ""))])),
  );
  canvas.setAttribute("aria-label", `Timeline of ${shown.lanes.length} processes; the table below has its shares`);
  if (!seconds && shown.start > shown.first + 1) facts.textContent = "Of so long a time the end is shown; Earlier goes back.";
  else if (!shown.spans.length) facts.textContent = shown.first ? "Nothing ended in this time." : "There is no timeline yet, or not on this machine.";
}

function point(event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function describe(event) {
  const [x, y] = point(event);
  const lane = Math.floor(y / LANE);
  const at = secondsAt(x);
  const near = ((shown.end - shown.start) / width()) * 2;
  const span = shown.spans.find(([of, , start, length]) => of === lane && start - near <= at && at <= start + length + near);
  if (!span) return;
  const [, activity, start, length, first, last] = span;
  const step = first === last ? `step ${first}` : `steps ${first} to ${last}`;
  const time = `${clock(shown.start + start)}, ${length.toFixed(length < 10 ? 2 : 0)} s`;
  facts.textContent = `${shown.lanes[lane]}: ${shown.activities[activity]}, ${step}, ${time}`;
}

function look(length, end) {
  seconds = length && Math.max(length, LEAST_SECONDS);
  until = end;
  ask();
}

canvas.addEventListener("pointerdown", (event) => {
  const [x] = point(event);
  if (x < labels || event.pointerType === "touch") return;
  drag = { from: x, to: x };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (drag) {
    drag.to = Math.max(point(event)[0], labels);
    draw();
  } else describe(event);
});
canvas.addEventListener("pointerup", (event) => {
  describe(event);
  if (!drag) return;
  const [from, to] = [drag.from, drag.to].sort((a, b) => a - b).map(secondsAt);
  const isWide = Math.abs(drag.to - drag.from) > 5;
  drag = null;
  if (isWide) look(to - from, shown.start + to);
  else draw();
});
canvas.addEventListener("dblclick", () => look(Number(place.dataset.seconds), 0));

const MOVES = {
  in: (length, end) => look(length / 2, end - length / 4),
  out: (length, end) => look(length * 2, until && end + length / 2),
  earlier: (length, end) => look(length, end - length / 2),
  later: (length, end) => look(length, end + length / 2),
};
for (const button of place.querySelectorAll("button[data-move]"))
  button.addEventListener("click", () => MOVES[button.dataset.move](shown.end - shown.start, shown.end));
for (const button of place.querySelectorAll("button[data-last]"))
  button.addEventListener("click", () => look(Number(button.dataset.last), 0));

new ResizeObserver(draw).observe(canvas);
onTheme(draw);
ask();
