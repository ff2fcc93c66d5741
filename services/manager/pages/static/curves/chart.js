// One chart: its figure on the page, with a table of its lines, which says their values.

import { colour, tint } from "./colours.js";
import { plotData } from "./tables.js";
import { elapsed, figure } from "./words.js";

const HEIGHT = 220;
const FEW = 100; // validations, each of which gets a mark
const COLOURS = 9; // --line-1 to --line-9
const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4], [12, 6], [2, 6]];
const SECONDS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 432000, 864000];

export class ChartFigure {
  // onZoom(from, to): of the axis, once a part of it was marked; onWhole(): the mark is to go.
  constructor(chart, onZoom, onWhole) {
    this.chart = chart;
    this.onZoom = onZoom;
    this.onWhole = onWhole;
    this.shape = "";
    this.element = document.createElement("figure");
    const title = document.createElement("figcaption");
    title.textContent = chart.title;
    const unit = quiet(["1", "reward"].includes(chart.unit) ? "" : chart.unit);
    this.place = quiet("");
    title.append(unit, this.place);
    title.title = chart.about;
    this.canvas = document.createElement("div");
    this.canvas.setAttribute("role", "img");
    this.table = document.createElement("table");
    this.element.append(title, this.canvas, this.table);
    new ResizeObserver(() => this.plot?.setSize({ width: this.canvas.clientWidth, height: HEIGHT })).observe(this.canvas);
  }

  // runs: [name, RunRows]; by: "step" or "time"; range: [from, to] of the axis, or null for all.
  draw(runs, by, range) {
    const lines = linesOf(this.chart, runs);
    this.lines = lines;
    this.by = by;
    const parts = lines.map((line) => [line.table, columnsOf(line)]);
    const data = plotData(parts, by);
    const shape = JSON.stringify([by, lines.map((line) => [line.run, line.key, line.hasBand])]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.plot?.destroy();
      this.plot = new uPlot(this.options(lines, by), data, this.canvas);
    } else {
      this.plot.setData(data, false);
    }
    const x = data[0];
    const [from, to] = range || [x[0], x.at(-1)];
    this.plot.setScale("x", { min: from, max: to > from ? to : from + 1 });
    // Once it is drawn: the cursor stands over other rows now.
    const { left, top } = this.plot.cursor;
    queueMicrotask(() => this.plot.setCursor({ left, top }, true, false));
  }

  redraw() {
    this.plot?.redraw(false);
  }

  options(lines, by) {
    const quiet = () => colour("--quiet");
    const grid = { stroke: () => colour("--line"), width: 1 };
    const axis = { stroke: quiet, grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif" };
    const series = [{}];
    const bands = [];
    for (const line of lines) {
      series.push({
        stroke: () => colour(line.colour),
        width: 1.5,
        dash: line.dash,
        spanGaps: line.isSparse,
        points: {
          size: 5,
          fill: () => colour("--panel"),
          ...(line.isSparse ? { show: line.table.step.length < FEW } : {}),
        },
      });
      if (line.hasBand) {
        bands.push({ series: [series.length, series.length + 1], fill: () => tint(line.colour) });
        for (let edge = 0; edge < 2; edge++) series.push({ stroke: "transparent", points: { show: false } });
      }
    }
    return {
      width: this.canvas.clientWidth,
      height: HEIGHT,
      series,
      bands,
      legend: { show: false },
      scales: { x: { time: false }, y: { range: heights } },
      axes: [
        { ...axis, size: 34, ...(by === "time" ? { space: 75, incrs: SECONDS, values: (_, splits) => splits.map(elapsed) } : {}) },
        { ...axis, size: 58, values: (_, splits) => splits.map((value) => figure(value, "")) },
      ],
      cursor: {
        sync: { key: "curves", scales: ["x", null] },
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: 6, fill: (plot, index) => plot.series[index].stroke(plot, index) },
        bind: { dblclick: () => () => this.onWhole() },
      },
      hooks: {
        setCursor: [() => this.describe()],
        setSelect: [(plot) => this.marked(plot)],
      },
    };
  }

  marked(plot) {
    const { left, width } = plot.select;
    if (width < 3) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  // The table: values at the cursor, or the last ones; and for who does not see the chart, in words.
  describe() {
    if (!this.plot) return;
    const index = this.plot.cursor.idx;
    const isAt = index !== null && index !== undefined && this.plot.cursor.left >= 0;
    const x = isAt ? this.plot.data[0][index] : null;
    const place = !isAt ? "last" : this.by === "time" ? elapsed(x) : `step ${Math.round(x)}`;
    const rows = this.lines.map((line) => {
      const value = isAt ? nearest(this.plot.data[line.column], index) : line.last?.[1];
      return [line, figure(value, this.chart.unit)];
    });
    this.place.textContent = place;
    this.table.replaceChildren(...rows.map(([line, text]) => row(line, text)));
    if (!isAt) {
      const words = rows.map(([line, text]) => `${line.name || this.chart.title} ${text}`).join(", ");
      this.canvas.setAttribute("aria-label", `${this.chart.title} by ${this.by}; last values: ${words}`);
    }
  }
}

// What is drawn: for each run the lines that it has, with their colours and where they stand in the data.
function linesOf(chart, runs) {
  const lines = [];
  let column = 1;
  runs.forEach(([run, rows], runIndex) => {
    const found = rows.charts.find((one) => one.name === chart.name);
    (found?.lines || []).forEach((line, index) => {
      const table = rows.tableOf(line.key);
      if (!table) return;
      const spread = index === 0 && runs.length === 1 ? bandOf(chart, table, line.key) : null;
      const hue = (runs.length > 1 ? runIndex : index) % COLOURS;
      lines.push({
        run,
        key: line.key,
        name: runs.length > 1 ? [run, line.label].filter(Boolean).join(" · ") : line.label,
        colour: `--line-${hue + 1}`,
        dash: runs.length > 1 ? DASHES[index % DASHES.length] : [],
        isSparse: table !== rows.tables[0],
        table,
        column,
        spread,
        hasBand: spread !== null,
        last: rows.last(line.key),
      });
      column += spread ? 3 : 1;
    });
  });
  return lines;
}

// The upper and the lower edge around a line: its spread, else what lies in a row of several steps.
function bandOf(chart, table, key) {
  const [first, second] = chart.spread.map((one) => table.means[one]);
  const means = table.means[key];
  if (first && second) return [second, first];
  if (first) return [1, -1].map((sign) => means.map((mean, i) => (mean === null || first[i] === null ? null : mean + sign * first[i])));
  if (table.highs[key]) return [table.highs[key], table.lows[key]];
  return null;
}

function columnsOf(line) {
  return [line.table.means[line.key], ...(line.spread || [])];
}

// The value at an index, or that before it: runs have different steps.
function nearest(values, index) {
  for (let i = index; i >= 0 && i > index - 50; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

function quiet(text) {
  const made = document.createElement("span");
  made.className = "quiet";
  made.textContent = text;
  return made;
}

// A number that stays the same gets room around it.
function heights(plot, least, most) {
  if (least === null) return [0, 1];
  if (least === most) return least === 0 ? [0, 1] : [least - Math.abs(least) / 2, least + Math.abs(least) / 2];
  return uPlot.rangeNum(least, most, 0.1, true);
}

function row(line, text) {
  const made = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  const mark = document.createElement("span");
  mark.className = "mark";
  mark.style.borderTopColor = `var(${line.colour})`;
  mark.style.borderTopStyle = line.dash.length ? "dashed" : "solid";
  name.append(mark, line.name);
  const value = document.createElement("td");
  value.textContent = text;
  made.append(name, value);
  return made;
}
