"use strict";
// Values under the pointer or under the arrow keys, and runs switched on and off.
const page = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();

function nearest(values, x) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle; else low = middle;
  }
  return x - values[low] > values[high] - x ? high : low;
}

function show(area, share) {
  const figure = page.figures[area.dataset.figure];
  const x = figure.low + share * (figure.high - figure.low);
  const points = [];
  for (const [label, run, steps, values] of figure.lines) {
    if (hidden.has(run)) continue;
    const at = nearest(steps, x);
    const who = page.runs.length > 1 ? page.runs[run] + ", " + label : label;
    points.push({ step: steps[at], text: who + " " + values[at] });
  }
  if (!points.length) return;
  const away = (point) => Math.abs(point.step - x);
  const step = points.reduce((a, b) => (away(b) < away(a) ? b : a)).step;
  const near = points.filter((p) => Math.abs(p.step - step) < 0.03 * (figure.high - figure.low));
  area.position = share;
  area.guide.hidden = false;
  area.guide.style.left = 100 * (step - figure.low) / (figure.high - figure.low) + "%";
  area.readout.textContent = "step " + step.toLocaleString("en") + ": " + near.map((p) => p.text).join(" · ");
}

function hide(area) {
  area.guide.hidden = true;
  area.readout.textContent = "";
}

for (const area of document.querySelectorAll(".plot[data-figure]")) {
  area.readout = document.getElementById("readout-" + area.dataset.figure);
  area.guide = document.createElement("div");
  area.guide.className = "guide";
  area.append(area.guide);
  area.position = 1;
  hide(area);
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    show(area, Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });
  area.addEventListener("pointerleave", () => hide(area));
  area.addEventListener("focus", () => show(area, area.position));
  area.addEventListener("blur", () => hide(area));
  area.addEventListener("keydown", (event) => {
    const places = {
      ArrowLeft: area.position - 0.01, ArrowRight: area.position + 0.01, Home: 0, End: 1,
    };
    if (!(event.key in places)) return;
    event.preventDefault();
    show(area, Math.min(1, Math.max(0, places[event.key])));
  });
}

for (const box of document.querySelectorAll(".switches input")) {
  const update = () => {
    const run = Number(box.value);
    if (box.checked) hidden.delete(run); else hidden.add(run);
    for (const part of document.querySelectorAll(".of-run-" + run)) {
      part.style.display = box.checked ? "" : "none";
    }
  };
  box.addEventListener("change", update);
  update(); // a browser keeps the boxes of a page that is loaded again
}
