"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// -- the drawer: a kernel or an instruction ---------------------------------------------------------------------------

function openDrawer(title, ...content) {
  byId("drawer-title").textContent = title;
  byId("drawer-body").replaceChildren(...content);
  byId("drawer").hidden = false;
  byId("drawer").scrollTop = 0;
}

function closeDrawer() {
  byId("drawer").hidden = true;
  document.querySelectorAll(".chosen").forEach((e) => e.classList.remove("chosen"));
}

function facts(pairs) {
  const list = make("dl", {});
  for (const [name, value] of pairs) {
    if (value) list.append(make("dt", { textContent: name }), make("dd", { textContent: value }));
  }
  return list;
}

function tabs(texts) {
  const shown = Object.entries(texts).filter(([, text]) => text);
  if (!shown.length) return make("div", {});
  const pre = make("pre", {});
  const buttons = shown.map(([name, text]) =>
    make("button", {
      textContent: name,
      onclick: (event) => {
        pre.textContent = text;
        buttons.forEach((b) => b.classList.toggle("on", b === event.target));
      },
    }));
  buttons[0].click();
  const initial = shown[0][1];
  pre.textContent = initial;
  buttons[0].classList.add("on");
  return make("div", {}, make("div", { className: "tools" }, ...buttons), pre);
}

function sourcesOf(graph) {
  return [...new Set(graph.boxes.map((b) => b.source).filter(Boolean))];
}

function openKernel(number) {
  const kernel = data.kernels[number];
  const code = data.codes[kernel.code] || {};
  const content = [facts([...kernel.facts, ["code", kernel.code]])];
  const texts = { "Loop program": code.loops, Assembly: code.asm };
  if (kernel.graph) {
    const [key, at] = kernel.graph;
    const box = data.graphs[key].boxes[at];
    content.push(make("button", { textContent: "Show in the graph", onclick: () => { closeDrawer(); show(key, at); } }));
    const inside = box.opens.length ? data.graphs[box.opens[0]] : null;
    if (inside) {
      texts.HLO = inside.text;
      const reasons = inside.boxes.flatMap((b) => (data.decisions[b.name] || []).map((r) => b.name + ": " + r));
      if (reasons.length) {
        content.push(make("details", {}, make("summary", { textContent: "Why these were fused, or not" }),
          make("ul", {}, ...reasons.map((r) => make("li", { textContent: r })))));
      }
      const sources = sourcesOf(inside);
      if (sources.length) {
        content.push(make("details", {}, make("summary", { textContent: "From your program" }),
          make("ul", {}, ...sources.map((s) => make("li", { textContent: s })))));
      }
    }
  }
  content.push(tabs(texts));
  openDrawer(kernel.name, ...content);
  document.querySelectorAll("#table tr.chosen").forEach((e) => e.classList.remove("chosen"));
  document.querySelector(`#table tr[data-kernel="${number}"]`)?.classList.add("chosen");
}

function openBox(key, number) {
  const box = data.graphs[key].boxes[number];
  if (box.kernel !== null && box.kernel !== undefined && key.split("/")[0] !== "before") return openKernel(box.kernel);
  const content = [facts([["result", box.lines.join(" ")], ["from", box.source]])];
  const line = data.graphs[key].text.split("\n").find((l) => l.includes("%" + box.name + " = "));
  if (line) content.push(make("pre", { textContent: line.trim().replace(/^ROOT /, "") }));
  (data.decisions[box.name] || []).forEach((r) => content.push(make("p", { textContent: r })));
  if (box.kernel !== null && box.kernel !== undefined) {
    content.push(make("button", {
      textContent: "Its kernel: " + data.kernels[box.kernel].name, onclick: () => openKernel(box.kernel),
    }));
  }
  box.opens.forEach((opened) => content.push(make("button", {
    textContent: "Open " + data.graphs[opened].title, onclick: () => { closeDrawer(); show(opened); },
  })));
  openDrawer(box.name, ...content);
}

byId("close").onclick = closeDrawer;
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDrawer(); });

// -- the table of kernels ---------------------------------------------------------------------------------------------

const table = byId("table");
if (table) {
  const body = table.tBodies[0];
  const rowOf = (row) => data.kernels[Number(row.dataset.kernel)];
  const open = (event) => {
    const row = event.target.closest("tr[data-kernel]");
    if (row) openKernel(Number(row.dataset.kernel));
  };
  body.onclick = open;
  body.onkeydown = (event) => { if (event.key === "Enter") open(event); };
  table.tHead.onclick = (event) => {
    const head = event.target.closest("th[data-key]");
    if (!head) return;
    const key = head.dataset.key;
    const up = head.classList.contains("sorted") ? !head.classList.contains("up") : key === "name" || key === "number";
    table.querySelectorAll("th").forEach((h) => h.classList.remove("sorted", "up"));
    head.classList.add("sorted");
    head.classList.toggle("up", up);
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (a ?? -1) - (b ?? -1));
    body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(rowOf(a)[key], rowOf(b)[key])));
  };
  byId("filter").oninput = (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const row of body.rows) {
      const kernel = rowOf(row);
      row.hidden = !(kernel.name + " " + kernel.ops.join(" ")).toLowerCase().includes(wanted);
    }
  };
}
const idle = byId("idle");
if (idle) idle.onchange = () => byId("passes").classList.toggle("all", idle.checked);

// -- the graph --------------------------------------------------------------------------------------------------------

const canvas = byId("canvas"), view = byId("view");
let current = null, scale = 1, left = 0, top_ = 0, boxes = [], edges = [];

function place() {
  view.setAttribute("transform", `translate(${left} ${top_}) scale(${scale})`);
}

function fit() {
  const graph = data.graphs[current], room = canvas.getBoundingClientRect();
  scale = Math.min(1.25, room.width / graph.width, room.height / graph.height);
  // A long program is no use as a thread: its beginning is shown, large enough to read.
  if (scale < 0.5) scale = Math.min(1, Math.max(0.6, room.width / graph.width));
  const start = graph.boxes.filter((b) => !b.kind.startsWith("parameter")).sort((a, b) => a.y - b.y)[0];
  const narrow = graph.width * scale <= room.width || !start;
  left = narrow ? (room.width - graph.width * scale) / 2 : room.width / 2 - start.x * scale;
  top_ = graph.height * scale <= room.height ? (room.height - graph.height * scale) / 2 : 8;
  place();
}

function centre(number) {
  const box = data.graphs[current].boxes[number], room = canvas.getBoundingClientRect();
  scale = Math.max(scale, 0.8);
  left = room.width / 2 - box.x * scale;
  top_ = room.height / 2 - box.y * scale;
  place();
}

function curve(points) {
  let path = `M${points[0]},${points[1]}`;
  for (let i = 2; i < points.length; i += 2) {
    const [x0, y0, x1, y1] = points.slice(i - 2, i + 2), middle = (y0 + y1) / 2;
    path += ` C${x0},${middle} ${x1},${middle} ${x1},${y1}`;
  }
  return path;
}

function drawBox(box, number) {
  const group = draw("g", { class: "box " + box.kind, "data-box": number });
  group.append(draw("rect", { x: box.x - box.w / 2, y: box.y - box.h / 2, width: box.w, height: box.h }));
  [box.title, ...box.lines].forEach((line, n) => {
    const text = draw("text", {
      x: box.x, y: box.y - box.h / 2 + 16 + 15 * n, "text-anchor": "middle", class: n ? "" : "title",
    });
    text.textContent = line;
    group.append(text);
  });
  const title = draw("title", {});
  title.textContent = box.name + (box.source ? "\n" + box.source : "");
  group.append(title);
  return group;
}

function show(key, number) {
  current = key;
  const graph = data.graphs[key];
  edges = graph.lines.map((points) => draw("path", { class: "edge", d: curve(points) }));
  boxes = graph.boxes.map(drawBox);
  view.replaceChildren(...edges, ...boxes);
  document.querySelectorAll(".tab").forEach((t) => t.classList.toggle("on", t.dataset.graph === key.split("/")[0]));
  const top = key.split("/")[0];
  byId("trail").replaceChildren(...(key === top ? [] : [
    make("a", { textContent: "↑ back", onclick: () => show(top) }), ` ${graph.title}`,
  ]));
  fit();
  byId("search").dispatchEvent(new Event("input"));
  if (number !== undefined) {
    centre(number);
    light(number);
    canvas.scrollIntoView({ block: "nearest" });
  }
}

function light(number) {
  boxes.forEach((b, n) => b.classList.toggle("chosen", n === number));
  data.graphs[current].edges.forEach(([a, b], n) => edges[n].classList.toggle("lit", a === number || b === number));
}

document.querySelectorAll(".tab").forEach((tab) => { tab.onclick = () => show(tab.dataset.graph); });
byId("fit").onclick = fit;

function zoom(factor, x, y) {
  const next = Math.min(4, Math.max(0.03, scale * factor));
  left = x - ((x - left) * next) / scale;
  top_ = y - ((y - top_) * next) / scale;
  scale = next;
  place();
}

function middle() {
  const room = canvas.getBoundingClientRect();
  return [room.width / 2, room.height / 2];
}
byId("larger").onclick = () => zoom(1.3, ...middle());
byId("smaller").onclick = () => zoom(1 / 1.3, ...middle());
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const room = canvas.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - room.left, event.clientY - room.top);
}, { passive: false });

let from = null, moved = false;
canvas.onpointerdown = (event) => { from = [event.clientX - left, event.clientY - top_]; moved = false; };
window.addEventListener("pointermove", (event) => {
  if (!from) return;
  const [x, y] = [event.clientX - from[0], event.clientY - from[1]];
  if (Math.abs(x - left) + Math.abs(y - top_) > 3) moved = true;
  if (!moved) return;
  canvas.classList.add("moving");
  [left, top_] = [x, y];
  place();
});
window.addEventListener("pointerup", () => { from = null; canvas.classList.remove("moving"); });
const boxAt = (event) => {
  const group = event.target.closest("[data-box]");
  return group ? Number(group.dataset.box) : null;
};
canvas.onclick = (event) => {
  const number = boxAt(event);
  if (moved || number === null) return;
  light(number);
  openBox(current, number);
};
canvas.ondblclick = (event) => {
  const number = boxAt(event);
  const opens = number === null ? [] : data.graphs[current].boxes[number].opens;
  if (opens.length) { closeDrawer(); show(opens[opens.length - 1]); }
};

let matches = [], at = 0;
byId("search").oninput = () => {
  const wanted = byId("search").value.toLowerCase(), graph = data.graphs[current];
  if (!graph) return;
  const fits = (b) => [b.name, b.title, ...b.lines, b.source].join(" ").toLowerCase().includes(wanted);
  matches = wanted ? graph.boxes.flatMap((b, n) => (fits(b) ? [n] : [])) : [];
  at = 0;
  boxes.forEach((b, n) => b.classList.toggle("match", matches.includes(n)));
  byId("found").textContent = wanted ? `${matches.length} found` : "";
};
byId("search").onkeydown = (event) => {
  if (event.key !== "Enter" || !matches.length) return;
  centre(matches[at % matches.length]);
  byId("found").textContent = `${(at % matches.length) + 1} of ${matches.length}`;
  at += event.shiftKey ? matches.length - 1 : 1;
};

const first = ["after", "before", "prepared"].find((key) => key in data.graphs);
if (first) show(first);

// A link can open a kernel (#kernel-3) or a graph (#graph-before).
const wanted = /^#(kernel|graph)-(.+)$/.exec(location.hash);
if (wanted && wanted[1] === "kernel" && data.kernels[Number(wanted[2])]) openKernel(Number(wanted[2]));
if (wanted && wanted[1] === "graph" && data.graphs[wanted[2]]) show(wanted[2]);
