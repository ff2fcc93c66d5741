#!/bin/sh
# Installs Trimaran for Ascend NPUs:  sh deploy/npu/install.sh ENV a2|a3
#
#   ENV    a virtual environment's folder, made if it is not there. In the vendor's container image,
#          which has these packages in its own Python, the folder over that Python's bin
#   a2|a3  for which devices vLLM-Ascend has to be compiled; the general index's wheels are for A2.
#          Its installation guide names uv-wheelnext as a further way for A3; nobody here has tried it
#
# These variables say where things are that the general package index does not have. What stands in
# ENV in the right version is kept, and its variable need not be set.
#
#   ASCEND_INDEX        triton-ascend: Ascend's package index, or a folder of wheels
#   MINDSPEED_SOURCE    MindSpeed, branch core_r0.16.0: a folder, or git+URL@BRANCH
#   VLLM_ASCEND_SOURCE  vLLM-Ascend compiled for A3: a wheel, or a source that CANN compiles here
#   VLLM_SOURCE         vLLM: a folder or git+URL@TAG, in place of the general index's source archive
#   PIP_FIND_LINKS      local wheels of torch, torchvision and torchaudio
#   PYTHON              which interpreter makes ENV, 3.11 or 3.12; python3 if not set
#   NO_DEVICE=1         go on where driver, CANN or ATB is missing: an image is built without them
#
# What cannot work ends with one line that names the remedy, and status 2. Nobody has run this
# beside an NPU: docs/ascend.md says what was run and how.
set -eu

cann=9.1.0
torch=2.10.0 torchvision=0.25.0 torchaudio=2.10.0
triton_ascend=3.2.2 vllm=0.23.0 vllm_ascend=0.23.0 mindspeed=0.16.0

case $#${2:-} in
  2a2 | 2a3) ;;
  *) echo "usage: sh deploy/npu/install.sh ENV a2|a3" >&2; exit 2 ;;
esac
env=$1 chip=$2
root=$(dirname "$0")/../..
requirements=$root/requirements
python=${PYTHON:-python3} gigabytes=8 wheels="" builds="vLLM-Ascend exists" pythons="3.11 or 3.12"
. "$requirements/shared.sh"
# Else `import torch` loads torch-npu, which fails where CANN is not set up. No step needs a device.
export TORCH_DEVICE_BACKEND_AUTOLOAD=0

# --- the host -------------------------------------------------------------------------------------

# Stops, or only says it where an image is built.
lacks() {
  [ -n "${NO_DEVICE:-}" ] || stop "$1, or set NO_DEVICE=1 to build an image without it."
  echo "Missing, and needed to run: $1."
}

check_glibc() {
  glibc=$("$python" -c 'import platform; print(platform.libc_ver()[1])')
  printf '2.34\n%s\n' "$glibc" | sort -CV \
    || stop "vLLM-Ascend's wheels need glibc 2.34 and this system has $glibc: use Ubuntu 22.04, openEuler 24.03 or newer."
}

check_driver() {
  npu-smi info >/dev/null 2>&1 \
    || lacks "npu-smi info shows no device: install the driver, and give a container its devices and driver folders"
}

check_cann() {
  if [ -z "${ASCEND_HOME_PATH:-}" ]; then
    lacks "CANN is not set up in this shell: install CANN $cann and source its set_env.sh"
    return
  fi
  found=$(find -L "$ASCEND_HOME_PATH" -maxdepth 3 -name 'ascend_*_install.info' -exec sed -n 's/^version=//p' {} + 2>/dev/null | head -n 1)
  [ "$found" = "$cann" ] \
    || lacks "CANN $cann is needed and $ASCEND_HOME_PATH has ${found:-no version that can be read}: install $cann and source its set_env.sh"
}

check_atb() {
  [ -n "${ATB_HOME_PATH:-}" ] \
    || lacks "ATB is not set up in this shell: install NNAL $cann and source its atb/set_env.sh"
}

# Both bring a module of the same name, and the one for GPUs wins or loses by chance.
check_triton() {
  [ -z "$(installed triton)" ] \
    || stop "$env has triton, which hides triton-ascend: run $env/bin/python -m pip uninstall triton triton-ascend, then start again."
}

check_sources() {
  has triton-ascend "$triton_ascend" || is_index "${ASCEND_INDEX:-}" \
    || stop "Set ASCEND_INDEX to Ascend's package index, or to a folder with the wheel of triton-ascend $triton_ascend: vLLM-Ascend's installation guide names the index behind --extra-index-url."
  has mindspeed "$mindspeed" || is_source "${MINDSPEED_SOURCE:-}" \
    || stop "Set MINDSPEED_SOURCE to the folder of MindSpeed's source, branch core_r0.16.0 (git clone --branch core_r0.16.0 https://gitcode.com/Ascend/MindSpeed), or to git+URL@core_r0.16.0."
  [ "$chip" = a2 ] || has_vllm_ascend || is_source "${VLLM_ASCEND_SOURCE:-}" \
    || stop "The general index's wheels of vLLM-Ascend are for A2: install into the Python of the vendor's image for A3, or set VLLM_ASCEND_SOURCE to a wheel or source of $vllm_ascend for A3."
  [ -z "${VLLM_SOURCE:-}" ] || is_source "$VLLM_SOURCE" \
    || stop "VLLM_SOURCE: $VLLM_SOURCE is neither a folder with setup.py nor git+URL@TAG; leave it unset to take vLLM's source archive from the package index."
}

is_index() {
  case $1 in
    *://*) ;;
    *) [ -d "$1" ] ;;
  esac
}

is_source() {
  case $1 in
    git+*) ;;
    *.whl) [ -f "$1" ] ;;
    *) [ -f "$1/setup.py" ] ;;
  esac
}

# --- versions -------------------------------------------------------------------------------------

# The version of a package in the environment; nothing if it has none.
installed() {
  "$env/bin/python" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null || :
}

# On aarch64 the general index's torch is a CPU build too, and does not say so in its version.
has() {
  found=$(installed "$1")
  [ "$found" = "$2" ] || { [ "$machine" = aarch64 ] && [ "$found+cpu" = "$2" ]; }
}

has_torch() {
  has torch "$torch+cpu" && has torchvision "$torchvision+cpu" && has torchaudio "$torchaudio+cpu"
}

# Compiled for these devices? vLLM-Ascend refuses others, but only once it runs.
has_vllm_ascend() {
  has vllm-ascend "$vllm_ascend" && [ "$(compiled_for)" = "$chip" ]
}

compiled_for() {
  "$env/bin/python" -c '
import importlib.util, pathlib, re
package = importlib.util.find_spec("vllm_ascend")
text = pathlib.Path(package.origin).with_name("_build_info.py").read_text()
print(re.search(r"__device_type__ *= *.(\w+)", text)[1].lower())' 2>/dev/null || :
}

# --- steps ----------------------------------------------------------------------------------------

# step NAME TEST...: says the step, and whether it is still to be done.
step() {
  name=$1
  shift
  if "$@"; then
    echo "$name: stands"
    return 1
  fi
  echo "$name: installing"
}

# uv finds PyTorch's index, whose builds for the CPU say so in their version. On x86_64 the general
# index has builds for CUDA, and torch-npu asks for the CPU's.
install_torch() {
  set -- "torch==$torch" "torchvision==$torchvision" "torchaudio==$torchaudio"
  wheels=$(echo "${PIP_FIND_LINKS:-}" | tr -s ' \n' ',')
  if [ -n "$wheels" ] && gives --no-index "$@"; then
    set -- --no-index "$@"
  elif wheels="" && gives --torch-backend=cpu "$@"; then
    set -- --torch-backend=cpu "$@"
  elif [ "$machine" = x86_64 ]; then
    stop "PyTorch's own index does not give $*, builds for the CPU: connect to the internet, or name a folder with their wheels in PIP_FIND_LINKS."
  fi
  quietly uv_pip_install --reinstall --no-deps --compile-bytecode "$@"
  wheels=""
}

# All that the general index has for every host: wheels, each with its hash.
install_lock() {
  quietly uv_pip_install --no-deps --require-hashes --only-binary :all: --compile-bytecode -r "$requirements/npu.txt"
}

has_lock() {
  output=$(uv_pip_install --offline --dry-run --no-deps --require-hashes --only-binary :all: -r "$requirements/npu.txt" 2>&1) || return 1
  case $output in *'Would make no changes'*) ;; *) return 1 ;; esac
}

# The one package that only Ascend's index has. It has no hash here.
install_triton_ascend() {
  index="Ascend's package index" mirror=ASCEND_INDEX
  case $ASCEND_INDEX in
    *://*) set -- --default-index "$ASCEND_INDEX" ;;
    *) set -- --no-index --find-links "$ASCEND_INDEX" ;;
  esac
  quietly uv_pip_install --no-deps "$@" "triton-ascend==$triton_ascend"
  unset index mirror
}

# vLLM has wheels for CUDA only. Built for the empty device it is Python alone, and the platform comes
# from vLLM-Ascend. Not in isolation: an isolated build would fetch another torch, for CUDA. Without
# a cache: a cached build may be for another device.
install_vllm() {
  if [ -n "${VLLM_SOURCE:-}" ]; then
    set -- "$VLLM_SOURCE"
  else
    set -- --require-hashes --no-binary vllm -r "$requirements/npu-vllm.txt"
  fi
  export VLLM_TARGET_DEVICE=empty
  quietly uv_pip_install --reinstall --no-cache --no-deps --no-build-isolation "$@"
}

install_vllm_ascend() {
  if [ "$chip" = a2 ]; then
    set -- --require-hashes --only-binary :all: -r "$requirements/npu-a2.txt"
  else
    export SOC_VERSION="${SOC_VERSION:-ascend910_9391}" # as the vendor's image for A3 sets it
    set -- --no-cache --no-build-isolation "$VLLM_ASCEND_SOURCE"
  fi
  quietly uv_pip_install --reinstall --no-deps "$@"
}

# Without what it asks for: numpy <= 1.26.0, where OpenCV, of vLLM, needs 2 or newer.
install_mindspeed() {
  quietly uv_pip_install --reinstall --no-deps --no-build-isolation "$MINDSPEED_SOURCE"
}

# Always: a checkout changes without its version.
install_trimaran() {
  quietly uv_pip_install --reinstall --no-deps --no-build-isolation "$root"
}

# --- the check ------------------------------------------------------------------------------------

check_versions() {
  check torch "$torch+cpu"
  check torchvision "$torchvision+cpu"
  check torchaudio "$torchaudio+cpu"
  check triton-ascend "$triton_ascend"
  check vllm "$vllm+empty"
  check vllm-ascend "$vllm_ascend"
  check mindspeed "$mindspeed"
  [ "$(compiled_for)" = "$chip" ] || wrong "vllm-ascend is compiled for $(compiled_for) and $chip is wanted"
  has_lock || wrong "packages differ from $requirements/npu.txt: $(printf '%s\n' "$output" | grep -E '^ [-+]' | tr -s '\n' ' ')"
  check_triton
}

check() {
  has "$1" "$2" || wrong "$1 is ${found:-missing} and $2 is wanted"
}

wrong() {
  stop "After the installation $1: start again with a new environment, or tell us (docs/ascend.md)."
}

# What packages ask for and do not get, beside what is known.
check_requirements() {
  complaints=$("$env/bin/uv" pip check --python "$env/bin/python" 2>&1 | grep '^The package' | grep -v "$known" || :)
  [ -z "$complaints" ] || { printf '%s\n' "$complaints" >&2; wrong "packages lack what they ask for, as the lines above say"; }
}

# MindSpeed: see install_mindspeed. triton: its module comes from triton-ascend. arctic-inference: a way
# of speculative decoding that we do not use. torch==2.10.0+cpu, of torch-npu: see has.
known='package `mindspeed`\|requires `triton\|requires `arctic-inference\|requires `torch==2.10.0+cpu'

mkdir -p "$(dirname "$env")"
[ ! -d "$env" ] || [ -e "$env/bin/python" ] || stop "$env is there and has no bin/python: name another folder, or link bin/python to the python3 there."
check_machine
check_glibc
check_driver
check_cann
check_atb
check_triton
check_sources
echo "Installing for $chip into $env (Python $version)"
make_environment
export UV_HTTP_TIMEOUT=300
! step "1/7 torch $torch, torchvision $torchvision, torchaudio $torchaudio for the CPU" has_torch || install_torch
! step "2/7 what the package index has, by requirements/npu.txt" has_lock || install_lock
! step "3/7 triton-ascend $triton_ascend" has triton-ascend "$triton_ascend" || install_triton_ascend
! step "4/7 vLLM $vllm, built for the empty device" has vllm "$vllm+empty" || install_vllm
! step "5/7 vLLM-Ascend $vllm_ascend for $chip" has_vllm_ascend || install_vllm_ascend
! step "6/7 MindSpeed $mindspeed" has mindspeed "$mindspeed" || install_mindspeed
! step "7/7 Trimaran" false || install_trimaran
check_versions
check_requirements
echo "All versions are as pinned. Next: $env/bin/trimaran train --help, and the first steps of docs/ascend.md."
