// Streams of the agent: lines of JSON, as long as the page is visible. The pages of a browser share
// them, see hub.js. A page that isn't visible follows nothing, and follows everything again when it comes back.

import { el, show } from './dom.js';
import { key } from './api.js';
import { clock, setClock } from './format.js';
import { Hub } from './hub.js';
import { me } from './session.js';

const hiddenTime = 1000; // a page may be hidden this long, in ms, before its streams end
const aliveTime = 5000; // between two messages to the hub, in ms
const changeTime = 1000; // between two looks for a change, in ms
const silence = 12_000; // after this long without an answer, in ms, the hub is dead

const script = '/ui/hub.js';
const trusted = globalThis.trustedTypes?.createPolicy('hub', { createScriptURL: () => script }).createScriptURL('') ?? script;

const streams = new Map(); // id → stream
let paused = document.hidden;
let hiddenTimer = 0;
let hub = null; // the connection to the hub: {name, port, asked}; asked: since when it owes an answer, 0 if it doesn't
let hasWorkers = 'SharedWorker' in globalThis;
let lastID = 0;

document.addEventListener('visibilitychange', () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => pause(true), hiddenTime);
  else pause(false);
});
// A browser keeps pages for its back button, with what they have open.
addEventListener('pagehide', () => pause(true));
addEventListener('pageshow', () => pause(document.hidden));
setInterval(() => paused || follow(), aliveTime);

function pause(now) {
  if (paused === now) return;
  paused = now;
  follow();
}

// follow sends the hub what the page follows. The hub can end at any time, and is begun again.
function follow() {
  // Pages of another user, of another release or with another key have another hub.
  const name = JSON.stringify({ key: key(), user: me.name, role: me.role, version: me.version });
  if (hub && (hub.name !== name || (hub.asked && performance.now() - hub.asked > silence))) {
    hub.port.close();
    hub = null;
  }
  if (!hub) {
    if (paused || !streams.size) return;
    hub = connect(name);
  }
  hub.asked ||= performance.now();
  hub.port.postMessage({ follow: paused ? {} : Object.fromEntries([...streams].map(([id, s]) => [id, s.what])) });
}

function connect(name) {
  const mine = { name, asked: 0 };
  if (hasWorkers) {
    const worker = new SharedWorker(trusted, { type: 'module', name });
    worker.onerror = () => { // the script isn't there, or the browser can't run it
      hasWorkers = false;
      if (hub !== mine) return;
      hub = null;
      follow();
    };
    mine.port = worker.port;
  } else {
    const channel = new MessageChannel();
    new Hub(key()).serve(channel.port2);
    mine.port = channel.port1;
  }
  mine.port.onmessage = ({ data }) => {
    if (hub !== mine) return;
    if (data.alive) hub.asked = 0;
    else streams.get(data.id)?.receive(data);
  };
  return mine;
}

// The page shows the first problem of its streams.
function report() {
  document.dispatchEvent(new CustomEvent('connection', { detail: [...streams.values()].find((s) => s.problem)?.problem ?? null }));
}

// Stream follows what it is of until close: {path}, or {service: name}. values(list) gets what arrived together.
// begin() is called when the stream begins, and again when it begins anew: then it gets all rows again. Of a stream without
// rows, it gets the last ones that another page has received, at most what.keep, and then the next ones.
export class Stream {
  constructor(what, { values, begin = () => {} }) {
    Object.assign(this, { what, values, begin, problem: null, id: String(++lastID) });
    streams.set(this.id, this);
    follow();
  }

  close() {
    streams.delete(this.id);
    follow();
    report();
  }

  receive({ begin, date, values, problem }) {
    if (problem !== undefined) this.set(problem);
    if (problem?.status === 401) document.dispatchEvent(new Event('unauthorized'));
    try {
      if (begin) {
        setClock(date);
        this.begin();
      }
      if (values) this.values(values);
    } catch (err) {
      console.error(err); // a fault of the page, not of the connection
    }
  }

  set(problem) {
    if (this.problem !== problem) {
      this.problem = problem;
      report();
    }
  }
}

// Poll calls f now and again after each pause, in ms, while the page is visible, until signal ends it. By default, the page
// shows a change after a second at most. A long answer makes the pauses longer. element shows why f has failed, and from when
// the page's last answer is.
export class Poll {
  constructor(signal, f, pause = changeTime) {
    Object.assign(this, { pause, signal, f, element: el('p', { class: 'failed', role: 'status', hidden: true }), answered: 0, wake: () => {} });
    this.run();
  }

  // now ends the pause.
  now() {
    this.wake();
  }

  async run() {
    while (!this.signal.aborted) {
      await visible();
      const begun = performance.now();
      try {
        if (!this.signal.aborted) await this.f();
        this.answered = Date.now();
        this.element.hidden = true;
      } catch (err) {
        if (err.name !== 'AbortError' || !this.signal.aborted) this.failed(err);
      }
      const pause = Math.max(this.pause, 10 * (performance.now() - begun));
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, pause);
      });
    }
  }

  failed(err) {
    const from = this.answered ? ` The page shows the state of ${clock(this.answered)}.` : '';
    show(this.element, (err.name === 'AbortError' || err.name === 'TimeoutError' ? 'the agent does not answer' : err.message) + '.' + from, err.hint ? el('span', { class: 'quiet' }, ' ' + err.hint) : null);
    this.element.hidden = false;
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true })).then(visible);
}
