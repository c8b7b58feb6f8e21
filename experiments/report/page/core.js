"use strict";
// What all scripts of the page share: its data, elements, numbers in words, colours, sorted tables.
// Text goes into the page as text and never as markup.
const Spillway = (() => {
  // The bytes of a blob that the page brings along; null: there is none of this name.
  async function blob(name) {
    const place = document.getElementById("blob-" + name);
    if (!place) return null;
    const text = atob(place.textContent);
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function json(name) {
    const bytes = await blob(name);
    return bytes && JSON.parse(new TextDecoder().decode(bytes));
  }

  // Whole numbers as NumberColumn writes them (experiments/report/packed.hpp).
  class NumberReader {
    constructor(bytes) {
      this.bytes = bytes;
      this.at = 0;
    }
    natural() {
      let value = 0, factor = 1;
      for (;;) {
        const byte = this.bytes[this.at++];
        if (byte === undefined) throw new Error("the data of the page is cut off");
        value += (byte & 127) * factor;
        if (byte < 128) return value;
        factor *= 128;
      }
    }
    signed() {
      const value = this.natural();
      return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
    }
    // A column: of each number, or of the sums of differences.
    naturals(array) {
      for (let i = 0; i < array.length; ++i) array[i] = this.natural();
      return array;
    }
    sums(array) {
      let sum = 0;
      for (let i = 0; i < array.length; ++i) array[i] = sum += this.signed();
      return array;
    }
  }

  // element("button", {type: "button"}, "text", other)
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function button(text, title, action) {
    const made = element("button", {type: "button", title}, text);
    made.addEventListener("click", action);
    return made;
  }

  // 1234.5 with three significant digits or more is "1,230"; never an exponent in the usual range.
  function number(value, digits = 4) {
    if (!Number.isFinite(value)) return String(value);
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e15 || size < 1e-6) return value.toExponential(digits - 1);
    const before = Math.floor(Math.log10(size)) + 1;
    return value.toLocaleString("en-US", {maximumFractionDigits: Math.min(12, Math.max(0, digits - before))});
  }

  function prefixed(value, unit, digits = 3) {
    const prefixes = ["", "k", "M", "G", "T", "P", "E"];
    let at = 0;
    while (Math.abs(value) >= 999.5 && at + 1 < prefixes.length) {
      value /= 1000;
      ++at;
    }
    return number(value, digits) + " " + prefixes[at] + unit;
  }
  const bytes = (value) => prefixed(value, "B", 4);

  function nanoseconds(ns, digits = 4) {
    const size = Math.abs(ns);
    if (size >= 1e9) return number(ns / 1e9, digits) + " s";
    if (size >= 1e6) return number(ns / 1e6, digits) + " ms";
    if (size >= 1e3) return number(ns / 1e3, digits) + " us";
    return number(ns, digits) + " ns";
  }

  // Distance of ticks: 1, 2 or 5 times a power of ten, so that at most `most` fill the range.
  function tickDistance(range, most) {
    const raw = range / Math.max(1, most), power = 10 ** Math.floor(Math.log10(raw));
    for (const factor of [1, 2, 5]) if (factor * power >= raw * 0.999999) return factor * power;
    return 10 * power;
  }

  // The value of a custom property of the style sheet.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // Calls `draw` whenever what is drawn by script has to change its colours.
  function onColours(draw) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    addEventListener("beforeprint", () => {
      document.documentElement.classList.add("printing");
      draw();
    });
    addEventListener("afterprint", () => {
      document.documentElement.classList.remove("printing");
      draw();
    });
  }

  // Orders cells: numbers by their value, texts as people do, what is empty last.
  function compareCells(a, b) {
    if (a === b) return 0;
    if (a === "" || a === null) return 1;
    if (b === "" || b === null) return -1;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", {numeric: true});
  }
  const isEmpty = (cell) => cell === "" || cell === null;
  // The same from large to small; what is empty stays last.
  const compareDown = (a, b) => isEmpty(a) || isEmpty(b) ? compareCells(a, b) : compareCells(b, a);

  function cellKey(cell) {
    if (!cell) return "";
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  }

  // Titles of a table become buttons that sort its rows.
  function makeSortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.textContent === "") return;
      const sort = element("button", {type: "button"}, head.textContent);
      head.replaceChildren(sort);
      sort.addEventListener("click", () => {
        const isNumber = head.classList.contains("number");
        const before = head.getAttribute("aria-sort");
        const up = before ? before === "descending" : !isNumber;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [cellKey(row.cells[column]), row]);
        rows.sort((a, b) => (up ? compareCells : compareDown)(a[0], b[0]));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  // A box beside the mouse; hidden where there is nothing to say.
  const tip = (() => {
    const box = element("div", {class: "tip", role: "status"});
    box.hidden = true;
    return {
      show(x, y, title, lines) {
        if (!box.isConnected) document.body.append(box);
        box.replaceChildren(element("b", {}, title), ...lines.map((line) => element("div", {}, line)));
        box.hidden = false;
        const size = box.getBoundingClientRect();
        const left = x + 16 + size.width > innerWidth ? x - 16 - size.width : x + 16;
        const top = y + 16 + size.height > innerHeight ? y - 12 - size.height : y + 16;
        box.style.left = Math.max(4, left) + "px";
        box.style.top = Math.max(4, top) + "px";
      },
      hide() {
        box.hidden = true;
      }
    };
  })();

  return {blob, json, NumberReader, element, button, number, prefixed, bytes, nanoseconds, tickDistance, colour,
          onColours, compareCells, compareDown, makeSortable, tip};
})();
