"use strict";
// The slider of a step's page: everything that is shown follows from the time t, in microseconds.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = id => document.getElementById(id);
  const slider = at("time"), choice = at("rank");
  const kSteps = Number(slider.max);
  const escape = text => String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]));
  const bytes = n => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let u = 0;
    while (n >= 1024 && u + 1 < units.length) n /= 1024, ++u;
    return (u === 0 ? n : n.toPrecision(3)) + " " + units[u];
  };
  const moment = us => us >= 1e6 ? (us / 1e6).toFixed(3) + " s" : us >= 1e3 ? (us / 1e3).toFixed(3) + " ms" : us.toFixed(1) + " us";
  const svg = (width, height, body) => `<svg viewBox="0 0 ${width} ${height}" role="img">${body}</svg>`;
  const now = (rank, t, test) => rank.spans.filter(s => s.begin <= t && t < s.end && test(s));
  const isOperation = s => s.meaning === "communication";
  const isMessage = s => s.name === "send" || s.name === "receive";
  const label = s => isMessage(s) ? "message" : s.name;
  const key = s => [label(s), s.group, s.begin, s.ranks].join();  // the same on all ranks of the operation
  const isWork = s => !isOperation(s) && s.meaning !== "wait";
  const state = (rank, t) => {
    const work = now(rank, t, isWork), wait = now(rank, t, s => s.meaning === "wait");
    const span = wait.at(-1) || work.at(-1);
    return {span, meaning: span ? span.meaning : "idle",
            words: span ? (span.meaning === "wait" ? "waits for " + span.name + " " + span.group : span.name) : "idle"};
  };
  data.ranks.forEach((rank, i) => choice.add(new Option(rank.rank, i)));
  const figure = at("timeline").querySelector(".drawing svg");
  const height = figure.viewBox.baseVal.height;
  figure.insertAdjacentHTML("beforeend", `<line class="limit" y1="2" y2="${height - 34}"/>`);
  const cursor = figure.lastElementChild;

  const perNode = data.per_node > 0 ? data.per_node : data.ranks.length;
  const place = data.ranks.map((rank, i) => {
    const node = Math.floor(rank.rank / perNode), nodes = [...new Set(data.ranks.map(r => Math.floor(r.rank / perNode)))];
    const column = data.ranks.filter((r, j) => j < i && Math.floor(r.rank / perNode) === node).length;
    return {x: 40 + 74 * (column % 8), y: 34 + 108 * nodes.indexOf(node) + 54 * Math.floor(column / 8), node};
  });
  const place_of = new Map(data.ranks.map((rank, i) => [rank.rank, place[i]]));

  function mesh(t) {
    let body = '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="communication" d="M0 0L8 4L0 8z"/></marker></defs>';
    const seen = new Set();
    data.ranks.forEach((rank, i) => {
      if (data.per_node > 0 && place.findIndex(p => p.node === place[i].node) === i)
        body += `<text x="8" y="${place[i].y - 20}">node ${place[i].node}</text>`;
      const s = state(rank, t), {x, y} = place[i];
      body += `<rect class="${s.meaning}${i === choice.selectedIndex ? " chosen" : ""}" x="${x - 24}" y="${y - 14}" width="48" height="28" rx="5"><title>rank ${rank.rank}: ${escape(s.words)}</title></rect>` +
              `<text class="m ${s.meaning === "idle" || s.meaning === "wait" ? "ink" : "on"}" x="${x}" y="${y + 4}">${rank.rank}</text>`;
    });
    for (const rank of data.ranks)
      for (const s of now(rank, t, isOperation)) {
        const known = s.ranks.filter(r => place_of.has(r)).map(r => place_of.get(r));
        if (known.length < 2 || seen.has(key(s))) continue;
        seen.add(key(s));
        for (let k = 0; k + 1 < known.length; ++k) {
          const a = known[k], b = known[k + 1], bend = a.y === b.y ? 26 : 0;
          body += `<path class="link communication" d="M${a.x} ${a.y + 14}Q${(a.x + b.x) / 2} ${(a.y + b.y) / 2 + 14 + bend} ${b.x} ${b.y + (b.y > a.y ? -14 : 14)}"${isMessage(s) ? ' marker-end="url(#tip)"' : ""}><title>${escape(label(s))} in ${escape(s.group)}, ${bytes(s.bytes)}</title></path>`;
        }
      }
    const right = Math.max(...place.map(p => p.x)) + 40, down = Math.max(...place.map(p => p.y)) + 50;
    return svg(Math.max(right, 300), down, body);
  }

  function held(rank, t) {
    let last = rank.memory[0];
    for (const sample of rank.memory) if (sample[0] <= t) last = sample; else break;
    return last;
  }
  const most = Math.max(1, ...data.ranks.flatMap(r => r.memory.map(m => m.slice(1).reduce((a, b) => a + b, 0))));
  function memory(t) {
    let body = "", y = 22, x = 60;
    const purposes = data.purposes.filter((p, i) => data.ranks.some(r => r.memory.some(m => m[i + 1] > 0)));
    for (const p of purposes) {
      if (x + 26 + 7 * p.length > 470) x = 60, y += 18;
      body += `<rect class="${p}" x="${x}" y="${y - 18}" width="11" height="11"/><text x="${x + 15}" y="${y - 8}">${p}</text>`;
      x += 30 + 7 * p.length;
    }
    data.ranks.forEach((rank, i) => {
      const sample = held(rank, t);
      if (!sample) return;
      let left = 60, sum = 0;
      body += `<text class="e" x="52" y="${y + 14}">rank ${rank.rank}</text>`;
      data.purposes.forEach((p, k) => {
        const width = 320 * sample[k + 1] / most;
        sum += sample[k + 1];
        if (width > 0) body += `<rect class="${p}" x="${left}" y="${y}" width="${width.toFixed(2)}" height="18"><title>${p}: ${bytes(sample[k + 1])}</title></rect>`;
        left += width;
      });
      body += `<text class="ink" x="${left + 5}" y="${y + 14}">${bytes(sum)}</text>`;
      y += 22;
    });
    return svg(470, y + 4, body);
  }

  function flights(t) {
    const seen = new Set();
    let rows = "";
    for (const rank of data.ranks)
      for (const s of now(rank, t, isOperation)) {
        if (seen.has(key(s))) continue;
        seen.add(key(s));
        const who = isMessage(s) ? s.ranks.join(" to ") : s.ranks.length ? s.ranks.join(", ") : rank.rank;
        rows += `<tr><td>${escape(label(s))}</td><td>${escape(s.group)}</td><td>${who}</td><td>${bytes(s.bytes)}</td><td>${escape(s.needed)}</td></tr>`;
      }
    return rows ? `<table><thead><tr><th>operation</th><th>group</th><th>ranks</th><th>bytes</th><th>needed by</th></tr></thead><tbody>${rows}</tbody></table>` : "<p>No operation is in flight.</p>";
  }

  // One block stands for all of its kind: numbers in names do not count.
  const kind = name => name.replace(/\d+/g, "N");
  const unit_of = words => kind(words.replace(/^\S+ (of )?/, ""));
  function grids(rank, t) {
    const s = state(rank, t), unit = s.span && s.span.meaning !== "wait" ? unit_of(s.span.name) : "";
    const awaited = now(rank, t, isOperation).map(o => unit_of(o.needed || ""));
    let body = "", x = 8, y = 8, row = 0;
    for (const grid of data.grids) {
      if (grid.shape.length < 2) continue;
      const [rows, columns] = grid.shape.slice(-2), side = 92, scale = side / Math.max(rows, columns);
      const w = Math.max(14, columns * scale), h = Math.max(14, rows * scale);
      if (x + side + 20 > 470) x = 8, y += row + 40, row = 0;
      const mine = kind(grid.name).startsWith(unit) && unit !== "", flying = awaited.some(u => u !== "" && kind(grid.name).startsWith(u));
      body += `<rect class="idle" x="${x}" y="${y}" width="${w}" height="${h}"/>`;
      for (const holding of grid.holdings)
        if (holding.ranks.includes(rank.rank))
          for (const b of holding.blocks) {
            const [r0, c0] = b.offset.slice(-2), [hs, ws] = b.sizes.slice(-2);
            body += `<rect class="weights${mine ? "" : " later"}" x="${x + w * c0 / columns}" y="${y + h * r0 / rows}" width="${w * ws / columns}" height="${h * hs / rows}"><title>rows ${r0} to ${r0 + hs - 1}, columns ${c0} to ${c0 + ws - 1}</title></rect>`;
          }
      if (flying) body += `<rect class="frame" stroke-dasharray="4 3" x="${x - 2}" y="${y - 2}" width="${w + 4}" height="${h + 4}"/>`;
      const short = grid.name.replace(/\.weight$/, "").split(".").slice(-2).join(".");
      body += `<text class="half ${mine ? "ink" : ""}" x="${x}" y="${y + h + 13}">${escape(short.length > 20 ? "…" + short.slice(-19) : short)}</text><text class="half" x="${x}" y="${y + h + 25}">${grid.shape.join(" x ")}</text>`;
      row = Math.max(row, h);
      x += side + 24;
    }
    return svg(470, y + row + 34, body);
  }

  const lines = [...at("code").children];
  function show(t) {
    const rank = data.ranks[choice.selectedIndex], x = data.left + (data.right - data.left) * t / data.end;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    at("shown").textContent = moment(t);
    at("mesh").innerHTML = mesh(t);
    if (at("memory")) at("memory").innerHTML = memory(t);
    at("flights").innerHTML = flights(t);
    if (at("grids")) at("grids").innerHTML = grids(rank, t);
    const work = now(rank, t, isWork).at(-1);
    const line = work && work.line !== null ? work.line : -1;
    lines.forEach((element, i) => element.classList.toggle("now", i === line));
    if (line >= 0) at("code").scrollTop = lines[line].offsetTop - at("code").offsetTop - 120;
    document.body.dataset.time = Math.round(t);
    document.body.dataset.doing = state(rank, t).words;
  }
  const time = () => data.end * slider.value / kSteps;
  const go = t => { slider.value = Math.round(kSteps * Math.min(1, Math.max(0, t / data.end))); show(Math.min(t, data.end)); };
  const changes = () => [...new Set(data.ranks[choice.selectedIndex].spans.flatMap(s => [s.begin, s.end]))].sort((a, b) => a - b);
  let shown = 0;
  const jump = t => { if (t !== undefined) { shown = t; go(t); } };
  slider.addEventListener("input", () => { shown = time(); show(shown); });
  choice.addEventListener("change", () => show(shown));
  at("on").addEventListener("click", () => jump(changes().find(t => t > shown)));
  at("back").addEventListener("click", () => jump(changes().filter(t => t < shown).at(-1)));
  figure.addEventListener("click", event => {
    const box = figure.getBoundingClientRect(), x = (event.clientX - box.left) * figure.viewBox.baseVal.width / box.width;
    jump(Math.min(data.end, Math.max(0, data.end * (x - data.left) / (data.right - data.left))));
  });
  // #t=0.4: four tenths of the step; #t=0.4,rank=2
  const wanted = Object.fromEntries(location.hash.slice(1).split(",").map(pair => pair.split("=")));
  if (wanted.rank !== undefined) choice.selectedIndex = data.ranks.findIndex(r => String(r.rank) === wanted.rank);
  jump(data.end * (Number(wanted.t) || 0));
})();
