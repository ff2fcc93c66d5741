#!/bin/sh
# Runs a command with CANN and ATB set up, as Ascend's images do it for a shell.
set -e
driver=/usr/local/Ascend/driver/lib64
export LD_LIBRARY_PATH="$driver:$driver/common:$driver/driver:${LD_LIBRARY_PATH:-}"
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
  # shellcheck disable=SC1090
  . "$file"
done
exec "$@"
