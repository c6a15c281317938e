#!/usr/bin/env bash
# Installs what the tests need beside Python, where it is missing and this user may: git; node and npm for the real
# agent CLIs (a newer node into .node/ when the machine's is too old); a browser when there are web tests.
# What can't be installed is said; the tests that need it skip themselves and say why.
set -euo pipefail

NODE_MAJOR=20

say() { printf '  %s\n' "$*" >&2; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

updated=
apt_install() {
  command -v apt-get >/dev/null 2>&1 || { say "missing, and there is no apt here: $*"; return 0; }
  if [ -z "$updated" ]; then
    as_root apt-get update -qq </dev/null >/dev/null 2>&1 || true
    updated=yes
  fi
  say "asking apt for $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null 2>&1 ||
    say "could not install it; some tests will skip. By hand:  sudo apt-get install $*"
}

has() { command -v "$1" >/dev/null 2>&1; }

node_major() { node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p'; }

has git || apt_install git
has node && has npm || apt_install nodejs npm
if has npm && [ "$(node_major)" ] && [ "$(node_major)" -lt "$NODE_MAJOR" ] && [ ! -x .node/node_modules/node/bin/node ]; then
  say "node $(node --version) is older than the agent CLIs want; fetching a newer one into .node/"
  npm install --silent --no-audit --no-fund --no-save --prefix .node node@22 </dev/null >/dev/null 2>&1 ||
    say "could not; the tests of real agent CLIs may skip"
fi
if ls tests/web/test_*.py >/dev/null 2>&1; then
  has chromium || has chromium-browser || has google-chrome || apt_install chromium
fi
