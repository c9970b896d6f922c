// The page's own script: it has Bokeh draw the charts, filters the confusion matrix, sorts tables, and shows attention.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

function element(name, text, properties) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return Object.assign(made, properties);
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

// ---------------------------------------------------------------- tables that sort

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.cells[column].textContent;
      const order = column
        ? (a, b) => Number(value(a)) - Number(value(b))
        : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
      const rows = [...body.rows].sort(order);
      body.append(...(ascending ? rows : rows.reverse()));
    });
  });
}

// ---------------------------------------------------------------- the confusion matrix

function confusion({ names, cells }) {
  let source;  // of the chart, once it is drawn
  const totals = new Array(names.length).fill(0);
  const entries = [];
  for (let i = 0; i < cells.length; i += 3) {
    totals[cells[i]] += cells[i + 2];
    entries.push({ y: cells[i], x: cells[i + 1], count: cells[i + 2] });
  }
  const named = document.getElementById("filter-name");
  const least = document.getElementById("filter-count");
  const wrong = document.getElementById("filter-wrong");
  const body = document.querySelector("#mistakes tbody");
  const filter = () => {
    const text = named.value.trim().toLowerCase();
    const fits = names.map((name) => name.toLowerCase().includes(text));
    const kept = entries.filter(
      (e) => e.count >= (Number(least.value) || 1) && (fits[e.x] || fits[e.y]) && !(wrong.checked && e.x === e.y),
    );
    const columns = { x: [], y: [], count: [], shade: [], true: [], predicted: [] };
    for (const e of kept) {
      columns.x.push(e.x);
      columns.y.push(e.y);
      columns.count.push(e.count);
      // A square root makes rare mistakes visible beside a diagonal near 1.
      columns.shade.push(Math.sqrt(e.count / totals[e.y]));
      columns.true.push(names[e.y]);
      columns.predicted.push(names[e.x]);
    }
    if (source) source.data = columns;
    const mistakes = kept.filter((e) => e.x !== e.y).sort((a, b) => b.count - a.count);
    const rows = mistakes.slice(0, 100).map((e) => {
      const row = element("tr");
      const texts = [names[e.y], names[e.x], String(e.count), percent(e.count / totals[e.y])];
      row.append(...texts.map((t, i) => (i ? element("td", t) : element("th", t, { scope: "row" }))));
      return row;
    });
    body.replaceChildren(...rows);
    const total = kept.reduce((sum, e) => sum + e.count, 0);
    const examples = mistakes.reduce((sum, e) => sum + e.count, 0);
    document.getElementById("filter-said").textContent =
      `${kept.length.toLocaleString("en")} cells with ${total.toLocaleString("en")} examples pass the filter, ` +
      `${examples.toLocaleString("en")} of them mistakes` +
      (mistakes.length > 100 ? "; the table has the 100 most frequent" : "") + ".";
  };
  for (const control of [named, least, wrong]) control.addEventListener("input", filter);
  filter();
  return (drawn) => {
    source = drawn;
    filter();
  };
}

// ---------------------------------------------------------------- attention, and similar positions

function bytes(text) {
  const letters = atob(text);
  return Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
}

function explore(root, examples, worth, last) {
  const control = (name) => root.querySelector(`[data-control=${name}] select`);
  const [which, layer, head, query] = ["example", "layer", "head", "query"].map(control);
  const stage = root.querySelector(".stage");
  const said = root.querySelector(".said");
  let now, cells, keyWords, queryWords;

  const options = (select, texts) => select.replaceChildren(...texts.map((t, i) => element("option", t, { value: String(i) })));
  const hide = (select, hidden) => { select.parentElement.hidden = hidden; };

  // The weights [keys] from the chosen token, layer and head; a choice beyond the last is the mean of all.
  const weights = () => {
    const [layers, heads, queries, keys] = now.shape;
    const chosen = (select, count) => {
      const value = Number(select.value);
      return value < count ? [value] : [...Array(count).keys()];
    };
    const out = new Float64Array(keys);
    const ls = chosen(layer, layers), hs = chosen(head, heads), qs = chosen(query, queries);
    for (const l of ls) for (const h of hs) for (const q of qs) {
      const begin = ((l * heads + h) * queries + q) * keys;
      for (let k = 0; k < keys; k++) out[k] += worth(now.bytes[begin + k]) / (ls.length * hs.length * qs.length);
    }
    return out;
  };

  const show = () => {
    const values = weights();
    const most = Math.max(...values, 1e-9), lowest = last ? Math.min(...values) : 0;
    const shade = (v) => `rgba(255, 176, 0, ${(0.9 * Math.max(v - lowest, 0) / Math.max(most - lowest, 1e-9)).toFixed(3)})`;
    const before = now.keys.length - cells.length;
    cells.forEach((cell, i) => {
      cell.style.background = shade(values[before + i]);
      cell.title = `${now.keys[before + i]}: ${last ? values[before + i].toFixed(2) : percent(values[before + i])}`;
      cell.classList.toggle("from", now.cellOf.get(i) === Number(query.value));
    });
    keyWords.forEach((word, k) => {
      word.style.borderBottom = `4px solid ${shade(values[k])}`;
      word.lastChild.textContent = ` ${percent(values[k])}`;
    });
    queryWords.forEach((word, q) => word.setAttribute("aria-pressed", String(q === Number(query.value))));
    const order = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, 5);
    const list = order.map((k) => `${now.keys[k]} ${last ? values[k].toFixed(2) : percent(values[k])}`).join("; ");
    const told = [[layer, "layer"], [head, "head"]].filter(([select]) => !select.parentElement.hidden).map(([select, name]) => {
      const choice = select.selectedOptions[0].textContent;
      return choice.startsWith("mean") ? `${choice} ${name}s` : `${name} ${choice}`;
    });
    said.textContent = `${last ? "Most similar to" : "Most attention from"} ${now.from[Number(query.value)]}${told.length ? ` (${told.join(", ")})` : ""}: ${list}.`;
  };

  const choose = (q) => { query.value = String(q); show(); };

  const draw = () => {
    stage.replaceChildren();
    cells = [];
    keyWords = [];
    queryWords = [];
    if (!now.cells) {
      const box = element("div", undefined, { className: "words" });
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "Words that look");
      queryWords = now.queries.map((word, q) => {
        const button = element("button", word, { type: "button" });
        button.addEventListener("click", () => choose(q));
        return button;
      });
      box.append(...queryWords);
      stage.append(box);
    }
    const before = now.grid ? now.keys.length - now.grid[0] * now.grid[1] : now.keys.length;
    if (now.grid) {
      if (now.image) {
        const plain = element("div", undefined, { className: "picture" });
        plain.append(element("img", undefined, { src: now.image, alt: now.title }));
        stage.append(plain);
      }
      const picture = element("div", undefined, { className: "picture" });
      const shown = now.image
        ? element("img", undefined, { src: now.image, alt: "", className: "under" })
        : element("div", undefined, { className: "blank under" });
      if (!now.image) shown.style.aspectRatio = `${now.grid[1]} / ${now.grid[0]}`;
      const grid = element("div", undefined, { className: "patches" });
      grid.style.gridTemplate = `repeat(${now.grid[0]}, 1fr) / repeat(${now.grid[1]}, 1fr)`;
      cells = now.keys.slice(before).map((_, i) => {
        const cell = element("i");
        if (now.cellOf.has(i)) cell.addEventListener("click", () => choose(now.cellOf.get(i)));
        return cell;
      });
      grid.append(...cells);
      picture.append(shown, grid);
      stage.append(picture);
    }
    if (before) {
      const box = element("div", undefined, { className: "words" });
      keyWords = now.keys.slice(0, before).map((word) => {
        const span = element("span", word);
        span.append(element("small", ""));
        return span;
      });
      box.append(...keyWords);
      stage.append(box);
    }
  };

  const open = () => {
    now = examples[Number(which.value)];
    now.bytes ??= bytes(now.weights);
    const [layers, heads] = now.shape;
    options(layer, now.layers.map((n) => `${n + 1} of ${now.depth}`).concat(layers > 1 ? ["mean of these"] : []));
    options(head, heads < now.heads ? [`mean of ${now.heads}`] : [...Array(heads).keys()].map((h) => `${h + 1}`).concat(heads > 1 ? [`mean of ${heads}`] : []));
    now.from = now.mean ? [...now.queries, `${now.mean} (mean)`] : now.queries;
    options(query, now.from);
    hide(layer, layers < 2 && now.depth < 2);
    hide(head, now.heads < 2);
    layer.value = String(layers - 1);
    head.value = String(heads > 1 ? heads : 0);
    // Where no token comes before the patches, none of them is the one that counts.
    if (now.mean && now.keys.length === now.grid[0] * now.grid[1]) query.value = String(now.queries.length);
    // Which token looks where a patch is chosen in the picture: {number of the patch: number of the token}.
    now.cellOf = new Map((now.cells ?? []).map((cell, token) => [cell, token]).filter(([cell]) => cell !== null));
    draw();
    show();
  };

  options(which, examples.map((each, i) => `${i + 1}: ${each.title}`));
  hide(which, examples.length < 2);
  which.addEventListener("change", open);
  for (const select of [layer, head, query]) select.addEventListener("change", show);
  open();
}

// ---------------------------------------------------------------- all of it

async function start() {
  const fill = data.classes ? confusion(data.classes) : undefined;
  for (const item of data.charts) await Bokeh.embed.embed_item(item);
  // Bokeh has laid its charts out in the frame after the next one.
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  fill?.(Bokeh.documents.map((each) => each.get_model_by_name("cells")).find((each) => each));
  document.documentElement.dataset.drawn = "true";
}

if (data.attention) explore(document.getElementById("attention"), data.attention, (byte) => (byte / 255) ** 2, false);
if (data.positions) explore(document.getElementById("positions"), data.positions, (byte) => (2 * byte) / 255 - 1, true);
start();
