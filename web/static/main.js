// The frame of every page: the header, the search, and which page is shown.

import { el, link, show } from './dom.js';
import { badge } from './badge.js';
import { failed, report } from './dialog.js';
import { count } from './format.js';
import { followServices, forgetServices, onServices, tally, wrongStates } from './services.js';
import { hasSession, identify, logout, me } from './session.js';
import { searchBox } from './search.js';
import { loginPage } from './pages/login.js';
import { overviewPage } from './pages/overview.js';
import { servicesPage } from './pages/services.js';
import { servicePage } from './pages/service.js';
import { addressesPage } from './pages/addresses.js';
import { fleetPage } from './pages/fleet.js';
import { dataplanePage } from './pages/dataplane.js';
import { eventsPage } from './pages/events.js';
import { planPage } from './pages/plan.js';

// A page is called with its element, the parts of its path and a signal that aborts when another page
// is shown.
const pages = [
  { path: '/', title: 'Overview', show: overviewPage },
  { path: '/services', title: 'Services', show: servicesPage, below: servicePage },
  { path: '/addresses', title: 'Addresses', show: addressesPage },
  { path: '/fleet', title: 'Fleet', show: fleetPage },
  { path: '/dataplane', title: 'Dataplane', show: dataplanePage },
  { path: '/events', title: 'Events', show: eventsPage },
  { path: '/plan', title: 'Plan', show: planPage },
];

const main = document.getElementById('main');
const header = document.getElementById('header');
let page = new AbortController(); // of the page that is shown
let user = null; // of the user who is logged in; null: nobody is
let shown = ''; // the address of the page that is shown

function route() {
  if (!user) return;
  page.abort();
  page = new AbortController();
  shown = location.pathname + location.search;
  const path = location.pathname.replace(/^\/ui/, '').replace(/\/$/, '') || '/';
  const parts = path.split('/').slice(1).map(decode);
  const found = pages.find((p) => p.path === path) ?? pages.find((p) => p.below && parts.length === 3 && p.path === '/' + parts[0]);
  const inside = el('div', { class: 'page' });
  main.replaceChildren(inside);
  for (const a of header.querySelectorAll('nav a')) {
    const current = a.getAttribute('href') === '/ui' + found?.path;
    if (current) {
      a.setAttribute('aria-current', 'page');
      a.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    } else a.removeAttribute('aria-current');
  }
  if (!found) {
    document.title = 'Not found - ironvip';
    show(inside, el('h1', {}, 'Not found'), el('p', {}, 'The dashboard has no page here. ', link('/', 'Overview')));
    return;
  }
  document.title = (found.path === path ? found.title : parts.slice(1).join('/')) + ' - ironvip';
  (found.path === path ? found.show : found.below)(inside, page.signal, parts.slice(1));
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// go shows another page.
function go(path) {
  history.pushState(null, '', '/ui' + path);
  route();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

document.addEventListener('click', (e) => {
  const a = e.target.closest('a');
  if (!a || e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
  const url = new URL(a.href, location.href);
  if (url.origin !== location.origin || !url.pathname.startsWith('/ui') || url.hash) return;
  e.preventDefault();
  go(url.pathname.slice(3) + url.search);
});
addEventListener('popstate', () => {
  if (location.pathname + location.search !== shown) route(); // else only the fragment has changed
});

function drawHeader(signal) {
  const wrong = el('span', { class: 'tally', 'aria-live': 'polite' });
  const lost = el('p', { class: 'lost', role: 'alert', hidden: true });
  document.addEventListener('connection', ({ detail: problem }) => {
    lost.hidden = !problem;
    if (problem) show(lost, problem.message, problem.hint ? ': ' + problem.hint : '');
  }, { signal });
  header.replaceChildren(
    el('div', { class: 'bar' },
      el('a', { href: '/ui/', class: 'brand' }, 'ironvip', el('span', { class: 'node' }, me.node)),
      searchBox(go, signal), wrong,
      el('span', { class: 'who', title: me.name }, me.role),
      el('button', { onclick: toggleTheme, 'aria-label': 'Light or dark', class: 'theme' }, '◐'),
      hasSession() ? el('button', { onclick: leave, class: 'leave' }, 'Log out') : ''),
    el('nav', { 'aria-label': 'Pages' }, pages.map((p) => link(p.path, p.title))), lost);
  onServices(signal, () => show(wrong, wrongStates.filter((s) => tally[s]).map((s) => link('/services?state=' + s, badge(s, `${count(tally[s])} ${s}`)))));
}

async function leave() {
  try {
    await logout();
    location.assign('/ui/');
  } catch (err) {
    report('Log out', err);
  }
}

function toggleTheme() {
  const { theme } = document.documentElement.dataset;
  const dark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  setTheme(dark ? 'light' : 'dark');
}

function setTheme(theme) {
  if (!theme) return;
  document.documentElement.dataset.theme = theme;
  localStorage.setItem('theme', theme);
}

async function start() {
  try {
    await identify();
  } catch (err) {
    if (err.status === 401) return ask();
    failed(main, err);
    setTimeout(start, 1000);
    return;
  }
  user = new AbortController();
  drawHeader(user.signal);
  const stream = followServices();
  user.signal.addEventListener('abort', () => stream.close());
  route();
}

// ask shows the login form. why says what has ended the session before.
function ask(why) {
  header.replaceChildren();
  loginPage(main, start, why);
}

// A session can end while a page is open: the token was revoked, or has expired.
document.addEventListener('unauthorized', () => {
  if (!user) return;
  page.abort();
  user.abort();
  user = null;
  forgetServices();
  ask('The agent no longer accepts this session.');
});

setTheme(localStorage.getItem('theme'));
start();
