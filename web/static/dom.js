// Elements. Everything from the API becomes a text node or an attribute, never HTML.

const svgNamespace = 'http://www.w3.org/2000/svg';

// el returns an element. An attribute that is a function is the listener of that event ("onclick"), true
// is an attribute without a value, and false, null and undefined are none. Children are elements, text,
// arrays of them, or nothing. The attribute key names an element among its siblings, see show.
export function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  if (tag === 'button') e.type = 'button'; // without it, a button submits a form
  return fill(e, attributes, children);
}

// svg returns an element of a drawing.
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(svgNamespace, tag), attributes, children);
}

function fill(e, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === 'key') e.key = value;
    else if (typeof value === 'function') listen(e, name.slice(2), value);
    else if (value === true) e.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) e.setAttribute(name, value);
  }
  e.append(...flat(children));
  return e;
}

// listen sets the one listener of an event, which show can replace.
function listen(e, type, f) {
  e.listeners ??= {};
  if (!(type in e.listeners)) e.addEventListener(type, (event) => e.listeners[type]?.call(e, event));
  e.listeners[type] = f;
}

const flat = (children) => children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);

// show gives an element these children. It changes only what differs from the present ones, so that the focus, the
// selected text and the scroll position stay. Elements with a key become elements with the same key.
export function show(e, ...children) {
  become(e, flat(children).map((c) => (c instanceof Node ? c : document.createTextNode(c))));
}

function become(e, wanted) {
  const keyed = new Map([...e.children].filter((c) => c.key !== undefined).map((c) => [c.key, c]));
  // An element that goes is removed first: an element that moves loses the focus.
  const stays = new Set(wanted.map((w) => (w.key !== undefined && keyed.get(w.key)) || w));
  for (const c of [...e.children]) if ((c.key !== undefined || c.isFixed) && !stays.has(c)) c.remove();
  let at = e.firstChild;
  for (const w of wanted) {
    const present = w.key !== undefined ? keyed.get(w.key) : at?.key === undefined ? at : null;
    if (present && present !== w && alike(present, w)) {
      if (present === at) at = at.nextSibling;
      else e.insertBefore(present, at);
      change(present, w);
    } else if (w === at) {
      at = at.nextSibling;
    } else {
      e.insertBefore(w, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && !b.isFixed && !a.isFixed;

// fixed marks an element that its owner draws: show takes it as it is.
export function fixed(e) {
  e.isFixed = true;
  return e;
}

function change(a, b) {
  if (a.nodeType === Node.TEXT_NODE) {
    if (a.data !== b.data) a.data = b.data;
    return;
  }
  for (const { name } of [...a.attributes]) if (!b.hasAttribute(name)) a.removeAttribute(name);
  for (const { name, value } of b.attributes) if (a.getAttribute(name) !== value) a.setAttribute(name, value);
  for (const type of Object.keys(a.listeners ?? {})) a.listeners[type] = b.listeners?.[type];
  for (const [type, f] of Object.entries(b.listeners ?? {})) listen(a, type, f);
  become(a, [...b.childNodes]);
}

// link returns a link to another page of the dashboard.
export function link(path, ...children) {
  return el('a', { href: '/ui' + path }, ...children);
}

// serviceLink returns a link to a service's page.
export function serviceLink(name) {
  return link(servicePath(name), name);
}

// servicePath returns the path of a service, which is named "web" or "shop/web".
export function servicePath(name) {
  const slash = name.indexOf('/');
  const [namespace, short] = slash < 0 ? ['default', name] : [name.slice(0, slash), name.slice(slash + 1)];
  return '/services/' + encodeURIComponent(namespace) + '/' + encodeURIComponent(short);
}

// section returns a part of a page with a heading.
export function section(title, ...children) {
  return el('section', {}, el('h2', {}, title), ...children);
}

// facts returns a list of names and values, without the pairs whose value is empty.
export function facts(...pairs) {
  return el('dl', { class: 'facts' }, pairs.filter(([, v]) => v !== undefined && v !== null && v !== '').map(([k, v]) => el('div', { key: k }, el('dt', {}, k), el('dd', {}, v))));
}

// table returns a short table, which isn't virtual. A row has a key and a list of cells.
export function table(caption, heads, rows, none = 'none') {
  if (!rows.length) return el('p', { class: 'quiet' }, none);
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    el('table', {},
      el('caption', { class: 'hidden' }, caption),
      el('thead', {}, el('tr', {}, heads.map((h) => el('th', { scope: 'col' }, h)))),
      el('tbody', {}, rows.map(({ key, cells }) => el('tr', { key }, cells.map((c) => el('td', {}, c)))))));
}

// once returns a function that runs f soon, in ms after its first call, and again after calls in the meantime. f runs
// once at a time.
export function once(delay, f) {
  let timer = 0;
  let running = false;
  let again = false;
  const call = () => {
    if (running) again = true;
    else timer ||= setTimeout(run, delay);
  };
  const run = async () => {
    timer = 0;
    running = true;
    again = false;
    try {
      await f();
    } catch (err) {
      console.error(err); // the next call may succeed
    }
    running = false;
    if (again) call();
  };
  return call;
}
