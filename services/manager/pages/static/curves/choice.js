// The dialog in which charts are chosen. Its boxes are fields of the page's form.

export class Choice {
  // onChange(): after each click.
  constructor(chosen, onChange) {
    this.chosen = new Set(chosen); // empty: the usual ones
    this.onChange = onChange;
    this.usual = [];
    this.dialog = document.getElementById("choice");
    this.list = document.getElementById("choice-list");
    const find = document.getElementById("find");
    find.addEventListener("input", () => this.filter(find.value));
    find.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
    document.getElementById("choose").addEventListener("click", () => this.dialog.showModal());
    document.getElementById("choice-done").addEventListener("click", () => this.dialog.close());
    document.getElementById("choice-usual").addEventListener("click", () => this.set([]));
  }

  // charts: all that the run has, as the server tells them.
  offer(charts) {
    this.usual = charts.filter((chart) => chart.name !== chart.title).map((chart) => chart.name);
    this.list.replaceChildren(...charts.map((chart) => this.box(chart)));
  }

  box(chart) {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = chart.name;
    box.checked = this.names.includes(chart.name);
    box.addEventListener("change", () =>
      this.set([...this.list.querySelectorAll("input:checked")].map((one) => one.value)));
    const about = document.createElement("span");
    about.className = "quiet";
    about.textContent = chart.about;
    label.append(box, ` ${chart.title} `, about);
    return label;
  }

  get names() {
    return this.chosen.size ? [...this.chosen] : this.usual;
  }

  // For requests and addresses: nothing where the usual ones are chosen.
  get asked() {
    return [...this.chosen];
  }

  set(names) {
    const isUsual = names.length === this.usual.length && names.every((name) => this.usual.includes(name));
    this.chosen = new Set(isUsual ? [] : names);
    for (const box of this.list.querySelectorAll("input")) box.checked = this.names.includes(box.value);
    this.onChange();
  }

  filter(text) {
    const words = text.toLowerCase().split(/\s+/);
    for (const label of this.list.children)
      label.hidden = !words.every((word) => label.textContent.toLowerCase().includes(word));
  }
}
