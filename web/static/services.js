// The services of this host: one row for each, kept up to date while the page is open.

import { once } from './dom.js';
import { Stream } from './stream.js';

const pause = 100; // between two calls of the listeners, in ms

const listeners = new Set();

export const services = new Map(); // name → summary, with the fields text and order for filters and orders
export const loading = { done: false };

// The states of a service, worst first.
export const states = ['down', 'refused', 'degraded', 'pending', 'unchecked', 'elsewhere', 'healthy'];
export const wrongStates = states.slice(0, 4);

// tally has the number of services in each state, and sources of each source.
export const tally = Object.fromEntries(states.map((s) => [s, 0]));
export const sources = new Map();

let stale = new Set(); // names from before the stream began anew

// The stream of services is open on every page: the header shows their states, too.
export function followServices() {
  return new Stream({ path: '/v1/services:watch?view=summary' }, {
    begin() {
      stale = new Set(services.keys());
    },
    values(changes) {
      for (const c of changes) {
        if (c.summary) {
          put(c.summary);
          stale.delete(c.summary.name);
        } else if (c.deleted) {
          remove(c.deleted);
        } else if (c.synced) {
          stale.forEach(remove);
          stale.clear();
          loading.done = true;
        }
      }
      changed();
    },
  });
}

// forgetServices empties the list, when the user has lost the role to see it.
export function forgetServices() {
  [...services.keys()].forEach(remove);
  loading.done = false;
}

function put(s) {
  remove(s.name);
  s.text = [s.name, s.name.includes('/') ? '' : 'default/' + s.name, ...s.vips, s.ports, ...Object.entries(s.labels ?? {}).map(([k, v]) => `${k}=${v}`)].join(' ').toLowerCase();
  s.order = ordered(s.name);
  services.set(s.name, s);
  tally[s.state]++;
  sources.set(s.source, (sources.get(s.source) ?? 0) + 1);
}

function remove(name) {
  const s = services.get(name);
  if (!s) return;
  services.delete(name);
  tally[s.state]--;
  sources.set(s.source, sources.get(s.source) - 1);
  if (!sources.get(s.source)) sources.delete(s.source);
}

// ordered returns a text whose order is that of the numbers in it: "web9" comes before "web10".
export const ordered = (text) => text.replace(/\d+/g, (n) => n.padStart(10, '0'));

const changed = once(pause, () => listeners.forEach((f) => f()));

// onServices calls f now and after changes, until signal ends it.
export function onServices(signal, f) {
  if (signal.aborted) return;
  listeners.add(f);
  signal.addEventListener('abort', () => listeners.delete(f));
  f();
}
