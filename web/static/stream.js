// Streams of the agent: server-sent events, or lines of JSON, as long as the page is visible.
//
// A browser opens few connections to one server, so a page that isn't visible gives its own back. A page
// that comes back opens its streams again. They are read with fetch: EventSource doesn't show the
// keep-alives of the agent, without which a broken connection looks like one without news.

import { el, show } from './dom.js';
import { clock } from './format.js';
import { open } from './api.js';

const hiddenTime = 1000; // a page may be hidden this long, in ms, before its streams end
const retryTime = 1000; // between attempts to open a stream, in ms
const refusedTime = 15_000; // the same after a refusal that will stay, such as a missing role
const silence = 40_000; // after this long without a byte, in ms, a stream is dead: a keep-alive comes every 15 s

const streams = new Set();
let hiddenTimer = 0;

document.addEventListener('visibilitychange', () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => streams.forEach((s) => s.stop()), hiddenTime);
  else streams.forEach((s) => s.start());
});
// A browser keeps pages for its back button, with what they have open.
addEventListener('pagehide', () => streams.forEach((s) => s.stop()));
addEventListener('pageshow', () => streams.forEach((s) => s.start()));

// The page shows the first problem of its streams.
function report() {
  document.dispatchEvent(new CustomEvent('connection', { detail: [...streams].find((s) => s.problem)?.problem ?? null }));
}

// Stream follows a path until close. values(list) gets what arrived together. begin() is called when the
// stream begins, and again when it begins anew: the agent then sends what changed after the last event
// that had an id, and everything in a stream without ids.
export class Stream {
  constructor(path, { values, begin = () => {}, accept = 'text/event-stream' }) {
    Object.assign(this, { path, values, begin, accept, problem: null, turn: null, id: '' });
    streams.add(this);
    if (!document.hidden) this.start();
  }

  close() {
    streams.delete(this);
    this.stop();
    report();
  }

  stop() {
    this.turn?.abort();
    this.turn = null;
  }

  start() {
    if (!this.turn) this.run(this.turn = new AbortController());
  }

  async run(turn) {
    while (!turn.signal.aborted) {
      let problem = { message: 'the agent is not reachable', hint: 'the page shows its last state, and tries again every second' };
      try {
        await this.read(turn);
      } catch (err) {
        if (err.status) problem = err;
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
      const response = await open('GET', this.path, undefined, { signal: request.signal, headers: { Accept: this.accept, ...(this.id && { 'Last-Event-ID': this.id }) } });
      this.set(null);
      this.begin();
      const end = this.accept === 'text/event-stream' ? '\n\n' : '\n';
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = '';;) {
        const { value, done } = await reader.read();
        clearTimeout(timer);
        if (done || turn.signal.aborted) return;
        timer = setTimeout(stop, silence);
        const blocks = (rest + value).split(end);
        rest = blocks.pop();
        this.deliver(blocks);
      }
    } finally {
      clearTimeout(timer);
      turn.signal.removeEventListener('abort', stop);
      request.abort();
    }
  }

  deliver(blocks) {
    const values = [];
    for (const line of blocks.join('\n').split('\n')) {
      if (line.startsWith('data: ')) values.push(JSON.parse(line.slice(6)));
      else if (line.startsWith('id: ')) this.id = line.slice(4);
      else if (line.startsWith('{')) values.push(JSON.parse(line)); // of a stream of lines
    }
    if (!values.length) return;
    try {
      this.values(values);
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

// Poll calls f now and again after each pause, in ms, while the page is visible, until signal ends it. A long
// answer makes the pauses longer. element shows why f has failed, and from when the page's last answer is.
export class Poll {
  constructor(pause, signal, f) {
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
    const from = this.answered ? ` What follows is from ${clock(this.answered)}.` : '';
    show(this.element, (err.name === 'AbortError' || err.name === 'TimeoutError' ? 'the agent does not answer' : err.message) + '.' + from, err.hint ? el('span', { class: 'quiet' }, ' ' + err.hint) : null);
    this.element.hidden = false;
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true })).then(visible);
}
