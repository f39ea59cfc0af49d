// A table of any length, of which only the visible rows are in the document.

import { el, fixed, once, show } from './dom.js';

const rowHeight = 36; // px, as in style.css
const spare = 12; // rows above and below
const scrollPause = 200; // before the position is kept for the browser's back button, in ms

// List shows rows, which are objects that don't change. columns: {name, title, cell(row), sort(row), wide, number, width, narrow};
// cell returns text or an element, and sort a number or a text. A wide column is hidden on narrow screens, where narrow is the
// width of another one. label names the table for screen readers; key(row) is unique. Rows that are equal in the chosen order
// are in that of key. changed is called when the user has changed the order.
export class List {
  constructor(label, columns, { key, sort, descending = false, empty = 'none', height, changed = () => {} }) {
    Object.assign(this, { columns, key, descending, empty, changed, rows: null, drawn: new Map() });
    this.by = columns.find((c) => c.name === sort && c.sort) ?? columns.find((c) => c.sort);
    this.head = el('div', { role: 'row', class: 'row head', 'aria-rowindex': '1' });
    this.body = el('div', { class: 'rows', role: 'rowgroup' });
    const keep = once(scrollPause, () => history.replaceState({ ...history.state, top: this.element.scrollTop }, ''));
    this.element = fixed(el('div', { role: 'table', 'aria-label': label, class: 'list' + (height ? ' ' + height : ''), tabindex: '0', onscroll: () => {
      this.draw();
      keep();
    } }, el('div', { role: 'rowgroup', class: 'top' }, this.head), this.body));
    this.element.style.setProperty('--columns', widths(columns));
    this.element.style.setProperty('--narrow', widths(columns.filter((c) => !c.wide).map((c) => ({ width: c.narrow ?? c.width }))));
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.drawHead();
    this.draw();
  }

  // set shows other rows, in the chosen order.
  set(rows) {
    const first = this.rows === null;
    this.rows = [...rows];
    this.order();
    if (first && history.state?.top) this.element.scrollTop = history.state.top;
  }

  order() {
    const { by, key } = this;
    const of = new Map(this.rows.map((r) => [r, by.sort(r)]));
    const sign = this.descending ? -1 : 1;
    this.rows.sort((a, b) => sign * (compare(of.get(a), of.get(b)) || compare(key(a), key(b))));
    this.draw();
  }

  drawHead() {
    show(this.head, this.columns.map((c) => {
      const sorted = c === this.by;
      const title = !c.sort ? c.title : el('button', { class: 'sort', onclick: () => this.sort(c) }, c.title, el('span', { 'aria-hidden': 'true', class: 'arrow' }, sorted ? (this.descending ? '▼' : '▲') : ''));
      return el('div', { role: 'columnheader', class: cellClass(c), 'aria-sort': sorted ? (this.descending ? 'descending' : 'ascending') : c.sort ? 'none' : null }, title);
    }));
  }

  sort(column) {
    this.descending = column === this.by && !this.descending;
    this.by = column;
    this.drawHead();
    if (this.rows) this.order();
    this.changed();
  }

  draw() {
    const { element, rows } = this;
    element.setAttribute('aria-rowcount', (rows?.length ?? 0) + 1);
    this.body.style.height = Math.max(1, rows?.length ?? 0) * rowHeight + 'px';
    if (!rows?.length) {
      this.drawn.clear();
      show(this.body, el('div', { role: 'row', class: 'row' }, el('div', { role: 'cell', class: 'quiet' }, rows ? this.empty : 'loading')));
      return;
    }
    const from = Math.max(0, Math.floor(element.scrollTop / rowHeight) - spare);
    const to = Math.min(rows.length, Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + spare);
    const drawn = new Map();
    for (let i = from; i < to; i++) {
      const row = rows[i];
      const key = this.key(row);
      let d = this.drawn.get(key);
      if (d?.row !== row) d = { row, element: this.rowElement(row, d?.element) };
      d.element.style.transform = `translateY(${i * rowHeight}px)`;
      d.element.setAttribute('aria-rowindex', i + 2);
      drawn.set(key, d);
    }
    this.drawn = drawn;
    show(this.body, [...drawn.values()].map((d) => d.element));
  }

  // rowElement returns the element of a row, and changes the former one if there is one.
  rowElement(row, former) {
    const cells = this.columns.map((c) => el('div', { role: 'cell', class: cellClass(c) }, c.cell(row)));
    if (!former) return fixed(el('div', { role: 'row', class: 'row' }, cells));
    show(former, cells);
    return former;
  }
}

const widths = (columns) => columns.map((c) => c.width ?? 'minmax(0, 1fr)').join(' ');

const cellClass = (c) => [c.wide && 'wide', c.number && 'number'].filter(Boolean).join(' ') || null;

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
