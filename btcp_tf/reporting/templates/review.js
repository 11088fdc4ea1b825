"use strict";
const $ = (selector) => document.querySelector(selector);
const main = $("main");
const items = [...document.querySelectorAll(".item")];
const names = JSON.parse($("#class-names").textContent);
const [controls, other, fault] = [$(".controls"), $("#other"), $("#other-fault")];
const SAMPLE = "random sample";
// Where every class is called as a key, that key means the class, and not the place of a button.
const digits = names.every((name) => /^[0-9]$/.test(name));
const storageKey = `btcp_tf review ${main.dataset.key}`;
// Row -> what was decided about it: { word, label, at }.
let decisions = {};
let kept = true;
try {
  decisions = JSON.parse(localStorage.getItem(storageKey)) || {};
} catch {
  kept = false;
}
const undone = []; // What each decision replaced, the last one at the end.
let current = 0;
let shown = items;

const isSample = (item) => item.dataset.place !== "";
const isFirst = (item) => item.dataset.why !== SAMPLE;
const decided = (item) => decisions[item.dataset.row];
const kinds = { "": () => true, open: (item) => !decided(item), first: isFirst, sample: isSample };

const save = () => {
  try {
    localStorage.setItem(storageKey, JSON.stringify(decisions));
  } catch {
    kept = false;
  }
  $("#unsaved").hidden = kept;
};
const mark = (item) => {
  const made = decided(item);
  item.classList.remove("right", "wrong", "unsure");
  if (made) item.classList.add(made.word);
  for (const button of item.querySelectorAll("[data-label], [data-word]")) {
    const { label, word } = button.dataset;
    const on = made && (label === undefined ? made.word === word && made.label === null
      : made.label === Number(label));
    button.setAttribute("aria-pressed", String(Boolean(on)));
  }
};
const count = () => {
  const total = { right: 0, wrong: 0, unsure: 0 };
  for (const item of items) if (decided(item)) total[decided(item).word] += 1;
  const done = total.right + total.wrong + total.unsure;
  const sample = items.filter(isSample);
  const text = [`<b>${done}</b> of ${items.length} decided`, `<b>${total.wrong}</b> wrong`];
  if (total.unsure) text.push(`${total.unsure} unsure`);
  if (sample.length) {
    text.push(`random sample ${sample.filter(decided).length} of ${sample.length}`);
  }
  $(".counts").innerHTML = text.join(" · "); // Numbers alone.
  [["good", "right"], ["bad", "wrong"], ["unsure", "unsure"]].forEach(([name, word]) => {
    $(`.bar .${name}`).style.width = `${(100 * total[word]) / items.length}%`;
  });
  document.body.classList.toggle("begun", done > 0);
  $(".bar").setAttribute("aria-label", `Progress: ${done} of ${items.length} decided`);
};
const show = (place, focus = true) => {
  current = Math.max(0, Math.min(place, shown.length - 1));
  const item = shown[current];
  for (const one of items) one.hidden = one !== item;
  $(".none").hidden = Boolean(item);
  controls.hidden = !item;
  [other.value, fault.textContent] = ["", ""];
  if (!item) return;
  const panel = item.querySelector(".judged");
  panel.insertBefore(controls, panel.querySelector("p.meta"));
  $("#back").disabled = current === 0;
  $("#next").disabled = current === shown.length - 1;
  $("#undo").disabled = undone.length === 0;
  mark(item);
  const made = decided(item);
  if (made && made.label !== null && !item.querySelector(`[data-label="${made.label}"]`)) {
    other.value = names[made.label];
  }
  if (focus) item.querySelector("h2").focus({ preventScroll: true });
};
const decide = (word, label) => {
  const item = shown[current];
  const row = item.dataset.row;
  undone.push([row, decisions[row]]);
  decisions[row] = { word, label, at: new Date().toISOString() };
  save();
  mark(item);
  count();
  const after = shown.findIndex((one, place) => place > current && !decided(one));
  show(after === -1 ? current + 1 : after);
};
const take = (label) => decide(
  label === Number(shown[current].dataset.predicted) ? "right" : "wrong", label
);
const undo = () => {
  if (!undone.length) return;
  const [row, before] = undone.pop();
  if (before) decisions[row] = before;
  else delete decisions[row];
  save();
  count();
  const place = shown.findIndex((item) => item.dataset.row === row);
  show(place === -1 ? current : place);
};
// A spreadsheet takes text that begins so for a formula; as core/csv_cells.py.
const cell = (value) => {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]./s.test(text)) text = `'${text}`;
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csv = () => {
  const lines = [[
    "row", "input", "predicted", "uncertainty", "chosen_for", "place_in_sample",
    "inclusion_probability", "seed", "decision", "label", "label_name", "decided_at",
  ]];
  for (const item of items) {
    const { row, name, predicted, u, why, place } = item.dataset;
    const made = decided(item) || { word: "", label: null, at: "" };
    const drawn = place === "" ? ["", "", ""]
      : [Number(place), Number(main.dataset.probability), Number(main.dataset.seed)];
    lines.push([
      Number(row), name, Number(predicted), Number(u), why, ...drawn,
      made.word, made.label, made.label === null ? "" : names[made.label], made.at,
    ]);
  }
  return lines.map((line) => line.map(cell).join(",") + "\n").join("");
};
const download = () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  link.download = `${main.dataset.file.replace(/\.[a-z]+$/i, "")}-decisions.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const takeOther = () => {
  const wanted = other.value.trim();
  const label = names.indexOf(wanted);
  if (label === -1) {
    fault.textContent = wanted ? `No class is called "${wanted}".` : "";
    return;
  }
  take(label);
};

const keys = {
  x: () => decide("wrong", null),
  s: () => decide("unsure", null),
  z: undo,
  d: download,
  "/": () => other.focus(), // Where all classes have a button it is hidden, and stays so.
  ArrowLeft: () => show(current - 1),
  ArrowRight: () => show(current + 1),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === other) {
    if (event.key === "Enter") takeOther();
    else if (event.key === "Escape") shown[current].querySelector("h2").focus();
    return;
  }
  if (event.target.matches("select, input") || !$("#keys").checked) return;
  if (shown.length && /^[0-9]$/.test(event.key)) {
    const button = shown[current].querySelectorAll("[data-label]")[Number(event.key) - 1];
    const label = digits ? names.indexOf(event.key) : Number(button ? button.dataset.label : -1);
    event.preventDefault();
    if (label !== -1) take(label);
  } else if (Object.hasOwn(keys, event.key) && (shown.length || "zd".includes(event.key))) {
    event.preventDefault();
    keys[event.key]();
  }
});
main.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.label !== undefined) take(Number(button.dataset.label));
  else if (button.dataset.word) decide(button.dataset.word, null);
});
other.addEventListener("change", () => {
  if (names.includes(other.value.trim()) && document.activeElement !== other) takeOther();
});
$("#back").addEventListener("click", () => show(current - 1));
$("#next").addEventListener("click", () => show(current + 1));
$("#undo").addEventListener("click", undo);
$("#download").addEventListener("click", download);
$("#show").addEventListener("change", (event) => {
  shown = items.filter(kinds[event.target.value]);
  show(0, false);
});
for (const picture of document.querySelectorAll(".shown img")) {
  const sharpen = () => picture.classList.toggle("small", picture.naturalWidth < 128);
  if (picture.complete) sharpen();
  picture.addEventListener("load", sharpen);
}
$(".status").hidden = false;
items.forEach(mark);
save();
count();
const open = items.findIndex((item) => !decided(item));
show(open === -1 ? 0 : open, false);
