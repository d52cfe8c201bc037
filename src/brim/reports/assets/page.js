"use strict";
(function () {
  const $ = (query, root) => (root || document).querySelector(query);
  const $$ = (query, root) => Array.from((root || document).querySelectorAll(query));

  // Hovering a line or its name dims the others of that chart.
  for (const chart of $$(".chart")) {
    chart.addEventListener("mouseover", (event) => {
      const hit = event.target.closest("[data-s]");
      chart.classList.toggle("dim", !!hit);
      for (const item of $$("[data-s]", chart)) item.classList.toggle("on", !!hit && item.dataset.s === hit.dataset.s);
    });
    chart.addEventListener("mouseleave", () => chart.classList.remove("dim"));
  }

  // A row of buttons chooses one of several panels.
  function tabs(root, choose) {
    const buttons = $$("button", root);
    for (const button of buttons) {
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        choose(Number(button.value));
      });
    }
  }
  for (const group of $$("[data-panels]")) {
    const panels = $$("[data-panel]", group);
    const show = (index) => panels.forEach((panel, at) => { panel.hidden = at !== index; });
    const bar = $(".tabs", group);
    if (bar) { bar.hidden = false; tabs(bar, show); show(0); }
  }

  const source = $("#gantt-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const numbers = (text, size) => {
    const raw = bytes(text);
    const view = new DataView(raw.buffer);
    const out = new Uint32Array(raw.length / size);
    for (let i = 0; i < out.length; i++) out[i] = size === 2 ? view.getUint16(2 * i, true) : view.getUint32(4 * i, true);
    return out;
  };
  const jobs = {
    id: data.jobs.id, owner: bytes(data.jobs.owner), size: bytes(data.jobs.size),
    gpus: numbers(data.jobs.gpus, 4), who: numbers(data.jobs.who.code, 4), names: data.jobs.who.names,
  };
  const hues = {
    owner: {
      light: ["#4477aa", "#ee8866", "#44bb99", "#eedd88", "#aa7fb8", "#99ddff", "#bbcc33", "#c3c7cb"],
      dark: ["#6699cc", "#ee8866", "#44bb99", "#ddcc77", "#bb8fc8", "#99ddff", "#aab733", "#737a80"],
    },
    size: {
      light: ["#fde0a0", "#f9b36b", "#ec7f5d", "#c74f6c", "#863679", "#432371"],
      dark: ["#fde0a0", "#f9b36b", "#ec7f5d", "#d05678", "#a04a9c", "#7a5fc0"],
    },
  };
  const state = { policy: 0, by: "owner", cache: [] };
  const canvas = $("#gantt");
  const tip = $("#gantt-tip");
  const key = $("#gantt-key");
  const night = window.matchMedia("(prefers-color-scheme: dark)");

  function policy(index) {
    if (!state.cache[index]) {
      const raw = data.policies[index];
      const len = numbers(raw.len, 2), job = numbers(raw.job, 4), level = bytes(raw.level);
      const first = new Uint32Array(data.rows + 1);
      let row = 0, at = 0;
      for (let i = 0; i < len.length; i++) {
        at += len[i];
        if (at === raw.columns) { first[++row] = i + 1; at = 0; }
      }
      state.cache[index] = { name: raw.name, columns: raw.columns, len, job, level, first };
    }
    return state.cache[index];
  }
  function palette() { return hues[state.by][night.matches ? "dark" : "light"]; }

  function layout() {
    const height = Math.min(560, Math.max(220, data.rows * (data.rows <= 32 ? 12 : data.rows <= 80 ? 7 : 4)));
    const gap = data.nodes.length > 1 && height / data.rows >= 3 ? Math.min(4, height / data.rows / 2) : 0;
    const row = (height - gap * Math.max(0, data.nodes.length - 1)) / Math.max(1, data.rows);
    const top = new Float64Array(data.rows);
    const starts = new Set(data.nodes);
    let y = 0;
    for (let r = 0; r < data.rows; r++) {
      if (gap && r > 0 && starts.has(r)) y += gap;
      top[r] = y;
      y += row;
    }
    return { height, row, top };
  }

  function draw() {
    const chosen = policy(state.policy), colours = palette(), place = layout();
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = place.height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(place.height * ratio);
    const pen = canvas.getContext("2d");
    const column = canvas.width / chosen.columns;
    const line = place.row * ratio;
    const seam = line >= 5 ? Math.min(1.5, line * 0.15) : 0;
    for (let r = 0; r < data.rows; r++) {
      let at = 0;
      for (let i = chosen.first[r]; i < chosen.first[r + 1]; i++) {
        const wide = chosen.len[i], job = chosen.job[i];
        if (job) {
          pen.fillStyle = colours[jobs[state.by][job - 1]];
          pen.globalAlpha = 0.25 + 0.75 * chosen.level[i] / 4;
          const cut = wide * column > 4 ? 0.6 * ratio : 0;
          pen.fillRect(at * column, place.top[r] * ratio, wide * column - cut, line - seam);
        }
        at += wide;
      }
    }
    pen.globalAlpha = 1;
    canvas.setAttribute("aria-label", "GPUs over time under " + chosen.name + ", colour by " + (state.by === "owner" ? canvas.dataset.owner : "job size"));
    key.textContent = "";
    (state.by === "owner" ? data.owners : data.sizes).forEach((name, index) => {
      const item = document.createElement("li");
      const chip = document.createElement("span");
      chip.className = "chip";
      chip.style.background = colours[index];
      item.append(chip, state.by === "owner" ? name : name + (name === "1" ? " GPU" : " GPUs"));
      key.append(item);
    });
  }

  function show(seconds) {
    for (const [limit, by, unit] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
      if (seconds < limit) return (seconds / by).toFixed(seconds / by < 10 ? 1 : 0) + " " + unit;
    }
    return (seconds / 86400).toFixed(1) + " d";
  }
  canvas.addEventListener("mousemove", (event) => {
    const chosen = policy(state.policy), place = layout(), box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let r = 0;
    while (r + 1 < data.rows && place.top[r + 1] <= y) r++;
    const column = Math.floor(x / box.width * chosen.columns);
    let i = chosen.first[r], at = 0;
    while (i < chosen.first[r + 1] - 1 && at + chosen.len[i] <= column) at += chosen.len[i++];
    const job = chosen.job[i], step = data.end_s / chosen.columns;
    const when = "about " + show(at * step) + " to " + show((at + chosen.len[i]) * step);
    const who = job ? jobs.names[jobs.who[job - 1]] : "";
    tip.textContent = job
      ? jobs.id[job - 1] + (who ? ", " + who : "") + ", " + jobs.gpus[job - 1] + (jobs.gpus[job - 1] === 1 ? " GPU" : " GPUs") + data.jobs.gpus_as + ", " + when
      : "idle, " + when;
    tip.hidden = false;
    tip.style.left = Math.max(0, Math.min(x + 12, box.width - tip.offsetWidth)) + "px";
    tip.style.top = (y + 16) + "px";
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  tabs($("#gantt-policies"), (index) => { state.policy = index; draw(); });
  tabs($("#gantt-colours"), (index) => { state.by = index ? "size" : "owner"; draw(); });
  if (!$("#gantt-colours button[value='0']")) state.by = "size";
  night.addEventListener("change", draw);
  window.addEventListener("resize", draw);
  draw();
})();
