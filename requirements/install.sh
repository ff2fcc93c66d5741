#!/bin/sh
# Installs a lock into a virtual environment:  sh requirements/install.sh ENV LOCK
#
#   ENV     the environment's folder, made if it is not there
#   LOCK    cpu (this project), trl (what the benchmarks compare it with), vllm-0.23 (what
#           `make contract-run` tests) or sinks (what `make test-sinks` runs in; no torch)
#   PYTHON  which interpreter to take, 3.11 to 3.13, or to 3.12 for vllm-0.23; python3 if not set
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
[ $# = 2 ] || { echo "usage: sh requirements/install.sh ENV cpu|trl|vllm-0.23|sinks" >&2; exit 2; }
env=$1 lock=$2
folder=$(dirname "$0")
pins=$folder/$lock.txt
python=${PYTHON:-python3} builds="vLLM's CPU build exists" pythons="3.11, 3.12 or 3.13"
[ "$lock" != vllm-0.23 ] || pythons="3.11 or 3.12"
. "$folder/shared.sh"

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
  if [ -n "$wheels" ] && gives --no-index "$torch"; then return; fi
  wheels=""
  if gives --torch-backend=cpu "$torch"; then
    backend=--torch-backend=cpu
    return
  fi
  echo "PyTorch's own index does not give $torch: taking the general index's CUDA build, with 3 GB of CUDA libraries." >&2
  check_disk "$cuda_gigabytes"
}

case $lock in
  cpu | vllm-0.23) gigabytes=4 cuda_gigabytes=8 ;;
  sinks) gigabytes=2 ;;
  *) gigabytes=2 cuda_gigabytes=6 ;;
esac
mkdir -p "$(dirname "$env")"
check_machine
echo "Installing $pins into $env (Python $version)"
make_environment
wheels="" torch=""
[ "$lock" = sinks ] || choose_torch
export UV_HTTP_TIMEOUT=300
# Compiled once here: a start would compile 6,000 files anew where Python may not write.
quietly uv_pip_install --no-deps --require-hashes --compile-bytecode -r "$pins"
# And what this build of torch needs beside the lock: nothing for a CPU build.
[ -z "$torch" ] || quietly uv_pip_install $backend --compile-bytecode --constraint "$pins" "$torch"
