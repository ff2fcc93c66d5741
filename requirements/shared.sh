# What requirements/install.sh and deploy/npu/install.sh share. Before they call it they set
#
#   env        the environment's folder
#   python     the interpreter that makes it
#   pythons    the versions that the locks are for
#   builds     what exists for x86_64 and aarch64 only
#   gigabytes  of disk
#   wheels     folders of local wheels, with commas; or nothing

export LC_ALL=C # explain() reads messages

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
    *) stop "This needs x86_64 or aarch64 and this is $machine: $builds for these two." ;;
  esac

  version=$(version_of "$python") || version="not found"
  is_known "$version" || stop "Python $pythons is needed and $python is $version: set PYTHON=/path/to/python3.12."
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
  case $pythons in *"$1"*) ;; *) return 1 ;; esac
}

has_compiler() {
  set -- ${CC:-cc} # it may have arguments
  command -v "$1" >/dev/null
}

# One that stands from before is installed into, whatever $PYTHON is.
check_environment() {
  if [ -e "$env/bin/python" ] || [ -L "$env/bin/python" ]; then
    version=$(version_of "$env/bin/python") || version="gone"
    is_known "$version" || stop "Python $pythons is needed and that of $env is $version: remove $env and start again."
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
      stop "${index:-The Python package index} cannot be reached: connect to the internet or name a mirror in ${mirror:-PIP_INDEX_URL} ($cause)." ;;
  esac
  printf '%s\n' "$output" | tail -n 20 >&2
  stop "The installation into $env failed, as the lines above say."
}

# With uv in it. A Python that is no virtual environment stays what it is.
make_environment() {
  [ ! -x "$env/bin/uv" ] || return 0
  { [ -x "$env/bin/python" ] && [ ! -e "$env/pyvenv.cfg" ]; } || quietly "$python" -m venv "$env"
  quietly "$env/bin/pip" install --timeout 30 --retries 2 uv
}

# uv does not read pip's settings.
uv_pip_install() {
  UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}} UV_FIND_LINKS=$wheels \
    "$env/bin/uv" pip install --python "$env/bin/python" "$@"
}

# Would uv find this? Bounded, for an index that never answers.
gives() {
  UV_HTTP_TIMEOUT=15 UV_HTTP_RETRIES=1 uv_pip_install --dry-run --reinstall --no-deps "$@" >/dev/null 2>&1
}
