"use strict";
// Filters of the gallery: each card carries what it is about.
for (const bar of document.querySelectorAll(".filters")) {
  const selects = [...bar.querySelectorAll("select")];
  const cards = [...bar.closest(".answers").querySelectorAll(".card")];
  const count = bar.querySelector(".count");
  const apply = () => {
    for (const card of cards) {
      card.hidden = !selects.every(
        (s) => s.value === "" || card.dataset[s.dataset.filter].split(" ").includes(s.value)
      );
    }
    count.textContent = `${cards.filter((card) => !card.hidden).length} of ${cards.length} shown`;
  };
  for (const select of selects) select.addEventListener("change", apply);
  bar.hidden = false;
  apply();
}
// Tables are sorted by a click on a column's heading, and the other way by the next one.
const valueOf = (cell) => {
  const exact = cell.querySelector("data");
  const number = parseFloat(exact ? exact.value : cell.textContent.replaceAll(",", ""));
  return Number.isNaN(number) ? null : number;
};
const compare = (a, b) => {
  const [x, y] = [valueOf(a), valueOf(b)];
  if (x === null || y === null) {
    // What is no number comes last, in the order of its words.
    return (x === null) - (y === null) || a.textContent.localeCompare(b.textContent);
  }
  return x - y;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (down ? -1 : 1) * compare(a.cells[place], b.cells[place]));
      table.tBodies[0].append(...rows);
    });
  });
}
// Paper cannot be unfolded.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
