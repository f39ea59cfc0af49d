// The streams of the agent, shared by the pages of a browser: a browser has six connections to one server over
// HTTP/1.1, for all of its pages. A SharedWorker runs this file, and a page does in a browser without these workers.
//
// A page sends what it follows, all of it each time: {follow: {id: what}}. The answer is {alive: true}. The
// followed values arrive as {id, begin, date}, {id, values} and {id, problem}.

import { problemOf, send } from './http.js';

const retryTime = 1000; // between attempts to open a stream, in ms
const refusedTime = 15_000; // the same after a refusal that will stay, such as a missing role
const silence = 40_000; // after this long without a byte, in ms, a stream is dead: a keep-alive comes every 15 s
const absence = 30_000; // after this long without a message, in ms, a page is gone: it sends one every few seconds

// Hub has the streams of some pages. key is that of `ironvip dashboard`.
export class Hub {
  constructor(key) {
    Object.assign(this, { key, pages: new Set(), sources: new Map() });
    setInterval(() => this.check(), absence / 3);
  }

  // serve begins to serve the page at the other end of a port.
  serve(port) {
    const page = { port, follows: new Map(), heard: 0 };
    port.onmessage = ({ data }) => {
      page.heard = Date.now();
      this.pages.add(page);
      this.set(page, data.follow);
      port.postMessage({ alive: true });
    };
  }

  check() {
    for (const page of this.pages) {
      if (Date.now() - page.heard < absence) continue;
      this.set(page, {});
      this.pages.delete(page); // until its next message
    }
  }

  // set makes a page follow exactly this.
  set(page, follow) {
    for (const [id, f] of page.follows) {
      if (id in follow) continue;
      page.follows.delete(id);
      f.source.leave(f);
    }
    for (const [id, what] of Object.entries(follow)) {
      if (page.follows.has(id)) continue;
      const f = { source: this.source(what), service: what.service, post: (message) => page.port.postMessage({ id, ...message }) };
      page.follows.set(id, f);
      f.source.join(f);
    }
  }

  // source returns the stream of what a page follows: {path, keep}, or {service}. Single services share a
  // stream, except for a name that the agent refuses.
  source(what) {
    const name = !what.service ? what.path : isName.test(what.service) ? 'services' : 'service ' + what.service;
    if (!this.sources.has(name)) this.sources.set(name, new Source(this, what, () => this.sources.delete(name)));
    return this.sources.get(name);
  }
}

const isName = /^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\/)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

// Source is a stream that is open while somebody follows it. It keeps what a later follower needs: the newest row of
// each service, or the last values.
class Source {
  constructor(hub, { path, service, keep }, ended) {
    Object.assign(this, { hub, path, ended, followers: new Set(), names: service ? new Set() : null, kept: keep ? new Last(keep) : new Rows(), open: false, problem: null, turn: null, event: 0 });
  }

  join(f) {
    this.followers.add(f);
    if (this.names && !this.names.has(f.service)) {
      this.names = new Set([...this.followers].map((o) => o.service));
      this.turn?.abort();
      this.turn = null;
    }
    if (!this.turn) return this.run(this.turn = new AbortController());
    if (this.open) {
      f.post({ begin: true });
      this.post(f, this.kept.values());
    }
    if (this.problem) f.post({ problem: this.problem });
  }

  leave(f) {
    this.followers.delete(f);
    if (this.followers.size) return;
    this.turn.abort();
    this.ended();
  }

  post(f, values) {
    const wanted = f.service ? values.filter((v) => v.synced || nameOf(v) === f.service) : values;
    if (wanted.length) f.post({ values: wanted });
  }

  async run(turn) {
    while (!turn.signal.aborted) {
      let problem = { message: 'the agent is not reachable', hint: 'the page shows its last state, and tries again every second' };
      try {
        await this.read(turn);
      } catch (err) {
        if (err.status) problem = { message: err.message, hint: err.hint, status: err.status, retryAfter: err.retryAfter };
      }
      if (turn.signal.aborted) return;
      this.set(problem);
      const pause = problem.retryAfter * 1000 || (problem.status >= 400 && problem.status < 500 ? refusedTime : retryTime);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  async read(turn) {
    // The connection ends with request, and the turn outlasts it.
    const request = new AbortController();
    const stop = () => request.abort();
    turn.signal.addEventListener('abort', stop);
    let timer = setTimeout(stop, silence);
    try {
      const path = this.names ? '/v1/services:watch?' + [...this.names].map((n) => 'service=' + encodeURIComponent(n)).join('&') : this.path + (this.event ? '?since=' + this.event : '');
      const response = await send('GET', path, undefined, { key: this.hub.key, signal: request.signal, headers: { Accept: 'application/x-ndjson' } });
      if (!response.ok) throw await problemOf(response);
      if (turn.signal.aborted) return;
      this.open = true;
      this.set(null);
      this.kept.begin();
      this.followers.forEach((f) => f.post({ begin: true, date: response.headers.get('Date') }));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = '';;) {
        const { value, done } = await reader.read();
        clearTimeout(timer);
        if (done || turn.signal.aborted) return;
        timer = setTimeout(stop, silence);
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        this.deliver(lines);
      }
    } finally {
      clearTimeout(timer);
      turn.signal.removeEventListener('abort', stop);
      request.abort();
    }
  }

  deliver(lines) {
    const values = lines.filter((line) => line).map((line) => JSON.parse(line)); // an empty one keeps the connection open
    this.event = values.at(-1)?.id ?? this.event; // of a stream of events
    this.kept.add(values);
    for (const f of this.followers) this.post(f, values);
  }

  set(problem) {
    if (this.problem === problem) return;
    this.problem = problem;
    for (const f of this.followers) f.post({ problem });
  }
}

// Rows keeps the newest row of each service. The agent sends all of them when a stream begins.
class Rows {
  begin() {
    this.rows = new Map();
    this.synced = [];
  }

  add(values) {
    for (const v of values) {
      if (v.synced) this.synced = [v];
      else if (v.deleted) this.rows.delete(v.deleted);
      else this.rows.set(nameOf(v), v);
    }
  }

  values() {
    return [...this.rows.values(), ...this.synced];
  }
}

// Last keeps the last values, also when the stream begins anew.
class Last {
  constructor(most) {
    Object.assign(this, { most, last: [] });
  }

  begin() {}

  add(values) {
    this.last = this.last.concat(values).slice(-this.most);
  }

  values() {
    return this.last;
  }
}

// nameOf returns the name of the service that a change is about.
function nameOf({ summary, deleted, service }) {
  if (!service) return summary?.name ?? deleted;
  const { namespace = 'default', name } = service.spec;
  return namespace === 'default' ? name : namespace + '/' + name;
}

if (globalThis.SharedWorkerGlobalScope) {
  const hub = new Hub(JSON.parse(globalThis.name).key); // pages name the worker
  globalThis.onconnect = ({ ports: [port] }) => hub.serve(port);
}
