"use strict";
// What moves all timelines of the page together: the part of time that is seen, the mouse, keys, buttons, and the
// task that was picked.
const GanttView = (() => {
  const S = Spillway;

  class View {
    constructor(container, timelines) {
      this.container = container;
      this.timelines = timelines;
      this.emphasised = new Set();
      this.showsPath = false;
      this.mouse = null;
      this.marked = null;
      this.pictures = timelines.map((timeline) => new Gantt.Picture(this, timeline));
      this.readColours();
      this.from = 0;
      this.to = 1;
      this.showStep(0);
      this.build();
      this.active = this.pictures[0];
      for (const picture of this.pictures) this.listen(picture);
      S.onColours(() => {
        this.readColours();
        this.legend.replaceChildren(...this.legendEntries());
        for (const picture of this.pictures) picture.draw();
      });
      new ResizeObserver(() => this.resize()).observe(container);
      this.resize();
    }

    readColours() {
      const groups = Timelines.groups;
      this.colours = {
        groups: groups.map((group) => S.colour(group.colour)),
        memory: {gpu: S.colour("gpu-memory"), host: S.colour("host-memory"), ssd: S.colour("ssd-memory"),
                 other: S.colour("other-memory")}
      };
      for (const name of ["paper", "ink", "soft", "line", "faint", "accent", "path"]) this.colours[name] = S.colour(name);
      this.colours.texts = groups.map((group) => group.text || this.colours.paper);
    }

    alphaOf(group) {
      return this.emphasised.size === 0 || this.emphasised.has(group) ? 1 : 0.14;
    }

    // Limits of all timelines, on the common axis.
    limits() {
      const from = Math.min(...this.timelines.map((one) => -one.begin_ns));
      const to = Math.max(...this.timelines.map((one) => one.all_ns - one.begin_ns));
      return [from, Math.max(to, from + 1)];
    }

    show(from, to) {
      const [least, most] = this.limits(), all = most - least;
      const range = Math.min(Math.max(to - from, 200), all * 1.04);
      const middle = (from + to) / 2;
      this.from = Math.max(least - all * 0.02, Math.min(middle - range / 2, most + all * 0.02 - range));
      this.to = this.from + range;
      this.draw();
    }
    zoom(factor, around = (this.from + this.to) / 2) {
      this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
    }
    move(share) {
      const by = (this.to - this.from) * share;
      this.show(this.from + by, this.to + by);
    }
    showAll() {
      const [from, to] = this.limits();
      this.show(from - (to - from) * 0.02, to + (to - from) * 0.02);
    }
    // The first steady step, or the one so many after the step that begins nearest to what is seen.
    showStep(by) {
      const timeline = this.timelines[0];
      const steps = timeline.steps.map(([, , begin, end]) => [begin - timeline.begin_ns, end - timeline.begin_ns]);
      if (steps.length === 0) return this.showAll();
      const middle = by === 0 ? 0 : this.from + (this.to - this.from) * 0.02;
      let nearest = 0;
      steps.forEach(([begin], k) => {
        if (Math.abs(begin - middle) < Math.abs(steps[nearest][0] - middle)) nearest = k;
      });
      const [begin, end] = steps[Math.max(0, Math.min(steps.length - 1, nearest + by))];
      const margin = (end - begin) * 0.02;
      return this.show(begin - margin, end + margin);
    }

    build() {
      const toggle = (text, title, isOn, action) => {
        const made = S.button(text, title, () => {
          action();
          made.setAttribute("aria-pressed", String(isOn()));
          this.draw();
        });
        made.setAttribute("aria-pressed", String(isOn()));
        return made;
      };
      this.range = S.element("span", {class: "said", "aria-live": "off"});
      const tools = S.element("div", {class: "tools", role: "toolbar", "aria-label": "Timeline"},
        S.button("+", "zoom in (+)", () => this.zoom(0.5)), S.button("\u2212", "zoom out (-)", () => this.zoom(2)),
        S.button("\u25c0", "to the left", () => this.move(-0.5)), S.button("\u25b6", "to the right", () => this.move(0.5)),
        S.button("One step", "the first steady step (0)", () => this.showStep(0)),
        S.button("Step before", "[", () => this.showStep(-1)), S.button("Step after", "]", () => this.showStep(1)),
        S.button("Everything", "all that was recorded (a)", () => this.showAll()));
      if (this.timelines.some((one) => one.path.length > 0)) {
        this.pathButton = toggle("Critical path", "the chain of tasks that the steady steps are made of (k)",
          () => this.showsPath, () => { this.showsPath = !this.showsPath; });
        tools.append(this.pathButton);
      }
      tools.append(this.range);
      this.legend = S.element("div", {class: "legend", "aria-label": "Kinds of task"});
      this.legend.append(...this.legendEntries());
      this.picked = S.element("div", {class: "picked", "aria-live": "polite"});
      this.picked.hidden = true;
      this.container.append(tools, this.legend, ...this.pictures.map((one) => one.figure), this.picked, help());
    }

    legendEntries() {
      const used = new Set();
      for (const timeline of this.timelines)
        for (const lane of timeline.lanes)
          for (const kind of new Set(lane.of))
            if (timeline.kinds[timeline.classes[kind][0]] !== "barrier") used.add(lane.groupOfClass[kind]);
      return [...used].sort((a, b) => a - b).map((group) => {
        const swatch = S.element("i");
        swatch.style.background = this.colours.groups[group];
        const entry = S.button("", "pale all other kinds", () => {
          if (!this.emphasised.delete(group)) this.emphasised.add(group);
          entry.setAttribute("aria-pressed", String(this.emphasised.has(group)));
          this.draw();
        });
        entry.setAttribute("aria-pressed", String(this.emphasised.has(group)));
        entry.append(swatch, Timelines.groups[group].name);
        return entry;
      });
    }

    resize() {
      for (const picture of this.pictures) picture.resize();
      this.drawNow();
    }
    // Once a frame at most.
    draw() {
      if (this.waiting || !this.range) return;
      this.waiting = requestAnimationFrame(() => this.drawNow());
    }
    drawNow() {
      this.waiting = 0;
      for (const picture of this.pictures) picture.draw();
      this.range.textContent = S.nanoseconds(this.to - this.from, 3) + " seen, from " + S.nanoseconds(this.from, 4) +
                               " after the steady steps begin";
      this.container.dataset.from = this.from;
      this.container.dataset.to = this.to;
    }
    drawOver() {
      for (const picture of this.pictures) picture.drawOver();
    }

    listen(picture) {
      const canvas = picture.over;
      let drag = null;
      const place = (event) => [event.offsetX, event.offsetY];
      canvas.addEventListener("pointerdown", (event) => {
        this.active = picture;
        const [x, y] = place(event);
        drag = {x, y, from: this.from, to: this.to, moved: false,
                marks: event.shiftKey || y < Gantt.axisHeight, time: picture.timeAt(x)};
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = place(event);
        this.mouse = picture.timeAt(x);
        if (drag && Math.abs(x - drag.x) > 4) drag.moved = true;
        if (drag && drag.moved) {
          S.tip.hide();
          if (drag.marks) {
            this.marked = [drag.time, this.mouse];
          } else {
            const by = (drag.x - x) / (picture.width - Gantt.gutter) * (drag.to - drag.from);
            this.show(drag.from + by, drag.to + by);
          }
        } else {
          this.hover(picture, x, y, event);
        }
        this.drawOver();
      });
      canvas.addEventListener("pointerup", (event) => {
        const [x, y] = place(event);
        if (drag && drag.moved && drag.marks) {
          const [a, b] = [drag.time, picture.timeAt(x)];
          this.show(Math.min(a, b), Math.max(a, b));
        } else if (drag && !drag.moved) {
          this.pick(picture, picture.hit(x, y).place);
        }
        drag = this.marked = null;
        this.drawOver();
      });
      canvas.addEventListener("pointerleave", () => {
        this.mouse = null;
        picture.hovered = null;
        S.tip.hide();
        this.drawOver();
      });
      canvas.addEventListener("dblclick", (event) => this.zoom(0.25, picture.timeAt(event.offsetX)));
      canvas.addEventListener("wheel", (event) => {
        const zooms = event.ctrlKey || event.metaKey || document.activeElement === canvas;
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          this.move(event.deltaX / picture.width);
        } else if (zooms) {
          event.preventDefault();
          this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), picture.timeAt(event.offsetX));
        }
      }, {passive: false});
      canvas.addEventListener("keydown", (event) => {
        this.active = picture;
        S.tip.hide();
        if (!event.ctrlKey && !event.metaKey && !event.altKey && this.press(event.key)) event.preventDefault();
      });
    }

    press(key) {
      const picked = this.active.picked;
      const actions = {
        ArrowLeft: () => this.move(-0.15), ArrowRight: () => this.move(0.15),
        "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), _: () => this.zoom(1 / 0.6),
        0: () => this.showStep(0), "[": () => this.showStep(-1), "]": () => this.showStep(1), a: () => this.showAll(),
        k: () => this.pathButton && this.pathButton.click(),
        n: () => this.pickBeside(1), p: () => this.pickBeside(-1),
        ArrowUp: () => this.pickLane(-1), ArrowDown: () => this.pickLane(1),
        c: () => picked && this.showCauses(this.active),
        Enter: () => picked && this.zoomTo(this.active, picked),
        Escape: () => this.pick(this.active, null)
      };
      if (!(key in actions)) return false;
      actions[key]();
      return true;
    }

    // The next task on the lane; without one that is picked, the first in sight of the GPU's.
    pickBeside(by) {
      const picture = this.active, before = picture.picked;
      if (!before) return this.pickLane(0);
      const lane = picture.timeline.lanes[before.lane];
      const i = Math.max(0, Math.min(lane.count - 1, before.i + by));
      return this.pick(picture, {lane: before.lane, i}, true);
    }
    pickLane(by) {
      const picture = this.active, lanes = picture.timeline.lanes, before = picture.picked;
      const lane = Math.max(0, Math.min(lanes.length - 1, before ? before.lane + by : 0));
      const time = before ? picture.timeline.startOf(before) : picture.own(this.from);
      const i = Math.min(lanes[lane].count - 1, lanes[lane].firstEndingAfter(time));
      return this.pick(picture, {lane, i}, true);
    }

    zoomTo(picture, place) {
      const from = picture.common(picture.timeline.startOf(place)), to = picture.common(picture.timeline.endOf(place));
      const margin = Math.max(100, (to - from) * 3);
      this.show(from - margin, to + margin);
    }

    hover(picture, x, y, event) {
      const {row, place} = picture.hit(x, y);
      picture.hovered = place;
      if (place) {
        S.tip.show(event.clientX, event.clientY, picture.timeline.nameOf(place),
          factsOf(picture, place).map(([name, value]) => name + ": " + value));
      } else if (row && row.memory && x > Gantt.gutter) {
        const {time, bytes, name, capacity} = row.memory;
        const k = Timelines.firstIndex(time.length, (i) => time[i] > picture.own(picture.timeAt(x))) - 1;
        const value = k < 0 ? 0 : bytes[k];
        S.tip.show(event.clientX, event.clientY, name + " memory: " + S.bytes(value),
          capacity > 0 ? [S.number(100 * value / capacity, 3) + " % of " + S.bytes(capacity)] : []);
      } else {
        S.tip.hide();
      }
    }

    // Shows what is known of a task below the timelines. `reveal`: moves it into sight.
    pick(picture, place, reveal = false) {
      for (const other of this.pictures) {
        other.picked = null;
        other.chain = null;
      }
      picture.picked = place;
      this.picked.hidden = !place;
      if (place) {
        this.picked.replaceChildren(...this.pickedPanel(picture, place));
        const from = picture.common(picture.timeline.startOf(place)), to = picture.common(picture.timeline.endOf(place));
        if (reveal && (from < this.from || to > this.to)) {
          const range = Math.max(this.to - this.from, (to - from) * 1.5);
          this.show((from + to) / 2 - range / 2, (from + to) / 2 + range / 2);
        }
      }
      this.drawOver();
    }

    pickedPanel(picture, place) {
      const timeline = picture.timeline, start = timeline.startOf(place), end = timeline.endOf(place);
      const title = S.element("h3", {}, timeline.nameOf(place) + " on " + timeline.lanes[place.lane].name);
      const facts = S.element("dl", {}, ...factsOf(picture, place).map(([name, value]) =>
        S.element("div", {}, S.element("dt", {}, name), S.element("dd", {}, value))));
      const before = timeline.before(place), after = timeline.after(place);
      const parts = [title, facts];
      if (!timeline.knowsDependencies(place))
        parts.push(S.element("p", {class: "note"}, "Its dependencies are not known; its lane's order is."));
      parts.push(S.element("div", {class: "tools"},
        S.button("Zoom to it", "Enter", () => this.zoomTo(picture, place)),
        S.button("What held it up", "of all it waited for what ended last, and so on back (c)", () => this.showCauses(picture)),
        S.button("Close", "Escape", () => this.pick(picture, null))));
      parts.push(S.element("div", {class: "lists"},
        this.linkList(picture, "Waited for", "ended before its start", before, (one) => start - timeline.endOf(one)),
        this.linkList(picture, "Waits for it", "starts after its end", after, (one) => timeline.startOf(one) - end)));
      return parts;
    }

    linkList(picture, title, distance, links, away) {
      const most = 12, body = S.element("tbody");
      for (const {place, why} of links.slice(0, most)) {
        const name = picture.timeline.nameOf(place) + " on " + picture.timeline.lanes[place.lane].name;
        body.append(S.element("tr", {}, S.element("td", {}, S.button(name, "pick it", () => this.pick(picture, place, true))),
          S.element("td", {}, Timelines.reasons[why]), S.element("td", {class: "number"}, S.nanoseconds(away(place)))));
      }
      const box = S.element("div", {}, S.element("h3", {}, title + (links.length > most ? " (" + links.length + ")" : "")));
      if (links.length === 0) box.append(S.element("p", {class: "note"}, "nothing"));
      else box.append(S.element("table", {}, S.element("thead", {}, S.element("tr", {}, S.element("th", {}, "task"),
        S.element("th", {}, "why"), S.element("th", {class: "number"}, distance))), body));
      return box;
    }

    showCauses(picture) {
      if (!picture.picked) return;
      picture.chain = picture.chain ? null : picture.timeline.causes(picture.picked, Gantt.mostCauses);
      this.drawOver();
    }
  }

  // [name, value] of what is known of a task.
  function factsOf(picture, place) {
    const timeline = picture.timeline, lane = timeline.lanes[place.lane], i = place.i;
    const {phase, bytes, flops, params} = timeline.classOf(place);
    const seconds = (lane.end[i] - lane.start[i]) / 1e9;
    const facts = [["takes", S.nanoseconds(lane.end[i] - lane.start[i])],
                   ["starts at", S.nanoseconds(picture.common(lane.start[i]), 6)],
                   ["step", String(lane.step[i] + 1)], ["phase", phase], ["task", String(lane.task[i])]];
    if (bytes > 0) facts.push(["moves", S.bytes(bytes) + (seconds > 0 ? ", " + S.bytes(bytes / seconds) + "/s" : "")]);
    if (flops > 0) {
      facts.push(["computes", S.prefixed(flops, "FLOP") +
                              (seconds > 0 ? ", " + S.prefixed(flops / seconds, "FLOPS") : "")]);
    }
    if (params > 0) facts.push(["updates", S.prefixed(params, "parameters")]);
    return facts;
  }

  function help() {
    const keys = [["drag", "moves; in the row of times, or with Shift, it marks a part to zoom to"],
                  ["Ctrl wheel", "zooms; without Ctrl once a timeline was clicked"],
                  ["click", "picks a task: what it waited for (dark), what waits for it (blue); data in full, memory " +
                            "dashed, barriers dotted"],
                  ["+ -", "zoom"], ["\u2190 \u2192", "move"], ["0 a", "one step, everything"],
                  ["[ ]", "step before, step after"], ["n p", "next and previous task of the lane"],
                  ["\u2191 \u2193", "task on the lane above, below"], ["c", "what held the picked task up"],
                  ["k", "critical path"], ["Enter", "zooms to the picked task"], ["Esc", "lets it go"]];
    const list = S.element("dl", {class: "keys"});
    for (const [key, what] of keys) {
      list.append(S.element("dt", {}, ...key.split(" ").flatMap((one) => [S.element("kbd", {}, one), " "])),
        S.element("dd", {}, what));
    }
    return S.element("details", {}, S.element("summary", {}, "Mouse and keys"), list);
  }

  return {View};
})();
