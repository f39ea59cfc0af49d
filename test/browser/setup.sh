#!/usr/bin/env bash
# Installs what the tests of the dashboard need beside Chromium: axe-core and html-validate.
set -euo pipefail
cd "$(dirname "$0")/../.."
say() { printf '%s\n' "$*"; }
die() { printf 'test/browser/setup.sh: %s\n' "$*" >&2; exit 1; }
. test/fetch.sh
want="axe-core@4.14.1 html-validate@9.7.1"
dir=.cache/browser
[ "$(cat "$dir/installed" 2>/dev/null)" = "$want" ] && exit 0
command -v npm >/dev/null || packages npm
mkdir -p "$dir"
again npm install --prefix "$dir" --no-save --no-audit --no-fund --ignore-scripts $want
echo "$want" >"$dir/installed"
