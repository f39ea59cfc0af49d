// Login with a token.

import { el, show } from '../dom.js';
import { login } from '../session.js';

// loginPage asks for a token, and calls done when the agent has accepted it.
export function loginPage(main, done, why = '') {
  document.title = 'Log in - ironvip';
  const failure = el('p', { class: 'failed', role: 'alert' }, why);
  const token = el('input', { id: 'token', name: 'token', type: 'password', required: true, autocomplete: 'current-password' });
  const button = el('button', { type: 'submit', class: 'primary' }, 'Log in');
  main.replaceChildren(el('form', { class: 'login', onsubmit: submit },
    el('h1', {}, 'Log in to ironvip'),
    el('label', { for: 'token' }, 'Token'), token, button, failure,
    el('p', { class: 'quiet' }, 'An admin creates one: ', el('code', {}, 'ironvip token create NAME --role viewer'), '. On the host itself, ', el('code', {}, 'ironvip dashboard'), ' needs none.')));
  token.focus();

  async function submit(e) {
    e.preventDefault();
    button.disabled = true;
    try {
      await login(token.value.trim());
      done();
    } catch (err) {
      show(failure, err.message, err.hint ? ': ' + err.hint : '');
    }
    token.value = '';
    button.disabled = false;
  }
}
