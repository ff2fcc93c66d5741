#!/bin/sh
# Installs a lock into a virtual environment:  sh requirements/install.sh ENV LOCK
#
#   ENV     the environment's folder, made if it is not there
#   LOCK    cpu (this project), trl (what the benchmarks compare it with) or vllm-0.23 (what
#           `make contract-run` tests)
#   PYTHON  which interpreter to take, 3.11 or 3.12; python3 if not set
#
# torch's CPU build is in no general index. It comes from the first of these that has it:
#   local wheels      that PIP_FIND_LINKS names
#   PyTorch's index   which uv knows as the torch backend `cpu`
#   the general index whose torch is the CUDA build: its libraries come with it
# Its version is that of LOCK-torch.txt where there is one, else of torch.txt, and any build of it is
# taken. All else must have a hash of the lock.
#
# What cannot work ends with one line that names the remedy, and status 2.
set -eu
export LC_ALL=C # explain() reads messages

[ $# = 2 ] || { echo "usage: sh requirements/install.sh ENV cpu|trl|vllm-0.23" >&2; exit 2; }
env=$1 lock=$2
folder=$(dirname "$0")
pins=$folder/$lock.txt
python=${PYTHON:-python3}

stop() {
  echo "$1" >&2
  exit 2
}

# What this machine lacks, before anything is downloaded.
check_machine() {
  system=$(uname -s) machine=$(uname -m)
  [ "$system" = Linux ] || stop "This needs Linux and this is $system: run it in a Linux container or virtual machine."
  case $machine in
    x86_64 | aarch64) ;;
    *) stop "This needs x86_64 or aarch64 and this is $machine: vLLM's CPU build exists for these two." ;;
  esac

  version=$(version_of "$python") || version="not found"
  is_known "$version" || stop "Python 3.11 or 3.12 is needed and $python is $version: set PYTHON=/path/to/python3.11 or 3.12."
  "$python" -c 'import ensurepip, venv' 2>/dev/null \
    || stop "$python cannot make virtual environments: install its venv package (Debian: apt install python$version-venv)."
  has_compiler \
    || stop "There is no C compiler, and some packages are compiled: install one (Debian: apt install gcc libc6-dev)."
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$headers/Python.h" ] \
    || stop "Python's headers are not in $headers, and some packages are compiled: install them (Debian: apt install python$version-dev)."
  [ -d "$env" ] || check_disk "$gigabytes"
  check_environment
}

version_of() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

is_known() {
  [ "$1" = 3.11 ] || [ "$1" = 3.12 ]
}

has_compiler() {
  set -- ${CC:-cc} # it may have arguments
  command -v "$1" >/dev/null
}

# One that stands from before is installed into, whatever $PYTHON is.
check_environment() {
  if [ -e "$env/bin/python" ] || [ -L "$env/bin/python" ]; then
    version=$(version_of "$env/bin/python") || version="gone"
    is_known "$version" || stop "Python 3.11 or 3.12 is needed and that of $env is $version: remove $env and start again."
  fi
}

check_disk() {
  free=$(df -Pk "$(dirname "$env")" | awk 'NR == 2 { print int($4 * 1024 / 1e9) }')
  [ "$free" -ge "$1" ] || stop "$1 GB of disk are needed for $env and $free GB are free: make room, or work on another disk."
}

# Runs a command whose output counts only if it fails. No log: the disk may be full.
quietly() {
  output=$("$@" 2>&1) || explain
}

explain() {
  case $output in
    *'No space left on device'*)
      stop "The disk is full: free $gigabytes GB where $env and the caches of pip and uv lie." ;;
    *'error sending request'* | *'response body'* | *'connection broken'*)
      cause=$(printf '%s\n' "$output" | grep -E 'cause:|connection broken' | tail -n 1 | sed 's/^ *cause: //')
      stop "The Python package index cannot be reached: connect to the internet or name a mirror in PIP_INDEX_URL ($cause)." ;;
  esac
  printf '%s\n' "$output" | tail -n 20 >&2
  stop "The installation into $env failed, as the lines above say."
}

# uv does not read pip's settings.
uv_pip_install() {
  UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}} UV_FIND_LINKS=$wheels \
    "$env/bin/uv" pip install --python "$env/bin/python" "$@"
}

# Would this give us the locked torch? Bounded, for an index that never answers.
gives_torch() {
  UV_HTTP_TIMEOUT=15 UV_HTTP_RETRIES=1 uv_pip_install --dry-run --reinstall --no-deps "$@" "$torch" >/dev/null 2>&1
}

# An environment that has the locked torch keeps it, whatever its build.
has_torch() {
  "$env/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != sys.argv[1])' \
    "${torch#torch==}" 2>/dev/null
}

# Sets what tells uv where torch is: `wheels` and `backend`.
choose_torch() {
  file=$folder/$lock-torch.txt
  [ -f "$file" ] || file=$folder/torch.txt
  torch=$(grep '^torch==' "$file")
  backend="" wheels=$(echo "${PIP_FIND_LINKS:-}" | tr -s ' \n' ',')
  if has_torch; then return; fi
  if [ -n "$wheels" ] && gives_torch --no-index; then return; fi
  wheels=""
  if gives_torch --torch-backend=cpu; then
    backend=--torch-backend=cpu
    return
  fi
  echo "PyTorch's own index does not give $torch: taking the general index's CUDA build, with 3 GB of CUDA libraries." >&2
  check_disk "$cuda_gigabytes"
}

case $lock in
  cpu | vllm-0.23) gigabytes=4 cuda_gigabytes=8 ;;
  *) gigabytes=2 cuda_gigabytes=6 ;;
esac
mkdir -p "$(dirname "$env")"
check_machine
echo "Installing $pins into $env (Python $version)"
if [ ! -x "$env/bin/uv" ]; then
  quietly "$python" -m venv "$env"
  quietly "$env/bin/pip" install --timeout 30 --retries 2 uv
fi
choose_torch
export UV_HTTP_TIMEOUT=300
# Compiled once here: a start would compile 6,000 files anew where Python may not write.
quietly uv_pip_install --no-deps --require-hashes --compile-bytecode -r "$pins"
# And what this build of torch needs beside the lock: nothing for a CPU build.
quietly uv_pip_install $backend --compile-bytecode --constraint "$pins" "$torch"
