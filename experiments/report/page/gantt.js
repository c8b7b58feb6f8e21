"use strict";
// Timelines as pictures to zoom, to move and to ask: a row a lane, memory below, all on one time axis, whose 0 is
// where the steady steps of each begin.
const Gantt = (() => {
  const S = Spillway;
  const gutter = 168, axisHeight = 24, stepHeight = 20, laneHeight = 26, memoryHeight = 62, gap = 3;
  const mostArrows = 400, mostCauses = 400;

  // One timeline's canvases: the lower one holds tasks and memory, the upper one what follows the mouse.
  class Picture {
    constructor(view, timeline) {
      this.view = view;
      this.timeline = timeline;
      this.figure = S.element("figure", {class: "timeline"}, S.element("h3", {}, timeline.title));
      this.base = S.element("canvas", {"aria-hidden": "true"});
      this.over = S.element("canvas", {
        tabindex: "0", role: "application",
        "aria-label": "Timeline " + timeline.title + ": arrow keys move, + and - zoom, n and p choose tasks"
      });
      this.figure.append(S.element("div", {class: "canvas"}, this.base, this.over));
      this.rows = [];
      let y = axisHeight + stepHeight;
      timeline.lanes.forEach((lane, index) => {
        this.rows.push({lane, index, y, height: laneHeight});
        y += laneHeight;
      });
      y += 4;
      for (const memory of timeline.memory) {
        this.rows.push({memory, y, height: memoryHeight});
        y += memoryHeight;
      }
      this.height = y + 4;
    }

    resize() {
      const scale = window.devicePixelRatio || 1;
      this.width = Math.max(gutter + 100, this.base.parentElement.clientWidth);
      for (const canvas of [this.base, this.over]) {
        canvas.width = Math.round(this.width * scale);
        canvas.height = Math.round(this.height * scale);
        canvas.style.height = this.height + "px";
        canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
      }
    }

    // Time on the common axis <-> place in the picture.
    x(time) {
      return gutter + (time - this.view.from) / (this.view.to - this.view.from) * (this.width - gutter);
    }
    timeAt(x) {
      return this.view.from + (x - gutter) / (this.width - gutter) * (this.view.to - this.view.from);
    }
    // Of this timeline's own times.
    own(time) {
      return time + this.timeline.begin_ns;
    }
    common(time) {
      return time - this.timeline.begin_ns;
    }
    rowOf(place) {
      return this.rows[place.lane];
    }

    draw() {
      const ctx = this.base.getContext("2d"), colours = this.view.colours;
      ctx.fillStyle = colours.paper;
      ctx.fillRect(0, 0, this.width, this.height);
      ctx.font = "12px system-ui, 'DejaVu Sans', sans-serif";
      ctx.textBaseline = "middle";
      this.drawAxis(ctx, colours);
      this.drawSteps(ctx, colours);
      for (const row of this.rows) {
        ctx.fillStyle = colours.faint;
        ctx.fillRect(0, row.y + row.height - 1, this.width, 1);
        if (row.lane) this.drawLane(ctx, row, colours);
        else this.drawMemory(ctx, row, colours);
        this.drawName(ctx, row, colours);
      }
      if (this.view.showsPath) this.drawPath(ctx, colours);
      this.drawOver();
    }

    drawAxis(ctx, colours) {
      const range = this.view.to - this.view.from;
      const distance = S.tickDistance(range, (this.width - gutter) / 110);
      ctx.textAlign = "center";
      for (let n = Math.ceil(this.view.from / distance); n * distance <= this.view.to; ++n) {
        const x = this.x(n * distance);
        ctx.fillStyle = colours.faint;
        ctx.fillRect(x, axisHeight, 1, this.height - axisHeight);
        if (x < gutter + 30 || x > this.width - 30) continue;
        ctx.fillStyle = colours.soft;
        ctx.fillText(tickText(n * distance, distance), x, axisHeight / 2 + 1);
      }
    }

    drawSteps(ctx, colours) {
      ctx.textAlign = "center";
      const y = axisHeight + stepHeight / 2;
      let free = gutter;
      for (const [, step, begin, end] of this.timeline.steps) {
        const left = this.x(this.common(begin)), right = this.x(this.common(end));
        if (right < gutter || left > this.width) continue;
        const from = Math.max(gutter, left), to = Math.min(this.width, right);
        if (right <= this.width && to - free > 2) {
          ctx.fillStyle = colours.line;
          ctx.fillRect(right - 0.5, axisHeight, 1, this.height - axisHeight);
        }
        const text = "step " + (step + 1), width = ctx.measureText(text).width;
        const middle = (from + to) / 2;
        if (to - from > width + 8 && middle - width / 2 > free) {
          ctx.fillStyle = colours.soft;
          ctx.fillText(text, middle, y);
          free = middle + width / 2 + 4;
        }
      }
    }

    drawName(ctx, row, colours) {
      ctx.fillStyle = colours.paper;
      ctx.fillRect(0, row.y, gutter - 1, row.height - 1);
      ctx.textAlign = "right";
      ctx.fillStyle = colours.ink;
      const room = gutter - 16;
      if (row.lane) {
        ctx.fillText(fitted(ctx, row.lane.name, room), gutter - 8, row.y + row.height / 2);
        return;
      }
      const {name, peak, capacity} = row.memory;
      ctx.fillText(fitted(ctx, name + " memory", room), gutter - 8, row.y + 14);
      ctx.fillStyle = colours.soft;
      ctx.fillText("most " + S.bytes(peak), gutter - 8, row.y + 31);
      if (capacity > 0) ctx.fillText("limit " + S.bytes(capacity), gutter - 8, row.y + 47);
    }

    drawLane(ctx, row, colours) {
      const lane = row.lane, top = row.y + gap, height = row.height - 2 * gap - 1;
      const from = this.own(this.view.from), to = this.own(this.view.to);
      const first = lane.firstEndingAfter(from), last = lane.firstStartingAt(to);
      ctx.save();
      ctx.beginPath();
      ctx.rect(gutter, row.y, this.width - gutter, row.height);
      ctx.clip();
      if (last - first > 2 * this.width) {
        this.drawColumns(ctx, lane, from, to, top, height, colours);
      } else {
        for (let i = first; i < last; ++i) this.drawTask(ctx, row, i, top, height, colours);
      }
      ctx.restore();
      ctx.globalAlpha = 1;
    }

    drawTask(ctx, row, i, top, height, colours) {
      const lane = row.lane, group = lane.group(i);
      if (lane.end[i] === lane.start[i]) return;
      const left = this.x(this.common(lane.start[i])), right = this.x(this.common(lane.end[i]));
      const x = Math.max(gutter - 2, left), width = Math.min(this.width + 2, right) - x;
      // What is narrower than can be seen is wider and as much paler.
      const least = 0.7;
      ctx.globalAlpha = this.view.alphaOf(group) * Math.min(1, Math.max(0.1, width / least));
      ctx.fillStyle = colours.groups[group];
      // A thin gap tells neighbours apart where there is room.
      ctx.fillRect(x, top, Math.max(least, width > 4 ? width - 0.8 : width), height);
      if (width < 34) return;
      const text = this.timeline.shortNameOf({lane: row.index, i});
      if (ctx.measureText(text).width > width - 8) return;
      ctx.textAlign = "center";
      ctx.fillStyle = colours.texts[group];
      ctx.fillText(text, x + width / 2, top + height / 2 + 0.5);
    }

    // Neighbouring columns of one colour are one box.
    drawColumns(ctx, lane, from, to, top, height, colours) {
      const columns = Math.floor(this.width - gutter);
      let begin = 0, end = 0, group = -1, level = 0;
      const flush = () => {
        if (group < 0) return;
        // A canvas leaves its alpha as it was where it is told one above 1, by however little.
        ctx.globalAlpha = Math.min(1, this.view.alphaOf(group) * (0.2 + level / 15));
        ctx.fillStyle = colours.groups[group];
        ctx.fillRect(gutter + begin, top, end - begin, height);
      };
      lane.eachColumn(from, to, columns, (column, most, busy) => {
        const now = Math.max(1, Math.round(busy * 12));
        if (column !== end || most !== group || now !== level) {
          flush();
          begin = column;
          group = most;
          level = now;
        }
        end = column + 1;
      });
      flush();
    }

    drawMemory(ctx, row, colours) {
      const {time, bytes, peak, capacity, name} = row.memory;
      const top = row.y + 6, bottom = row.y + row.height - 4;
      const most = capacity > 0 && capacity < 4 * peak ? Math.max(peak, capacity) : peak;
      const y = (value) => bottom - value / most * (bottom - top);
      const colour = colours.memory[name] || colours.memory.other;
      const from = this.own(this.view.from), to = this.own(this.view.to);
      let i = Math.max(0, Timelines.firstIndex(time.length, (k) => time[k] > from) - 1);
      const last = Timelines.firstIndex(time.length, (k) => time[k] > to);
      ctx.save();
      ctx.beginPath();
      ctx.rect(gutter, row.y, this.width - gutter, row.height);
      ctx.clip();
      ctx.beginPath();
      let value = i < last ? bytes[i] : 0;
      const begin = Math.max(gutter, this.x(this.common(time[i] === undefined ? from : time[i])));
      ctx.moveTo(begin, bottom);
      ctx.lineTo(begin, y(value));
      // Of the changes within a pixel the largest value counts, and the last one goes on.
      let pixel = begin, high = value;
      for (++i; i < last; ++i) {
        const x = this.x(this.common(time[i]));
        if (x >= pixel + 1) {
          ctx.lineTo(pixel, y(high));
          ctx.lineTo(pixel, y(value));
          ctx.lineTo(x, y(value));
          pixel = x;
          high = bytes[i];
        }
        value = bytes[i];
        high = Math.max(high, value);
      }
      ctx.lineTo(pixel, y(high));
      ctx.lineTo(pixel, y(value));
      const end = Math.min(this.width, this.x(this.common(this.timeline.all_ns)));
      ctx.lineTo(end, y(value));
      ctx.lineTo(end, bottom);
      ctx.closePath();
      ctx.globalAlpha = 0.35;
      ctx.fillStyle = colour;
      ctx.fill();
      ctx.globalAlpha = 1;
      ctx.strokeStyle = colour;
      ctx.stroke();
      if (capacity > 0 && capacity <= most) {
        ctx.setLineDash([5, 4]);
        ctx.strokeStyle = colours.soft;
        ctx.beginPath();
        ctx.moveTo(gutter, y(capacity) + 0.5);
        ctx.lineTo(this.width, y(capacity) + 0.5);
        ctx.stroke();
      }
      ctx.restore();
    }

    // A strip at the foot of the tasks of the critical path, and lines from lane to lane where there is room.
    drawPath(ctx, colours) {
      const {count, lane, start, end} = this.timeline.pathTasks();
      const from = this.own(this.view.from), to = this.own(this.view.to);
      const scale = (this.width - gutter) / (to - from);
      const drawn = this.rows.map(() => -1);  // how far, by row: what falls on one pixel is drawn once
      ctx.fillStyle = colours.path;
      let before = -1, room = this.width;
      for (let k = Timelines.firstIndex(count, (n) => end[n] > from); k < count && start[k] <= to; ++k) {
        const left = gutter + Math.max(0, (start[k] - from) * scale), right = gutter + (end[k] - from) * scale;
        if (right < drawn[lane[k]] + 1) continue;
        drawn[lane[k]] = Math.max(right, left + 1);
        const foot = (l) => this.rows[l].y + this.rows[l].height - gap - 4;
        const y = foot(lane[k]);
        ctx.fillRect(left, y, Math.max(1, right - left), 4);
        if (before >= 0 && before !== lane[k] && room > 0) {
          ctx.fillRect(left - 0.5, Math.min(foot(before), y), 1, Math.abs(foot(before) - y) + 4);
          --room;
        }
        before = lane[k];
      }
    }

    drawOver() {
      const ctx = this.over.getContext("2d"), view = this.view, colours = view.colours;
      ctx.clearRect(0, 0, this.width, this.height);
      if (view.mouse !== null) {
        const x = this.x(view.mouse);
        if (x >= gutter && x <= this.width) {
          ctx.fillStyle = colours.soft;
          ctx.fillRect(x, axisHeight, 1, this.height - axisHeight);
        }
      }
      if (view.marked) {
        const [a, b] = [this.x(view.marked[0]), this.x(view.marked[1])];
        ctx.globalAlpha = 0.18;
        ctx.fillStyle = colours.accent;
        ctx.fillRect(Math.min(a, b), 0, Math.abs(a - b), this.height);
        ctx.globalAlpha = 1;
      }
      ctx.save();
      ctx.beginPath();
      ctx.rect(gutter, axisHeight, this.width - gutter, this.height - axisHeight);
      ctx.clip();
      for (const place of this.chain || []) this.outline(ctx, place, colours.path, 2);
      (this.chain || []).forEach((place, k) => {
        if (k > 0 && place.lane !== this.chain[k - 1].lane) this.arrow(ctx, place, this.chain[k - 1], colours.path, 0);
      });
      for (const place of [this.picked, this.hovered]) {
        if (!place || (place === this.picked && this.chain)) continue;
        this.timeline.before(place).filter((one) => one.why < 3).slice(0, mostArrows)
          .forEach((one) => this.arrow(ctx, one.place, place, colours.ink, one.why));
        this.timeline.after(place).filter((one) => one.why < 3).slice(0, mostArrows)
          .forEach((one) => this.arrow(ctx, place, one.place, colours.accent, one.why));
      }
      if (this.picked) this.outline(ctx, this.picked, colours.ink, 2.5);
      if (this.hovered) this.outline(ctx, this.hovered, colours.ink, 1.5);
      ctx.restore();
    }

    outline(ctx, place, colour, width) {
      const row = this.rowOf(place);
      const left = this.x(this.common(this.timeline.startOf(place)));
      const right = this.x(this.common(this.timeline.endOf(place)));
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = width;
      ctx.setLineDash([]);
      if (right - left < 5) ctx.fillRect(left - 0.5, row.y + gap - 2, Math.max(1.5, right - left), row.height - 2 * gap + 3);
      else ctx.strokeRect(left, row.y + gap - 1, right - left, row.height - 2 * gap + 1);
    }

    // From the end of one task to the start of another: data in full, memory dashed, barriers dotted.
    arrow(ctx, from, to, colour, why) {
      const a = this.rowOf(from), b = this.rowOf(to);
      const x1 = this.x(this.common(this.timeline.endOf(from))), x2 = this.x(this.common(this.timeline.startOf(to)));
      if ((x1 < gutter && x2 < gutter) || (x1 > this.width && x2 > this.width)) return;
      // On one lane it passes below the tasks between both.
      const below = a === b ? a.height / 2 : 0;
      const y1 = a.y + a.height / 2 + below, y2 = b.y + b.height / 2 + below;
      const bend = Math.max(14, Math.min(80, Math.abs(x2 - x1) / 2));
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = 1.3;
      ctx.setLineDash([[], [5, 3], [1, 3]][why] || []);
      ctx.beginPath();
      ctx.moveTo(x1, y1);
      ctx.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2 - 4, y2);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x2, y2);
      ctx.lineTo(x2 - 6, y2 - 3.5);
      ctx.lineTo(x2 - 6, y2 + 3.5);
      ctx.fill();
    }

    // What lies at a place of the picture.
    hit(x, y) {
      const row = this.rows.find((one) => y >= one.y && y < one.y + one.height);
      if (!row || x < gutter) return {row: row || null, place: null};
      if (!row.lane) return {row, place: null};
      const slack = 3 * (this.view.to - this.view.from) / (this.width - gutter);
      const i = row.lane.at(this.own(this.timeAt(x)), slack);
      return {row, place: i < 0 ? null : {lane: row.index, i}};
    }
  }

  // "12.5 ms" with the digits that neighbouring ticks need to differ.
  function tickText(ns, distance) {
    const [unit, name] = distance >= 1e8 ? [1e9, "s"] : distance >= 1e5 ? [1e6, "ms"]
      : distance >= 1e2 ? [1e3, "us"] : [1, "ns"];
    const digits = Math.max(0, Math.ceil(-Math.log10(distance / unit) - 1e-9));
    const value = ns === 0 ? 0 : ns / unit;
    return value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits}) + " " + name;
  }

  function fitted(ctx, text, room) {
    if (ctx.measureText(text).width <= room) return text;
    while (text.length > 1 && ctx.measureText(text + "\u2026").width > room) text = text.slice(0, -1);
    return text + "\u2026";
  }

  return {Picture, gutter, axisHeight, mostCauses};
})();
