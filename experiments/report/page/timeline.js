"use strict";
// The data of a timeline: tasks by lane, memory, dependencies; and questions about them that a picture of
// a million tasks asks many times a second.
const Timelines = (() => {
  // Kinds of task that share a colour and a place in the legend, as in the pictures of `simulate --gantt`.
  const groups = [
    {name: "forward", colour: "sky", text: "#10151c", kinds: ["forward"]},
    {name: "backward", colour: "blue", text: "#ffffff", kinds: ["backward"]},
    {name: "embedding, head", colour: "black", text: null, kinds: ["embed_forward", "head", "embed_backward"]},
    {name: "optimizer", colour: "orange", text: "#10151c", kinds: ["optimizer", "gradient_norm", "gradient_add"]},
    {name: "copy to the GPU", colour: "green", text: "#10151c", kinds: ["h2d"]},
    {name: "copy to the host", colour: "grey", text: "#10151c", kinds: ["d2h"]},
    {name: "SSD read", colour: "purple", text: "#10151c", kinds: ["read"]},
    {name: "SSD write", colour: "vermillion", text: "#10151c", kinds: ["write"]},
    {name: "between GPUs", colour: "yellow", text: "#10151c",
     kinds: ["all_gather", "reduce_scatter", "all_reduce", "norms_reduce"]},
    {name: "other", colour: "grey", text: "#10151c", kinds: []}
  ];
  const groupOf = (kind) => {
    const found = groups.findIndex((group) => group.kinds.includes(kind));
    return found < 0 ? groups.length - 1 : found;
  };

  // The first index in [0, count) for which `holds` is true, where it is false before and true after.
  function firstIndex(count, holds) {
    let low = 0, high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holds(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  const blockShift = 6, block = 1 << blockShift;

  class Lane {
    constructor(name, reader, groupOfClass) {
      this.name = name;
      const count = this.count = reader.natural();
      this.start = reader.sums(new Float64Array(count));
      this.end = reader.naturals(new Float64Array(count));
      for (let i = 0; i < count; ++i) this.end[i] += this.start[i];
      this.of = reader.naturals(new Uint32Array(count));
      this.task = reader.sums(new Float64Array(count));
      this.step = reader.sums(new Int32Array(count));
      this.layer = reader.sums(new Int32Array(count));
      this.microBatch = reader.sums(new Int32Array(count));
      this.segment = reader.sums(new Int32Array(count));
      this.groupOfClass = groupOfClass;
      this.sumBlocks();
    }

    // Time by group of every 64 tasks: far out a column of the picture holds thousands.
    sumBlocks() {
      const blocks = this.count >> blockShift;
      this.blockTime = new Float64Array(blocks * groups.length);
      for (let i = 0; i < blocks << blockShift; ++i)
        this.blockTime[(i >> blockShift) * groups.length + this.group(i)] += this.end[i] - this.start[i];
    }

    group(i) {
      return this.groupOfClass[this.of[i]];
    }
    firstEndingAfter(time) {
      return firstIndex(this.count, (i) => this.end[i] > time);
    }
    firstStartingAt(time) {
      return firstIndex(this.count, (i) => this.start[i] >= time);
    }
    // The task at a time, or the nearest within `slack`; -1: none.
    at(time, slack) {
      const next = this.firstStartingAt(time);
      let best = -1, distance = slack;
      for (let i = Math.max(0, next - 2); i <= Math.min(this.count - 1, next); ++i) {
        const away = Math.max(this.start[i] - time, time - this.end[i], 0);
        if (away <= distance && (away < distance || best < 0)) {
          best = i;
          distance = away;
        }
      }
      return best;
    }

    // Calls visit(column, group that takes most, share of the column that is busy) for `columns` equal parts of
    // [from, to).
    eachColumn(from, to, columns, visit) {
      const width = (to - from) / columns, sums = new Float64Array(groups.length);
      let i = this.firstEndingAfter(from);
      for (let column = 0; column < columns; ++column) {
        const left = from + column * width, right = left + width;
        sums.fill(0);
        while (i < this.count && this.start[i] < right) {
          const isBlock = (i & (block - 1)) === 0 && i + block <= this.count && this.start[i] >= left &&
                          this.end[i + block - 1] <= right;
          if (isBlock) {
            const base = (i >> blockShift) * groups.length;
            for (let g = 0; g < groups.length; ++g) sums[g] += this.blockTime[base + g];
            i += block;
            continue;
          }
          const inside = Math.min(this.end[i], right) - Math.max(this.start[i], left);
          if (inside > 0) sums[this.group(i)] += inside;
          if (this.end[i] > right) break;
          ++i;
        }
        let most = -1, all = 0;
        for (let g = 0; g < groups.length; ++g) {
          all += sums[g];
          if (sums[g] > 0 && (most < 0 || sums[g] > sums[most])) most = g;
        }
        if (most >= 0) visit(column, most, Math.min(1, all / width));
      }
    }
  }

  // Which task waits for which, by id; and the other way round, found when it is first asked for.
  class Dependencies {
    constructor(bytes) {
      const reader = new Spillway.NumberReader(bytes);
      const count = this.count = reader.natural();
      this.begins = new Uint32Array(count + 1);
      const to = [], why = [];
      for (let task = 0; task < count; ++task) {
        this.begins[task] = to.length;
        let before = task;
        for (let left = reader.natural(); left > 0; --left) {
          const code = reader.natural();
          before += Math.floor(code / 4);
          to.push(before);
          why.push(code % 4);
        }
      }
      this.begins[count] = to.length;
      this.to = Uint32Array.from(to);
      this.why = Uint8Array.from(why);
    }

    // [{task, why}] of what waits for `task`.
    successors(task) {
      const list = [];
      for (let e = this.begins[task]; e < this.begins[task + 1]; ++e) list.push({task: this.to[e], why: this.why[e]});
      return list;
    }

    // The same of what `task` waits for.
    predecessors(task) {
      if (!this.inBegins) this.turnRound();
      const list = [];
      for (let k = this.inBegins[task]; k < this.inBegins[task + 1]; ++k)
        list.push({task: this.from[k], why: this.inWhy[k]});
      return list;
    }

    turnRound() {
      const begins = new Uint32Array(this.count + 2);
      for (const to of this.to) ++begins[to + 2];
      for (let t = 2; t < begins.length; ++t) begins[t] += begins[t - 1];
      this.from = new Uint32Array(this.to.length);
      this.inWhy = new Uint8Array(this.to.length);
      for (let task = 0; task < this.count; ++task) {
        for (let e = this.begins[task]; e < this.begins[task + 1]; ++e) {
          const place = begins[this.to[e] + 1]++;
          this.from[place] = task;
          this.inWhy[place] = this.why[e];
        }
      }
      this.inBegins = begins;
    }
  }

  const reasons = ["needs its data", "needs its memory", "at a barrier", "next on its lane"];

  class Timeline {
    // `about`: the JSON of experiments/report/timeline.cpp.
    constructor(about, bytes, dependencies) {
      Object.assign(this, about);
      this.groupOfKind = about.kinds.map(groupOf);
      const groupOfClass = Uint8Array.from(about.classes, ([kind]) => this.groupOfKind[kind]);
      const reader = new Spillway.NumberReader(bytes);
      this.allLanes = about.lanes.map((name) => new Lane(name, reader, groupOfClass));
      this.memory = about.tiers.map((name, tier) => {
        const count = reader.natural();
        const time = reader.sums(new Float64Array(count)), bytesInUse = reader.sums(new Float64Array(count));
        return {name, time, bytes: bytesInUse, capacity: about.capacities[tier] || 0,
                peak: bytesInUse.reduce((a, b) => Math.max(a, b), 0)};
      }).filter((tier) => tier.peak > 0);
      this.path = reader.sums(new Float64Array(reader.natural()));
      this.lanes = this.allLanes.filter((lane) => lane.count > 0);
      this.dependencies = dependencies;
      this.places = new Map();  // segment -> places of its tasks
    }

    // {lane, i} of a task in a segment; null: it was not recorded. Of several ranks, the first lane that has it.
    find(segment, task) {
      if (!this.places.has(segment)) this.places.set(segment, this.placesOf(segment));
      const {lane, i} = this.places.get(segment);
      return task < lane.length && lane[task] > 0 ? {lane: lane[task] - 1, i: i[task]} : null;
    }

    // By task: its lane + 1, and its place on the lane.
    placesOf(segment) {
      const mostTasks = 1 << 25;
      let count = 0;
      const each = (visit) => this.lanes.forEach((lane, l) => {
        for (let i = 0; i < lane.count; ++i)
          if (lane.segment[i] === segment && lane.task[i] < mostTasks) visit(lane.task[i], l, i);
      });
      each((task) => { count = Math.max(count, task + 1); });
      const places = {lane: new Uint16Array(count), i: new Uint32Array(count)};
      each((task, l, i) => {
        if (places.lane[task] > 0) return;
        places.lane[task] = l + 1;
        places.i[task] = i;
      });
      return places;
    }

    classOf(place) {
      const [kind, phase, bytes, flops, params, moved] = this.classes[this.lanes[place.lane].of[place.i]];
      return {kind: this.kinds[kind], phase: this.phases[phase], bytes, flops, params, moved};
    }

    // "backward, layer 3, micro-batch 1"; "h2d parameters, layer 3"
    nameOf(place) {
      const lane = this.lanes[place.lane], i = place.i, {kind, moved} = this.classOf(place);
      let name = kind.replaceAll("_", " ") + (moved ? " " + moved : "");
      if (lane.layer[i] >= 0) name += ", layer " + lane.layer[i];
      if (lane.microBatch[i] >= 0) name += ", micro-batch " + lane.microBatch[i];
      return name;
    }

    // For a bar of little width.
    shortNameOf(place) {
      const lane = this.lanes[place.lane], i = place.i;
      return this.classOf(place).kind.replaceAll("_", " ") + (lane.layer[i] >= 0 ? " L" + lane.layer[i] : "") +
             (lane.microBatch[i] >= 0 ? " m" + lane.microBatch[i] : "");
    }

    linked(place, list) {
      const segment = this.lanes[place.lane].segment[place.i];
      return list.map(({task, why}) => ({place: this.find(segment, task), why})).filter((one) => one.place);
    }
    knowsDependencies(place) {
      return this.dependencies !== null && this.lanes[place.lane].task[place.i] < this.dependencies.count;
    }
    // What a task waits for: its dependencies, and the task before it on its lane.
    before(place) {
      const lane = this.lanes[place.lane];
      const list = this.knowsDependencies(place)
        ? this.linked(place, this.dependencies.predecessors(lane.task[place.i])) : [];
      if (place.i > 0) list.push({place: {lane: place.lane, i: place.i - 1}, why: 3});
      return list.sort((a, b) => this.endOf(b.place) - this.endOf(a.place));
    }
    after(place) {
      const lane = this.lanes[place.lane];
      const list = this.knowsDependencies(place)
        ? this.linked(place, this.dependencies.successors(lane.task[place.i])) : [];
      if (place.i + 1 < lane.count) list.push({place: {lane: place.lane, i: place.i + 1}, why: 3});
      return list.sort((a, b) => this.startOf(a.place) - this.startOf(b.place));
    }
    startOf(place) {
      return this.lanes[place.lane].start[place.i];
    }
    endOf(place) {
      return this.lanes[place.lane].end[place.i];
    }

    // The chain of what held up each other, latest first: of all that a task waited for, what ended last.
    causes(place, most) {
      const chain = [place];
      while (chain.length < most) {
        const before = this.before(chain[chain.length - 1]);
        if (before.length === 0) break;
        chain.push(before[0].place);
      }
      return chain;
    }

    // The critical path in order of time: lanes, starts and ends of its tasks.
    pathTasks() {
      if (!this.foundPath) {
        const places = Array.from(this.path, (task) => this.find(this.path_segment, task)).filter((one) => one);
        this.foundPath = {count: places.length, lane: Uint16Array.from(places, (one) => one.lane),
                          start: Float64Array.from(places, (one) => this.startOf(one)),
                          end: Float64Array.from(places, (one) => this.endOf(one))};
      }
      return this.foundPath;
    }
  }

  // All timelines of the page.
  async function load() {
    const list = await Spillway.json("timelines");
    if (!list) return [];
    const dependencies = new Map(), timelines = [];
    for (const about of list) {
      const name = about.dependencies;
      if (name && !dependencies.has(name)) dependencies.set(name, new Dependencies(await Spillway.blob(name)));
      timelines.push(new Timeline(about, await Spillway.blob(about.data), name ? dependencies.get(name) : null));
    }
    return timelines;
  }

  return {load, groups, reasons, firstIndex};
})();
