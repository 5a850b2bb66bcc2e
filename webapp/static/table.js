// A table of links: rows are chosen by their id, sorted with the unknown last, and a link opens
// its page in this tab as one step of the browser's history.
const go = (event, href) => {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState({}, "", href);
  dispatchEvent(new PopStateEvent("popstate"));
};

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

// Unknown stays at the end, whichever way the known are sorted.
const compare = (a, b, down) => {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return down ? -order : order;
};

export default function ({ data, parentElement, setStateValue }) {
  const picked = new Set(data.picked);
  let sort = data.sort;
  const box = parentElement.querySelector(".box");
  const place = [box.scrollTop, box.scrollLeft];
  const head = element("tr");
  const body = element("tbody");

  const cell = (column, one) => {
    const td = element("td", { className: column.number ? "number" : "" });
    if (one.tone) td.classList.add(one.tone);
    const inside = one.href
      ? element("a", { href: one.href, textContent: one.text, title: one.tip || "" })
      : element("span", { textContent: one.text, title: one.tip || "" });
    if (one.href) inside.onclick = (event) => go(event, one.href);
    td.append(inside);
    if (one.part !== null && one.part !== undefined) {
      td.classList.add("part");
      td.style.setProperty("--part", `${100 * one.part}%`);
    }
    return td;
  };

  const fill = () => {
    const rows = [...data.rows];
    const at = data.columns.findIndex((column) => column.name === sort.replace("-", ""));
    if (at >= 0) {
      const down = sort.startsWith("-");
      rows.sort((a, b) => compare(a.cells[at].order, b.cells[at].order, down));
    }
    body.replaceChildren(...rows.map((row) => {
      const tr = element("tr", { className: picked.has(row.id) ? "picked" : "" });
      if (data.pick) {
        const tick = element("input", { type: "checkbox", checked: picked.has(row.id) });
        tick.ariaLabel = `Choose ${row.cells[0].text}`;
        tick.onchange = () => {
          picked[tick.checked ? "add" : "delete"](row.id);
          tr.className = tick.checked ? "picked" : "";
          setStateValue("picked", [...picked]);
        };
        tr.append(element("td", { className: "tick" }, tick));
      }
      tr.append(...row.cells.map((one, i) => cell(data.columns[i], one)));
      return tr;
    }));
    head.querySelectorAll("th[data-name]").forEach((th) => {
      const mine = th.dataset.name === sort.replace("-", "");
      th.ariaSort = mine ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
    });
  };

  if (data.pick) head.append(element("th", { className: "tick" }, element("span", { textContent: "" })));
  for (const column of data.columns) {
    const button = element("button", { textContent: column.title, title: column.help });
    const th = element("th", { className: column.number ? "number" : "" }, button);
    th.dataset.name = column.name;
    button.onclick = () => {
      const first = column.number ? `-${column.name}` : column.name;
      const other = column.number ? column.name : `-${column.name}`;
      sort = sort === first ? other : first;
      fill();
      setStateValue("sort", sort);
    };
    head.append(th);
  }
  const table = element("table", {}, element("thead", {}, head), body);
  table.ariaLabel = data.description;
  fill();
  box.ariaLabel = data.description;
  box.replaceChildren(table);
  [box.scrollTop, box.scrollLeft] = place;
}
