// Requests of a page to the agent.

import { setClock } from './format.js';
import { problemOf, send } from './http.js';

const patience = 15_000; // for a response, in ms

// A page of `ironvip dashboard` gets a key once, in its address, and sends it with each request.
export const key = () => localStorage.getItem('key');
export const hasKey = () => key() !== null;
export const forgetKey = () => localStorage.removeItem('key');
if (location.hash.startsWith('#key=')) {
  localStorage.setItem('key', location.hash.slice('#key='.length));
  history.replaceState(null, '', location.pathname);
}

// open sends a request and returns the response. It throws a Problem for an error status, and if the
// agent isn't reachable.
export async function open(method, path, body, options) {
  const response = await send(method, path, body, { ...options, key: key() });
  setClock(response.headers.get('Date'));
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new Event('unauthorized'));
  throw await problemOf(response);
}

// call sends a request and returns the JSON of the response, or throws a Problem as open does, also if there is no
// response in time, in ms.
export async function call(method, path, body, { signal, time = patience } = {}) {
  const timeout = AbortSignal.timeout(time);
  const response = await open(method, path, body, { signal: signal ? AbortSignal.any([signal, timeout]) : timeout });
  const text = await response.text();
  return text ? JSON.parse(text) : {};
}

export const get = (path, options) => call('GET', path, undefined, options);

// all returns the items of every page of a list, at most limit.
export async function all(path, limit, options) {
  const items = [];
  for (let cursor = ''; items.length < limit;) {
    const page = await get(path + (path.includes('?') ? '&' : '?') + 'limit=1000' + (cursor && '&cursor=' + encodeURIComponent(cursor)), options);
    items.push(...page.items);
    if (!page.next) return { ...page, items };
    cursor = page.next;
  }
  return { items, more: true };
}

// query returns the query string of the parameters that have a value.
export function query(parameters) {
  const pairs = Object.entries(parameters).filter(([, v]) => v !== '' && v !== undefined && v !== null);
  return pairs.length ? '?' + pairs.map(([k, v]) => k + '=' + encodeURIComponent(v)).join('&') : '';
}

// servicePathOf returns the path of a service in the API.
export const servicePathOf = (namespace, name) => `/v1/services/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
