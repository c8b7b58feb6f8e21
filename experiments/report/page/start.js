"use strict";
// Brings the page to life. `data-ready` on the document says that all of it is there.
(async () => {
  try {
    if (typeof DecompressionStream === "undefined")
      throw new Error("this browser is too old for timelines and charts (it has no DecompressionStream)");
    for (const table of document.querySelectorAll("table.sortable")) Spillway.makeSortable(table);
    await Charts.load();
    await DataTables.load();
    const place = document.getElementById("timelines");
    const timelines = place ? await Timelines.load() : [];
    if (timelines.length > 0) window.view = new GanttView.View(place, timelines);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = "This page cannot show all of its data: " + error.message;
    trouble.hidden = false;
    document.documentElement.dataset.ready = "failed";
    throw error;
  }
})();
