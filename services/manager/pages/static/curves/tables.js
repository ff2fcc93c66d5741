// The rows of runs, as the server has sent them: kept, brought up to date, and joined for a chart.

// One run's. Each of its tables has columns step and seconds, and means, lows and highs by key.
export class RunRows {
  constructor() {
    this.clear();
  }

  clear() {
    this.since = "";
    this.tables = [];
    this.charts = [];
  }

  take(answer) {
    this.since = answer.since;
    this.charts = answer.charts;
    this.tables = answer.tables.map((table, index) =>
      table.begin < 0 || !this.tables[index] ? table : joined(this.tables[index], table));
  }

  // The table that has the key, if there is one.
  tableOf(key) {
    return this.tables.find((table) => key in table.means);
  }

  // [step, value] of the last row with a value.
  last(key) {
    const table = this.tableOf(key);
    const index = table ? table.means[key].findLastIndex((value) => value !== null) : -1;
    return index < 0 ? null : [table.step[index], table.means[key][index]];
  }

  // The seconds from the run's first row to a step, for axes of time.
  secondsAt(step) {
    const table = this.tables[0];
    const index = table.step.findIndex((one) => one >= step);
    return table.seconds.at(index);
  }

  stepAt(seconds) {
    const table = this.tables[0];
    const index = table.seconds.findIndex((one) => one >= seconds);
    return table.step.at(index);
  }
}

// The rows known, up to where the new ones begin, and these.
function joined(known, table) {
  const end = known.step.findIndex((step) => step >= table.begin);
  const count = end < 0 ? known.step.length : end;
  const column = (before, after) => [...(before || Array(known.step.length).fill(null)).slice(0, count), ...after];
  const columns = (before, after) =>
    Object.fromEntries(Object.keys(after).map((key) => [key, column(before[key], after[key])]));
  return {
    ...table,
    step: column(known.step, table.step),
    seconds: column(known.seconds, table.seconds),
    means: columns(known.means, table.means),
    lows: columns(known.lows, table.lows),
    highs: columns(known.highs, table.highs),
  };
}

// uPlot's data for one axis: each part is a table and the columns of it that are drawn.
export function plotData(parts, by) {
  return uPlot.join(parts.map(([table, columns]) => {
    const x = by === "time" ? table.seconds : table.step;
    const order = x.map((_, index) => index);
    if (by === "time") order.sort((a, b) => x[a] - x[b]); // steps that were trained again come later
    return [x, ...columns].map((column) => order.map((index) => column[index]));
  }));
}
