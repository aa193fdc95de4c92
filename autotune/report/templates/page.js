"use strict";
(() => {
  const root = document.documentElement;
  const THEMES = ["auto", "light", "dark"];
  const find = (selector) => document.querySelector(selector);
  const findAll = (selector, from = document) => [...from.querySelectorAll(selector)];

  // Stored if the browser allows it: a page opened from a file may have no storage.
  const storedTheme = () => { try { return localStorage.getItem("colours"); } catch { return null; } };
  const storeTheme = (theme) => { try { localStorage.setItem("colours", theme); } catch { /* it lasts as long as the page */ } };
  const setTheme = (theme) => { if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme; };
  let theme = THEMES.includes(storedTheme()) ? storedTheme() : "auto";
  setTheme(theme);

  function toggleTheme(button) {
    const show = () => { button.textContent = `Theme: ${theme}`; };
    show();
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      setTheme(theme);
      storeTheme(theme);
      show();
    });
  }

  // Copying -------------------------------------------------------------------------------------------------------

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // none on a page that is not secure, or it may not be used
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  async function onCopy(button) {
    const name = button.textContent;
    button.textContent = await copy(document.getElementById(button.dataset.copy).textContent) ? "Copied" : "Select it by hand";
    setTimeout(() => { button.textContent = name; }, 2000);
  }

  // The table -----------------------------------------------------------------------------------------------------

  // The value is the attribute, or the cell's first part: a badge may follow.
  const valueOf = (cell) => cell.dataset.value ?? (cell.firstChild?.textContent ?? "").trim();
  const numberOf = (text) => (text === "inf" ? Infinity : Number(text));
  const words = new Intl.Collator("en", { numeric: true });

  function sortBy(header, headers, body) {
    const place = headers.indexOf(header);
    const numeric = header.classList.contains("n");
    const first = "falls" in header.dataset ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = header.ariaSort === first ? other : first;
    headers.forEach((each) => each.setAttribute("aria-sort", each === header ? order : "none"));
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[place]) }));
    const compare = numeric ? (a, b) => (numberOf(a) < numberOf(b) ? -1 : Number(numberOf(a) > numberOf(b))) : words.compare;
    rows.sort((a, b) => {
      if (a.value === "" || b.value === "") return Number(a.value === "") - Number(b.value === ""); // missing last
      return sign * compare(a.value, b.value);
    });
    body.append(...rows.map(({ row }) => row));
  }

  function filterTable(body) {
    // Whole texts and whole values, also of columns that are not shown.
    const textOf = (row) => [...row.cells].map((cell) => `${cell.textContent} ${cell.dataset.value ?? ""}`).join(" ");
    const texts = new Map([...body.rows].map((row) => [row, textOf(row).toLowerCase()]));
    const filter = () => {
      const wanted = find("#words").value.toLowerCase().split(/\s+/).filter(Boolean);
      const outcome = find("#outcome")?.value;
      const fits = find("#fits").value;
      let shown = 0;
      for (const [row, text] of texts) {
        row.hidden = !(
          wanted.every((word) => text.includes(word)) &&
          (!outcome || row.dataset.outcome === outcome) &&
          (!fits || row.dataset.fits === fits)
        );
        shown += !row.hidden;
      }
      find("#count").textContent = `${shown} of ${texts.size} trials`;
    };
    for (const event of ["input", "change"]) find("#filter").addEventListener(event, filter);
    find("#filter").addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  function chooseColumns(boxes) {
    const sheet = find("#hidden-columns").sheet;
    boxes.addEventListener("change", () => {
      while (sheet.cssRules.length) sheet.deleteRule(0);
      for (const box of findAll("input:not(:checked)", boxes)) {
        sheet.insertRule(`#trials :is(th, td):nth-child(${box.value}) { display: none }`);
      }
    });
  }

  // A link to something in what is folded opens it --------------------------------------------------------------------

  function unfoldTarget() {
    const target = document.getElementById(location.hash.slice(1));
    for (let box = target?.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target?.scrollIntoView({ block: "center" });
  }

  document.addEventListener("DOMContentLoaded", () => {
    findAll("[data-scripted]").forEach((element) => { element.hidden = false; });
    toggleTheme(find("#theme"));
    findAll("button.copy").forEach((button) => button.addEventListener("click", () => onCopy(button)));
    if (find("#trials")) {
      const headers = findAll("#trials thead th");
      const body = find("#trials tbody");
      headers.forEach((header) => header.addEventListener("click", () => sortBy(header, headers, body)));
      filterTable(body);
      chooseColumns(find("#columns"));
    }
    addEventListener("hashchange", unfoldTarget);
    unfoldTarget();
  });
})();
