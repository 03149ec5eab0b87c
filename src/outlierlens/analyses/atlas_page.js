"use strict";
// A model: [name, family, norm, created, downloads, license, revision, streams, reason, failure];
// a stream: [name, site, width, layers, outliers]; an outlier: [dim, z of the scale, z of the bias or null, layers].
const {models, shards, index} = JSON.parse(document.getElementById("data").textContent);
const answer = document.getElementById("answer"), words = document.getElementById("words");
const MOST = 100;

function element(tag, text, more = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(more)) made.setAttribute(name, value);
  return made;
}

function table(heads, rows) {
  const made = element("table", null, {class: "cards"}), head = element("tr"), body = element("tbody");
  heads.forEach(one => head.append(element("th", one, {scope: "col"})));
  made.append(element("thead"), body);
  made.tHead.append(head);
  for (const cells of rows) {
    const row = element("tr");
    cells.forEach((cell, at) => {
      const place = at ? element("td", null, {"data-head": heads[at]}) : element("th", null, {scope: "row"});
      place.append(cell);
      row.append(place);
    });
    body.append(row);
  }
  return made;
}

const dimsOf = model => model[7].flatMap(stream => stream[4].map(one => one[0]));
const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
const signed = z => z === null ? "–" : (z > 0 ? "+" : "−") + Math.abs(z).toFixed(1);
const link = name => element("a", name, {href: "#m=" + encodeURIComponent(name)});

function shape(model) {
  return model[7].map(([name, , width, layers]) => (name === "model" ? "" : name + " ") + `${width} × ${layers}`).join(", ");
}

function find(text) {
  const all = text.toLowerCase().split(/\s+/).filter(Boolean);
  const dims = all.filter(word => /^\d+$/.test(word)).map(Number), parts = all.filter(word => !/^\d+$/.test(word));
  const named = models.filter(model => parts.every(word => (model[0] + " " + model[1]).toLowerCase().includes(word)));
  const begins = model => parts.some(word => model[0].toLowerCase().split("/").pop().startsWith(word)) ? 1 : 0;
  const found = named.filter(model => dims.every(dim => dimsOf(model).includes(dim)));
  return {parts, dims, named, found: found.sort((a, b) => begins(b) - begins(a) || (b[4] || 0) - (a[4] || 0))};
}

function showFound(text) {
  const {parts, dims, named, found} = find(text);
  if (models.length) {
    const have = dims.length ? ` with ${dims.join(" and ")} among their outlier dimensions, of ${many(named.length, "model")} that match` : "";
    answer.append(element("h2", `${many(found.length, "model")}${have}`));
    const listed = found.length || !dims.length ? found : named;
    if (listed !== found && named.length) answer.append(element("p", "None has it. What those that match have instead:"));
    if (listed.length) {
      answer.append(table(["model", "family", "width × layers", "outlier dimensions"], listed.slice(0, MOST).map(model =>
        [link(model[0]), model[1] || "–", shape(model) || "–", model[8] ? "not read: " + model[8] : dimsOf(model).slice(0, 12).join(", ") || "none"])));
    }
    if (listed.length > MOST) answer.append(element("p", `The first ${MOST} are shown; add a word to see fewer.`, {class: "muted"}));
  }
  if (shards.length) {
    // Names lie in their order over the pages; a word that begins a name narrows them down.
    const low = word => word.toLowerCase(), first = parts[0] || "";
    const may = shards.filter(one => first && low(one.last) >= first && low(one.first).slice(0, first.length) <= first);
    answer.append(element("h2", models.length ? "On the other pages" : "Look on these pages"));
    const list = element("ul"), here = location.pathname.split("/").pop();
    for (const one of [...new Set([...may, ...shards])].filter(one => one.file !== here)) {
      const item = element("li");
      item.append(element("a", `${one.first} to ${one.last}`, {href: `${one.file}#q=${encodeURIComponent(text)}`}));
      list.append(item);
    }
    answer.append(list);
  }
}

function showModel(name) {
  const model = models.find(one => one[0] === name);
  if (!model) {
    answer.append(element("h2", "No model of this name here"));
    return;
  }
  const [, family, norm, created, downloads, license, revision, streams, reason, failure] = model;
  answer.append(element("h2", name));
  const facts = element("dl");
  for (const [what, value] of [["family", family], ["norm", norm], ["created", created], ["downloads", downloads], ["licence", license], ["revision", revision]]) {
    if (value !== null && value !== "") facts.append(element("dt", what), element("dd", typeof value === "number" ? value.toLocaleString("en") : value));
  }
  answer.append(facts);
  if (reason) answer.append(element("p", `It was not read (${reason}): ${failure}`));
  for (const [stack, site, width, layers, outliers] of streams) {
    answer.append(element("h3", `${stack === "model" ? "Stream" : stack}, ${width} × ${many(layers, "layer")}, ${site}`));
    if (!outliers.length) answer.append(element("p", "No outlier dimension."));
    else answer.append(table(["dimension", "z of scale", "z of bias", "layers of scale"], outliers.map(([dim, z, bias, n]) =>
      [String(dim), signed(z), signed(bias), `${n} of ${layers}`])));
  }
  const quoted = /^[\w./@-]+$/.test(name) ? name : "'" + name.replace(/'/g, "'\\''") + "'";
  answer.append(element("h3", "Go deeper"), element("pre", `outlierlens scan ${quoted}\noutlierlens report ${quoted}`));
  const same = models.filter(one => one !== model && one[1] === family && one[7].length && streams.length && one[7][0][2] === streams[0][2]
    && dimsOf(one).some(dim => dimsOf(model).includes(dim)));
  if (same.length) {
    answer.append(element("h3", `${many(same.length, "model")} of its family and width share positions with it`));
    answer.append(table(["model", "shared"], same.slice(0, MOST).map(one => [link(one[0]), dimsOf(one).filter(dim => dimsOf(model).includes(dim)).join(", ")])));
  }
}

function show() {
  const asked = location.hash.slice(1), at = asked.indexOf("=");
  let text = "";
  try { text = decodeURIComponent(asked.slice(at + 1)); } catch { text = ""; }
  answer.replaceChildren();
  const kind = at > 0 ? asked.slice(0, at) : "";
  if (!kind && models.length && shards.length) showFound("");  // a page of models alone: without a question, all of them
  if (kind === "q" && text.trim()) { words.value = text; showFound(text); }
  if (kind === "m" && text) { showModel(text); answer.scrollIntoView(); }
}

words.addEventListener("input", () => { history.replaceState(null, "", words.value.trim() ? "#q=" + encodeURIComponent(words.value) : location.pathname.split("/").pop() || index); show(); });
document.getElementById("ask").addEventListener("submit", event => event.preventDefault());
window.addEventListener("hashchange", show);
show();
