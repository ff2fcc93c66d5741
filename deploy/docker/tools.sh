#!/bin/sh
# What the builder stage of the Containerfile needs: a compiler, headers and uv. None of it is in a
# result.
set -eu
export DEBIAN_FRONTEND=noninteractive
set -- gcc g++ libc6-dev git
# An image of the vendor brings Python with its headers; a plain Debian does not.
[ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
  || set -- "$@" python3-dev
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@"
