#!/bin/sh
# Installs what one image holds, in a builder stage:  sh deploy/docker/install.sh KIND DEVICE
#
#   KIND    control, rollout or trainer: what Trimaran needs there; project: Trimaran itself, in
#           /opt/project; model: the example's model, in /models
#   DEVICE  cpu, cuda or npu
#
# Versions and hashes are those of requirements/. In /run/secrets/certificates may lie the authorities
# of a proxy, in /wheels local wheels: the Containerfile mounts both. For npu the variables count that
# deploy/npu/install.sh names, and CHIP and ENV.
set -eu
kind=$1 device=$2
cd "$(dirname "$0")/../.."

if [ -s /run/secrets/certificates ]; then
  export SSL_CERT_FILE=/run/secrets/certificates PIP_CERT=/run/secrets/certificates
fi
[ -z "$(ls /wheels)" ] || export PIP_FIND_LINKS=/wheels UV_FIND_LINKS=/wheels
export UV_HTTP_TIMEOUT=300 UV_LINK_MODE=copy
environment=/opt/trimaran uv=/opt/uv/bin/uv

# uv stands beside the environment, so that it is not in the result.
make_environment() {
  python3 -m venv /opt/uv
  /opt/uv/bin/pip install --quiet --disable-pip-version-check uv
  "$uv" venv --quiet "$environment"
  packages=$("$environment/bin/python" -c "import site; print(site.getsitepackages()[0])")
  echo /opt/project > "$packages/trimaran.pth"
}

add() {
  "$uv" pip install --quiet --python "$environment/bin/python" --compile-bytecode "$@"
}

# The CPU's build of torch is in PyTorch's own index, or among the local wheels.
add_torch() {
  if ls /wheels/torch-*.whl >/dev/null 2>&1; then
    add --no-index --no-deps "$(grep ^torch== requirements/torch.txt)"
  else
    add --torch-backend=cpu --no-deps "$(grep ^torch== requirements/torch.txt)"
  fi
}

# add_locked LOCK OPTION...: what pyproject.toml asks for, in the lock's versions.
add_locked() {
  lock=$1
  shift
  add --constraint "$lock" "$@" -r pyproject.toml
}

case $kind-$device in
  control-*)
    make_environment
    add_locked requirements/cpu.txt --extra bucket --extra mcp
    ;;
  rollout-cpu)
    make_environment
    add_torch
    add_locked requirements/cpu.txt --override requirements/cpu-overrides.txt --extra cpu
    ;;
  trainer-cpu)
    make_environment
    add_torch
    add_locked requirements/cpu.txt --override requirements/cpu-overrides.txt --extra trainer
    ;;
  rollout-cuda)
    make_environment
    add_locked requirements/cuda.txt --extra cuda
    ;;
  trainer-cuda)
    make_environment
    add_locked requirements/cuda.txt --extra trainer
    ;;
  rollout-npu | trainer-npu) # one environment for both: vLLM-Ascend's packages and MindSpeed's agree
    NO_DEVICE=1 sh deploy/npu/install.sh "$ENV" "$CHIP"
    ;;
  project-cpu)
    add --no-deps --target /opt/project .
    ;;
  model-cpu) # in the trainer's builder, so the result of that has none of it
    add gguf
    add pip
    "$environment/bin/python" examples/addition/make_model.py /models/SmolLM2-135M-Instruct
    ;;
  *)
    echo "deploy/docker/install.sh: there is no $kind for $device" >&2
    exit 2
    ;;
esac
