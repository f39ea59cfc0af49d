// Requests to the agent.

import { setClock } from './format.js';

const patience = 15_000; // for a response, in ms

// A page of `ironvip dashboard` gets a key once, in its address, and sends it with each request.
export const hasKey = () => localStorage.getItem('key') !== null;
export const forgetKey = () => localStorage.removeItem('key');
if (location.hash.startsWith('#key=')) {
  localStorage.setItem('key', location.hash.slice('#key='.length));
  history.replaceState(null, '', location.pathname);
}

// Problem is an error that the agent reports, as a problem document of RFC 9457. retryAfter is in seconds, 0 if the
// agent doesn't say.
export class Problem extends Error {
  constructor(status, document, retryAfter = 0) {
    super(document.detail ?? document.title ?? 'status ' + status);
    this.status = status;
    this.code = document.code ?? '';
    this.hint = document.hint ?? '';
    this.errors = document.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

// open sends a request and returns the response. It throws a Problem for an error status, and if the
// agent isn't reachable (code "unreachable").
export async function open(method, path, body, { signal, headers } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method, signal, credentials: 'same-origin',
      headers: { ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...(hasKey() && { 'X-Ironvip-Key': localStorage.getItem('key') }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    const hint = method === 'GET' ? 'the page tries again by itself' : 'it is not known whether the change was made: look before you repeat it';
    throw new Problem(0, { code: 'unreachable', detail: 'the agent is not reachable', hint });
  }
  setClock(response.headers.get('Date'));
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new Event('unauthorized'));
  const text = await response.text();
  let problem = { detail: text.slice(0, 200) };
  try {
    problem = JSON.parse(text);
  } catch {
    // from something between the browser and the agent
  }
  throw new Problem(response.status, problem, Number(response.headers.get('Retry-After')) || 0);
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
