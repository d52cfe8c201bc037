"use strict";
(function () {
  const $ = (query, root) => (root || document).querySelector(query);
  const $$ = (query, root) => Array.from((root || document).querySelectorAll(query));
  const make = (tag, text, name) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    return node;
  };

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
    if (bar) { bar.hidden = false; tabs(bar, show); show(Number($("button[aria-pressed=true]", bar).value)); }
  }

  // A heading sorts its column: ascending, then descending. Cells without a value stay last.
  for (const table of $$("table.sortable")) {
    const body = table.tBodies[0], heads = $$("thead th", table), rows = Array.from(body.rows);
    heads.forEach((head, column) => {
      const button = make("button", head.textContent, "sort");
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending", sign = up ? 1 : -1;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => row.cells[column].dataset.v;
        const sorted = rows.slice().sort((one, other) => {
          const a = value(one), b = value(other);
          if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
          return sign * (column ? a - b : a.localeCompare(b, undefined, { numeric: true }));
        });
        body.append(...sorted);
      });
    });
  }

  // A table wider than the screen shows a hint until its end is in view.
  for (const wide of $$(".wide")) {
    const hint = $(".hint", wide), box = $(".scroll", wide);
    const look = () => {
      const more = box.scrollLeft + box.clientWidth < box.scrollWidth - 2;
      hint.hidden = !more;
      box.classList.toggle("more", more);
    };
    box.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(box);
    look();
  }

  // On small screens the meaning of the columns is folded.
  if (window.innerWidth <= 760) for (const terms of $$("details.terms")) terms.open = false;

  const source = $("#gantt-data");
  if (!source) return;
  if (!window.DecompressionStream) {
    $("#gantt-range").textContent = "This browser is too old for this chart.";
    return;
  }
  const deflated = Uint8Array.from(atob(source.textContent), (letter) => letter.charCodeAt(0));
  new Response(new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer().then(gantt);

  function gantt(buffer) {
    const raw = new Uint8Array(buffer);
    const text = 4 + new DataView(buffer).getUint32(0, true);
    const data = JSON.parse(new TextDecoder().decode(raw.subarray(4, text)));
    const numbers = ({ at, size, count }) => {
      const out = new Uint32Array(count);
      for (let place = 0; place < size; place++) {
        for (let i = 0, from = text + at + place * count; i < count; i++) out[i] |= raw[from + i] << (8 * place);
      }
      return out;
    };
    const jobs = {
      id: data.jobs.id, owner: numbers(data.jobs.owner), size: numbers(data.jobs.size), gpus: numbers(data.jobs.gpus),
      who: numbers(data.jobs.who),
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
    const FADED = 0.07;
    const state = { policy: 0, by: "owner", from: 0, to: 1, cache: [] };
    const chosen = new Set();
    const canvas = $("#gantt"), tip = $("#gantt-tip"), key = $("#gantt-key"), axis = $("#gantt-axis");
    const night = window.matchMedia("(prefers-color-scheme: dark)");

    function policy(index) {
      if (!state.cache[index]) {
        const packed = data.policies[index], columns = packed.columns;
        const end = numbers(packed.len), first = new Uint32Array(data.rows + 1);
        let row = 0, at = 0;
        for (let i = 0; i < end.length; i++) {
          at += end[i];
          end[i] = at;
          if (at === columns) { first[++row] = i + 1; at = 0; }
        }
        state.cache[index] = { name: packed.name, columns, end, first, job: numbers(packed.job), level: numbers(packed.level) };
      }
      return state.cache[index];
    }
    // The first stretch of a row that ends after a column.
    function stretch(shown, row, column) {
      let low = shown.first[row], high = shown.first[row + 1] - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (shown.end[middle] > column) high = middle; else low = middle + 1;
      }
      return low;
    }

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

    // Each pixel shows the job at its middle; jobs between two pixels are left out.
    function draw() {
      const shown = policy(state.policy), place = layout(), colours = hues[state.by][night.matches ? "dark" : "light"];
      const ratio = window.devicePixelRatio || 1, span = state.to - state.from;
      canvas.style.height = place.height + "px";
      canvas.width = Math.round(canvas.clientWidth * ratio);
      canvas.height = Math.round(place.height * ratio);
      const pen = canvas.getContext("2d"), width = canvas.width;
      const line = place.row * ratio, seam = line >= 5 ? Math.min(1.5, line * 0.15) : 0;
      for (let r = 0; r < data.rows; r++) {
        let x = 0;
        for (let i = stretch(shown, r, state.from * shown.columns); x < width && i < shown.first[r + 1]; i++) {
          const until = Math.min(width, Math.ceil((shown.end[i] / shown.columns - state.from) / span * width - 0.5));
          if (until <= x) continue;
          const job = shown.job[i];
          if (job) {
            const faded = chosen.size && !chosen.has(jobs.who[job - 1] - 1);
            pen.fillStyle = colours[jobs[state.by][job - 1]];
            pen.globalAlpha = (faded ? FADED : 1) * (0.25 + 0.75 * shown.level[i] / 4);
            pen.fillRect(x, place.top[r] * ratio, until - x - (until - x > 4 ? 0.6 * ratio : 0), line - seam);
          }
          x = until;
        }
      }
      canvas.setAttribute("aria-label", "GPUs over time under " + shown.name + ", colour by " + (state.by === "owner" ? canvas.dataset.owner : "job size"));
      canvas.dataset.from = state.from;
      canvas.dataset.to = state.to;
      canvas.dataset.ready = "1";
      canvas.style.cursor = span < 1 ? "grab" : "crosshair";
      key.replaceChildren(...(state.by === "owner" ? data.owners : data.sizes).map((name, index) => {
        const item = make("li"), chip = make("span", "", "chip");
        chip.style.background = colours[index];
        item.append(chip, state.by === "owner" ? name : name + (name === "1" ? " GPU" : " GPUs"));
        return item;
      }));
      ticks();
    }
    let waiting = 0;
    function soon() {
      if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); });
    }

    // -- time --------------------------------------------------------------------------------------------------------

    function show(seconds) {
      for (const [limit, by, unit] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
        if (seconds < limit) return (seconds / by).toFixed(seconds / by < 10 ? 1 : 0) + " " + unit;
      }
      return (seconds / 86400).toFixed(1) + " d";
    }
    const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const dated = data.origin_ms !== null;
    const at = (seconds) => new Date((dated ? data.origin_ms : 0) + seconds * 1000);
    const clock = (moment) => moment.toISOString().slice(11, 16);
    const day = (moment) => moment.getUTCDate() + " " + months[moment.getUTCMonth()];
    function when(seconds) {
      if (dated) return day(at(seconds)) + " " + clock(at(seconds));
      return seconds < 172800 ? +(seconds / 3600).toFixed(2) + " h" : "day " + +(seconds / 86400).toFixed(2);
    }
    const steps = [1, 5, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600, 2419200, 4838400, 12096000, 31536000];
    function ticks() {
      const from = state.from * data.end_s, span = (state.to - state.from) * data.end_s;
      const room = Math.min(8, Math.max(3, Math.round(canvas.clientWidth / 110)));
      const step = steps.find((each) => span / each <= room) || steps[steps.length - 1];
      const shift = dated ? (data.origin_ms / 1000) % Math.min(step, 86400) : 0;
      const marks = [];
      for (let s = Math.ceil((from + shift) / step) * step - shift; s <= from + span; s += step) {
        const mark = make("span");
        if (dated) mark.textContent = step >= 86400 || clock(at(s)) === "00:00" ? day(at(s)) : clock(at(s));
        else mark.textContent = step < 60 ? +(s / 60).toFixed(2) + " min" : step >= 86400 ? "day " + Math.round(s / 86400) : +(s / 3600).toFixed(2) + " h";
        const place = (s - from) / span;
        mark.style.left = 100 * place + "%";
        if (place > 0.95) mark.className = "end";
        if (place < 0.04) mark.className = "start";
        marks.push(mark);
      }
      axis.replaceChildren(...marks);
      $("#gantt-range").textContent = span < data.end_s * 0.9999
        ? when(from) + " to " + when(from + span) + " (" + show(span) + ")" : "all of it (" + show(data.end_s) + ")";
    }

    // -- zoom --------------------------------------------------------------------------------------------------------

    function look(from, to) {
      const least = Math.min(1, 12 / policy(state.policy).columns);
      const span = Math.min(1, Math.max(least, to - from));
      from = Math.min(1 - span, Math.max(0, from + (to - from - span) / 2));
      state.from = from;
      state.to = from + span;
      tip.hidden = true;
      soon();
    }
    const pan = (share) => {
      const span = state.to - state.from;
      const from = Math.min(1 - span, Math.max(0, state.from + share * span));
      look(from, from + span);
    };
    function zoom(factor, place) {
      const span = state.to - state.from, middle = state.from + place * span;
      const wide = Math.min(1, span * factor), from = middle - place * wide;
      if (factor < 1 || span < 1) look(Math.max(0, Math.min(from, 1 - wide)), Math.max(0, Math.min(from, 1 - wide)) + wide);
    }
    const moves = {
      in: () => zoom(0.5, 0.5), out: () => zoom(2, 0.5), back: () => pan(-0.25), on: () => pan(0.25), all: () => look(0, 1),
    };
    for (const button of $$("#gantt-zoom button")) button.addEventListener("click", () => moves[button.value]());
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "back", ArrowRight: "on", 0: "all", Home: "all", Escape: "all" };
    canvas.addEventListener("keydown", (event) => {
      const move = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
      if (move) { event.preventDefault(); moves[move](); }
    });
    const placed = (event) => {
      const box = canvas.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    // The wheel alone scrolls the page: the chart is taller than some screens.
    canvas.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 100), placed(event));
      else if (state.to - state.from < 1 && Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) pan(sideways / canvas.clientWidth);
      else return;
      event.preventDefault();
    }, { passive: false });

    // Mouse: drag over a stretch to zoom into it. Fingers: one moves, two zoom; the page scrolls up and down as ever.
    const fingers = new Map();
    const band = $("#gantt-drag");
    let began = null, held = null;
    const hold = () => {
      const span = state.to - state.from;
      held = Array.from(fingers.values()).slice(0, 2).map((place) => state.from + place * span);
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") {
        if (event.button === 0) { began = placed(event); canvas.setPointerCapture(event.pointerId); }
      } else {
        fingers.set(event.pointerId, placed(event));
        hold();
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      if (began !== null) {
        const here = placed(event);
        band.hidden = Math.abs(here - began) * canvas.clientWidth < 5;
        band.style.left = 100 * Math.min(here, began) + "%";
        band.style.width = 100 * Math.abs(here - began) + "%";
      } else if (fingers.has(event.pointerId)) {
        fingers.set(event.pointerId, placed(event));
        const [one, other] = fingers.values(), span = state.to - state.from;
        if (other === undefined) {
          if (span < 1) pan((held[0] - state.from) / span - one);
        } else if (Math.abs(one - other) > 0.02) {
          const wide = Math.min(1, Math.abs((held[0] - held[1]) / (one - other)));
          const from = Math.min(1 - wide, Math.max(0, (held[0] + held[1]) / 2 - (one + other) / 2 * wide));
          look(from, from + wide);
        }
      }
    });
    function lift(event) {
      if (began !== null && event.type === "pointerup" && !band.hidden) {
        const span = state.to - state.from, ends = [began, placed(event)].sort((a, b) => a - b);
        look(state.from + ends[0] * span, state.from + ends[1] * span);
      }
      began = null;
      band.hidden = true;
      if (fingers.delete(event.pointerId)) hold();
    }
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("dblclick", () => moves.all());

    // -- users -------------------------------------------------------------------------------------------------------

    function name(event) {
      const shown = policy(state.policy), place = layout(), box = canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      let r = 0;
      while (r + 1 < data.rows && place.top[r + 1] <= y) r++;
      const i = stretch(shown, r, (state.from + x / box.width * (state.to - state.from)) * shown.columns);
      const step = data.end_s / shown.columns, start = i > shown.first[r] ? shown.end[i - 1] : 0;
      const job = shown.job[i] - 1, time = "about " + when(start * step) + " to " + when(shown.end[i] * step);
      const who = job >= 0 && jobs.who[job] ? ", " + data.people[jobs.who[job] - 1] : "";
      tip.textContent = job < 0 ? "idle, " + time
        : jobs.id[job] + who + ", " + jobs.gpus[job] + (jobs.gpus[job] === 1 ? " GPU" : " GPUs") + data.jobs.gpus_as + ", " + time;
      tip.hidden = false;
      tip.style.left = Math.max(0, Math.min(x + 12, box.width - tip.offsetWidth)) + "px";
      tip.style.top = (y + 16) + "px";
    }
    canvas.addEventListener("mousemove", (event) => { if (began === null) name(event); else tip.hidden = true; });
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });

    const list = $("#people-list"), MOST = 300;
    function choose() {
      const word = $("#people").dataset.word, count = data.people.length;
      const named = Array.from(chosen, (person) => data.people[person]);
      $("#people-chosen").textContent = !named.length ? "all " + count
        : named.length <= 3 ? named.join(", ") : named.length + " of " + count + " " + word;
      for (const row of $$("tr[data-person]")) row.hidden = chosen.size > 0 && !chosen.has(Number(row.dataset.person));
      soon();
    }
    function fill() {
      const wanted = $("#people-find").value.toLowerCase(), counts = numbers(data.people_jobs);
      const found = data.people.map((_, person) => person).filter((person) => data.people[person].toLowerCase().includes(wanted));
      list.replaceChildren(...found.slice(0, MOST).map((person) => {
        const label = make("label"), box = make("input");
        box.type = "checkbox";
        box.value = person;
        box.checked = chosen.has(person);
        box.addEventListener("change", () => { if (box.checked) chosen.add(person); else chosen.delete(person); choose(); });
        label.append(box, make("span", data.people[person]), make("small", counts[person] + (counts[person] === 1 ? " job" : " jobs")));
        return label;
      }));
      if (found.length > MOST) list.append(make("p", found.length - MOST + " more: type a part of the name", "note"));
      if (!found.length) list.append(make("p", "no such name", "note"));
    }
    if (list) {
      $("#people-find").addEventListener("input", fill);
      $("#people-clear").addEventListener("click", () => { chosen.clear(); fill(); choose(); });
      fill();
    }

    tabs($("#gantt-policies"), (index) => { state.policy = index; tip.hidden = true; draw(); });
    tabs($("#gantt-colours"), (index) => { state.by = index ? "size" : "owner"; draw(); });
    if (!$("#gantt-colours button[value='0']")) state.by = "size";
    night.addEventListener("change", draw);
    window.addEventListener("resize", soon);
    draw();
  }
})();
