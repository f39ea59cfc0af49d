// Requests to the agent, for pages and for the worker of their streams.

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

// send sends a request and returns the response, of any status. key is that of `ironvip dashboard`. It throws a Problem
// if the agent isn't reachable (code "unreachable").
export async function send(method, path, body, { signal, headers, key } = {}) {
  try {
    return await fetch(path, {
      method, signal, credentials: 'same-origin',
      headers: { ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...(key && { 'X-Ironvip-Key': key }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    const hint = method === 'GET' ? 'the page tries again by itself' : 'it is not known whether the change was made: look before you repeat it';
    throw new Problem(0, { code: 'unreachable', detail: 'the agent is not reachable', hint });
  }
}

// problemOf returns the problem that a response with an error status reports.
export async function problemOf(response) {
  const text = await response.text();
  let document = { detail: text.slice(0, 200) };
  try {
    document = JSON.parse(text);
  } catch {
    // from something between the browser and the agent
  }
  return new Problem(response.status, document, Number(response.headers.get('Retry-After')) || 0);
}
