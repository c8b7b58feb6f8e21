"use strict";
// Tables of many rows: sorted, filtered, with the columns that are asked for, a part at a time; and as a chart of any
// two columns.
const DataTables = (() => {
  const S = Spillway;
  const rowsAtOnce = 100, mostSeries = 16, longText = 80;

  class Column {
    constructor(about) {
      Object.assign(this, about);
    }
    text(row) {
      return this.texts[this.rows[row]];
    }
    // null: it is empty, or no number.
    number(row) {
      if (!this.is_number) return null;
      if (this.numbers) return this.numbers[this.rows[row]];
      const text = this.text(row);
      return text === "" ? null : Number(text);
    }
    // Of a policy, as pictures have it; the black of paper is that of the page.
    colour(row) {
      const colour = this.colours[this.rows[row]];
      return colour === "#000000" ? "var(--black)" : colour;
    }
    key(row) {
      return this.is_number ? this.number(row) : this.text(row);
    }
    // Results have 17 digits; people need fewer, and have all of them where the mouse rests.
    shown(row) {
      const text = this.text(row);
      if (!this.is_number || this.numbers || text === "") return text;
      if (/(^|[._])bytes($|[._])/.test(this.name)) return S.bytes(Number(text));
      return text.length < 8 ? text : S.number(Number(text), 5);
    }
  }

  // Of points at the same x the one with the highest y, or with the lowest (`sign` -1).
  function extremes(points, sign) {
    const best = new Map();
    for (const [x, y] of points) {
      if (!best.has(x) || sign * y > sign * best.get(x)) best.set(x, y);
    }
    return [...best];
  }

  class DataTable {
    // `about`: the JSON of experiments/report/data_table.cpp.
    constructor(place, about) {
      this.place = place;
      this.about = about;
      this.columns = about.columns.map((one) => new Column(one));
      this.shown = about.shown.map((name) => this.columns.findIndex((one) => one.name === name)).filter((c) => c >= 0);
      this.count = about.rows;
      this.sorted = null;
      this.room = rowsAtOnce;
      this.build();
      this.update();
    }

    find(name) {
      return this.columns.find((one) => one.name === name) || null;
    }

    build() {
      this.filter = S.element("input", {type: "search", placeholder: "rows that hold these words", "aria-label": "Filter"});
      this.filter.addEventListener("input", () => {
        this.room = rowsAtOnce;
        this.update();
      });
      this.said = S.element("span", {class: "said", role: "status"});
      this.head = S.element("tr");
      this.body = S.element("tbody");
      this.more = S.button("", "show more rows", () => {
        this.room *= 5;
        this.fill();
      });
      this.more.className = "more";
      this.place.append(...this.buildChart(), S.element("div", {class: "tools"}, this.filter, this.said), this.chooser(),
        S.element("div", {class: "scroll"}, S.element("table", {class: "data"}, S.element("thead", {}, this.head), this.body)),
        this.more);
    }

    chooser() {
      const boxes = this.columns.map((column, c) => {
        const box = S.element("input", {type: "checkbox"});
        box.checked = this.shown.includes(c);
        box.addEventListener("change", () => {
          if (box.checked) this.shown.push(c);
          else this.shown.splice(this.shown.indexOf(c), 1);
          this.update();
        });
        return S.element("label", {}, box, column.name);
      });
      return S.element("details", {}, S.element("summary", {}, "Columns"), S.element("div", {class: "columns"}, ...boxes));
    }

    buildChart() {
      const numbers = this.columns.filter((one) => one.is_number);
      const x = this.find(this.about.x) || numbers[0], y = this.find(this.about.y);
      if (!x || !y || !y.is_number) return [];
      const select = (title, columns, chosen) => {
        const made = S.element("select", {"aria-label": title});
        for (const [value, text] of columns) made.append(S.element("option", {value}, text));
        made.value = chosen;
        made.addEventListener("change", () => this.drawChart());
        return made;
      };
      const named = (list) => list.map((one) => [one.name, one.name]);
      this.xChoice = select("x axis", named(numbers), x.name);
      this.yChoice = select("y axis", named(numbers), y.name);
      const few = this.columns.filter((one) => one.texts.length > 1 && one.texts.length <= 60);
      this.byChoice = select("lines", [["", "each other axis"], ...named(few)], "");
      this.ofChoice = select("points", [["all", "all points"], ["highest", "the highest points"], ["lowest", "the lowest points"]],
        "all");
      // Where that is more lines than eyes tell apart: the best of each policy, or of what else has names.
      const others = this.othersThan(x, y), lines = new Set();
      for (let row = 0; row < this.count; ++row) lines.add(this.lineOf(row, others));
      if (lines.size > mostSeries) {
        const by = this.about.by.map((name) => this.find(name)).filter((one) => few.includes(one));
        const named = by.find((one) => !one.is_number) || by[0];
        if (named) [this.byChoice.value, this.ofChoice.value] = [named.name, "highest"];
      }
      this.logX = S.button("log x", "logarithmic x axis", () => this.toggle(this.logX));
      this.logY = S.button("log y", "logarithmic y axis", () => this.toggle(this.logY));
      for (const one of [this.logX, this.logY]) one.setAttribute("aria-pressed", "false");
      this.figure = S.element("figure", {class: "chart"});
      this.chartNote = S.element("p", {class: "note"});
      return [S.element("div", {class: "tools"}, S.element("span", {class: "said"}, "chart of"), this.yChoice,
        S.element("span", {class: "said"}, "over"), this.xChoice, S.element("span", {class: "said"}, "a line for"),
        this.byChoice, S.element("span", {class: "said"}, "through"), this.ofChoice, this.logX, this.logY), this.figure,
        this.chartNote];
    }

    toggle(button) {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      this.drawChart();
    }

    // Rows that hold all words of the filter in the columns that are shown.
    filtered() {
      const words = this.filter.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
      const rows = [];
      for (let row = 0; row < this.count; ++row) {
        if (words.length > 0) {
          const text = this.shown.map((c) => this.columns[c].text(row)).join(" ").toLowerCase();
          if (!words.every((word) => text.includes(word))) continue;
        }
        rows.push(row);
      }
      return rows;
    }

    update() {
      this.rows = this.filtered();
      if (this.sorted) {
        const {column, up} = this.sorted, keys = new Map(this.rows.map((row) => [row, column.key(row)]));
        const compare = up ? S.compareCells : S.compareDown;
        this.rows.sort((a, b) => compare(keys.get(a), keys.get(b)) || a - b);
      }
      this.said.textContent = this.rows.length === this.count ? S.number(this.count, 9) + " rows"
        : S.number(this.rows.length, 9) + " of " + S.number(this.count, 9) + " rows";
      this.fillHead();
      this.fill();
      this.drawChart();
    }

    fillHead() {
      this.head.replaceChildren(...this.shown.map((c) => {
        const column = this.columns[c], is = this.sorted && this.sorted.column === column;
        const head = S.element("th", {scope: "col", title: column.label});
        if (column.is_number) head.className = "number";
        if (is) head.setAttribute("aria-sort", this.sorted.up ? "ascending" : "descending");
        head.append(S.button(column.name, column.label, () => {
          this.sorted = {column, up: is ? !this.sorted.up : !column.is_number};
          this.update();
        }));
        return head;
      }));
    }

    fill() {
      const rows = this.rows.slice(0, this.room);
      this.body.replaceChildren(...rows.map((row) => S.element("tr", {}, ...this.shown.map((c) => {
        const column = this.columns[c], text = column.shown(row);
        const isLong = text.length > longText;
        const cell = S.element("td", {}, isLong ? S.element("div", {class: "long"}, text) : text);
        if (column.is_number) cell.className = "number";
        if (isLong || text !== column.text(row)) cell.title = column.text(row);
        return cell;
      }))));
      this.more.hidden = this.rows.length <= this.room;
      this.more.textContent = "Show more of the " + S.number(this.rows.length - this.room, 9) + " rows below";
    }

    // The axes that tell lines apart where no column is chosen for that.
    othersThan(x, y) {
      return this.about.by.map((name) => this.find(name)).filter((one) => one && one !== x && one !== y);
    }

    // The line that a row is on, where these columns tell lines apart.
    lineOf(row, columns) {
      return columns.filter((one) => one.text(row) !== "")
        .map((one) => (one.is_number ? one.name + " " : "") + one.text(row)).join(", ") || "all rows";
    }

    drawChart() {
      if (!this.xChoice) return;
      const x = this.find(this.xChoice.value), y = this.find(this.yChoice.value), by = this.find(this.byChoice.value);
      const others = by ? [by] : this.othersThan(x, y), series = new Map(), colours = new Map(), used = {};
      const policies = others.find((one) => one.colours);
      for (const row of this.filtered()) {
        const at = x.number(row), value = y.number(row);
        if (at === null || value === null) continue;
        const name = this.lineOf(row, others);
        if (!series.has(name)) {
          series.set(name, []);
          if (policies) colours.set(name, policies.colour(row));
        }
        series.get(name).push([at, value]);
      }
      const list = [...series].slice(0, mostSeries).map(([name, all]) => {
        const points = this.ofChoice.value === "all" ? all : extremes(all, this.ofChoice.value === "highest" ? 1 : -1);
        points.sort((a, b) => a[0] - b[0]);
        // One colour for a policy, a dash for what else tells lines apart.
        const colour = colours.get(name), nth = used[colour] = (used[colour] ?? -1) + 1;
        return {name, style: "line", colour, nth, x: points.map((p) => p[0]), y: points.map((p) => p[1]), labels: []};
      });
      const label = (one) => one.label + (one.unit ? ", " + one.unit : "");
      const spec = {title: y.name + " over " + x.name, x_label: label(x), y_label: label(y), series: list,
                    log_x: this.logX.getAttribute("aria-pressed") === "true",
                    log_y: this.logY.getAttribute("aria-pressed") === "true", from_zero: true, diagonal: false};
      this.chartNote.textContent = series.size > mostSeries
        ? "The first " + mostSeries + " of " + series.size + " lines are drawn: filter the rows, or choose what tells lines apart."
        : "";
      this.chartNote.hidden = series.size <= mostSeries;
      if (this.chart) this.chart.set(spec);
      else this.chart = new Charts.Chart(this.figure, spec);
    }
  }

  async function load() {
    for (const about of await S.json("data-tables") || []) {
      const place = document.getElementById(about.place);
      if (place) new DataTable(place, about);
    }
  }

  return {load};
})();
