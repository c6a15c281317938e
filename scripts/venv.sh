#!/usr/bin/env bash
# Makes the virtual environment and installs LoopX into it: `scripts/venv.sh FOLDER EXTRAS`.
# Changes nothing outside FOLDER, except that it asks apt for Python's own venv module where the distribution split it
# off and this user may install packages; otherwise it says what to install.
set -euo pipefail

folder=$1
extras=$2

say() { printf '  %s\n' "$*" >&2; }

new_enough() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  say "LoopX needs Python 3.11 or newer; found: $(python3 --version 2>/dev/null || echo none)"
  say "install one, or name it: make $(basename "${MAKE_GOAL:-demo}") PYTHON=/path/to/python3.12"
  exit 2
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

install_venv_module() {
  local version package
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  package="python$version-venv"
  if command -v apt-get >/dev/null 2>&1; then
    say "Python's venv module is not installed; asking apt for $package"
    if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" </dev/null >/dev/null 2>&1; then
      return
    fi
    if as_root apt-get update -qq </dev/null >/dev/null 2>&1 &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" </dev/null >/dev/null; then
      return
    fi
    say "install it, then run this again:  sudo apt-get install $package"
  else
    say "Python's venv module is not installed: install the package of your distribution that has venv and ensurepip"
  fi
  exit 2
}

python=$(find_python)
if [ ! -x "$folder/bin/python" ] || ! new_enough "$folder/bin/python"; then
  "$python" -c 'import venv, ensurepip' 2>/dev/null || install_venv_module "$python"
  "$python" -m venv --clear "$folder"
fi
say "installing LoopX and its libraries into $folder (once)"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
  --constraint requirements.lock --editable ".[$extras]"
