"use strict";
// Charts: lines or points over two axes, in SVG, with values to be read off with the mouse.
const Charts = (() => {
  const S = Spillway;
  // Okabe and Ito, the dark ones first; a second round is dashed.
  const palette = ["blue", "vermillion", "green", "purple", "orange", "sky", "black", "yellow"];
  const dashes = ["none", "6 4", "2 3", "10 4 2 4", "14 5", "10 4 2 4 2 4", "4 8", "1 6"];
  const characterWidth = 7;

  function svg(tag, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== "") made.textContent = text;
    return made;
  }

  function ticksOf(low, high, most, isLog) {
    if (!isLog) {
      const distance = S.tickDistance(high - low, most), ticks = [];
      for (let n = Math.ceil(low / distance - 1e-9); n * distance <= high * (1 + 1e-12) + 1e-300; ++n)
        ticks.push(Number((n * distance).toPrecision(12)));
      return ticks;
    }
    // The most of these that there is room for.
    const choices = [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]].map((factors) => {
      const ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
        for (const factor of factors) {
          const tick = Number((factor * 10 ** power).toPrecision(3));
          if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
        }
      }
      return ticks;
    });
    const fitting = choices.find((ticks) => ticks.length <= most) || choices[choices.length - 1];
    const every = Math.ceil(fitting.length / most);
    return fitting.filter((_, k) => k % every === 0);
  }

  // An axis: from values to places.
  class Axis {
    constructor(values, isLog, fromZero) {
      this.isLog = isLog && values.length > 0 && values.every((value) => value > 0);
      let low = Infinity, high = -Infinity;
      for (const value of values) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      if (low > high) [low, high] = [0, 1];
      if (this.isLog) {
        const room = low === high ? 1.5 : (high / low) ** 0.04;
        [low, high] = [low / room, high * room];
      } else {
        if (fromZero) low = Math.min(0, low);
        const room = high > low ? 0.04 * (high - low) : Math.abs(high) * 0.1 || 1;
        [low, high] = [fromZero && low === 0 ? 0 : low - room, high + room];
      }
      Object.assign(this, {low, high});
    }
    place(value, from, to) {
      const share = this.isLog ? Math.log(value / this.low) / Math.log(this.high / this.low)
                               : (value - this.low) / (this.high - this.low);
      return from + share * (to - from);
    }
  }

  // A series that has a colour is told from others of this colour, the `nth`, by its dash.
  function styleOf(index, one) {
    if (one.colour) return {colour: one.colour, dash: dashes[one.nth % dashes.length]};
    return {colour: "var(--" + palette[index % palette.length] + ")",
            dash: index >= palette.length ? "6 4" : "none"};
  }

  // Of points that fall on one pixel the lowest and the highest.
  function pathOf(points) {
    if (points.length < 3000) return points;
    const kept = [];
    for (let i = 0; i < points.length;) {
      const pixel = Math.floor(points[i][0]);
      let low = points[i], high = points[i], last = points[i];
      for (; i < points.length && Math.floor(points[i][0]) === pixel; ++i) {
        last = points[i];
        if (last[1] < low[1]) low = last;
        if (last[1] > high[1]) high = last;
      }
      kept.push(low, high, last);
    }
    return kept;
  }

  class Chart {
    // `spec`: the JSON of experiments/report/charts.cpp.
    constructor(place, spec) {
      this.place = place;
      this.legend = S.element("div", {class: "legend"});
      this.picture = svg("svg", {role: "img"});
      place.append(this.legend, this.picture);
      this.set(spec);
      new ResizeObserver(() => {
        if (Math.abs(place.clientWidth - this.width) > 2) this.draw();
      }).observe(place);
    }

    set(spec) {
      this.spec = spec;
      this.draw();
    }

    draw() {
      const {spec, picture} = this;
      this.width = Math.max(320, this.place.clientWidth);
      this.height = Math.round(Math.max(260, Math.min(420, this.width * 0.5)));
      picture.setAttribute("viewBox", "0 0 " + this.width + " " + this.height);
      picture.setAttribute("aria-label", spec.title);
      picture.replaceChildren();
      this.drawLegend();
      const all = (of) => spec.series.flatMap((one) => of(one));
      let xs = all((one) => one.x), ys = all((one) => one.y);
      if (spec.diagonal) xs = ys = xs.concat(ys);
      this.xAxis = new Axis(xs, spec.log_x, false);
      this.yAxis = new Axis(ys, spec.log_y, spec.from_zero);
      const top = 26, bottom = this.height - 44;
      const yTicks = ticksOf(this.yAxis.low, this.yAxis.high, (bottom - top) / 36, this.yAxis.isLog);
      const widest = Math.max(...yTicks.map((tick) => S.number(tick).length), 1);
      this.box = {left: widest * characterWidth + 14, right: this.width - 16, top, bottom};
      this.drawAxes(yTicks);
      spec.series.forEach((one, index) => this.drawSeries(one, index));
      this.listen();
    }

    at(x, y) {
      const {left, right, top, bottom} = this.box;
      return [this.xAxis.place(x, left, right), this.yAxis.place(y, bottom, top)];
    }

    drawAxes(yTicks) {
      const {left, right, top, bottom} = this.box, {spec, picture} = this;
      for (const tick of yTicks) {
        const [, y] = this.at(this.xAxis.low, tick);
        picture.append(svg("path", {class: "grid", d: "M" + left + " " + y + "H" + right}),
          svg("text", {x: left - 8, y: y + 4, "text-anchor": "end"}, S.number(tick)));
      }
      // As many as their texts leave room for.
      let xTicks = ticksOf(this.xAxis.low, this.xAxis.high, (right - left) / 70, this.xAxis.isLog);
      const widest = Math.max(...xTicks.map((tick) => S.number(tick, 6).length), 1) * characterWidth + 14;
      let free = -Infinity;
      xTicks = xTicks.filter((tick) => {
        const [x] = this.at(tick, this.yAxis.low || 1);
        const fits = x - widest / 2 > free;
        if (fits) free = x + widest / 2;
        return fits;
      });
      for (const tick of xTicks) {
        const x = this.xAxis.place(tick, left, right);
        picture.append(svg("path", {class: "grid", d: "M" + x + " " + top + "V" + bottom}),
          svg("text", {x, y: bottom + 18, "text-anchor": "middle"}, S.number(tick, 6)));
      }
      picture.append(svg("path", {class: "frame", d: "M" + left + " " + top + "V" + bottom + "H" + right}),
        svg("text", {x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle"}, spec.x_label),
        svg("text", {x: 0, y: 14}, spec.y_label));
      if (spec.diagonal) {
        const low = Math.max(this.xAxis.low, this.yAxis.low), high = Math.min(this.xAxis.high, this.yAxis.high);
        const [x1, y1] = this.at(low, low), [x2, y2] = this.at(high, high);
        picture.append(svg("path", {d: "M" + x1 + " " + y1 + "L" + x2 + " " + y2, stroke: "var(--soft)",
                                    "stroke-dasharray": "4 4"}));
      }
    }

    drawSeries(one, index) {
      const {colour, dash} = styleOf(index, one);
      const points = one.x.map((x, k) => this.at(x, one.y[k])).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
      if (one.style !== "points") {
        const d = pathOf(points).map(([x, y], k) => (k ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");
        this.picture.append(svg("path", {d, fill: "none", stroke: colour, "stroke-linejoin": "round",
          "stroke-width": one.style === "thin" ? 1 : 2, "stroke-opacity": one.style === "thin" ? 0.6 : 1,
          "stroke-dasharray": one.style === "dashed" ? "6 4" : dash}));
      }
      if (one.style === "points" || points.length <= 60) {
        for (const [x, y] of points)
          this.picture.append(svg("circle", {cx: x, cy: y, r: one.style === "points" ? 3.5 : 2.5, fill: colour}));
      }
    }

    drawLegend() {
      this.legend.replaceChildren();
      if (this.spec.series.length < 2) return;
      this.spec.series.forEach((one, index) => {
        const {colour, dash} = styleOf(index, one), sample = svg("svg", {viewBox: "0 0 26 12", "aria-hidden": "true"});
        if (one.style === "points") sample.append(svg("circle", {cx: 13, cy: 6, r: 4, fill: colour}));
        else {
          sample.append(svg("path", {d: "M0 6H26", stroke: colour, "stroke-width": one.style === "thin" ? 1.5 : 2.5,
            "stroke-opacity": one.style === "thin" ? 0.6 : 1, "stroke-dasharray": one.style === "dashed" ? "6 4" : dash}));
        }
        this.legend.append(S.element("span", {class: "entry"}, sample, one.name));
      });
    }

    // The nearest point to the mouse.
    listen() {
      const mark = svg("circle", {r: 5, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, visibility: "hidden"});
      this.picture.append(mark);
      this.picture.onpointermove = (event) => {
        const box = this.picture.getBoundingClientRect(), scale = this.width / box.width;
        const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
        let best = null;
        for (const one of this.spec.series) {
          for (let k = 0; k < one.x.length; ++k) {
            const [px, py] = this.at(one.x[k], one.y[k]), away = (px - x) ** 2 + (py - y) ** 2;
            if (!best || away < best.away) best = {away, one, k, px, py};
          }
        }
        if (!best || best.away > 60 ** 2) return this.picture.onpointerleave();
        mark.setAttribute("cx", best.px);
        mark.setAttribute("cy", best.py);
        mark.setAttribute("visibility", "visible");
        const lines = [(this.spec.x_label || "x") + ": " + S.number(best.one.x[best.k], 6),
                       (this.spec.y_label || "y") + ": " + S.number(best.one.y[best.k], 6)];
        if (best.one.labels && best.one.labels.length) lines.push(best.one.labels[best.k]);
        return S.tip.show(event.clientX, event.clientY, best.one.name, lines);
      };
      this.picture.onpointerleave = () => {
        mark.setAttribute("visibility", "hidden");
        S.tip.hide();
      };
    }
  }

  async function load() {
    for (const spec of await S.json("charts") || []) {
      const place = document.getElementById(spec.place);
      if (place) new Chart(place, spec);
    }
  }

  return {load, Chart};
})();
